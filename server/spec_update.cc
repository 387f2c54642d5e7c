#include "server/spec_update.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "spec/rounds.h"
#include "spec/run_spec.h"
#include "spec/stages.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;

// A path that ends with '.' stands for all fields below it.
constexpr absl::string_view kMayChange[] = {
    "steps",
    "quorum",
    "timing.",
    "optimizer.lr",
    "optimizer.warmup_steps",
    "optimizer.lr_final_ratio",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "codec.matrix_density",
    "codec.vector_density",
    "codec.top_k",
    "codec.topk_k",
    "codec.numbers.",
    "codec.reply.",
    "codec.update_form",
    "snapshot.every_rounds",
    "check_every",
    "schedule.",
    "aggregate.",
    "outer.lr",
    "outer.momentum",
    "outer.alpha",
    "outer.beta",
    "outer.beta1",
    "outer.beta2",
    "outer.eta",
    "outer.eps",
    "outer.weight_decay",
    "outer.bound",
};

// What may change while rounds of both specs are under way: what a round's record says of it, and
// what is the coordinator's alone.
constexpr absl::string_view kMayChangeUnderWay[] = {
    "steps",
    "quorum",
    "timing.",
    "optimizer.lr",
    "optimizer.warmup_steps",
    "optimizer.lr_final_ratio",
    "optimizer.weight_decay",
    "snapshot.every_rounds",
    "check_every",
};

// What agents have from the spec they joined with.
constexpr absl::string_view kAgentsKeep[] = {"timing.heartbeat_ms"};

// Limits that follow from other fields where nobody gives them.
constexpr const char* kDerived[] = {"aggregate.tokens_max", "aggregate.steps_max"};

absl::Status Wrong(const std::string& text) {
  return WithReason(absl::InvalidArgumentError(text), "SPEC_FIELD");
}

template <size_t kCount>
bool IsOneOf(absl::string_view field, const absl::string_view (&paths)[kCount]) {
  return std::any_of(std::begin(paths), std::end(paths), [&](absl::string_view known) {
    return absl::EndsWith(known, ".") ? absl::StartsWith(field, known) : field == known;
  });
}

// The message and the field in it that a path names. `spec` gets the messages on the way.
struct Place {
  Message* message = nullptr;
  const FieldDescriptor* field = nullptr;
};

absl::StatusOr<Place> Find(const std::string& path, v1::RunSpec* spec) {
  Place place{spec, nullptr};
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    if (place.field != nullptr) {
      if (place.field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE ||
          place.field->is_repeated()) {
        return Wrong(absl::StrCat("'", path, "': ", place.field->name(), " has no fields"));
      }
      place.message = place.message->GetReflection()->MutableMessage(place.message, place.field);
    }
    place.field = place.message->GetDescriptor()->FindFieldByName(std::string(name));
    if (place.field == nullptr) {
      return Wrong(absl::StrCat("'", path, "': a ", place.message->GetDescriptor()->name(),
                                " has no field '", name, "'; run_spec.proto lists them"));
    }
  }
  const bool single =
      !place.field->is_repeated() && place.field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
  if (single) return place;
  return Wrong(absl::StrCat("'", path,
                            "' is no single value; name a field of it, or give the whole "
                            "spec"));
}

void Clear(const Place& place) {
  place.message->GetReflection()->ClearField(place.message, place.field);
}

// Its errors speak of lines and columns, which mean nothing here.
class Silent final : public google::protobuf::io::ErrorCollector {
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
};

// "; give A, B or C" of an enum; empty: of anything else.
std::string ValuesOf(const FieldDescriptor& field) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) return "";
  std::vector<std::string> names;
  for (int i = 1; i < field.enum_type()->value_count(); ++i) {  // the first is none
    names.push_back(field.enum_type()->value(i)->name());
  }
  return absl::StrCat("; give ", absl::StrJoin(names, ", "));
}

