// A download that breaks off anywhere goes on from there, and takes nothing it did not ask for.
#include "worker/snapshot_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::SnapshotFacts Facts(uint64_t round) {
  v1::SnapshotFacts facts;
  facts.set_round(round);
  facts.set_sections(3);
  facts.set_elements(100000);
  return facts;
}

v1::FetchSnapshotResponse FactsMessage(uint64_t round) {
  v1::FetchSnapshotResponse message;
  *message.mutable_facts() = Facts(round);
  return message;
}

v1::FetchSnapshotResponse PieceMessage(const SectionRange& range) {
  v1::FetchSnapshotResponse message;
  message.mutable_piece()->set_section(range.section);
  message.mutable_piece()->set_begin(range.begin);
  message.mutable_piece()->set_data(
      std::string((range.end - range.begin) * sizeof(float), static_cast<char>(range.begin)));
  return message;
}

struct Download {
  std::deque<v1::FetchSnapshotResponse> messages;
  absl::Status end;
};

class ScriptedDownload final : public SnapshotDownload {
 public:
  explicit ScriptedDownload(Download script) : script_(std::move(script)) {}
  bool Next(v1::FetchSnapshotResponse* message) override {
    if (script_.messages.empty()) return false;
    *message = std::move(script_.messages.front());
    script_.messages.pop_front();
    return true;
  }
  absl::Status Finish() override { return script_.end; }

 private:
  Download script_;
};

// Only downloads, each as the test makes it.
class ScriptedClient final : public Client {
 public:
  std::function<Download(const v1::FetchSnapshotRequest&)> download;
  std::vector<v1::FetchSnapshotRequest> requests;

  std::unique_ptr<SnapshotDownload> FetchSnapshot(
      const v1::FetchSnapshotRequest& request) override {
    requests.push_back(request);
    return std::make_unique<ScriptedDownload>(download(request));
  }
  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest&) override { return No(); }
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest&) override {
    return No();
  }
  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest&) override {
    return No();
  }
  absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitHeader&,
                                            const std::vector<const std::string*>&,
                                            const v1::SubmitEnd&) override {
    return No();
  }
  absl::Status Watch(const v1::WatchUpdatesRequest&,
                     const std::function<absl::Status(v1::WatchUpdatesResponse&)>&) override {
    return No();
  }
  std::unique_ptr<SnapshotUpload> UploadSnapshot(const v1::UploadSnapshotHeader&) override {
    return nullptr;
  }
  void Cancel() override {}

 private:
  static absl::Status No() { return absl::UnimplementedError("only downloads"); }
};

class SnapshotFetchTest : public ::testing::Test {
 protected:
  // What an honest server sends for a request, in pieces of 10 elements at their seams.
  Download Honest(const v1::FetchSnapshotRequest& request) const {
    Download download;
    download.messages.push_back(FactsMessage(5));
    const auto ranges = ReadRanges(request.ranges(), 3, 100000);
    EXPECT_TRUE(ranges.ok()) << ranges.status();
    for (SectionRange range : *ranges) {
      while (range.begin < range.end) {
        const uint64_t end = std::min(range.end, (range.begin / 10 + 1) * 10);
        download.messages.push_back(PieceMessage({range.section, range.begin, end}));
        range.begin = end;
      }
    }
    return download;
  }
  SnapshotFetch Make(std::optional<uint64_t> round, std::vector<SectionRange> ranges) {
    return SnapshotFetch(&client_, round, std::move(ranges), [this](const v1::SnapshotPiece& p) {
      came_.push_back({p.section(), p.begin(), p.begin() + p.data().size() / sizeof(float)});
      return piece_status_;
    });
  }
  absl::Status Try(SnapshotFetch* fetch) {
    return fetch->Try([](const std::string&) {});
  }
  // How a single try ends where the server sends this.
  absl::Status TryOnce(const std::vector<v1::FetchSnapshotResponse>& messages,
                       std::optional<uint64_t> round = 5) {
    came_.clear();
    client_.download = [&](const auto&) {
      return Download{{messages.begin(), messages.end()}, absl::OkStatus()};
    };
    SnapshotFetch fetch = Make(round, {{0, 0, 20}, {1, 30, 40}});
    return Try(&fetch);
  }

  ScriptedClient client_;
  std::vector<SectionRange> came_;
  absl::Status piece_status_;
};

const std::vector<SectionRange> kWanted = {{0, 3, 47}, {0, 50, 60}, {1, 0, 9}, {2, 95, 121}};

TEST_F(SnapshotFetchTest, ABreakAtAnyMessageCostsNothingTwice) {
  v1::FetchSnapshotRequest all;
  WriteRanges(kWanted, all.mutable_ranges());
  const size_t messages = Honest(all).messages.size();
  for (size_t first = 0; first <= messages; ++first) {
    for (size_t second : {size_t{0}, size_t{1}, size_t{2}, size_t{4}}) {
      SCOPED_TRACE(absl::StrCat("breaks after ", first, " and ", second, " messages"));
      came_.clear();
      client_.requests.clear();
      std::deque<size_t> breaks = {first, second};
      client_.download = [&](const v1::FetchSnapshotRequest& request) {
        Download download = Honest(request);
        const auto asked = *ReadRanges(request.ranges(), 3, 100000);
        EXPECT_EQ(Missing(asked, came_, 100), asked);  // nothing of it has come
        if (breaks.empty()) return download;
        download.messages.resize(std::min(download.messages.size(), breaks.front()));
        breaks.pop_front();
        download.end = absl::UnavailableError("broke off");
        return download;
      };
      SnapshotFetch fetch = Make(std::nullopt, kWanted);
      EXPECT_TRUE(absl::IsUnavailable(Try(&fetch)));
      const absl::Status between = Try(&fetch);
      EXPECT_TRUE(between.ok() || absl::IsUnavailable(between)) << between;
      const absl::Status last = Try(&fetch);
      ASSERT_TRUE(last.ok()) << last;
      EXPECT_EQ(fetch.facts().round(), 5u);
      uint64_t elements = 0;
      for (const SectionRange& range : came_) elements += range.end - range.begin;
      EXPECT_TRUE(std::is_sorted(came_.begin(), came_.end()));
      EXPECT_EQ(elements, 44u + 10 + 9 + 26);
      EXPECT_THAT(Missing(kWanted, came_, 9), IsEmpty());
      // Once it knows which one it is, it asks for no other.
      for (size_t i = 1; i < client_.requests.size(); ++i) {
        EXPECT_EQ(client_.requests[i].has_round(), first > 0 || (i == 2 && second > 0));
      }
    }
  }
}

