#include "tests/history/json_lines.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

using Json = nlohmann::json;

const std::map<std::string, EventKind>& Kinds() {
  static const auto* const kinds = new std::map<std::string, EventKind>{
      {"restored", EventKind::kRestored}, {"computed", EventKind::kComputed},
      {"receipt", EventKind::kReceipt},   {"received", EventKind::kReceived},
      {"settled", EventKind::kSettled},   {"applied", EventKind::kApplied},
      {"durable", EventKind::kDurable},   {"published", EventKind::kPublished}};
  return *kinds;
}

const std::map<std::string, Outcome>& Outcomes() {
  static const auto* const outcomes =
      new std::map<std::string, Outcome>{{"included", Outcome::kIncluded},
                                         {"left_out", Outcome::kLeftOut},
                                         {"dropped", Outcome::kDropped}};
  return *outcomes;
}

template <typename T>
std::string NameOf(const std::map<std::string, T>& names, T value) {
  for (const auto& [name, one] : names) {
    if (one == value) return name;
  }
  return "";
}

std::string Text(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

uint64_t Number(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::string Bytes(const Json& object, const char* name) {
  return absl::HexStringToBytes(Text(object, name));
}

std::shared_ptr<const v1::UpdateRecord> RecordInParts(const Json& object) {
  auto record = std::make_shared<v1::UpdateRecord>();
  record->set_round(Number(object, "round"));
  record->set_sha256(Bytes(object, "sha256"));
  record->set_previous_sha256(Bytes(object, "previous_sha256"));
  record->set_is_void(object.value("void", Json(false)) == Json(true));
  for (const Json& one : object.value("included", Json::array())) {
    v1::IncludedContribution* included = record->add_included();
    included->set_node(Text(one, "node"));
    included->set_digest(Bytes(one, "digest"));
  }
  return record;
}

absl::Status ReadRecord(const Json& object, Event* event) {
  if (!object.contains("record")) {
    event->record = RecordInParts(object);
    event->is_whole = false;
    return absl::OkStatus();
  }
  auto record = std::make_shared<v1::UpdateRecord>();
  if (!record->ParseFromString(Bytes(object, "record"))) {
    return absl::InvalidArgumentError("record is not an UpdateRecord in hexadecimal");
  }
  if (event->round == 0) event->round = record->round();
  event->record = std::move(record);
  return absl::OkStatus();
}

}  // namespace

std::string WriteLine(const Event& event) {
  Json object;
  object["event"] = NameOf(Kinds(), event.kind);
  object["round"] = event.round;
  if (!event.node.empty()) object["node"] = event.node;
  if (event.life != 0) object["life"] = event.life;
  if (event.outcome != Outcome::kNone) object["outcome"] = NameOf(Outcomes(), event.outcome);
  if (!event.digest.empty()) object["digest"] = absl::BytesToHexString(event.digest);
  if (!event.sha256.empty()) object["sha256"] = absl::BytesToHexString(event.sha256);
  if (!event.state.empty()) object["state"] = absl::BytesToHexString(event.state);
  if (event.record != nullptr) {
    object["record"] = absl::BytesToHexString(event.record->SerializeAsString());
  }
  if (event.pieces != nullptr) {
    object["pieces"] = Json::array();
    for (const std::string& piece : *event.pieces) {
      object["pieces"].push_back(absl::BytesToHexString(piece));
    }
  }
  return object.dump();
}

absl::StatusOr<Event> ReadLine(absl::string_view line) {
  const Json object = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  const auto kind = Kinds().find(Text(object, "event"));
  if (kind == Kinds().end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("event is '", Text(object, "event"), "', which is none of this form"));
  }
  Event event;
  event.kind = kind->second;
  event.node = Text(object, "node");
  event.life = Number(object, "life");
  event.round = Number(object, "round");
  event.digest = Bytes(object, "digest");
  event.sha256 = Bytes(object, "sha256");
  event.state = Bytes(object, "state");
  if (event.kind == EventKind::kSettled) {
    const auto outcome = Outcomes().find(Text(object, "outcome"));
    if (outcome == Outcomes().end()) {
      return absl::InvalidArgumentError(absl::StrCat("outcome is '", Text(object, "outcome"),
                                                     "'; it is included, left_out or dropped"));
    }
    event.outcome = outcome->second;
  }
  if (event.kind == EventKind::kDurable || event.kind == EventKind::kReceived) {
    ISTHMUS_RETURN_IF_ERROR(ReadRecord(object, &event));
  }
  if (const auto found = object.find("pieces"); found != object.end() && found->is_array()) {
    auto pieces = std::make_shared<std::vector<std::string>>();
    for (const Json& piece : *found) {
      if (!piece.is_string()) return absl::InvalidArgumentError("pieces has what is no text");
      pieces->push_back(absl::HexStringToBytes(piece.get<std::string>()));
    }
    event.pieces = std::move(pieces);
  }
  return event;
}

absl::StatusOr<History> ReadHistory(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  History history;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    absl::StatusOr<Event> event = ReadLine(line);
    if (!event.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": ", event.status().message()));
    }
    history.push_back(*std::move(event));
  }
  return history;
}

}  // namespace isthmus
