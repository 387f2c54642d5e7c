#include "worker/text_data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

// One sequence of evaluation at a time would waste the processor, all at once its memory.
constexpr int64_t kEvaluationSequencesPerBatch = 8;

// What was mapped; the descriptor stays open.
struct MappedFile {
  int descriptor = -1;
  const uint8_t* data = nullptr;
  uint64_t bytes = 0;
};

absl::StatusOr<MappedFile> MapFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open data file '", path, "'"));
  }
  struct stat status {};
  const bool regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  if (!regular || status.st_size == 0) {
    close(file);
    return absl::InvalidArgumentError(
        absl::StrCat("data file '", path, regular ? "' is empty" : "' is not a regular file"));
  }
  const size_t bytes = static_cast<size_t>(status.st_size);
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    close(file);
    return absl::ErrnoToStatus(error, absl::StrCat("cannot map data file '", path, "'"));
  }
  return MappedFile{file, static_cast<const uint8_t*>(mapped), uint64_t{bytes}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextData>> TextData::Open(const std::string& paths) {
  const std::vector<std::string> names = absl::StrSplit(paths, ',', absl::SkipEmpty());
  if (names.empty()) return absl::InvalidArgumentError("no data file is named");
  if (names.size() > static_cast<size_t>(kDataFilesMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat(names.size(), " data files are named; the limit is ", kDataFilesMax));
  }
  auto text = std::unique_ptr<TextData>(new TextData());
  for (const std::string& name : names) {
    ISTHMUS_ASSIGN_OR_RETURN(const MappedFile mapped, MapFile(name));
    text->files_.push_back({name, mapped.descriptor, mapped.data, mapped.bytes, text->tokens_});
    text->tokens_ += mapped.bytes;
  }
  return text;
}

TextData::~TextData() {
  for (const File& file : files_) {
    munmap(const_cast<uint8_t*>(file.data), file.bytes);
    close(file.descriptor);
  }
}

void TextData::Read(uint64_t first, absl::Span<uint8_t> out) const {
  ISTHMUS_CHECK(first <= tokens_ && out.size() <= tokens_ - first);
  auto file = std::upper_bound(files_.begin(), files_.end(), first,
                               [](uint64_t token, const File& f) { return token < f.first; }) -
              1;
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t offset = first + done - file->first;
    const size_t bytes = std::min<uint64_t>(file->bytes - offset, out.size() - done);
    std::memcpy(out.data() + done, file->data + offset, bytes);
    done += bytes;
    ++file;
  }
}

absl::Status TextData::CheckLengths() const {
  for (const File& file : files_) {
    struct stat status {};
    if (fstat(file.descriptor, &status) == 0 &&
        static_cast<uint64_t>(status.st_size) >= file.bytes) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("data file '", file.path, "' had ", file.bytes, " bytes at start and has ",
                     status.st_size, " now; leave the data as it is while a run uses it"));
  }
  return absl::OkStatus();
}

std::string TextData::Digest() const {
  Sha256 hash;
  for (const File& file : files_) hash.Update(file.data, file.bytes);
  return hash.Finish();
}

absl::StatusOr<RankData> RankData::Make(const v1::RunSpec& spec, const std::string& node, int rank,
                                        int ranks, std::unique_ptr<TextData> text) {
  const uint32_t sequences = spec.data().sequences_per_node();
  if (sequences == 0 || sequences % static_cast<uint32_t>(ranks) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.sequences_per_node of the run is ", sequences, "; the ", ranks,
        " ranks of this node need a multiple of ", ranks, " so that each has an equal part"));
  }
  if (spec.model().vocab() < 256) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.vocab of the run is ", spec.model().vocab(), "; bytes as tokens need at least 256"));
  }
  const int node_index = NodeIndex(spec, node);
  if (node_index < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("node '", node, "' is not among the nodes of run '", spec.run(), "'"));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckDataShares(spec, text->tokens()));
  RankData data;
  data.spec_ = spec;
  data.node_index_ = node_index;
  data.rank_ = rank;
  data.ranks_ = ranks;
  data.text_ = std::move(text);
  return data;
}

void RankData::AppendRow(uint64_t first, TextRows* rows) const {
  rows->length = spec_.model().context();
  const size_t row_tokens = static_cast<size_t>(rows->length) + 1;
  const size_t begin = rows->tokens.size();
  rows->tokens.resize(begin + row_tokens);
  text_->Read(first, absl::MakeSpan(rows->tokens.data() + begin, row_tokens));
  ++rows->sequences;
}

TextRows RankData::Step(uint64_t step) const {
  TextRows rows;
  const uint32_t each = static_cast<uint32_t>(sequences_per_rank());
  for (uint32_t i = 0; i < each; ++i) {
    AppendRow(SampleOffset(spec_, node_index_, text_->tokens(), step,
                           static_cast<uint32_t>(rank_) * each + i),
              &rows);
  }
  return rows;
}

uint64_t RankData::EvaluationBatches() const {
  const uint64_t together = static_cast<uint64_t>(ranks_) * kEvaluationSequencesPerBatch;
  return (spec_.data().eval_sequences() + together - 1) / together;
}

TextRows RankData::Evaluation(uint64_t i) const {
  const TokenRange held_out = HeldOutRange(spec_, text_->tokens());
  const uint64_t count = spec_.data().eval_sequences();
  // Sequences begin at equal distances; they overlap when there are more than fit side by side.
  const uint64_t room = held_out.tokens() - (spec_.model().context() + 1);
  TextRows rows;
  const uint64_t first = (i * ranks_ + rank_) * kEvaluationSequencesPerBatch;
  for (uint64_t s = first; s < std::min<uint64_t>(first + kEvaluationSequencesPerBatch, count);
       ++s) {
    AppendRow(held_out.begin + (count > 1 ? room * s / (count - 1) : 0), &rows);
  }
  return rows;
}

}  // namespace isthmus
