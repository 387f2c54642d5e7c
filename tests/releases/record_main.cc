// Records what a release leaves behind and says, for the releases after it:
//
//   record DIR      an empty folder, below tests/releases
//
// Writes DIR/state, the folder of a coordinator that has ended after three rounds, and
// DIR/conversation.txt, what the nodes and a coordinator that goes on with it say to each other
// until the run is finished.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "server/rocks_store.h"
#include "tests/releases/conversation.h"
#include "tests/server/fakes.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kStored = 3, kRounds = 6;

std::shared_ptr<Store> OpenStore(const std::string& dir) {
  RocksStoreOptions options;
  options.dir = dir;
  auto store = OpenRocksStore(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

uint32_t SeedOf(uint64_t round, int node) { return static_cast<uint32_t>(10 * round) + node; }

// Rounds from `first` to `last`. The nodes remember where they are.
void RunRounds(uint64_t first, uint64_t last, FakeNode* a, FakeNode* b, RoundHost* host) {
  a->Reconnect(host);
  b->Reconnect(host);
  a->JoinAndWatch();
  b->JoinAndWatch();
  for (uint64_t round = first; round <= last; ++round) {
    a->ExpectOpened(round);
    b->ExpectOpened(round);
    EXPECT_TRUE(a->SubmitRandom(round, SeedOf(round, 0)).ok());
    EXPECT_TRUE(b->SubmitRandom(round, SeedOf(round, 1)).ok());
    a->ExpectUpdate(round);
    b->ExpectUpdate(round);
  }
}

// One line after the other.
class Recorder {
 public:
  Recorder(RoundHost* host, const std::string& path) : speaker_(host), file_(path) {}

  std::string Say(const std::string& node, const std::string& kind, const std::string& request) {
    const auto answer = speaker_.Say(node, kind, request);
    EXPECT_TRUE(answer.ok()) << node << " " << kind << ": " << answer.status();
    if (!answer.ok()) return "";
    file_ << LineOf({node, kind, request, *answer}) << "\n";
    return *answer;
  }

  // Events up to the one that opens the round after this one, or ends the run.
  void ReadThrough(const std::string& node, uint64_t round) {
    v1::WatchUpdatesResponse event;
    do {
      EXPECT_TRUE(event.ParseFromString(Say(node, "event", "")));
    } while (!event.has_finished() && !(event.opened().round() == round + 1));
  }

 private:
  Speaker speaker_;
  std::ofstream file_;
};

void Submit(Recorder* recorder, const FakeNode& node, const std::string& name, uint64_t round,
            uint32_t seed) {
  const auto grid = TestGrid();
  const auto pieces = RandomContribution(*grid, seed, 4000);
  recorder->Say(name, "header", node.Header(round, pieces).SerializeAsString());
  for (const std::string& piece : pieces) recorder->Say(name, "piece", piece);
  v1::SubmitEnd end;
  end.set_digest(DigestOf(*grid, pieces));
  recorder->Say(name, "end", end.SerializeAsString());
}

void Record(const std::string& dir) {
  const v1::RunSpec spec = TestSpec({"a", "b"}, 0, kRounds);
  FakeNode a(nullptr, "a"), b(nullptr, "b");
  // A start makes tables of the log that it finds, so both forms are there.
  for (const auto& [first, last] : {std::make_pair(1, 2), std::make_pair(3, 3)}) {
    TestCoordinator coordinator(spec, OpenStore(dir + "/state"));
    RunRounds(first, last, &a, &b, coordinator.host.get());
  }
  // What RocksDB tells people about itself has no place in a record.
  for (const auto& file : fs::directory_iterator(dir + "/state")) {
    const std::string name = file.path().filename();
    if (name.rfind("LOG", 0) == 0) fs::remove(file.path());
  }
  const std::string copy = dir + "/copy";
  fs::copy(dir + "/state", copy);
  {
    TestCoordinator coordinator(spec, OpenStore(copy));
    Recorder recorder(coordinator.host.get(), dir + "/conversation.txt");
    for (FakeNode* node : {&a, &b}) {
      const std::string name = node->join_request.node();
      EXPECT_TRUE(node->joined.ParseFromString(
          recorder.Say(name, "join", node->join_request.SerializeAsString())));
      recorder.Say(name, "watch", node->WatchRequest().SerializeAsString());
      recorder.ReadThrough(name, kStored);
    }
    for (uint64_t round = kStored + 1; round <= kRounds; ++round) {
      v1::HeartbeatRequest beat;
      beat.set_run("test");
      beat.set_node("a");
      beat.set_incarnation(a.joined.incarnation());
      beat.set_acknowledged_round(round - 1);
      recorder.Say("a", "heartbeat", beat.SerializeAsString());
      Submit(&recorder, b, "b", round, SeedOf(round, 1));
      Submit(&recorder, a, "a", round, SeedOf(round, 0));
      recorder.ReadThrough("a", round);
      recorder.ReadThrough("b", round);
    }
    for (FakeNode* node : {&a, &b}) {
      v1::LeaveRunRequest leave;
      leave.set_run("test");
      leave.set_node(node->join_request.node());
      leave.set_role(v1::ROLE_NODE);
      leave.set_incarnation(node->joined.incarnation());
      leave.set_reason("finished");
      recorder.Say(leave.node(), "leave", leave.SerializeAsString());
    }
  }
  fs::remove_all(copy);
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: record DIR\n");
    return 2;
  }
  isthmus::Record(argv[1]);
  return ::testing::UnitTest::GetInstance()->Failed() ? 1 : 0;
}
