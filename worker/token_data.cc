#include "worker/token_data.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/descriptors.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are read as they lie in memory");

// What llm.c writes before the tokens.
constexpr uint64_t kHeaderBytes = 256 * sizeof(int32_t);
struct HeaderKind {
  int32_t magic;
  int32_t version;
  v1::TokenFormat format;
};
constexpr HeaderKind kHeaderKinds[] = {{20240520, 1, v1::TOKEN_FORMAT_UINT16},
                                       {20240801, 7, v1::TOKEN_FORMAT_UINT32}};

// A fingerprint takes a moment for this many tokens; it reads no more of larger data, in so many
// stretches that each is worth a seek.
constexpr uint64_t kFingerprintTokens = uint64_t{1} << 24;
constexpr uint64_t kFingerprintStretches = 1024;
constexpr uint64_t kStretchTokens = kFingerprintTokens / kFingerprintStretches;

// Descriptors that the process needs beside those of data files.
constexpr uint64_t kOtherDescriptors = 256;

uint64_t TokenBytes(v1::TokenFormat format) {
  return format == v1::TOKEN_FORMAT_UINT32 ? 4 : format == v1::TOKEN_FORMAT_UINT16 ? 2 : 1;
}

// As whoever chose it wrote it.
std::string FormatName(const TokenDataOptions& options, v1::TokenFormat format) {
  const uint64_t bytes = TokenBytes(format);
  if (options.from_flags) return bytes == 4 ? "uint32" : bytes == 2 ? "uint16" : "bytes";
  return bytes == 4   ? "TOKEN_FORMAT_UINT32"
         : bytes == 2 ? "TOKEN_FORMAT_UINT16"
                      : "TOKEN_FORMAT_BYTES";
}

std::string FormatChosen(const TokenDataOptions& options) {
  return absl::StrCat(options.from_flags ? "--format" : "data.format of the run", " is ",
                      FormatName(options, options.format));
}

absl::Status AddMatches(const std::string& pattern, const std::string& flag,
                        std::vector<std::string>* names) {
  glob_t found = {};
  const int result = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> matches(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (result == GLOB_NOSPACE) {
    return absl::ResourceExhaustedError(
        absl::StrCat(flag, ": no memory for what '", pattern, "' matches"));
  }
  if (matches.empty()) {
    return absl::NotFoundError(absl::StrCat(flag, ": '", pattern, "' matches no file"));
  }
  std::sort(matches.begin(), matches.end());  // by bytes; glob's own order is the locale's
  names->insert(names->end(), matches.begin(), matches.end());
  return absl::OkStatus();
}

absl::Status CheckFileStatus(const std::string& path, const struct stat& status) {
  if (S_ISREG(status.st_mode) && status.st_size > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "data file '", path, S_ISREG(status.st_mode) ? "' is empty" : "' is not a regular file"));
}

uint32_t Largest(absl::Span<const uint32_t> values) {
  uint32_t largest = 0;
  for (uint32_t value : values) largest = std::max(largest, value);
  return largest;
}

template <typename Token>
void Widen(const uint8_t* bytes, absl::Span<uint32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, bytes + i * sizeof(Token), sizeof(Token));
    out[i] = token;
  }
}

}  // namespace

absl::StatusOr<v1::TokenFormat> ParseTokenFormat(const std::string& name) {
  if (name == "bytes") return v1::TOKEN_FORMAT_BYTES;
  if (name == "uint16") return v1::TOKEN_FORMAT_UINT16;
  if (name == "uint32") return v1::TOKEN_FORMAT_UINT32;
  return absl::InvalidArgumentError(
      absl::StrCat("the token format is '", name, "'; it is bytes, uint16 or uint32"));
}

absl::Status AppendRow(const TokenData& data, uint64_t first, uint32_t length, TokenRows* rows) {
  const size_t begin = rows->tokens.size(), row_tokens = size_t{length} + 1;
  rows->length = length;
  ++rows->sequences;
  rows->tokens.resize(begin + row_tokens);
  return data.Read(first, absl::MakeSpan(rows->tokens).subspan(begin, row_tokens));
}

