#include "server/hosted_model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "kernels/aggregate.h"
#include "kernels/demo.h"
#include "kernels/feedback.h"
#include "kernels/number_format.h"
#include "server/outer_fold.h"
#include "spec/state_hash.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

absl::Status CannotMap(const std::string& what, uint64_t bytes, int error) {
  const std::string text =
      absl::StrCat("the hosted model needs ", bytes, " bytes: ", what, ": ", std::strerror(error));
  if (error == ENOSPC || error == ENOMEM || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat(text, "; make room, or name another folder"));
  }
  return absl::FailedPreconditionError(absl::StrCat(text, "; name a folder that may be written"));
}

// A file without a name; -1 and errno.
int OpenScratch(const std::string& dir) {
  const int nameless = open(dir.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (nameless >= 0) return nameless;
  // Not every file system has those.
  std::string path = absl::StrCat(dir, "/hosted_XXXXXX");
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) unlink(path.c_str());
  return named;
}

}  // namespace

HostedStep HostedStepOf(const v1::RunSpec& spec, uint64_t round, float gamma) {
  HostedStep step;
  step.outer = OuterSettingsOf(spec.outer(), gamma);
  step.gamma = gamma;
  step.draws = DrawKeyOf(spec, round);
  step.form = UpdateFormOf(spec);
  step.reply = NumberSettingsOf(spec.codec().reply());
  return step;
}

absl::StatusOr<std::unique_ptr<HostedModel>> HostedModel::Make(const v1::RunSpec& spec,
                                                               std::shared_ptr<const Grid> grid,
                                                               const HostedOptions& options) {
  const bool keeps_error = UpdateFormOf(spec) == UpdateForm::kDifference;
  std::unique_ptr<HostedModel> model(
      new HostedModel(std::move(grid), keeps_error, 1 + HostedSections(spec), options.threads));
  ISTHMUS_RETURN_IF_ERROR(model->Map(options.scratch_dir));
  return model;
}

HostedModel::HostedModel(std::shared_ptr<const Grid> grid, bool keeps_error, uint32_t sections,
                         int threads)
    : grid_(std::move(grid)),
      offsets_(BlockOffsets(*grid_)),
      keeps_error_(keeps_error),
      sections_(sections),
      threads_(threads) {}

HostedModel::~HostedModel() {
  if (values_ != nullptr) munmap(values_, mapped_bytes_);
}

absl::Status HostedModel::Map(const std::string& scratch_dir) {
  mapped_bytes_ = std::max<size_t>(1, sections_ * grid_->elements() * sizeof(float));
  int file = -1;
  if (!scratch_dir.empty()) {
    file = OpenScratch(scratch_dir);
    if (file < 0) return CannotMap(absl::StrCat("folder ", scratch_dir), mapped_bytes_, errno);
    // A page that found no room later on would end the process.
    const int error = posix_fallocate(file, 0, static_cast<off_t>(mapped_bytes_));
    if (error != 0) {
      close(file);
      return CannotMap(absl::StrCat("folder ", scratch_dir), mapped_bytes_, error);
    }
  }
  const int flags = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* mapped = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, flags, file, 0);
  const int error = errno;
  if (file >= 0) close(file);  // the mapping holds it
  if (mapped == MAP_FAILED) return CannotMap("mapping", mapped_bytes_, error);
  values_ = static_cast<float*>(mapped);
  return absl::OkStatus();
}

absl::Span<const float> HostedModel::Section(uint32_t section) const {
  ISTHMUS_CHECK(section < sections_);
  return {values_ + section * grid_->elements(), static_cast<size_t>(grid_->elements())};
}

std::string HostedModel::Read(const SectionRange& range) const {
  const absl::Span<const float> part =
      Section(range.section).subspan(range.begin, range.end - range.begin);
  return std::string(reinterpret_cast<const char*>(part.data()), part.size() * sizeof(float));
}

void HostedModel::Load(const SectionRange& range, absl::string_view values) {
  ISTHMUS_CHECK(range.section < sections_ && range.end <= grid_->elements());
  ISTHMUS_CHECK(values.size() == (range.end - range.begin) * sizeof(float));
  std::memcpy(values_ + range.section * grid_->elements() + range.begin, values.data(),
              values.size());
}

