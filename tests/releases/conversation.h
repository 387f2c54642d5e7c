// What the agents of one release said to its coordinator and what it answered, as bytes of the
// wire, so that later releases can be asked the same and must answer the same. A line of the file:
//
//   NODE KIND REQUEST ANSWER      in base64; '-' for no bytes
//
// Kinds: join, watch, event (the next one of the node's watch; no request), header, piece, end,
// heartbeat, leave. Names and numbers of fields are the protocol's own (proto/isthmus/v1).
#pragma once

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "isthmus/v1/coordinator.pb.h"
#include "tests/server/fakes.h"
#include "transport/round_host.h"

namespace isthmus {

struct Said {
  std::string node;
  std::string kind;
  std::string request;
  std::string answer;
};

inline std::string WordOf(const std::string& bytes) {
  return bytes.empty() ? "-" : absl::Base64Escape(bytes);
}

inline std::string LineOf(const Said& said) {
  return absl::StrCat(said.node, " ", said.kind, " ", WordOf(said.request), " ",
                      WordOf(said.answer));
}

// INVALID_ARGUMENT: a line that is not of this form.
inline absl::StatusOr<std::vector<Said>> ReadConversation(const std::string& path) {
  std::ifstream file(path);
  std::vector<Said> all;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() != 4) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", all.size() + 1, " has ", words.size(), " words, not 4"));
    }
    Said said{words[0], words[1], "", ""};
    const bool good = (words[2] == "-" || absl::Base64Unescape(words[2], &said.request)) &&
                      (words[3] == "-" || absl::Base64Unescape(words[3], &said.answer));
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", all.size() + 1, " is not in base64"));
    }
    all.push_back(std::move(said));
  }
  return all;
}

// Speaks for the nodes.
class Speaker {
 public:
  explicit Speaker(RoundHost* host) : host_(host) {}

  // The answer's bytes; empty where there is none.
  absl::StatusOr<std::string> Say(const std::string& node, const std::string& kind,
                                  const std::string& request) {
    if (kind == "join") return Call(&RoundHost::JoinRun, request);
    if (kind == "heartbeat") return Call(&RoundHost::Heartbeat, request);
    if (kind == "leave") return Call(&RoundHost::LeaveRun, request);
    if (kind == "watch") return Watch(node, request);
    if (kind == "event") return watches_.at(node)->NextEvent().SerializeAsString();
    return Submit(node, kind, request);
  }

 private:
  template <typename Request, typename Response>
  absl::StatusOr<std::string> Call(
      absl::StatusOr<Response> (RoundHost::*method)(const Request& request),
      const std::string& bytes) {
    Request request;
    if (!request.ParseFromString(bytes)) return absl::InvalidArgumentError("unreadable request");
    const auto response = (host_->*method)(request);
    if (!response.ok()) return response.status();
    return response->SerializeAsString();
  }

  absl::StatusOr<std::string> Watch(const std::string& node, const std::string& bytes) {
    v1::WatchUpdatesRequest request;
    if (!request.ParseFromString(bytes)) return absl::InvalidArgumentError("unreadable request");
    const auto queue = host_->Watch(request);
    if (!queue.ok()) return queue.status();
    watches_[node] = std::make_unique<WatchReader>(*queue);
    return std::string();
  }

  absl::StatusOr<std::string> Submit(const std::string& node, const std::string& kind,
                                     const std::string& bytes) {
    if (kind == "header") {
      v1::SubmitHeader header;
      if (!header.ParseFromString(bytes)) return absl::InvalidArgumentError("unreadable header");
      auto sink = host_->BeginSubmit(header);
      if (!sink.ok()) return sink.status();
      sinks_[node] = *std::move(sink);
      return std::string();
    }
    if (kind == "piece") {
      const absl::Status status = sinks_.at(node)->AddPiece(bytes);
      if (!status.ok()) return status;
      return std::string();
    }
    v1::SubmitEnd end;
    if (kind != "end" || !end.ParseFromString(bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("unreadable ", kind));
    }
    const auto receipt = sinks_.at(node)->End(end);
    if (!receipt.ok()) return receipt.status();
    return receipt->SerializeAsString();
  }

  RoundHost* const host_;
  std::map<std::string, std::unique_ptr<WatchReader>> watches_;
  std::map<std::string, std::unique_ptr<SubmissionSink>> sinks_;
};

}  // namespace isthmus