absl::StatusOr<std::vector<std::string>> ListDataFiles(const std::string& files,
                                                       const std::string& flag) {
  std::vector<std::string> names;
  const std::vector<std::string> entries = absl::StrSplit(files, ',', absl::SkipEmpty());
  for (const std::string& entry : entries) {
    // A file that has such a character in its name is taken by its name.
    const bool is_pattern = entry.find_first_of("*?[") != std::string::npos;
    if (is_pattern && access(entry.c_str(), F_OK) != 0) {
      ISTHMUS_RETURN_IF_ERROR(AddMatches(entry, flag, &names));
    } else {
      names.push_back(entry);
    }
  }
  if (names.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, " names no data file"));
  if (names.size() > static_cast<size_t>(kDataFilesMax)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(flag, " names ", names.size(), " files; the limit is ", kDataFilesMax));
  }
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (seen.insert(name).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " names '", name, "' twice; its tokens would count twice"));
  }
  return names;
}

absl::Status CheckDataFiles(const std::string& files, const std::string& flag) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDataFiles(files, flag));
  for (const std::string& name : names) {
    struct stat status {};
    if (stat(name.c_str(), &status) != 0 || access(name.c_str(), R_OK) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot open data file '", name, "'"));
    }
    ISTHMUS_RETURN_IF_ERROR(CheckFileStatus(name, status));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TokenData>> TokenData::Open(const TokenDataOptions& options) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListDataFiles(options.files, options.flag));
  // Thousands of files want more than a process has by default; opening says if they are too few.
  RaiseDescriptorLimit(names.size() + kOtherDescriptors);
  auto data = std::unique_ptr<TokenData>(new TokenData());
  data->token_bytes_ = TokenBytes(options.format);
  data->options_ = options;
  for (const std::string& name : names) {
    data->files_.emplace_back();  // closed by the destructor, also after an error
    File& file = data->files_.back();
    ISTHMUS_RETURN_IF_ERROR(data->Map(name, &file));
    ISTHMUS_RETURN_IF_ERROR(data->FindTokens(&file));
    file.first = data->tokens_;
    data->tokens_ += file.tokens;
  }
  return data;
}

TokenData::~TokenData() {
  for (const File& file : files_) {
    if (file.mapped != nullptr) munmap(const_cast<uint8_t*>(file.mapped), file.bytes);
    if (file.descriptor >= 0) close(file.descriptor);
  }
}

absl::Status TokenData::Map(const std::string& path, File* file) const {
  file->path = path;
  file->descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (file->descriptor < 0 || fstat(file->descriptor, &status) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open data file '", path, "'"));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckFileStatus(path, status));
  file->bytes = static_cast<uint64_t>(status.st_size);
  void* mapped = mmap(nullptr, file->bytes, PROT_READ, MAP_PRIVATE, file->descriptor, 0);
  if (mapped == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot map data file '", path, "'"));
  }
  file->mapped = static_cast<const uint8_t*>(mapped);
  return absl::OkStatus();
}

// Recognises a header, and checks it and the length against the format.
absl::Status TokenData::FindTokens(File* file) const {
  const std::string name = absl::StrCat("data file '", file->path, "'");
  const std::string chosen = FormatChosen(options_);
  int32_t start[3] = {};
  std::memcpy(start, file->mapped, std::min<uint64_t>(sizeof(start), file->bytes));
  const auto kind = std::find_if(std::begin(kHeaderKinds), std::end(kHeaderKinds),
                                 [&](const HeaderKind& k) { return k.magic == start[0]; });
  if (kind == std::end(kHeaderKinds)) {
    file->tokens = file->bytes / token_bytes_;
    if (file->bytes % token_bytes_ == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", file->bytes, " bytes, no multiple of ", token_bytes_, "; ",
                     chosen, ": the file was cut, or is of another format"));
  }
  if (TokenBytes(kind->format) != token_bytes_) {
    const std::string found = FormatName(options_, kind->format);
    return absl::InvalidArgumentError(absl::StrCat(name, " has the header of llm.c for ", found,
                                                   ", but ", chosen, "; set it to ", found,
                                                   ", or name other files"));
  }
  if (kind->version != start[1]) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has the header of llm.c of version ",
                                                   start[1], "; only version ", kind->version,
                                                   " is known; write it again"));
  }
  file->offset = kHeaderBytes;
  file->tokens = static_cast<uint64_t>(std::max(start[2], 0));
  if (start[2] > 0 && file->bytes == kHeaderBytes + file->tokens * token_bytes_) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name, " has ", file->bytes, " bytes, but its header names ", start[2], " tokens, which are ",
      kHeaderBytes + file->tokens * token_bytes_, " bytes with it",
      start[2] > 0 ? "" : "; there must be one at least", "; write the file again"));
}

