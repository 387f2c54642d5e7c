// The coordinator's real process over real connections: whole rounds, large models, a stop with
// calls open, and exit codes.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <tuple>

#include "base/limits.h"
#include "google/protobuf/text_format.h"
#include "isthmus/v1/coordinator.grpc.pb.h"
#include "tests/server/fakes.h"
#include "tests/server/served.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

TEST(Serve, ThreeRoundsThenTheProcessEndsByItself) {
  Served served(TestSpec({"a", "b"}), {"--exit_when_finished"});
  RemoteHost host_a(served.address), host_b(served.address);
  FakeNode a(&host_a, "a"), b(&host_b, "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  const auto grid = TestGrid();
  for (uint64_t round = 1; round <= 3; ++round) {
    a.ExpectOpened(round);
    b.ExpectOpened(round);
    const auto seed = static_cast<uint32_t>(round);
    ASSERT_TRUE(b.SubmitRandom(round, 100 + seed).ok());
    ASSERT_TRUE(a.SubmitRandom(round, 200 + seed).ok());
    const ReceivedUpdate update = a.ExpectUpdate(round);
    EXPECT_EQ(update.pieces, b.ExpectUpdate(round).pieces);
    const auto dense = Dense(*grid, update.pieces);
    const auto expected = NaiveMerge(
        *grid, {RandomContribution(*grid, 200 + seed), RandomContribution(*grid, 100 + seed)});
    for (uint64_t chunk = 0; chunk < grid->chunks(); ++chunk) {
      EXPECT_TRUE(SameBits(dense[chunk], expected[chunk])) << grid->Describe(chunk);
    }
  }
  EXPECT_EQ(a.reader->NextEvent().finished().round(), 3u);
  EXPECT_EQ(b.reader->NextEvent().finished().round(), 3u);
  EXPECT_TRUE(a.Leave().ok());
  EXPECT_TRUE(served.process->Running());
  EXPECT_TRUE(b.Leave().ok());
  EXPECT_EQ(served.process->WaitForExit(), 0) << served.Log();
}

TEST(Serve, RefusalsKeepCodeReasonAndDelay) {
  Served served(TestSpec({"a", "b"}));
  RemoteHost host(served.address);
  FakeNode a(&host, "a"), twin(&host, "a");
  a.JoinAndWatch();
  twin.join_request.set_secret("another secret of a");
  const absl::Status status = twin.Join();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(ReasonOf(status), kReasonNodeAlive);
  EXPECT_GT(RetryAfterMsOf(status), 0);
  served.process->Signal(SIGTERM);
  EXPECT_EQ(served.process->WaitForExit(), 0) << served.Log();
}

// Cases C1 and C2: a model of 8.6 MB sent whole, both ways, with default settings; one tensor
// larger than a piece, one of 5 chunks and one element, and all elements compared.
TEST(Serve, ALargeModelGoesBothWays) {
  v1::RunSpec spec = TestSpec({"a", "b"});
  spec.mutable_codec()->set_matrix_density(1.0);
  spec.mutable_codec()->set_vector_density(1.0);
  v1::Manifest manifest;
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors = {
      {"large", {1075, 2000}}, {"five_and_one", {5 * 64 + 1}}, {"ten", {10}}, {"five", {5}}};
  for (const auto& [name, shape] : tensors) {
    v1::TensorSpec* tensor = manifest.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    for (uint64_t size : shape) tensor->add_shape(size);
  }
  const auto grid = Grid::Make(manifest, spec.codec());
  ASSERT_TRUE(grid.ok()) << grid.status();
  Served served(spec);
  RemoteHost host_a(served.address), host_b(served.address);
  FakeNode a(&host_a, "a"), b(&host_b, "b");
  for (FakeNode* node : {&a, &b}) {
    *node->join_request.mutable_manifest() = manifest;
    node->join_request.set_fingerprint(Fingerprint(manifest));
    node->JoinAndWatch();
  }
  std::vector<std::vector<std::string>> sent;
  uint32_t seed = 1;
  for (FakeNode* node : {&a, &b}) {
    const auto pieces = RandomContribution(*grid, seed++, kPieceBytesMax);
    EXPECT_GT(BytesOf(pieces), 8600000u);
    v1::SubmitHeader header = node->Header(1, pieces);
    header.mutable_ranges(0)->set_end(grid->chunks());
    const auto receipt = node->Submit(header, pieces, DigestOf(*grid, pieces));
    ASSERT_TRUE(receipt.ok()) << receipt.status();
    sent.push_back(pieces);
  }
  b.ExpectOpened(1);
  const ReceivedUpdate update = b.ExpectUpdate(1);
  EXPECT_GT(BytesOf(update.pieces), 8600000u);
  const auto dense = Dense(*grid, update.pieces);
  const auto expected = NaiveMerge(*grid, sent);
  for (uint64_t chunk = 0; chunk < grid->chunks(); ++chunk) {
    ASSERT_TRUE(SameBits(dense[chunk], expected[chunk])) << grid->Describe(chunk);
  }
}

// Case C7: SIGTERM with four watches open and an upload half sent.
TEST(Serve, StopsInTimeWithCallsOpen) {
  Served served(TestSpec({"a", "b", "c", "d"}));
  RemoteHost host(served.address);
  std::vector<std::unique_ptr<FakeNode>> nodes;
  for (const char* name : {"a", "b", "c", "d"}) {
    nodes.push_back(std::make_unique<FakeNode>(&host, name));
    nodes.back()->JoinAndWatch();
  }
  nodes[0]->ExpectOpened(1);
  const auto pieces = RandomContribution(*TestGrid(), 1);
  const auto stub = v1::CoordinatorService::NewStub(
      grpc::CreateChannel(served.address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::SubmitResponse response;
  const auto upload = stub->Submit(&context, &response);
  v1::SubmitRequest request;
  *request.mutable_header() = nodes[0]->Header(1, pieces);
  ASSERT_TRUE(upload->Write(request));
  request.mutable_piece()->set_data(pieces[0]);
  ASSERT_TRUE(upload->Write(request));

  const int64_t start_ms = NowMs();
  served.process->Signal(SIGTERM);
  EXPECT_EQ(served.process->WaitForExit(5000), 0) << served.Log();
  EXPECT_LT(NowMs() - start_ms, 5000);
  for (const auto& node : nodes) {
    WatchQueue::Taken taken = node->reader->Next();
    while (!taken.closed) taken = node->reader->Next();
    EXPECT_TRUE(absl::IsUnavailable(taken.status)) << taken.status;
    EXPECT_EQ(ReasonOf(taken.status), kReasonShuttingDown);
  }
  EXPECT_FALSE(upload->Finish().ok());
}

// Runs the program to its end; its exit code and what it said.
std::pair<int, std::string> RunToEnd(const std::vector<std::string>& arguments) {
  Folder folder;
  std::vector<std::string> all = {kBinary};
  all.insert(all.end(), arguments.begin(), arguments.end());
  Process process(all, folder.File("log"));
  const int code = process.WaitForExit();
  return {code, ReadFile(folder.File("log"))};
}

TEST(ExitCodes, BadFlagsAndSpecs) {
  Folder folder;
  std::ofstream(folder.File("bad.txtpb")) << "run: 'x'\nsteps: many\n";
  std::ofstream(folder.File("incomplete.txtpb")) << "run: 'x'\nsteps: 3\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "--run_spec is missing"},
      {{"--no_such_flag"}, "no_such_flag"},
      {{"--run_spec=" + folder.File("missing.txtpb")}, "missing.txtpb"},
      {{"--run_spec=" + folder.File("bad.txtpb")}, "2:"},
      {{"--run_spec=" + folder.File("incomplete.txtpb")}, "nodes"},
      {{"--run_spec=x", "--log_level=loud"}, "loud"},
      {{"run.txtpb"}, "'run.txtpb' is no flag"},
  };
  for (const auto& [arguments, words] : cases) {
    const auto [code, said] = RunToEnd(arguments);
    EXPECT_EQ(code, 2) << said;
    EXPECT_THAT(said, HasSubstr(words));
  }
}

TEST(ExitCodes, AnAddressThatIsInUseIsNamed) {
  Served served(TestSpec({"a"}));
  Folder folder;
  std::string text;
  google::protobuf::TextFormat::PrintToString(TestSpec({"a"}), &text);
  std::ofstream(folder.File("run.txtpb")) << text;
  auto [code, said] =
      RunToEnd({"--run_spec=" + folder.File("run.txtpb"), "--listen=" + served.address});
  EXPECT_EQ(code, 1) << said;
  EXPECT_THAT(said, HasSubstr(served.address));
  // Plain text that others could read is a matter of flags.
  std::tie(code, said) = RunToEnd({"--run_spec=" + folder.File("run.txtpb"), "--listen=0.0.0.0:0"});
  EXPECT_EQ(code, 2) << said;
  EXPECT_THAT(said, HasSubstr("0.0.0.0"));
}

}  // namespace
}  // namespace isthmus
