#include "worker/progress.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

constexpr int64_t kLineEveryMs = 1000;

std::string Bytes(double bytes) {
  if (bytes < 1000) return absl::StrFormat("%.0f B", bytes);
  if (bytes < 1e6) return absl::StrFormat("%.1f kB", bytes / 1e3);
  return absl::StrFormat("%.1f MB", bytes / 1e6);
}

// JSON has no word for what is not finite.
nlohmann::ordered_json Number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Progress>> Progress::Start(const ProgressOptions& options) {
  auto progress = std::unique_ptr<Progress>(new Progress(options));
  const std::string& metrics_file = options.metrics_file;
  progress->started_ms_ = progress->printed_ms_ = progress->clock_.NowMs();
  if (!metrics_file.empty()) {
    progress->metrics_ = std::fopen(metrics_file.c_str(), "we");
    if (progress->metrics_ == nullptr) {
      return absl::ErrnoToStatus(errno,
                                 absl::StrCat("cannot write metrics file '", metrics_file, "'"));
    }
  }
  return progress;
}

Progress::~Progress() {
  if (metrics_ != nullptr) std::fclose(metrics_);
}

void Progress::StartLoss(double val_loss, uint64_t round) {
  if (options_.quiet) return;
  const std::string when =
      round == 0 ? "before the first step" : absl::StrCat("at the checkpoint of round ", round);
  std::printf("held-out loss %s %.4f\n", when.c_str(), val_loss);
  std::fflush(stdout);
}

void Progress::Round(const RoundReport& report) {
  const int64_t now_ms = clock_.NowMs();
  tokens_ += report.tokens;
  rounds_ += 1;
  wait_ms_ += report.wait_ms;
  loss_sum_ += report.loss;
  if (report.val_loss) val_loss_ = report.val_loss;
  if (metrics_ != nullptr) {
    nlohmann::ordered_json line;
    line["round"] = report.round;
    line["step"] = report.step;
    line["loss"] = Number(report.loss);
    if (report.val_loss) line["val_loss"] = Number(*report.val_loss);
    line["tokens"] = report.tokens;
    if (has_local_steps()) {
      line["local_steps"] = report.local_steps;
      line["carried_rounds"] = report.carried_rounds;
      line["dropped_deltas"] = report.dropped_deltas;
    }
    line["bytes_up"] = report.bytes_up;
    line["bytes_down"] = report.bytes_down;
    line["wait_ms"] = Number(report.wait_ms);
    line["included"] = report.included;
    line["skipped_steps"] = report.skipped_steps;
    line["skipped_sequences"] = report.skipped_sequences;
    line["seconds"] = static_cast<double>(now_ms - started_ms_) / 1e3;
    std::fprintf(metrics_, "%s\n", line.dump().c_str());
    std::fflush(metrics_);  // plots follow a run that is under way
  }
  if (options_.quiet) return;
  const bool last = report.step == options_.steps;
  if (printed_ && now_ms - printed_ms_ < kLineEveryMs && !last) return;
  Print(report, now_ms);
}

void Progress::Print(const RoundReport& report, int64_t now_ms) {
  const double seconds = std::max<int64_t>(now_ms - printed_ms_, 1) / 1e3;
  const double rounds = static_cast<double>(rounds_);
  const auto applied =
      static_cast<double>(std::max<uint64_t>(report.applied - printed_applied_, 1));
  const std::string round =
      has_local_steps() ? absl::StrCat(" (round ", report.round, "/", options_.rounds, ")") : "";
  std::printf(
      "step %6llu/%llu%s  loss %.4f%s  %7.0f tokens/s  up %s, down %s a round  waited %.0f ms%s\n",
      static_cast<unsigned long long>(report.step), static_cast<unsigned long long>(options_.steps),
      round.c_str(), loss_sum_ / rounds,
      val_loss_ ? absl::StrFormat("  held-out %.4f", *val_loss_).c_str() : "",
      static_cast<double>(tokens_) / seconds,
      Bytes(static_cast<double>(report.bytes_up - printed_up_) / rounds).c_str(),
      Bytes(static_cast<double>(report.bytes_down - printed_down_) / applied).c_str(),
      wait_ms_ / rounds, report.included ? "" : "  (not included)");
  std::fflush(stdout);
  printed_ = true;
  printed_ms_ = now_ms;
  printed_up_ = report.bytes_up;
  printed_down_ = report.bytes_down;
  printed_applied_ = report.applied;
  val_loss_.reset();
  tokens_ = rounds_ = 0;
  wait_ms_ = loss_sum_ = 0;
}

std::string SummaryJson(const TrainSummary& summary) {
  const double rounds = static_cast<double>(std::max<uint64_t>(summary.rounds, 1));
  nlohmann::ordered_json json;
  json["val_loss"] = Number(summary.val_loss);
  json["start_loss"] = Number(summary.start_loss);
  json["tokens"] = summary.tokens;
  json["rounds"] = summary.rounds;
  json["skipped_steps"] = summary.skipped_steps;
  json["skipped_sequences"] = summary.skipped_sequences;
  json["carried_rounds"] = summary.carried_rounds;
  json["dropped_deltas"] = summary.dropped_deltas;
  json["dropped_steps"] = summary.dropped_steps;
  json["non_finite_steps"] = summary.non_finite_steps;
  json["up_bytes_per_round"] = std::llround(static_cast<double>(summary.bytes_up) / rounds);
  json["down_bytes_per_round"] = std::llround(static_cast<double>(summary.bytes_down) / rounds);
  json["dense_bytes_per_round"] = summary.dense_bytes_per_round;
  json["resumed_round"] = summary.resumed_round;
  json["snapshot_round"] = summary.snapshot_round;
  json["replayed_rounds"] = summary.replayed_rounds;
  json["fresh_residuals"] = summary.fresh_residuals;
  json["fresh_residual_norm"] = Number(summary.fresh_residual_norm);
  json["checkpoints"] = summary.checkpoints;
  json["checkpoint_ms_max"] = Number(summary.checkpoint_ms_max);
  json["check_ms_max"] = Number(summary.check_ms_max);
  json["state_sha256"] = HexPrefix(summary.state_sha256, 64);
  json["steps"] = summary.steps;
  json["seconds"] = Number(summary.seconds);
  if (!summary.sample.empty()) json["sample"] = summary.sample;
  // Bytes that are no UTF-8 (a model may write any) become U+FFFD.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace isthmus