// Reading what is mapped beyond a file's end would kill the process.
absl::Status TokenData::CheckLength(const File& file) const {
  struct stat status {};
  if (fstat(file.descriptor, &status) == 0 && static_cast<uint64_t>(status.st_size) >= file.bytes) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("data file '", file.path, "' had ", file.bytes, " bytes at start and has ",
                   status.st_size, " now; leave the data as it is while a run uses it"));
}

absl::Status TokenData::ReadFrom(const File& file, uint64_t position,
                                 absl::Span<uint32_t> out) const {
  ISTHMUS_RETURN_IF_ERROR(CheckLength(file));
  const uint8_t* bytes = file.mapped + file.offset + position * token_bytes_;
  if (token_bytes_ == 1) Widen<uint8_t>(bytes, out);
  if (token_bytes_ == 2) Widen<uint16_t>(bytes, out);
  if (token_bytes_ == 4) Widen<uint32_t>(bytes, out);
  const uint32_t vocab = options_.vocab;
  if (vocab == 0 || Largest(out) < vocab) return absl::OkStatus();
  const auto bad = std::find_if(out.begin(), out.end(), [&](uint32_t v) { return v >= vocab; });
  return absl::InvalidArgumentError(absl::StrCat(
      "token ", position + (bad - out.begin()), " of data file '", file.path, "' is ", *bad,
      ", but ", options_.from_flags ? "vocab_size of the checkpoint" : "model.vocab of the run",
      " is ", vocab, "; the file was made with another tokenizer, or is of another format (",
      FormatChosen(options_), ")"));
}

absl::Status TokenData::Read(uint64_t first, absl::Span<uint32_t> out) const {
  ISTHMUS_CHECK(first <= tokens_ && out.size() <= tokens_ - first);
  auto file = std::upper_bound(files_.begin(), files_.end(), first,
                               [](uint64_t token, const File& f) { return token < f.first; }) -
              1;
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t position = first + done - file->first;
    const size_t tokens = std::min<uint64_t>(file->tokens - position, out.size() - done);
    ISTHMUS_RETURN_IF_ERROR(ReadFrom(*file, position, out.subspan(done, tokens)));
    done += tokens;
    ++file;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenData::Fingerprint() const {
  Sha256 hash;
  hash.UpdateU64(tokens_);
  const bool whole = tokens_ <= kFingerprintTokens;
  const uint64_t stretches =
      whole ? (tokens_ + kStretchTokens - 1) / kStretchTokens : kFingerprintStretches;
  std::vector<uint32_t> values;
  for (uint64_t i = 0; i < stretches; ++i) {
    const uint64_t first =
        whole ? i * kStretchTokens
              : static_cast<uint64_t>(static_cast<unsigned __int128>(tokens_ - kStretchTokens) * i /
                                      (kFingerprintStretches - 1));
    values.resize(std::min<uint64_t>(kStretchTokens, tokens_ - first));
    ISTHMUS_RETURN_IF_ERROR(Read(first, absl::MakeSpan(values)));
    hash.Update(values.data(), values.size() * sizeof(uint32_t));
  }
  return hash.Finish();
}

}  // namespace isthmus
