#include "base/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

static_assert(sizeof(float) == 4 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "values are copied as they lie in memory");

constexpr size_t kLengthBytes = 8;

absl::Status Malformed(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", path, "' is no valid safetensors file: ", why));
}

// Elements of a shape, or false when they do not fit into 62 bits.
bool Elements(const std::vector<int64_t>& shape, uint64_t* elements) {
  *elements = 1;
  for (int64_t size : shape) {
    if (size < 0) return false;
    if (__builtin_mul_overflow(*elements, static_cast<uint64_t>(size), elements)) return false;
  }
  return *elements < (uint64_t{1} << 62);
}

size_t DTypeBytes(const std::string& dtype) {
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL") return 1;
  return 0;  // not known here: the size is not checked, and Read refuses it
}

float FloatOfBits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// bfloat16 is the upper half of a float32.
float WidenBf16(uint16_t bits) { return FloatOfBits(uint32_t{bits} << 16); }

// IEEE 754 binary16: 5 bits of exponent with bias 15, 10 of fraction.
float WidenF16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0x1f) return FloatOfBits(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return FloatOfBits(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // subnormal or zero; exact
  return sign != 0 ? -magnitude : magnitude;
}

template <typename Widen>
void ReadWidened(const char* bytes, Widen widen, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + i * sizeof(bits), sizeof(bits));
    values[i] = widen(bits);
  }
}

bool IsReadable(const std::string& dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open '", path, "'"));
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size < static_cast<off_t>(kLengthBytes)) {
    close(file);
    return Malformed(path, "it is not a regular file of 8 bytes or more");
  }
  auto opened = std::unique_ptr<SafetensorsFile>(new SafetensorsFile());
  opened->path_ = path;
  void* mapped =
      mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  const int error = errno;
  close(file);
  if (mapped == MAP_FAILED) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot map '", path, "'"));
  }
  opened->mapped_ = static_cast<const char*>(mapped);
  opened->mapped_bytes_ = static_cast<size_t>(status.st_size);

  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, opened->mapped_, kLengthBytes);
  if (header_bytes > kSafetensorsHeaderBytesMax ||
      header_bytes > opened->mapped_bytes_ - kLengthBytes) {
    return Malformed(path, absl::StrCat("its header is said to have ", header_bytes,
                                        " bytes; the file has ", opened->mapped_bytes_,
                                        " and the limit is ", kSafetensorsHeaderBytesMax));
  }
  opened->data_offset_ = kLengthBytes + header_bytes;
  ISTHMUS_RETURN_IF_ERROR(
      opened->ParseHeader(std::string(opened->mapped_ + kLengthBytes, header_bytes)));
  return opened;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapped_ != nullptr) munmap(const_cast<char*>(mapped_), mapped_bytes_);
}

