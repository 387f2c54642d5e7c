// SHA-256 (FIPS 180-4, by OpenSSL) of byte spans. Thread-compatible.
//
//   Sha256 hash;
//   hash.Update("abc");
//   std::string digest = hash.Finish();   // 32 bytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace isthmus {

inline constexpr size_t kSha256Bytes = 32;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(absl::string_view bytes);
  void Update(const void* data, size_t size);
  // Appends `value` as 8 bytes, little endian.
  void UpdateU64(uint64_t value);
  // Appends length (8 bytes, little endian) and bytes, so that neighbours cannot run together.
  void UpdateSized(absl::string_view bytes);
  // Returns 32 bytes. The object must not be used afterwards.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 32 bytes.
std::string Sha256Of(absl::string_view bytes);

// The first `chars` hexadecimal digits, for people; all 64 with chars = 64.
std::string HexPrefix(absl::string_view bytes, size_t chars = 12);

// `size` bytes from the system's generator.
std::string RandomBytes(size_t size);

}  // namespace isthmus
