// Files of tensors in the safetensors format (github.com/huggingface/safetensors): 8 bytes little
// endian length of a JSON header, the header, the values row-major and little endian. Written are
// float32 and bytes; read are float32, float16 and bfloat16.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/whole_file.h"

namespace isthmus {

struct SafetensorsEntry {
  std::string dtype;  // "F32", "BF16", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the end of the header
  uint64_t end = 0;
};

// An open file, mapped into memory. Thread-compatible.
class SafetensorsFile {
 public:
  // NOT_FOUND: no such file. INVALID_ARGUMENT, naming file, tensor and value: not this format, or a
  // tensor whose bytes do not match its shape or lie outside of the file.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  // The texts that its writer added.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  // Elements [first_element, first_element + values.size()) of a tensor of dtype F32, F16 or BF16;
  // every value of the short ones is one of float32. INVALID_ARGUMENT: another dtype, or elements
  // that it does not have. NOT_FOUND: no such tensor.
  absl::Status Read(const std::string& name, uint64_t first_element,
                    absl::Span<float> values) const;
  // All bytes of a tensor as they lie in the file; for as long as this object lives. NOT_FOUND.
  absl::StatusOr<absl::string_view> Bytes(const std::string& name) const;

 private:
  SafetensorsFile() = default;
  absl::Status ParseHeader(const std::string& header);

  std::string path_;
  const char* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  size_t data_offset_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
  bool is_bytes = false;  // dtype U8 instead of F32
};

// Writes a file, tensor after tensor; it appears under its name when Finish returns OK, whole.
class SafetensorsWriter {
 public:
  // `metadata`: texts for readers, beside "format", which every file has.
  // PERMISSION_DENIED / NOT_FOUND ... naming the file.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, const std::vector<NamedShape>& tensors,
      const std::map<std::string, std::string>& metadata = {});

  // All elements of the next tensor, in the order given to Create.
  absl::Status Write(absl::Span<const float> values);
  // The same for one of bytes.
  absl::Status WriteBytes(absl::string_view bytes);
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;

  std::unique_ptr<WholeFile> file_;
  std::vector<NamedShape> tensors_;
  size_t written_ = 0;  // tensors
};

}  // namespace isthmus
