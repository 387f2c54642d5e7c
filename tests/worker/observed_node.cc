#include "tests/worker/observed_node.h"

#include <utility>

#include "worker/process_group.h"
#include "worker/rank_client.h"
#include "worker/trainer.h"

namespace isthmus {

// Passes everything on, and writes down what happens.
class ObservedClient final : public RankClient {
 public:
  ObservedClient(ObservedNode* node, std::unique_ptr<RankClient> client)
      : node_(node), client_(std::move(client)) {}

  void Look(Trainer* trainer) { trainer_ = trainer; }

  absl::StatusOr<v1::JoinRunResponse> FetchSpec() override { return client_->FetchSpec(); }
  absl::StatusOr<v1::JoinRunResponse> Join(const v1::JoinRunRequest& request) override {
    auto joined = client_->Join(request);
    if (joined.ok()) {
      std::lock_guard<std::mutex> lock(node_->mutex_);
      node_->joined_.push_back(request.last_round());
      node_->states_[request.last_round()] = request.state_sha256();
    }
    return joined;
  }
  absl::StatusOr<std::optional<v1::RoundOpened>> WaitOpened(const ApplyUpdate& apply,
                                                            uint64_t own_through) override {
    const auto observed = [&](const Update& update) {
      const absl::Status applied = apply(update);
      if (applied.ok()) Applied(update);
      return applied;
    };
    return client_->WaitOpened(observed, own_through);
  }
  absl::StatusOr<std::optional<Next>> WaitNext(uint64_t round) override {
    return client_->WaitNext(round);
  }
  void Submit(const v1::RoundOpened& opened, std::vector<std::string> pieces,
              const Work& work) override {
    {
      std::lock_guard<std::mutex> lock(node_->mutex_);
      node_->sent_.push_back(opened.round());
      for (const std::string& piece : pieces) node_->sent_bytes_ += piece.size();
    }
    client_->Submit(opened, std::move(pieces), work);
  }
  void Abstain(const v1::RoundOpened& opened, const std::string& reason) override {
    client_->Abstain(opened, reason);
  }
  absl::StatusOr<Update> WaitUpdate() override { return client_->WaitUpdate(); }
  bool UpdateReady() override { return client_->UpdateReady(); }
  void Acknowledge(const Update& update) override {
    Applied(update);
    client_->Acknowledge(update);
  }
  void Checkpointed(uint64_t round) override { client_->Checkpointed(round); }
  void ReportState(uint64_t round, const std::string& sha256) override {
    client_->ReportState(round, sha256);
  }
  void UploadSnapshot(std::shared_ptr<const SnapshotParts> parts) override {
    client_->UploadSnapshot(std::move(parts));
  }
  void FinishUpload() override { client_->FinishUpload(); }
  absl::StatusOr<v1::SnapshotFacts> FetchSnapshot(
      std::optional<uint64_t> round, const std::vector<SectionRange>& ranges,
      const std::function<absl::Status(const v1::SnapshotPiece&)>& on_piece) override {
    return client_->FetchSnapshot(round, ranges, on_piece);
  }
  void Leave(const std::string& reason) override { client_->Leave(reason); }
  SessionCounters counters() const override { return client_->counters(); }

 private:
  // On the trainer's thread, when the update is in its state.
  void Applied(const Update& update) {
    const v1::UpdateRecord& record = update.committed->record;
    const auto sha256 = trainer_->replica().StateSha256(record.step());
    std::lock_guard<std::mutex> lock(node_->mutex_);
    node_->states_[record.round()] = sha256.value_or("none");
  }

  ObservedNode* const node_;
  const std::unique_ptr<RankClient> client_;
  Trainer* trainer_ = nullptr;
};

ObservedNode::ObservedNode(const std::string& agent, const std::string& data)
    : thread_([this, agent, data] { Run(agent, data); }) {}

ObservedNode::~ObservedNode() { (void)Stop(); }

absl::Status ObservedNode::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void ObservedNode::Run(const std::string& agent, const std::string& data) {
  const auto ended = [this](const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
  };
  auto groups = StartThreadProcessGroups(1);
  if (!groups.ok()) return ended(groups.status());
  RankClientOptions client_options;
  client_options.agent = agent;
  client_options.stop = [this] { return stop_.load(); };
  auto made = RankClient::Make(client_options);
  if (!made.ok()) return ended(made.status());
  ObservedClient client(this, *std::move(made));
  TrainerOptions options;
  options.group = groups->front().get();
  options.client = &client;
  options.data = data;
  options.quiet = true;
  options.stop = client_options.stop;
  auto trainer = Trainer::Make(options);
  if (!trainer.ok()) return ended(trainer.status());
  client.Look(trainer->get());
  ended((*trainer)->Run());
  client.Leave("stopped by the test");
}

std::map<uint64_t, std::string> ObservedNode::states() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return states_;
}

uint64_t ObservedNode::last_round() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return states_.empty() ? 0 : states_.rbegin()->first;
}

std::vector<uint64_t> ObservedNode::joined() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return joined_;
}

std::vector<uint64_t> ObservedNode::sent() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sent_;
}

uint64_t ObservedNode::sent_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sent_bytes_;
}

}  // namespace isthmus