absl::Status SetField(absl::string_view assignment, v1::RunSpec* spec) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  if (!absl::StrContains(assignment, '=') || parts.first.empty()) {
    return Wrong(absl::StrCat("'", OneLine(assignment, kReasonBytesMax),
                              "' sets nothing; write FIELD=VALUE, such as optimizer.lr=0.0005"));
  }
  ISTHMUS_ASSIGN_OR_RETURN(const Place place, Find(parts.first, spec));
  if (parts.first == "preset") {
    return Wrong(absl::StrCat("'", OneLine(assignment, kReasonBytesMax),
                              "': the spec has every value of its preset, and another name changes "
                              "none of them; give a whole spec, with --spec"));
  }
  Clear(place);
  if (parts.second.empty()) return absl::OkStatus();
  const bool is_text = place.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  const std::string value =
      is_text ? absl::StrCat("\"", absl::CEscape(parts.second), "\"") : parts.second;
  Silent silent;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&silent);
  // Only one value: no text that goes on with other fields.
  const bool one_word = value.find_first_of("{}:;#\n ") == std::string::npos || is_text;
  if (one_word && parser.ParseFieldValueFromString(value, place.field, place.message)) {
    return absl::OkStatus();
  }
  return Wrong(absl::StrCat("'", OneLine(assignment, kReasonBytesMax), "': that is no ",
                            place.field->cpp_type_name(), " value", ValuesOf(*place.field)));
}

// What `last` has only because other fields are as they are.
absl::Status DropDerived(const v1::RunSpec& last, v1::RunSpec* spec) {
  for (const char* path : kDerived) {
    v1::RunSpec bare = last;
    if (!bare.has_aggregate()) continue;
    ISTHMUS_ASSIGN_OR_RETURN(const Place place, Find(path, &bare));
    Clear(place);
    ISTHMUS_RETURN_IF_ERROR(CompleteRunSpec(&bare));
    if (!SpecChanges(last, bare).empty()) continue;
    ISTHMUS_ASSIGN_OR_RETURN(const Place own, Find(path, spec));
    Clear(own);
  }
  return absl::OkStatus();
}

std::string ValueOf(const Message& message, const FieldDescriptor* field, int index) {
  std::string text;
  TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetUseShortRepeatedPrimitives(true);
  printer.PrintFieldValueToString(message, field, index, &text);
  return OneLine(absl::StripAsciiWhitespace(text), kReasonBytesMax);
}

// All values of a field; empty: it has none.
std::string TextOf(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  if (field->is_repeated()) {
    std::vector<std::string> values;
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      values.push_back(ValueOf(message, field, i));
    }
    return absl::StrJoin(values, ", ");
  }
  if (field->has_presence() && !reflection.HasField(message, field)) return "";
  return ValueOf(message, field, -1);
}

void Compare(const Message& before, const Message& after, const std::string& path,
             std::vector<v1::SpecChange>* changes) {
  const google::protobuf::Descriptor& descriptor = *before.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* field = descriptor.field(i);
    const std::string name = absl::StrCat(path, field->name());
    const Reflection& reflection = *before.GetReflection();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated() &&
        reflection.HasField(before, field) && reflection.HasField(after, field)) {
      Compare(reflection.GetMessage(before, field), reflection.GetMessage(after, field), name + ".",
              changes);
      continue;
    }
    v1::SpecChange change;
    change.set_field(name);
    change.set_before(TextOf(before, field));
    change.set_after(TextOf(after, field));
    if (change.before() != change.after()) changes->push_back(std::move(change));
  }
}

std::string Shown(const std::string& value) { return value.empty() ? "not set" : value; }

}  // namespace