absl::Status SafetensorsFile::ParseHeader(const std::string& header) {
  const nlohmann::json parsed = nlohmann::json::parse(header, nullptr, false);
  if (!parsed.is_object()) return Malformed(path_, "its header is not a JSON object");
  const uint64_t data_bytes = mapped_bytes_ - data_offset_;
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, text] : value.items()) {
        if (text.is_string()) metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    SafetensorsEntry entry;
    const auto is_sizes = [](const nlohmann::json& list) {
      if (!list.is_array()) return false;
      for (const auto& item : list) {
        if (!item.is_number_unsigned()) return false;
      }
      return true;
    };
    if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
        !value.contains("shape") || !is_sizes(value["shape"]) || !value.contains("data_offsets") ||
        !is_sizes(value["data_offsets"]) || value["data_offsets"].size() != 2) {
      return Malformed(path_,
                       absl::StrCat("tensor '", name, "' lacks dtype, shape or two data_offsets"));
    }
    entry.dtype = value["dtype"].get<std::string>();
    entry.shape = value["shape"].get<std::vector<int64_t>>();
    entry.begin = value["data_offsets"][0].get<uint64_t>();
    entry.end = value["data_offsets"][1].get<uint64_t>();
    uint64_t elements = 0;
    if (entry.begin > entry.end || entry.end > data_bytes || !Elements(entry.shape, &elements)) {
      return Malformed(path_, absl::StrCat("tensor '", name, "' covers bytes ", entry.begin, " to ",
                                           entry.end, " of ", data_bytes));
    }
    const size_t size = DTypeBytes(entry.dtype);
    if (size != 0 && (elements > data_bytes || entry.end - entry.begin != elements * size)) {
      return Malformed(path_, absl::StrCat("tensor '", name, "' has ", entry.end - entry.begin,
                                           " bytes; its shape [", absl::StrJoin(entry.shape, ", "),
                                           "] and dtype ", entry.dtype, " want ", elements * size));
    }
    entries_[name] = std::move(entry);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::Read(const std::string& name, uint64_t first_element,
                                   absl::Span<float> values) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("'", path_, "' has no tensor '", name, "'"));
  }
  const SafetensorsEntry& entry = found->second;
  if (!IsReadable(entry.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path_, "': tensor '", name, "' is ",
                                                   entry.dtype, "; read are F32, F16 and BF16"));
  }
  const size_t size = DTypeBytes(entry.dtype);
  const uint64_t elements = (entry.end - entry.begin) / size;
  if (first_element > elements || values.size() > elements - first_element) {
    return absl::InvalidArgumentError(absl::StrCat("'", path_, "': tensor '", name, "' has ",
                                                   elements, " elements; ", values.size(), " from ",
                                                   first_element, " on were asked for"));
  }
  if (values.empty()) return absl::OkStatus();
  const char* bytes = mapped_ + data_offset_ + entry.begin + first_element * size;
  if (entry.dtype == "F32") std::memcpy(values.data(), bytes, values.size() * size);
  if (entry.dtype == "F16") ReadWidened(bytes, WidenF16, values);
  if (entry.dtype == "BF16") ReadWidened(bytes, WidenBf16, values);
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> SafetensorsFile::Bytes(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("'", path_, "' has no tensor '", name, "'"));
  }
  const SafetensorsEntry& entry = found->second;
  return absl::string_view(mapped_ + data_offset_ + entry.begin, entry.end - entry.begin);
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<NamedShape>& tensors,
    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};  // what Hugging Face's loaders ask for
  for (const auto& [key, text] : metadata) header["__metadata__"][key] = text;
  uint64_t offset = 0;
  for (const NamedShape& tensor : tensors) {
    uint64_t elements = 0;
    ISTHMUS_CHECK(Elements(tensor.shape, &elements));
    const uint64_t end = offset + elements * (tensor.is_bytes ? 1 : sizeof(float));
    header[tensor.name] = {{"dtype", tensor.is_bytes ? "U8" : "F32"},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the values

  auto writer = std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter());
  writer->tensors_ = tensors;
  ISTHMUS_ASSIGN_OR_RETURN(writer->file_, WholeFile::Create(path));
  const uint64_t length = text.size();
  ISTHMUS_RETURN_IF_ERROR(writer->file_->Write(&length, kLengthBytes));
  ISTHMUS_RETURN_IF_ERROR(writer->file_->Write(text.data(), text.size()));
  return writer;
}

absl::Status SafetensorsWriter::Write(absl::Span<const float> values) {
  uint64_t elements = 0;
  ISTHMUS_CHECK(written_ < tensors_.size() && Elements(tensors_[written_].shape, &elements) &&
                elements == values.size() && !tensors_[written_].is_bytes);
  ++written_;
  return file_->Write(values.data(), values.size() * sizeof(float));
}

absl::Status SafetensorsWriter::WriteBytes(absl::string_view bytes) {
  uint64_t elements = 0;
  ISTHMUS_CHECK(written_ < tensors_.size() && Elements(tensors_[written_].shape, &elements) &&
                elements == bytes.size() && tensors_[written_].is_bytes);
  ++written_;
  return file_->Write(bytes.data(), bytes.size());
}

absl::Status SafetensorsWriter::Finish() {
  ISTHMUS_CHECK(written_ == tensors_.size());
  return file_->Finish();
}

}  // namespace isthmus