std::string HostedModel::SectionHash(uint32_t section, uint64_t step) const {
  const size_t blocks = grid_->blocks().size();
  std::string hashes(blocks * kSha256Bytes, '\0');
  ParallelFor(blocks, threads_, [&](size_t b) {
    const absl::Span<float> values = BlockOf(section, b);
    const std::string hash =
        Sha256Of({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    std::memcpy(&hashes[b * kSha256Bytes], hash.data(), kSha256Bytes);
  });
  return SectionSha256(*grid_, hashes, step);
}

std::string HostedModel::HashBehindX(uint32_t sections, uint64_t step) const {
  Sha256 all;
  for (uint32_t section = 1; section <= sections; ++section) {
    all.Update(SectionHash(section, step));
  }
  return all.Finish();
}

absl::Span<float> HostedModel::BlockOf(uint32_t section, size_t block) const {
  return {values_ + section * grid_->elements() + offsets_[block],
          static_cast<size_t>(grid_->blocks()[block].elements)};
}

OuterState HostedModel::StateOf(size_t block) const {
  const uint32_t first = keeps_error_ ? 2 : 1;
  OuterState state;
  state.x = BlockOf(0, block);
  if (first < sections_) state.first = BlockOf(first, block);
  if (first + 1 < sections_) state.second = BlockOf(first + 1, block);
  return state;
}

std::vector<float> HostedModel::LargestOf(const OuterRound& round,
                                          absl::Span<const float> g) const {
  const std::vector<Block>& blocks = grid_->blocks();
  std::vector<float> of_block(blocks.size()), of_tensor(grid_->tensors(), 0.0f);
  ParallelFor(blocks.size(), threads_, [&](size_t b) {
    of_block[b] = OuterLargest(round, g.subspan(offsets_[b], blocks[b].elements), StateOf(b).first);
  });
  for (size_t b = 0; b < blocks.size(); ++b) {
    float& largest = of_tensor[blocks[b].tensor];
    largest = std::max(largest, of_block[b]);
  }
  return of_tensor;
}

absl::Status HostedModel::Check() const {
  std::mutex mutex;  // of bad
  std::vector<Bad> bad;
  ParallelFor(grid_->blocks().size(), threads_, [&](size_t b) {
    Bad found;
    if (!FindBad(b, &found)) return;
    std::lock_guard<std::mutex> lock(mutex);
    bad.push_back(found);
  });
  return Judge(bad);
}

absl::StatusOr<CodedUpdate> HostedModel::Step(const HostedStep& step, absl::Span<const float> g) {
  ISTHMUS_CHECK(g.size() == grid_->elements());
  if ((step.form == UpdateForm::kDifference) != keeps_error_) {
    return absl::FailedPreconditionError(
        "codec.reply changes between exact and lossy replies; a hosted run keeps what it began "
        "with");
  }
  const OuterPowers powers = NextOuterPowers(step.outer, powers_);
  ISTHMUS_ASSIGN_OR_RETURN(const OuterRound round,
                           MakeOuterRound(step.outer, {step.gamma, powers, step.draws}));
  std::vector<float> bounds;
  if (NeedsLargest(step.outer)) bounds = LargestOf(round, g);
  std::mutex mutex;  // of bad
  std::vector<Bad> bad;
  CodedUpdate update = WriteReply(*grid_, threads_, [&](size_t b, CodedBlock* coded) {
    const Block& block = grid_->blocks()[b];
    OuterRound own = round;
    if (!bounds.empty()) own.bound = bounds[block.tensor];
    Bad found;
    if (StepBlock(step, own, b, g.subspan(offsets_[b], block.elements), coded, &found)) return;
    std::lock_guard<std::mutex> lock(mutex);
    bad.push_back(found);
  });
  ISTHMUS_RETURN_IF_ERROR(Judge(bad));
  powers_ = powers;
  return update;
}

bool HostedModel::StepBlock(const HostedStep& step, const OuterRound& round, size_t block,
                            absl::Span<const float> g, CodedBlock* coded, Bad* bad) const {
  const OuterState state = StateOf(block);
  if (step.form == UpdateForm::kDirection) {
    TakeDirection(step, round, block, g, coded);
    return !FindBad(block, bad);
  }
  const bool is_difference = step.form == UpdateForm::kDifference;
  std::vector<float> before;
  if (is_difference) before.assign(state.x.begin(), state.x.end());
  OuterStep(round, offsets_[block], g, state);
  const Block& place = grid_->blocks()[block];
  if (FindBad(block, bad)) {
    // Such values have no form; the update is as long as any, and nobody gets it.
    CodeReplyBlock(*grid_, place, step.reply, std::vector<float>(place.elements), coded);
    return false;
  }
  if (!is_difference) {
    CodeReplyBlock(*grid_, place, step.reply, state.x, coded);
    return true;
  }
  TakeDifference(step, block, before, coded);
  return !FindBad(block, bad);
}

void HostedModel::TakeDifference(const HostedStep& step, size_t block,
                                 absl::Span<const float> before, CodedBlock* coded) const {
  const Block& place = grid_->blocks()[block];
  const absl::Span<float> x = BlockOf(0, block), e = BlockOf(1, block);
  std::vector<float> u(x.size());
  DeltaOf(x, before, absl::MakeSpan(u));
  AddToResidual(1.0f, u, e);
  CodeReplyBlock(*grid_, place, step.reply, e, coded);
  const absl::Span<float> sent = absl::MakeSpan(u);
  DecodeReplyBlock(*grid_, place, step.reply, *coded, sent);
  for (size_t i = 0; i < x.size(); ++i) x[i] = before[i] + sent[i];
  TakeFromResidual(1.0f, sent, e);
}

void HostedModel::TakeDirection(const HostedStep& step, const OuterRound& round, size_t block,
                                absl::Span<const float> g, CodedBlock* coded) const {
  const Block& place = grid_->blocks()[block];
  const OuterState state = StateOf(block);
  std::vector<float> s(g.begin(), g.end());
  if (round.kind == OuterKind::kLion) {
    OuterStep(round, offsets_[block], g, state);
    return CodeReplyBlock(*grid_, place, step.reply, s, coded);
  }
  if (round.kind == OuterKind::kSignMomentum) {
    // The step from 0 without decay is -rate * S.
    std::fill(s.begin(), s.end(), 0.0f);
    OuterRound from_zero = round;
    from_zero.decays = false;
    OuterStep(from_zero, offsets_[block], g, {absl::MakeSpan(s), state.first, {}});
    for (float& value : s) value = -value;
  }
  SignInPlace(absl::MakeSpan(s));
  if (round.decays) DecayInPlace(round.decay, state.x);
  SgdStep(round.rate, s, state.x);
  CodeReplyBlock(*grid_, place, step.reply, s, coded);
}

bool HostedModel::FindBad(size_t block, Bad* bad) const {
  for (uint32_t section = 0; section < sections_; ++section) {
    // Nodes read no larger ones.
    const float largest = section == 0 ? kNumberMax : std::numeric_limits<float>::max();
    size_t at = 0;
    if (AllWithin(largest, BlockOf(section, block), &at)) continue;
    *bad = {block, section, at};
    return true;
  }
  return false;
}

absl::Status HostedModel::Judge(const std::vector<Bad>& all) const {
  if (all.empty()) return absl::OkStatus();
  const Bad& bad = *std::min_element(all.begin(), all.end(),
                                     [](const Bad& a, const Bad& b) { return a.block < b.block; });
  const Block& block = grid_->blocks()[bad.block];
  return WithReason(
      absl::DataLossError(absl::StrCat(
          bad.section == 0 ? "" : "the outer state of ", grid_->tensor_name(block.tensor),
          ", element ", block.first_element + bad.element, ", is ",
          BlockOf(bad.section, bad.block)[bad.element],
          "; the hosted model takes finite values, its parameters at most ", kNumberMax,
          " in magnitude. The run has diverged: go on from an earlier snapshot, with a lower "
          "learning rate")),
      "MODEL_DIVERGED");
}

}  // namespace isthmus
