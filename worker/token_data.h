// Tokens in files: one or several, end to end, mapped into memory. A token is a byte, or 16 or 32
// bits, little endian; files of 16 and 32 bits may begin with the header of llm.c
// (dev/data/data_common.py there): 256 int32, of which the first three are
//
//   20240520, 1, number of tokens    16 bits a token
//   20240801, 7, number of tokens    32 bits a token
//
// Without it all of the file is tokens, as nanoGPT writes them. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

struct TokenDataOptions {
  // Comma-separated paths and patterns ('*', '?', '[...]'); what a pattern matches is taken in
  // ascending order of its bytes, so that the order is the same on every machine.
  std::string files;
  std::string flag = "--data";                            // that named them, for errors
  v1::TokenFormat format = v1::TOKEN_FORMAT_UNSPECIFIED;  // unspecified: bytes
  uint32_t vocab = 0;                                     // every token is below it; 0: any is good
  // They come from flags and a checkpoint, not from a run: errors say which to change.
  bool from_flags = false;
};

// The files that `files` of TokenDataOptions names. INVALID_ARGUMENT: none is named, one is named
// twice. NOT_FOUND: a pattern that matches nothing. RESOURCE_EXHAUSTED: more than kDataFilesMax.
absl::StatusOr<std::vector<std::string>> ListDataFiles(const std::string& files,
                                                       const std::string& flag);

// Whether they are there, can be read and are not empty; reads nothing of them.
absl::Status CheckDataFiles(const std::string& files, const std::string& flag);

// Thread-safe.
class TokenData {
 public:
  // Reads headers only, however large the files are. Besides the errors of ListDataFiles, naming
  // the file: NOT_FOUND and the like, and INVALID_ARGUMENT for one that is empty, not regular, of
  // another format or of another length than its header says.
  static absl::StatusOr<std::unique_ptr<TokenData>> Open(const TokenDataOptions& options);
  ~TokenData();
  TokenData(const TokenData&) = delete;
  TokenData& operator=(const TokenData&) = delete;

  uint64_t tokens() const { return tokens_; }

  // Tokens [first, first + out.size()), which must exist; they may lie in several files.
  //   INVALID_ARGUMENT     a token that is not below `vocab`: file, position in it, value
  //   FAILED_PRECONDITION  a file that has become shorter since Open
  absl::Status Read(uint64_t first, absl::Span<uint32_t> out) const;

  // SHA-256, 32 bytes, of how many tokens there are and of what they are: of all up to 2^24, of
  // 1024 stretches at equal distances, the first and the last among them, where there are more.
  // Tells data that differ by mistake apart without reading a file of 100 GB. Errors as Read.
  absl::StatusOr<std::string> Fingerprint() const;

 private:
  struct File {
    std::string path;
    int descriptor = -1;
    const uint8_t* mapped = nullptr;
    uint64_t bytes = 0;   // mapped
    uint64_t offset = 0;  // bytes before the first token
    uint64_t tokens = 0;
    uint64_t first = 0;  // number of its first token
  };
  TokenData() = default;
  absl::Status Map(const std::string& path, File* file) const;
  absl::Status FindTokens(File* file) const;
  absl::Status CheckLength(const File& file) const;
  absl::Status ReadFrom(const File& file, uint64_t position, absl::Span<uint32_t> out) const;

  std::vector<File> files_;
  uint64_t tokens_ = 0;
  uint64_t token_bytes_ = 1;
  TokenDataOptions options_;
};

// Rows of tokens: `sequences` of `length` + 1, the last one being the target of the one before.
struct TokenRows {
  int64_t sequences = 0;
  int64_t length = 0;
  std::vector<uint32_t> tokens;
};

// Adds the row of `length` + 1 tokens that begins at `first`, as TokenData::Read.
absl::Status AppendRow(const TokenData& data, uint64_t first, uint32_t length, TokenRows* rows);

// TOKEN_FORMAT_UINT16 for "uint16"; also "bytes" and "uint32". INVALID_ARGUMENT names the three.
absl::StatusOr<v1::TokenFormat> ParseTokenFormat(const std::string& name);

}  // namespace isthmus
