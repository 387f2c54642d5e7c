// The model that a coordinator hosts (design rule 15): x, which is what nodes hold; e, the error of
// lossy replies, where replies are lossy; and the outer optimizer's state. All of it in float32, in
// sections of an element for each trainable one, in this order.
//
//   ISTHMUS_ASSIGN_OR_RETURN(auto model, HostedModel::Make(spec, grid, options));
//   model->Load({0, 0, grid->elements()}, bytes);              // x; all else is zero at first
//   ISTHMUS_ASSIGN_OR_RETURN(CodedUpdate update, model->Step(HostedStepOf(spec, round, gamma), g));
//
// The sections lie in a file that is mapped into memory and is scratch: what lasts are snapshots,
// and the aggregate of each round, from which the same steps make the same bits again, with any
// number of threads. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "isthmus/v1/run_spec.pb.h"
#include "kernels/outer.h"
#include "server/reply.h"
#include "spec/grid.h"
#include "spec/section_ranges.h"
#include "spec/stages.h"

namespace isthmus {

// What one round's step is made with.
struct HostedStep {
  OuterSettings outer;
  double gamma = 0.0;  // learning rate of the round
  DrawKey draws;
  UpdateForm form = UpdateForm::kParameters;  // not kMerged or kAggregate
  NumberSettings reply;
};
// `spec`: the one that holds in the round; `gamma`: the learning rate of its record.
HostedStep HostedStepOf(const v1::RunSpec& spec, uint64_t round, float gamma);

struct HostedOptions {
  // Folder for the scratch file, which has no name and goes with the process; as much room as all
  // sections take. Empty: memory alone.
  std::string scratch_dir;
  int threads = 1;
};

class HostedModel {
 public:
  // All zero. RESOURCE_EXHAUSTED: no room for the sections. FAILED_PRECONDITION: the scratch file
  // cannot be made; names the folder.
  static absl::StatusOr<std::unique_ptr<HostedModel>> Make(const v1::RunSpec& spec,
                                                           std::shared_ptr<const Grid> grid,
                                                           const HostedOptions& options);
  ~HostedModel();
  HostedModel(const HostedModel&) = delete;
  HostedModel& operator=(const HostedModel&) = delete;

  uint32_t sections() const { return sections_; }  // x among them
  // Section 0 is x.
  absl::Span<const float> Section(uint32_t section) const;
  // float32, little endian: what a snapshot's piece holds. The range is inside.
  std::string Read(const SectionRange& range) const;
  void Load(const SectionRange& range, absl::string_view values);
  const OuterPowers& powers() const { return powers_; }
  void set_powers(const OuterPowers& powers) { powers_ = powers; }

  // SHA-256 of a section (spec/state_hash.h) after that global step.
  std::string SectionHash(uint32_t section, uint64_t step) const;
  // SHA-256 over the hashes of the first `sections` behind x.
  std::string HashBehindX(uint32_t sections, uint64_t step) const;
  // DATA_LOSS as Step, for what was loaded.
  absl::Status Check() const;

  // One outer step with the aggregate g of all elements. Returns what nodes make of their x what it
  // is here. Where the outer rule has x' and x was before:
  //   kParameters  the update has x';  x <- x'
  //   kDifference  u = x' - x, e <- e + u, the update has q = Q(e);  x <- x + deq(q), e <- e -
  //                deq(q)
  //   kDirection   the update has S: the sign of sign_momentum, the sign of g (sign_sgd), or g
  //                itself, which is a vote (lion);  x <- x'
  // INVALID_ARGUMENT: see MakeOuterRound. FAILED_PRECONDITION: a form that the model was not made
  // for. Of both nothing has changed. DATA_LOSS: after the step some value
  // is not finite, or of x above kNumberMax in magnitude; names the tensor. The model then holds
  // nothing of use: make a new one.
  absl::StatusOr<CodedUpdate> Step(const HostedStep& step, absl::Span<const float> g);

 private:
  // The first value of a block, in block order, that no state may hold.
  struct Bad {
    size_t block;
    uint32_t section;
    size_t element;  // of the block
  };

  HostedModel(std::shared_ptr<const Grid> grid, bool keeps_error, uint32_t sections, int threads);
  absl::Status Map(const std::string& scratch_dir);
  absl::Span<float> BlockOf(uint32_t section, size_t block) const;
  OuterState StateOf(size_t block) const;
  // The largest |c| of each tensor.
  std::vector<float> LargestOf(const OuterRound& round, absl::Span<const float> g) const;
  // False: *bad says what went wrong.
  bool StepBlock(const HostedStep& step, const OuterRound& round, size_t block,
                 absl::Span<const float> g, CodedBlock* coded, Bad* bad) const;
  void TakeDifference(const HostedStep& step, size_t block, absl::Span<const float> before,
                      CodedBlock* coded) const;
  void TakeDirection(const HostedStep& step, const OuterRound& round, size_t block,
                     absl::Span<const float> g, CodedBlock* coded) const;
  bool FindBad(size_t block, Bad* bad) const;
  // OK where there is none; else names the first.
  absl::Status Judge(const std::vector<Bad>& all) const;

  const std::shared_ptr<const Grid> grid_;
  const std::vector<uint64_t> offsets_;  // of blocks
  const bool keeps_error_;               // section 1 is e
  const uint32_t sections_;
  const int threads_;
  float* values_ = nullptr;  // section after section
  size_t mapped_bytes_ = 0;
  OuterPowers powers_;
};

}  // namespace isthmus