absl::StatusOr<v1::RunSpec> UpdatedSpec(const v1::RunSpec& last, const std::string& name,
                                        const std::string& text,
                                        const std::vector<std::string>& set) {
  if (set.size() > kSetFieldsMax) {
    return Wrong(absl::StrCat("set has ", set.size(), " fields; the limit is ", kSetFieldsMax));
  }
  v1::RunSpec spec = last;
  if (!text.empty()) {
    ISTHMUS_ASSIGN_OR_RETURN(spec, ParseRunSpec(text));
  } else {
    ISTHMUS_RETURN_IF_ERROR(DropDerived(last, &spec));
  }
  spec.set_run(name);
  for (const std::string& assignment : set) {
    ISTHMUS_RETURN_IF_ERROR(SetField(assignment, &spec));
  }
  ISTHMUS_RETURN_IF_ERROR(CompleteRunSpec(&spec));
  KeepLayouts(last, &spec);
  ISTHMUS_RETURN_IF_ERROR(CheckAllCounts(spec));
  return spec;
}

std::vector<v1::SpecChange> SpecChanges(const v1::RunSpec& before, const v1::RunSpec& after) {
  std::vector<v1::SpecChange> changes;
  Compare(before, after, "", &changes);
  return changes;
}

absl::Status CheckMayChange(const std::vector<v1::SpecChange>& changes) {
  std::vector<std::string> kept;
  for (const v1::SpecChange& change : changes) {
    if (IsOneOf(change.field(), kMayChange)) continue;
    kept.push_back(absl::StrCat(change.field(), " (", Shown(change.before()), " -> ",
                                Shown(change.after()), ")"));
  }
  if (kept.empty()) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          "a run keeps ", absl::StrJoin(kept, ", "),
          " for as long as it lives; leave that as it is, or fork the run: isthmusctl runs fork")),
      "SPEC_FIELD_FIXED");
}

absl::Status CheckNodesCanChange(const std::vector<v1::SpecChange>& changes) {
  std::vector<std::string> kept;
  for (const v1::SpecChange& change : changes) {
    if (IsOneOf(change.field(), kAgentsKeep)) kept.push_back(change.field());
  }
  if (kept.empty()) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          "nodes of this version cannot change ", absl::StrJoin(kept, ", "),
          " while they run; leave that as it is, or fork the run: isthmusctl runs fork")),
      "NODES_CANNOT_CHANGE");
}

absl::Status CheckKeepsState(const v1::RunSpec& before, const v1::RunSpec& after) {
  if (HostedSections(before) == HostedSections(after)) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          "codec.reply.format ", v1::NumberFormat_Name(before.codec().reply().format()), " -> ",
          v1::NumberFormat_Name(after.codec().reply().format()),
          ": one of them is exact, and with the other the coordinator keeps an error beside the "
          "model; stay with exact or with lossy replies, or fork the run: isthmusctl runs fork")),
      "SPEC_FIELD_FIXED");
}

absl::Status CheckKeepsModel(const std::vector<v1::SpecChange>& changes) {
  std::vector<v1::SpecChange> others;
  for (const v1::SpecChange& change : changes) {
    if (absl::StartsWith(change.field(), "model.")) others.push_back(change);
  }
  if (others.empty()) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          "a fork starts from a state of the other run's model, so it keeps ", ChangesText(others),
          "; leave that as it is, or make a run of its own: isthmusctl runs create")),
      "SPEC_FIELD_FIXED");
}

absl::Status CheckUnderWay(const v1::RunSpec& before, const std::vector<v1::SpecChange>& changes) {
  if (before.overlap() == 0) return absl::OkStatus();
  std::vector<std::string> kept;
  for (const v1::SpecChange& change : changes) {
    if (!IsOneOf(change.field(), kMayChangeUnderWay)) kept.push_back(change.field());
  }
  if (kept.empty()) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        "with overlap ", before.overlap(),
                        " rounds of both specs are under way at once, so a run "
                        "keeps ",
                        absl::StrJoin(kept, ", "),
                        "; leave that as it is, or fork the run: isthmusctl runs fork")),
                    "SPEC_FIELD_FIXED");
}

std::string ChangesText(const std::vector<v1::SpecChange>& changes) {
  return absl::StrJoin(changes, ", ", [](std::string* out, const v1::SpecChange& change) {
    absl::StrAppend(out, change.field(), " ", Shown(change.before()), " -> ",
                    Shown(change.after()));
  });
}

}  // namespace isthmus
