#include "tests/vectors/vector_file.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

constexpr absl::string_view kFirstLine = "isthmus-vectors 1";

struct ArrayHeader {
  std::string name;
  std::string type;
  std::vector<uint64_t> shape;
  uint64_t elements = 1;
};

absl::StatusOr<ArrayHeader> ParseHeader(absl::string_view line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  if (words.size() < 3 || words[0] != "array") {
    return absl::DataLossError(absl::StrCat("a line of the header is '", line, "'"));
  }
  ArrayHeader header;
  header.name = words[1];
  header.type = words[2];
  for (size_t i = 3; i < words.size(); ++i) {
    uint64_t size;
    if (!absl::SimpleAtoi(words[i], &size) || size > (1u << 30)) {
      return absl::DataLossError(absl::StrCat("array ", header.name, " has size ", words[i]));
    }
    header.shape.push_back(size);
    header.elements *= size;
    if (header.elements > (1u << 30)) {
      return absl::DataLossError(absl::StrCat("array ", header.name, " is too large"));
    }
  }
  return header;
}

// Takes `count` elements from the front of *data. They lie as this machine has them: the file is
// little endian, and so is every machine the tests run on.
template <typename From, typename To>
bool TakeElements(uint64_t count, absl::string_view* data, std::vector<To>* to) {
  if (data->size() < count * sizeof(From)) return false;
  to->resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, data->data() + i * sizeof(From), sizeof(From));
    (*to)[i] = static_cast<To>(value);
  }
  data->remove_prefix(count * sizeof(From));
  return true;
}

absl::StatusOr<VectorArray> ReadArray(const ArrayHeader& header, absl::string_view* data) {
  VectorArray array;
  array.shape = header.shape;
  bool complete = false;
  if (header.type == "f4") {
    complete = TakeElements<float>(header.elements, data, &array.floats);
  } else if (header.type == "i4") {
    complete = TakeElements<int32_t>(header.elements, data, &array.integers);
  } else if (header.type == "i8") {
    complete = TakeElements<int64_t>(header.elements, data, &array.integers);
  } else if (header.type == "u1") {
    complete = TakeElements<uint8_t>(header.elements, data, &array.integers);
  } else {
    return absl::DataLossError(absl::StrCat("array ", header.name, " has type ", header.type));
  }
  if (!complete) {
    return absl::DataLossError(absl::StrCat("the file ends in array ", header.name));
  }
  return array;
}

}  // namespace

absl::StatusOr<VectorFile> VectorFile::Read(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  const std::string bytes((std::istreambuf_iterator<char>(stream)),
                          std::istreambuf_iterator<char>());
  absl::string_view rest = bytes;
  std::vector<ArrayHeader> headers;
  for (bool first = true;; first = false) {
    const size_t length = rest.find('\n');
    if (length == absl::string_view::npos) {
      return absl::DataLossError(absl::StrCat(path, ": the header has no line 'end'"));
    }
    const absl::string_view line = rest.substr(0, length);
    rest.remove_prefix(length + 1);
    if (first && line != kFirstLine) {
      return absl::DataLossError(absl::StrCat(path, ": the first line is not '", kFirstLine, "'"));
    }
    if (first) continue;
    if (line == "end") break;
    ISTHMUS_ASSIGN_OR_RETURN(ArrayHeader header, ParseHeader(line));
    headers.push_back(std::move(header));
  }
  VectorFile file;
  for (const ArrayHeader& header : headers) {
    ISTHMUS_ASSIGN_OR_RETURN(file.arrays_[header.name], ReadArray(header, &rest));
  }
  if (!rest.empty()) {
    return absl::DataLossError(absl::StrCat(path, ": ", rest.size(), " bytes too many"));
  }
  return file;
}

const VectorArray* VectorFile::Find(const std::string& name) const {
  const auto found = arrays_.find(name);
  return found == arrays_.end() ? nullptr : &found->second;
}

VectorArray* VectorFile::FindMutable(const std::string& name) {
  const auto found = arrays_.find(name);
  return found == arrays_.end() ? nullptr : &found->second;
}

absl::StatusOr<absl::Span<const float>> VectorFile::Floats(const std::string& name) const {
  const VectorArray* array = Find(name);
  if (array == nullptr) return absl::NotFoundError(absl::StrCat("array ", name, " is missing"));
  if (!array->integers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("array ", name, " does not hold floats"));
  }
  return absl::MakeConstSpan(array->floats);
}

absl::StatusOr<absl::Span<const int64_t>> VectorFile::Integers(const std::string& name) const {
  const VectorArray* array = Find(name);
  if (array == nullptr) return absl::NotFoundError(absl::StrCat("array ", name, " is missing"));
  if (!array->floats.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("array ", name, " does not hold integers"));
  }
  return absl::MakeConstSpan(array->integers);
}

std::string VectorFile::Text(const std::string& name) const {
  const VectorArray* array = Find(name);
  if (array == nullptr) return "";
  return std::string(array->integers.begin(), array->integers.end());
}

std::vector<std::string> VectorFile::NamesUnder(const std::string& prefix) const {
  std::vector<std::string> names;
  for (auto it = arrays_.lower_bound(prefix);
       it != arrays_.end() && absl::StartsWith(it->first, prefix); ++it) {
    names.push_back(it->first);
  }
  return names;
}

std::vector<std::string> VectorFile::Children(const std::string& prefix) const {
  std::map<std::string, bool> children;
  for (const std::string& name : NamesUnder(prefix)) {
    children[name.substr(prefix.size(), name.find('/', prefix.size()) - prefix.size())] = true;
  }
  std::vector<std::string> names;
  for (const auto& child : children) names.push_back(child.first);
  return names;
}

}  // namespace isthmus
