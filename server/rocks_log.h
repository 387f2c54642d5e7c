// What RocksDB has to say goes to our log. Its own is a file beside the data, and a process that
// writes to it again after the disk was full is aborted.
#pragma once

#include <rocksdb/env.h>

#include <cstdarg>
#include <cstdio>

#include "base/limits.h"
#include "base/log.h"

namespace isthmus {

class RocksLog final : public rocksdb::Logger {
 public:
  RocksLog() : Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level < GetInfoLogLevel()) return;
    char text[kLogFieldBytesMax];
    std::vsnprintf(text, sizeof(text), format, arguments);
    const bool is_error =
        level == rocksdb::InfoLogLevel::ERROR_LEVEL || level == rocksdb::InfoLogLevel::FATAL_LEVEL;
    (is_error ? LogWarning : LogDebug)("the store's database says", {{"text", text}});
  }
  // Versions and settings, for people who debug it.
  void LogHeader(const char*, va_list) override {}
  void Logv(const char* format, va_list arguments) override {
    Logv(rocksdb::InfoLogLevel::WARN_LEVEL, format, arguments);
  }
};

}  // namespace isthmus