TEST_F(SnapshotFetchTest, FactsAloneAreOneCall) {
  client_.download = [this](const auto& request) { return Honest(request); };
  SnapshotFetch fetch = Make(std::nullopt, {});
  ASSERT_TRUE(Try(&fetch).ok());
  EXPECT_EQ(fetch.facts().SerializeAsString(), Facts(5).SerializeAsString());
  EXPECT_THAT(client_.requests, SizeIs(1));
  EXPECT_FALSE(client_.requests[0].has_round());
  EXPECT_THAT(client_.requests[0].ranges(), IsEmpty());
}

TEST_F(SnapshotFetchTest, MoreRangesThanACallMayNameAreSeveralCalls) {
  client_.download = [this](const auto& request) { return Honest(request); };
  std::vector<SectionRange> many;
  for (uint64_t i = 0; i < 2 * kSnapshotRangesMax + 3; ++i) many.push_back({1, 4 * i, 4 * i + 1});
  SnapshotFetch fetch = Make(5, many);
  ASSERT_TRUE(Try(&fetch).ok());
  EXPECT_EQ(came_, many);
  EXPECT_THAT(client_.requests, SizeIs(3));
  for (const auto& request : client_.requests) {
    EXPECT_LE(request.ranges_size(), static_cast<int>(kSnapshotRangesMax));
    EXPECT_EQ(request.round(), 5u);
  }
}

TEST_F(SnapshotFetchTest, OnlyWhatWasAskedForIsTaken) {
  const auto facts = FactsMessage(5);
  const auto lost = [&](const std::vector<v1::FetchSnapshotResponse>& messages,
                        const std::string& sentence) {
    const absl::Status status = TryOnce(messages);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
  };
  const auto piece = PieceMessage({0, 0, 10}), next = PieceMessage({0, 10, 20});
  ASSERT_TRUE(TryOnce({facts, piece, next, PieceMessage({1, 30, 40})}).ok());
  EXPECT_THAT(came_, SizeIs(3));
  lost({piece}, "elements [0, 10) of section 0, which were not asked for");
  lost({}, "sent no facts");
  lost({facts, piece, piece}, "[0, 10)");                // twice
  lost({facts, next, piece}, "[0, 10)");                 // not in order
  lost({facts, PieceMessage({0, 15, 25})}, "[15, 25)");  // beyond
  lost({facts, PieceMessage({2, 0, 10})}, "[0, 10) of section 2");
  lost({facts, PieceMessage({0, 5, 5})}, "[5, 5)");
  lost({facts, v1::FetchSnapshotResponse()}, "[0, 0)");
  auto odd = piece;
  odd.mutable_piece()->mutable_data()->resize(39);
  lost({facts, odd}, "[0, 9)");
  auto wraps = piece;
  wraps.mutable_piece()->set_begin(~uint64_t{0} - 4);
  lost({facts, wraps}, "not asked for");
  lost({facts, piece, FactsMessage(6)}, "two snapshots of one round");
  lost({FactsMessage(6)}, "the snapshot of round 6, not of round 5");
  // One that ends before all has come, without an error, and gets no further.
  lost({facts}, "lacks elements from 0 on");
  EXPECT_TRUE(TryOnce({facts, piece, facts, next, PieceMessage({1, 30, 40})}).ok());
}

TEST_F(SnapshotFetchTest, AStreamThatEndsEarlyIsAskedForTheRest) {
  client_.download = [this](const auto& request) {
    Download download = Honest(request);
    download.messages.resize(std::min<size_t>(download.messages.size(), 3));
    return download;
  };
  SnapshotFetch fetch = Make(5, kWanted);
  ASSERT_TRUE(Try(&fetch).ok());
  EXPECT_THAT(Missing(kWanted, came_, 9), IsEmpty());
}

TEST_F(SnapshotFetchTest, ErrorsOfTheServerAndOfTheTakerEndIt) {
  client_.download = [](const auto&) {
    return Download{{}, WithReason(absl::NotFoundError("gone"), "NO_SUCH_SNAPSHOT")};
  };
  SnapshotFetch gone = Make(5, kWanted);
  EXPECT_EQ(ReasonOf(Try(&gone)), "NO_SUCH_SNAPSHOT");
  client_.download = [this](const auto& request) { return Honest(request); };
  piece_status_ = absl::InternalError("no place for it");
  SnapshotFetch fetch = Make(5, kWanted);
  EXPECT_EQ(Try(&fetch).message(), "no place for it");
  EXPECT_THAT(came_, ElementsAre(SectionRange{0, 3, 10}));
}

}  // namespace
}  // namespace isthmus
