#include "tests/worker/agent_fixture.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "spec/manifest.h"
#include "spec/run_spec.h"
#include "tests/spec/forgery.h"

namespace isthmus {

v1::Manifest SmallManifest() {
  v1::Manifest manifest;
  v1::TensorSpec* matrix = manifest.add_tensors();
  matrix->set_name("h.0.weight");
  matrix->set_dtype(v1::DTYPE_FLOAT32);
  matrix->add_shape(40);
  matrix->add_shape(70);
  v1::TensorSpec* vector = manifest.add_tensors();
  vector->set_name("h.0.bias");
  vector->set_dtype(v1::DTYPE_FLOAT32);
  vector->add_shape(100);
  return manifest;
}

v1::RunSpec SmallSpec(const std::vector<std::string>& nodes, uint64_t steps) {
  v1::RunSpec spec;
  spec.set_run("small");
  spec.set_steps(steps);
  for (const std::string& node : nodes) spec.add_nodes()->set_name(node);
  spec.mutable_optimizer()->set_lr(0.01F);
  spec.mutable_codec()->set_chunk_side(16);
  spec.mutable_timing()->set_heartbeat_ms(50);
  const absl::Status complete = CompleteRunSpec(&spec);
  ISTHMUS_CHECK(complete.ok());
  return spec;
}

Grid SmallGrid(const v1::RunSpec& spec) {
  absl::StatusOr<Grid> grid = Grid::Make(SmallManifest(), spec.codec());
  ISTHMUS_CHECK(grid.ok());
  return *std::move(grid);
}

ChunkRanges PartOf(const Grid& grid, uint32_t rank, uint32_t ranks) {
  const std::vector<Block>& blocks = grid.blocks();
  const size_t begin = blocks.size() * rank / ranks, end = blocks.size() * (rank + 1) / ranks;
  ChunkRanges part;
  for (size_t i = begin; i < end; ++i) {
    part.Add(blocks[i].first_chunk, blocks[i].first_chunk + blocks[i].chunks);
  }
  return part;
}

std::vector<std::string> PiecesOf(const Grid& grid, const ChunkRanges& part, uint64_t seed) {
  constexpr size_t kPieceBytes = 100;
  PieceWriter writer(&grid, ContributionLayout(grid.codec()), kPieceBytes);
  for (const auto& [begin, end] : part.list()) {
    for (uint64_t chunk = begin; chunk < end; ++chunk) {
      Components components;
      for (uint32_t i = 0; i < grid.Place(chunk).k; ++i) {
        components.index.push_back(i);
        components.value.push_back(static_cast<float>((seed + 7 * chunk + i) % 101) - 50.0F);
      }
      writer.Append(chunk, components);
    }
  }
  return writer.Finish();
}

std::string WithNan(std::string piece) {
  SetLastValue(std::numeric_limits<float>::quiet_NaN(), &piece);
  return piece;
}

std::string GroupId(char fill) { return std::string(kGroupIdBytes, fill); }

v1::JoinRunRequest RankJoin(const Grid& grid, uint32_t rank, uint32_t ranks,
                            const std::string& group_id) {
  v1::JoinRunRequest request;
  request.set_role(v1::ROLE_RANK);
  *request.mutable_manifest() = SmallManifest();
  request.set_fingerprint(Fingerprint(request.manifest()));
  request.set_state_sha256(Sha256Of("start"));
  v1::RankInfo* info = request.mutable_rank();
  info->set_rank(rank);
  info->set_ranks(ranks);
  info->set_group_id(group_id);
  const ChunkRanges part = PartOf(grid, rank, ranks);
  for (const auto& [begin, end] : part.list()) {
    v1::ChunkRange* range = info->add_ranges();
    range->set_begin(begin);
    range->set_end(end);
  }
  v1::Setting* setting = info->add_settings();
  setting->set_name("data_bytes");
  setting->set_value("1000");
  return request;
}

TestCoordinator::TestCoordinator(const v1::RunSpec& spec, const std::string& address,
                                 const StoreLimits& limits) {
  CoordinatorOptions options;
  options.spec = spec;
  options.store = MakeMemoryStore(limits);
  auto coordinator = Coordinator::Start(std::move(options));
  ISTHMUS_CHECK(coordinator.ok());
  coordinator_ = *std::move(coordinator);
  counting_ = std::make_unique<CountingHost>(coordinator_.get());
  auto server = StartServer(counting_.get(), address);
  ISTHMUS_CHECK(server.ok());
  server_ = *std::move(server);
  server_->SetServing(true);
}

TestCoordinator::~TestCoordinator() { server_->Shutdown(0); }

TestAgent::TestAgent(const AgentOptions& options, const std::string& socket) {
  auto agent = Agent::Start(options);
  ISTHMUS_CHECK(agent.ok());
  agent_ = *std::move(agent);
  auto server = StartServer(agent_.get(), socket);
  ISTHMUS_CHECK(server.ok());
  server_ = *std::move(server);
  server_->SetServing(true);
}

TestAgent::~TestAgent() { server_->Shutdown(0); }

bool Eventually(const std::function<bool()>& condition) {
  // Nothing signals what the condition looks at; so it is looked at often.
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock<std::mutex> lock(mutex);
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    never.wait_for(lock, std::chrono::milliseconds(10));
  }
  return condition();
}

}  // namespace isthmus
