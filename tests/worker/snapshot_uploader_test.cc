// A rank's part of a snapshot comes through, whatever its agent does meanwhile.
#include "worker/snapshot_uploader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <set>

#include "tests/transport/fake_snapshots.h"
#include "tests/transport/loopback.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kCut = kSnapshotPieceBytesMax / sizeof(float);

SnapshotParts::Part Part(uint32_t section, uint64_t begin, uint64_t elements) {
  SnapshotParts::Part part = {section, begin, {}};
  for (uint64_t i = 0; i < elements; ++i) {
    part.values.push_back(static_cast<float>(section * 1000000 + begin + i));
  }
  return part;
}

class SnapshotUploaderTest : public ::testing::Test {
 protected:
  SnapshotUploaderTest() {
    auto parts = std::make_shared<SnapshotParts>();
    parts->facts.set_run("test");
    parts->facts.set_round(9);
    parts->facts.set_sections(3);
    parts->facts.set_elements(1000000);
    parts->parts = {Part(0, 100, 3 * kCut + 1), Part(0, 3 * kCut + 101, 7), Part(1, 5, 1),
                    Part(2, 2 * kCut, kCut)};
    parts_ = parts;
    host_.on_upload = [this](const v1::UploadSnapshotHeader&) {
      return wanted_ ? absl::OkStatus()
                     : WithReason(absl::FailedPreconditionError("not asked for"),
                                  "SNAPSHOT_NOT_WANTED");
    };
    StartHost();
  }
  void StartHost() {
    auto server = StartServer(&host_, folder_.Socket());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Upload(uint32_t rank = 1) {
    SnapshotUploader::Options options;
    options.agent = folder_.Socket();
    options.rank = rank;
    options.incarnation = [this] { return incarnation_.load(); };
    options.backoff_seed = 1;
    auto uploader = SnapshotUploader::Start(options, parts_);
    ASSERT_TRUE(uploader.ok()) << uploader.status();
    uploader_ = *std::move(uploader);
  }
  // All of the parts, as they are cut.
  std::set<SectionRange> Cuts() const {
    return {{0, 100, kCut + 100},
            {0, kCut + 100, 2 * kCut + 100},
            {0, 2 * kCut + 100, 3 * kCut + 100},
            {0, 3 * kCut + 100, 3 * kCut + 101},
            {0, 3 * kCut + 101, 3 * kCut + 108},
            {1, 5, 6},
            {2, 2 * kCut, 3 * kCut}};
  }
  bool HoldsAll() {
    const auto held = host_.held();
    std::set<SectionRange> ranges;
    for (const auto& [range, data] : held) ranges.insert(range);
    return ranges == Cuts();
  }
  bool ValuesAreRight() {
    for (const auto& [range, data] : host_.held()) {
      for (uint64_t i = 0; i < range.end - range.begin; ++i) {
        float value = 0;
        std::memcpy(&value, data.data() + i * sizeof(float), sizeof(value));
        if (value != static_cast<float>(range.section * 1000000 + range.begin + i)) return false;
      }
    }
    return true;
  }
  size_t Calls(uint32_t rank = 1) {
    const auto headers = host_.headers_of_uploads();
    return static_cast<size_t>(std::count_if(
        headers.begin(), headers.end(), [&](const auto& header) { return header.rank() == rank; }));
  }

  TestFolder folder_;
  FakeSnapshots host_;
  std::atomic<bool> wanted_{true};
  std::atomic<uint64_t> incarnation_{7};
  std::shared_ptr<const SnapshotParts> parts_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<SnapshotUploader> uploader_;
};

TEST_F(SnapshotUploaderTest, AsksFirstAndSendsWhatIsMissing) {
  host_.Hold({0, kCut + 100, 2 * kCut + 100},
             std::string(reinterpret_cast<const char*>(&parts_->parts[0].values[kCut]),
                         kCut * sizeof(float)));
  Upload();
  ASSERT_TRUE(host_.WaitFor([&] { return HoldsAll(); }));
  EXPECT_TRUE(ValuesAreRight());
  const std::vector<SectionRange> sent = host_.uploaded();
  EXPECT_EQ(sent.size(), Cuts().size() - 1);
  EXPECT_TRUE(std::is_sorted(sent.begin(), sent.end()));
  const v1::UploadSnapshotHeader header = host_.headers_of_uploads()[0];
  EXPECT_EQ(header.rank(), 1u);
  EXPECT_EQ(header.incarnation(), 7u);
  EXPECT_EQ(header.facts().SerializeAsString(), parts_->facts.SerializeAsString());
  EXPECT_THAT(*ReadRanges(header.ranges(), 3, 1000000),
              ElementsAre(SectionRange{0, 100, 3 * kCut + 108}, SectionRange{1, 5, 6},
                          SectionRange{2, 2 * kCut, 3 * kCut}));
}

TEST_F(SnapshotUploaderTest, WhatIsRefusedEndsIt) {
  wanted_ = false;
  Upload(/*rank=*/2);
  ASSERT_TRUE(host_.WaitFor([&] { return Calls(2) == 1; }));
  const auto refused = std::move(uploader_);
  wanted_ = true;
  Upload();
  ASSERT_TRUE(host_.WaitFor([&] { return HoldsAll() && Calls() >= 4; }));
  EXPECT_EQ(Calls(2), 1u);
}

TEST_F(SnapshotUploaderTest, ACallThatBreaksOffLosesNothing) {
  std::atomic<int> pieces{0};
  host_.on_upload_piece = [&](const auto&) {
    return ++pieces % 2 == 0 ? absl::UnavailableError("breaks off") : absl::OkStatus();
  };
  Upload();
  ASSERT_TRUE(host_.WaitFor([&] { return HoldsAll(); }));
  EXPECT_TRUE(ValuesAreRight());
  EXPECT_EQ(host_.uploaded().size(), Cuts().size());  // nothing twice
}

TEST_F(SnapshotUploaderTest, AnAgentThatStartsAgainIsWaitedFor) {
  std::atomic<int> pieces{0}, strange{0};
  host_.on_upload_piece = [&](const auto&) {
    return ++pieces > 3 ? absl::UnavailableError("stops") : absl::OkStatus();
  };
  Upload();
  ASSERT_TRUE(host_.WaitFor([&] { return pieces > 3; }));
  server_->Shutdown(0);
  server_ = nullptr;
  host_.Forget();
  host_.on_upload_piece = nullptr;
  host_.on_upload = [&](const v1::UploadSnapshotHeader& header) {
    if (header.incarnation() == 8) return absl::OkStatus();
    if (++strange == 2) incarnation_ = 8;  // the rank has joined again
    return WithReason(absl::FailedPreconditionError("rank 1 has not joined"), kReasonNotJoined);
  };
  StartHost();
  ASSERT_TRUE(host_.WaitFor([&] { return HoldsAll(); }));
  EXPECT_TRUE(ValuesAreRight());
  EXPECT_EQ(strange, 2);
}

// Pieces are durable only with the snapshot: a coordinator that starts again may have lost some.
TEST_F(SnapshotUploaderTest, WhatIsLostBeforeItCountsIsSentAgain) {
  Upload();
  ASSERT_TRUE(host_.WaitFor([&] { return HoldsAll(); }));
  host_.Forget();
  ASSERT_TRUE(host_.WaitFor([&] { return HoldsAll(); }));
  EXPECT_TRUE(ValuesAreRight());
  wanted_ = false;  // it counts
  const size_t calls = Calls();
  ASSERT_TRUE(host_.WaitFor([&] { return Calls() > calls; }));
}

TEST_F(SnapshotUploaderTest, AnAgentThatKeepsNothingIsNotFlooded) {
  host_.keeps = false;
  const auto begin = std::chrono::steady_clock::now();
  Upload();
  // A try is a question and an answer to it; before the second and the third it waits.
  ASSERT_TRUE(host_.WaitFor([&] { return Calls() >= 6; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin,
            std::chrono::milliseconds(kBackoffFirstMs / 2 + kBackoffFirstMs));
  host_.keeps = true;
  ASSERT_TRUE(host_.WaitFor([&] { return HoldsAll(); }));
}

TEST_F(SnapshotUploaderTest, ARankWithNothingSaysSo) {
  auto nothing = std::make_shared<SnapshotParts>();
  nothing->facts = parts_->facts;
  parts_ = nothing;
  Upload();
  ASSERT_TRUE(host_.WaitFor([&] { return Calls() == 1; }));
  EXPECT_THAT(host_.headers_of_uploads()[0].ranges(), IsEmpty());
  EXPECT_THAT(host_.uploaded(), IsEmpty());
}

}  // namespace
}  // namespace isthmus
