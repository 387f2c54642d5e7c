#include "server/ctl/export.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/safetensors.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/grid.h"
#include "spec/section_ranges.h"
#include "spec/state_hash.h"

namespace isthmus {
namespace {

// Takes the elements of a state as they come and writes the first section's, tensor by tensor.
class Exporter {
 public:
  static absl::StatusOr<std::unique_ptr<Exporter>> Make(const std::string& path,
                                                        const v1::SnapshotFacts& facts,
                                                        const v1::Manifest& manifest,
                                                        const v1::CodecSpec& codec) {
    ISTHMUS_ASSIGN_OR_RETURN(Grid grid, Grid::Make(manifest, codec));
    if (grid.elements() != facts.elements()) {
      return absl::DataLossError(absl::StrCat("the manifest has ", grid.elements(),
                                              " elements, the snapshot ", facts.elements()));
    }
    std::unique_ptr<Exporter> exporter(new Exporter(std::move(grid), facts));
    std::vector<NamedShape> tensors;
    for (const v1::TensorSpec& tensor : manifest.tensors()) {
      tensors.push_back({tensor.name(), {tensor.shape().begin(), tensor.shape().end()}});
    }
    const std::map<std::string, std::string> metadata = {
        {"isthmus_run", facts.run()},
        {"isthmus_round", absl::StrCat(facts.round())},
        {"isthmus_step", absl::StrCat(facts.step())},
        {"isthmus_state_sha256", HexPrefix(facts.state_sha256(), 64)},
        {"isthmus_update_sha256", HexPrefix(facts.update_sha256(), 64)}};
    ISTHMUS_ASSIGN_OR_RETURN(exporter->writer_, SafetensorsWriter::Create(path, tensors, metadata));
    return exporter;
  }

  absl::Status Take(const v1::SnapshotPiece& piece) {
    if (piece.section() != section_ || piece.begin() != next_) {
      return absl::DataLossError(absl::StrCat("the server sent section ", piece.section(), " from ",
                                              piece.begin(), " on; expected was section ", section_,
                                              " from ", next_, " on"));
    }
    ISTHMUS_RETURN_IF_ERROR(hasher_.Add(piece.data()));
    next_ += piece.data().size() / sizeof(float);
    if (section_ == 0) ISTHMUS_RETURN_IF_ERROR(Write(piece.data()));
    if (next_ == facts_.elements()) {
      ++section_;
      next_ = 0;
    }
    return absl::OkStatus();
  }

  // Nothing is left where the state does not have its hash.
  absl::Status Finish() {
    ISTHMUS_ASSIGN_OR_RETURN(const std::string sha256, hasher_.Finish());
    if (sha256 == facts_.state_sha256()) return writer_->Finish();
    return absl::DataLossError(absl::StrCat("the snapshot of round ", facts_.round(), " hashes to ",
                                            HexPrefix(sha256), ", its facts say ",
                                            HexPrefix(facts_.state_sha256())));
  }

  uint64_t bytes() const { return (section_ * facts_.elements() + next_) * sizeof(float); }

 private:
  Exporter(Grid grid, const v1::SnapshotFacts& facts)
      : grid_(std::move(grid)), facts_(facts), hasher_(grid_, facts_) {}

  absl::Status Write(absl::string_view bytes) {
    while (!bytes.empty()) {
      const uint64_t size = grid_.tensor_elements(tensor_);
      const size_t count = std::min<uint64_t>(size - values_.size(), bytes.size() / sizeof(float));
      const size_t at = values_.size();
      values_.resize(at + count);
      std::memcpy(values_.data() + at, bytes.data(), count * sizeof(float));
      bytes.remove_prefix(count * sizeof(float));
      if (values_.size() < size) continue;
      ISTHMUS_RETURN_IF_ERROR(writer_->Write(values_));
      values_.clear();
      ++tensor_;
    }
    return absl::OkStatus();
  }

  const Grid grid_;
  const v1::SnapshotFacts facts_;
  StateHasher hasher_;
  std::unique_ptr<SafetensorsWriter> writer_;
  uint32_t section_ = 0;
  uint64_t next_ = 0;          // element of that section
  uint32_t tensor_ = 0;        // that is being collected
  std::vector<float> values_;  // of it
};

}  // namespace

absl::StatusOr<v1::SnapshotFacts> ExportSnapshot(Client* client, const ExportOptions& options) {
  v1::JoinRunRequest ask;
  ask.set_run(options.run);
  ISTHMUS_ASSIGN_OR_RETURN(const v1::JoinRunResponse run, client->JoinRun(ask));
  v1::FetchSnapshotRequest request;
  request.set_run(options.run);
  request.set_manifest(true);
  if (options.round.has_value()) request.set_round(*options.round);
  // The facts say how much there is to ask for.
  v1::SnapshotFacts facts;
  v1::Manifest manifest;
  v1::FetchSnapshotResponse message;
  {
    const auto download = client->FetchSnapshot(request);
    while (download->Next(&message)) {
      if (message.has_facts()) facts = message.facts();
      if (message.has_manifest()) manifest = message.manifest();
    }
    ISTHMUS_RETURN_IF_ERROR(download->Finish());
  }
  ISTHMUS_ASSIGN_OR_RETURN(const auto exporter,
                           Exporter::Make(options.path, facts, manifest, run.spec().codec()));
  request.set_manifest(false);
  request.set_round(facts.round());
  WriteRanges(AllRanges(facts.sections(), facts.elements()), request.mutable_ranges());
  const auto download = client->FetchSnapshot(request);
  while (download->Next(&message)) {
    if (!message.has_piece()) continue;
    ISTHMUS_RETURN_IF_ERROR(exporter->Take(message.piece()));
    if (options.progress != nullptr) {
      options.progress(exporter->bytes(), facts.sections() * facts.elements() * sizeof(float));
    }
  }
  ISTHMUS_RETURN_IF_ERROR(download->Finish());
  ISTHMUS_RETURN_IF_ERROR(exporter->Finish());
  return facts;
}

}  // namespace isthmus
