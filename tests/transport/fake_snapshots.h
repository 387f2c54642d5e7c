// A host that takes one state in and gives one out, in ways that a test sets.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "spec/section_ranges.h"
#include "tests/transport/fake_host.h"

namespace isthmus {

class FakeSnapshots final : public FakeHost {
 public:
  // Asked first; what is not OK is the answer.
  std::function<absl::Status(const v1::UploadSnapshotHeader&)> on_upload;
  std::function<absl::Status(const v1::SnapshotPiece&)> on_upload_piece;
  std::function<absl::Status(const v1::FetchSnapshotRequest&)> on_fetch;
  // Before each message of a download: its number in the call, facts 0.
  std::function<absl::Status(size_t)> on_message;
  // Whether pieces that come are held.
  std::atomic<bool> keeps{true};
  // Told when a call's sink or source is destroyed.
  std::function<void()> on_end;

  // What is given out: the values of its sections, in pieces of so many elements.
  v1::SnapshotFacts facts;
  std::string values;
  uint64_t piece_elements = 100;
  // Not null: makes the values of a piece, and `values` is not used.
  std::function<std::string(const SectionRange&)> make_values;

  absl::StatusOr<std::unique_ptr<SnapshotSink>> BeginUpload(
      const v1::UploadSnapshotHeader& header) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      headers_.push_back(header);
    }
    if (on_upload) {
      if (absl::Status status = on_upload(header); !status.ok()) return status;
    }
    auto ranges = ReadRanges(header.ranges(), header.facts().sections(), header.facts().elements());
    if (!ranges.ok()) return ranges.status();
    return std::unique_ptr<SnapshotSink>(std::make_unique<Sink>(this, *std::move(ranges)));
  }

  absl::StatusOr<std::unique_ptr<SnapshotSource>> BeginFetch(
      const v1::FetchSnapshotRequest& request) override {
    if (on_fetch) {
      if (absl::Status status = on_fetch(request); !status.ok()) return status;
    }
    auto ranges = ReadRanges(request.ranges(), facts.sections(), facts.elements());
    if (!ranges.ok()) return ranges.status();
    std::lock_guard<std::mutex> lock(mutex_);
    fetched_.insert(fetched_.end(), ranges->begin(), ranges->end());
    return std::unique_ptr<SnapshotSource>(std::make_unique<Source>(this, *std::move(ranges)));
  }

  std::vector<v1::UploadSnapshotHeader> headers_of_uploads() { return Locked(headers_); }
  // Pieces as they came, also twice.
  std::vector<SectionRange> uploaded() { return Locked(uploaded_); }
  std::map<SectionRange, std::string> held() { return Locked(held_); }
  // All ranges that were asked for.
  std::vector<SectionRange> fetched() { return Locked(fetched_); }
  void Hold(const SectionRange& range, const std::string& data) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_[range] = data;
  }
  void Forget() {
    std::lock_guard<std::mutex> lock(mutex_);
    held_.clear();
  }

 private:
  class Sink final : public SnapshotSink {
   public:
    Sink(FakeSnapshots* host, std::vector<SectionRange> ranges)
        : host_(host), ranges_(std::move(ranges)) {}
    ~Sink() override {
      if (host_->on_end) host_->on_end();
    }
    absl::Status AddPiece(const v1::SnapshotPiece& piece) override {
      if (host_->on_upload_piece) {
        if (absl::Status status = host_->on_upload_piece(piece); !status.ok()) return status;
      }
      const SectionRange range = {piece.section(), piece.begin(),
                                  piece.begin() + piece.data().size() / sizeof(float)};
      std::lock_guard<std::mutex> lock(host_->mutex_);
      host_->uploaded_.push_back(range);
      if (host_->keeps) host_->held_[range] = piece.data();
      return absl::OkStatus();
    }
    absl::StatusOr<v1::UploadSnapshotResponse> End() override {
      std::lock_guard<std::mutex> lock(host_->mutex_);
      std::vector<SectionRange> held;
      for (const auto& [range, data] : host_->held_) held.push_back(range);
      v1::UploadSnapshotResponse response;
      WriteRanges(Missing(ranges_, held, kSnapshotRangesMax), response.mutable_missing());
      return response;
    }

   private:
    FakeSnapshots* const host_;
    const std::vector<SectionRange> ranges_;
  };

  class Source final : public SnapshotSource {
   public:
    Source(FakeSnapshots* host, std::vector<SectionRange> ranges)
        : host_(host), ranges_(std::move(ranges)) {}
    ~Source() override {
      if (host_->on_end) host_->on_end();
    }
    absl::StatusOr<absl::optional<v1::FetchSnapshotResponse>> Next() override {
      if (host_->on_message) {
        if (absl::Status status = host_->on_message(message_); !status.ok()) return status;
      }
      v1::FetchSnapshotResponse message;
      if (message_++ == 0) {
        *message.mutable_facts() = host_->facts;
        return absl::make_optional(message);
      }
      if (range_ == ranges_.size()) return absl::optional<v1::FetchSnapshotResponse>();
      SectionRange* range = &ranges_[range_];
      const uint64_t seam = (range->begin / host_->piece_elements + 1) * host_->piece_elements;
      const uint64_t end = std::min(range->end, seam);
      message.mutable_piece()->set_section(range->section);
      message.mutable_piece()->set_begin(range->begin);
      message.mutable_piece()->set_data(Values({range->section, range->begin, end}));
      range->begin = end;
      if (range->begin == range->end) ++range_;
      return absl::make_optional(message);
    }

   private:
    std::string Values(const SectionRange& range) const {
      if (host_->make_values) return host_->make_values(range);
      const uint64_t first = range.section * host_->facts.elements() + range.begin;
      return host_->values.substr(first * sizeof(float), (range.end - range.begin) * sizeof(float));
    }

    FakeSnapshots* const host_;
    std::vector<SectionRange> ranges_;
    size_t message_ = 0, range_ = 0;
  };

  template <typename Value>
  Value Locked(const Value& value) {
    std::lock_guard<std::mutex> lock(mutex_);
    return value;
  }

  std::mutex mutex_;
  std::vector<v1::UploadSnapshotHeader> headers_;
  std::vector<SectionRange> uploaded_, fetched_;
  std::map<SectionRange, std::string> held_;
};

}  // namespace isthmus
