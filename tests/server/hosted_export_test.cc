// The parameters of a hosted model as a file that people can load.
#include <gmock/gmock.h>

#include <filesystem>

#include "base/safetensors.h"
#include "server/ctl/export.h"
#include "tests/server/hosted_runs.h"

namespace isthmus {
namespace {

// A client whose server is in this process.
class HostClient final : public Client {
 public:
  explicit HostClient(RoundHost* host) : host_(host) {}

  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) override {
    return host_->JoinRun(request);
  }
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitHeader&,
                                            const std::vector<const std::string*>&,
                                            const v1::SubmitEnd&) override {
    return absl::UnimplementedError("");
  }
  absl::Status Watch(const v1::WatchUpdatesRequest&,
                     const std::function<absl::Status(v1::WatchUpdatesResponse&)>&) override {
    return absl::UnimplementedError("");
  }
  std::unique_ptr<SnapshotUpload> UploadSnapshot(const v1::UploadSnapshotHeader&) override {
    return nullptr;
  }
  std::unique_ptr<SnapshotDownload> FetchSnapshot(
      const v1::FetchSnapshotRequest& request) override {
    return std::make_unique<Download>(host_->BeginFetch(request));
  }
  void Cancel() override {}

 private:
  class Download final : public SnapshotDownload {
   public:
    explicit Download(absl::StatusOr<std::unique_ptr<SnapshotSource>> source)
        : status_(source.status()) {
      if (source.ok()) source_ = *std::move(source);
    }
    bool Next(v1::FetchSnapshotResponse* message) override {
      if (!status_.ok()) return false;
      const auto next = source_->Next();
      status_ = next.status();
      if (!status_.ok() || !next->has_value()) return false;
      *message = **next;
      return true;
    }
    absl::Status Finish() override { return status_; }

   private:
    absl::Status status_;
    std::unique_ptr<SnapshotSource> source_;
  };

  RoundHost* const host_;
};

TEST_F(HostedFixture, CheckpointExportWritesTheParametersOfAHostedModel) {
  Begin(
      "preset: 'diloco' codec { reply { format: NUMBER_FORMAT_INT8 } } "
      "snapshot { every_rounds: 3 }");
  Start();
  RunRounds(1, 3);
  Finish();
  HostClient client(host());
  ExportOptions options;
  options.path = ::testing::TempDir() + "/hosted_export_test.safetensors";
  const auto exported = ExportSnapshot(&client, options);
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(exported->round(), 3u);
  const auto file = SafetensorsFile::Open(options.path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->entries().size(), grid_->tensors());
  EXPECT_EQ((*file)->metadata().at("isthmus_step"), "6");
  for (uint32_t t = 0; t < grid_->tensors(); ++t) {
    std::vector<float> values(grid_->tensor_elements(t));
    ASSERT_TRUE((*file)->Read(grid_->tensor_name(t), 0, absl::MakeSpan(values)).ok());
    const auto first = nodes_[0].x.begin() + static_cast<int64_t>(grid_->tensor_offset(t));
    EXPECT_TRUE(SameBits(values, std::vector<float>(first, first + values.size())))
        << grid_->tensor_name(t);
  }
  std::filesystem::remove(options.path);
}

}  // namespace
}  // namespace isthmus
