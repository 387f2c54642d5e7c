#include "spec/run_spec.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "spec/presets.h"
#include "spec/refusals.h"
#include "spec/rounds.h"
#include "spec/rows.h"
#include "spec/stages.h"

namespace isthmus {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Components of a chunk, as the published package has them where nothing is said.
constexpr uint32_t kPublishedTopK = 32;

// Keeps the first error of the parser, with its place.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    // The parser counts from 0, people and editors from 1; -1 is an error about the whole text.
    if (!text_.empty()) return;
    text_ = absl::StrCat("line ", line + 1, ":", column + 1, ": ", message);
    line_ = line;
  }
  // The error and the line of `source` that it is about.
  std::string In(absl::string_view source) const {
    const std::vector<absl::string_view> lines = absl::StrSplit(source, '\n');
    if (line_ < 0 || static_cast<size_t>(line_) >= lines.size()) return text_;
    return absl::StrCat(text_, "; the line is: ", absl::StripAsciiWhitespace(lines[line_]));
  }

 private:
  std::string text_;
  int line_ = -1;
};

void FillTiming(v1::RunSpec* spec) {
  v1::TimingSpec* timing = spec->mutable_timing();
  if (timing->lease_ms() == 0) timing->set_lease_ms(15000);
  if (timing->heartbeat_ms() == 0) timing->set_heartbeat_ms(3000);
  if (timing->grace_ms() == 0) timing->set_grace_ms(5000);
  // With a quorum of all nodes a round waits for everyone, however long that takes; and how long
  // local steps and steps alone take is the node's to know.
  if (spec->source() == v1::SOURCE_PARAM_DELTA || HasStepsAlone(*spec)) return;
  const bool waits_for_all = EffectiveQuorum(*spec) >= static_cast<uint32_t>(spec->nodes_size());
  if (timing->deadline_ms() == 0 && !waits_for_all) timing->set_deadline_ms(60000);
}

// Whether all of what FillCodec fills in was there. Then it is a spec that was completed before,
// perhaps by a release without codec.numbers, whose layouts its run keeps.
bool WasComplete(const v1::CodecSpec& codec) {
  return codec.kind() != v1::CODEC_KIND_UNSPECIFIED &&
         codec.chunk_rule() != v1::CHUNK_RULE_UNSPECIFIED && codec.chunk_side() > 0 &&
         codec.has_matrix_density() && codec.has_vector_density() && codec.has_beta() &&
         codec.has_alpha() && codec.has_sign();
}

void FillCodec(v1::CodecSpec* codec) {
  const bool was_complete = WasComplete(*codec);
  if (codec->kind() == v1::CODEC_KIND_UNSPECIFIED) codec->set_kind(v1::CODEC_KIND_DEMO);
  const bool published =
      codec->kind() == v1::CODEC_KIND_DEMO && codec->rules() == v1::METHOD_RULES_PUBLISHED;
  if (codec->kind() == v1::CODEC_KIND_DEMO && !codec->has_numbers() && !was_complete) {
    codec->mutable_numbers();
  }
  if (codec->kind() == v1::CODEC_KIND_DEMO && codec->has_numbers() &&
      codec->numbers().format() == v1::NUMBER_FORMAT_UNSPECIFIED) {
    codec->mutable_numbers()->set_format(v1::NUMBER_FORMAT_F32);
  }
  if (codec->chunk_rule() == v1::CHUNK_RULE_UNSPECIFIED) {
    codec->set_chunk_rule(published ? v1::CHUNK_RULE_DIVISOR : v1::CHUNK_RULE_TILES);
  }
  const bool has_density = codec->has_matrix_density() || codec->has_vector_density();
  if (published && codec->chunk_rule() == v1::CHUNK_RULE_DIVISOR && codec->top_k() == 0 &&
      !has_density) {
    codec->set_top_k(kPublishedTopK);
  }
  if (codec->chunk_side() == 0) codec->set_chunk_side(64);
  if (!codec->has_matrix_density()) codec->set_matrix_density(32.0 / 4096);
  if (!codec->has_vector_density()) codec->set_vector_density(8.0 / 64);
  if (!codec->has_beta()) codec->set_beta(0.999f);
  if (!codec->has_alpha()) codec->set_alpha(1.0f);
  if (!codec->has_sign()) codec->set_sign(HasMomentum(*codec));
  if (SendsRows(*codec) && !codec->has_rate()) codec->set_rate(kRowRateDefault);
  if (codec->kind() == v1::CODEC_KIND_NUMBERS || SendsRows(*codec)) {
    FillNumbers(codec->mutable_numbers());
  }
  if (codec->kind() == v1::CODEC_KIND_TOPK) {
    if (codec->topk_chunk() == 0) codec->set_topk_chunk(kFlatChunkElements);
    if (codec->topk_k() == 0) codec->set_topk_k(std::min<uint32_t>(64, codec->topk_chunk()));
  }
  if (codec->has_feedback()) {
    if (!codec->feedback().has_decay()) codec->mutable_feedback()->set_decay(1);
    if (!codec->feedback().has_gain()) codec->mutable_feedback()->set_gain(1);
  }
}

void FillOptimizer(v1::OptimizerSpec* optimizer) {
  if (!optimizer->has_lr_final_ratio()) optimizer->set_lr_final_ratio(0.05f);
  if (optimizer->base() == v1::BASE_OPTIMIZER_UNSPECIFIED) {
    optimizer->set_base(v1::BASE_OPTIMIZER_SGD);
  }
  if (!optimizer->has_beta1()) optimizer->set_beta1(0.9f);
  const bool lion = optimizer->base() == v1::BASE_OPTIMIZER_LION;
  if (!optimizer->has_beta2()) optimizer->set_beta2(lion ? 0.99f : 0.95f);
  if (!optimizer->has_eps()) optimizer->set_eps(1e-8f);
}

// The published package has a shortcut for a node alone: all of the momentum is the update, and
// none of it stays. (With every component sent, that is so but for the transform's round-off.)
void FillAlone(v1::RunSpec* spec) {
  v1::CodecSpec* codec = spec->mutable_codec();
  if (codec->rules() != v1::METHOD_RULES_PUBLISHED || spec->nodes_size() != 1) return;
  if (SendsRows(*codec)) codec->set_rate(1);
  if (codec->kind() != v1::CODEC_KIND_DEMO) return;
  if (codec->top_k() > 0) codec->set_top_k(codec->chunk_side() * codec->chunk_side());
  codec->set_matrix_density(1);
  codec->set_vector_density(1);
}

void FillDefaults(v1::RunSpec* spec) {
  FillPreset(spec);
  if (IsOuter(*spec)) FillStages(spec);
  for (v1::NodeSpec& node : *spec->mutable_nodes()) {
    if (node.data_parts() == 0) node.set_data_parts(1);
  }
  if (spec->has_model() && spec->model().vocab() == 0) spec->mutable_model()->set_vocab(256);
  if (spec->has_data()) {
    v1::DataSpec* data = spec->mutable_data();
    if (data->heldout_permille() == 0) data->set_heldout_permille(50);
    if (data->eval_sequences() == 0) data->set_eval_sequences(64);
    if (data->format() == v1::TOKEN_FORMAT_UNSPECIFIED) data->set_format(v1::TOKEN_FORMAT_BYTES);
  }
  FillOptimizer(spec->mutable_optimizer());
  FillCodec(spec->mutable_codec());
  FillAlone(spec);
  // Of a gradient no step is known before it is merged.
  const bool looks = spec->codec().kind() != v1::CODEC_KIND_DENSE;
  if (spec->overlap() > 0 && !spec->has_look()) spec->set_look(looks ? 1 : 0);
  FillTiming(spec);
  v1::SnapshotSpec* snapshot = spec->mutable_snapshot();
  if (snapshot->every_rounds() == 0) snapshot->set_every_rounds(kSnapshotEveryDefault);
  if (!spec->has_check_every()) spec->set_check_every(kCheckEveryDefault);
  if (spec->allow_drift()) spec->set_check_every(0);  // there is nothing to compare
}

absl::Status WithoutEffect(absl::string_view field, absl::string_view where) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has no effect with ", where, "; leave it out"));
}

}  // namespace

// Who writes a value expects something of it: one that nothing reads is a mistake, and a run of
// days is no place to find it. In a complete spec it shows as another value than the default's.
absl::Status CheckAllCounts(const v1::RunSpec& complete) {
  v1::RunSpec bare;
  FillDefaults(&bare);
  const v1::CodecSpec &codec = complete.codec(), &plain = bare.codec();
  const bool is_demo = codec.kind() == v1::CODEC_KIND_DEMO;
  const bool has_tiles = is_demo || codec.kind() == v1::CODEC_KIND_DCT;
  std::vector<absl::Status> found;
  {
    const std::string kind = absl::StrCat("codec.kind ", v1::CodecKind_Name(codec.kind()));
    const std::pair<absl::string_view, bool> idle[] = {
        {"codec.matrix_density", !has_tiles && codec.matrix_density() != plain.matrix_density()},
        {"codec.vector_density", !has_tiles && codec.vector_density() != plain.vector_density()},
        {"codec.top_k", !has_tiles && codec.top_k() != plain.top_k()},
        {"codec.sign", IsOuter(complete) && codec.sign()},
        {"codec.numbers",
         codec.has_numbers() && codec.kind() != v1::CODEC_KIND_NUMBERS && !HasMomentum(codec)},
        {"codec.topk_chunk", codec.topk_chunk() > 0 && codec.kind() != v1::CODEC_KIND_TOPK},
        {"codec.topk_k", codec.topk_k() > 0 && codec.kind() != v1::CODEC_KIND_TOPK},
        {"codec.update_form", !is_demo && codec.update_form() != v1::UPDATE_FORM_UNSPECIFIED},
        {"codec.beta", !HasMomentum(codec) && codec.beta() != plain.beta()},
        {"codec.alpha", !HasMomentum(codec) && codec.alpha() != plain.alpha()},
        {"codec.lr_in_momentum", !HasMomentum(codec) && codec.has_lr_in_momentum()},
        {"codec.rules", !HasMomentum(codec) && codec.rules() != v1::METHOD_RULES_UNSPECIFIED},
    };
    for (const auto& [field, is_given] : idle) {
      if (is_given) found.push_back(WithoutEffect(field, kind));
    }
  }
  const v1::OptimizerSpec &optimizer = complete.optimizer(), &usual = bare.optimizer();
  if (optimizer.base() == v1::BASE_OPTIMIZER_SGD) {
    const std::pair<absl::string_view, bool> idle[] = {
        {"optimizer.beta1", optimizer.beta1() != usual.beta1()},
        {"optimizer.beta2", optimizer.beta2() != usual.beta2()},
        {"optimizer.eps", optimizer.eps() != usual.eps()},
    };
    for (const auto& [field, is_given] : idle) {
      if (!is_given) continue;
      found.push_back(WithoutEffect(field, "optimizer.base BASE_OPTIMIZER_SGD"));
    }
  }
  if (complete.allow_drift() &&
      complete.snapshot().every_rounds() != bare.snapshot().every_rounds()) {
    found.push_back(WithoutEffect("snapshot.every_rounds", "allow_drift"));
  }
  if (optimizer.decay_groups_size() > 0 && optimizer.weight_decay() == 0) {
    found.push_back(WithoutEffect("optimizer.decay_groups", "optimizer.weight_decay 0"));
  }
  return Together(found);
}

absl::StatusOr<v1::RunSpec> ParseRunSpec(absl::string_view text) {
  if (text.size() > kRunSpecFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the run spec has ", text.size(),
                                                   " bytes; the limit is ", kRunSpecFileBytesMax));
  }
  v1::RunSpec spec;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(text), &spec)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the run spec does not parse, ", error.In(text)));
  }
  if (spec.allow_drift() && spec.check_every() != 0) {
    return WithoutEffect("check_every", "allow_drift");
  }
  // Whoever writes a spec writes one of today, however many fields it names (WasComplete).
  FillPreset(&spec);
  if (spec.codec().kind() == v1::CODEC_KIND_DEMO) spec.mutable_codec()->mutable_numbers();
  ISTHMUS_RETURN_IF_ERROR(CompleteRunSpec(&spec));
  ISTHMUS_RETURN_IF_ERROR(CheckAllCounts(spec));
  return spec;
}

absl::StatusOr<v1::RunSpec> ReadRunSpecFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("the run spec file '", path, "' cannot be opened; check the path"));
  }
  // One byte more than allowed is enough to know; a pipe or device may have no end.
  std::string text(kRunSpecFileBytesMax + 1, '\0');
  file.read(&text[0], static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || (text.empty() && !file.eof())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the run spec file '", path, "' cannot be read; is it a file?"));
  }
  if (text.size() > kRunSpecFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the run spec file '", path, "' has more than ",
                                                   kRunSpecFileBytesMax, " bytes, the limit"));
  }
  absl::StatusOr<v1::RunSpec> spec = ParseRunSpec(text);
  if (!spec.ok()) {
    return absl::Status(spec.status().code(), absl::StrCat(path, ": ", spec.status().message()));
  }
  return spec;
}

absl::Status CompleteRunSpec(v1::RunSpec* spec) {
  FillDefaults(spec);
  return CheckRunSpec(*spec);
}

absl::Status CompleteCodecSpec(v1::CodecSpec* codec) {
  FillCodec(codec);
  return CheckCodecSpec(*codec);
}

namespace {

// Whether the outer step goes as far as g says, and not by a sign of it alone.
bool ReadsMagnitudes(v1::OuterKind kind) {
  return kind != v1::OUTER_KIND_SIGN_MOMENTUM && kind != v1::OUTER_KIND_SIGN_SGD &&
         kind != v1::OUTER_KIND_LION;
}

}  // namespace

std::vector<std::string> SpecWarnings(const v1::RunSpec& spec) {
  std::vector<std::string> warnings;
  if (spec.allow_drift()) {
    warnings.push_back(
        "the nodes' parameters drift apart (allow_drift), so there is no common state: nodes are "
        "not compared (check_every) or healed, there are no snapshots, and none can come late.");
  }
  if (HasMomentum(spec.codec()) && !spec.codec().sign() && LrInMomentum(spec.codec())) {
    warnings.push_back(
        "codec.sign is false, so the learning rate acts twice: it weighs the gradient in the "
        "momentum, and the update in the step. With codec.lr_in_momentum: false it acts once.");
  }
  const v1::CodecSpec& codec = spec.codec();
  const v1::NumberFormat format = codec.numbers().format();
  if (codec.kind() == v1::CODEC_KIND_DEMO && !codec.sign() && format == v1::NUMBER_FORMAT_SIGN1) {
    warnings.push_back(
        "codec.numbers.format is NUMBER_FORMAT_SIGN1 and codec.sign is false, so every component "
        "counts as 1 or -1, whatever its size, and steps are as long as their number says. Leave "
        "codec.sign out, or give NUMBER_FORMAT_INT4.");
  }
  const bool are_signs = codec.kind() == v1::CODEC_KIND_NUMBERS &&
                         (format == v1::NUMBER_FORMAT_SIGN1 || format == v1::NUMBER_FORMAT_TERNARY);
  if (IsOuter(spec) && spec.source() == v1::SOURCE_PARAM_DELTA && are_signs &&
      ReadsMagnitudes(spec.outer().kind())) {
    warnings.push_back(absl::StrCat(
        "codec.numbers.format is ", v1::NumberFormat_Name(format),
        ", so of a delta only signs travel, each of them 1, and outer.kind ",
        v1::OuterKind_Name(spec.outer().kind()),
        " steps as far as they say, however small the delta was. Give NUMBER_FORMAT_INT8 or "
        "NUMBER_FORMAT_INT4, or OUTER_KIND_SIGN_MOMENTUM or OUTER_KIND_SIGN_SGD, which take "
        "signs."));
  }
  return warnings;
}

void KeepLayouts(const v1::RunSpec& kept, v1::RunSpec* given) {
  const v1::CodecSpec& codec = given->codec();
  const bool plain =
      codec.kind() == v1::CODEC_KIND_DEMO && codec.numbers().format() == v1::NUMBER_FORMAT_F32;
  if (plain && kept.codec().kind() == v1::CODEC_KIND_DEMO && !kept.codec().has_numbers()) {
    given->mutable_codec()->clear_numbers();
  }
}

uint32_t EffectiveQuorum(const v1::RunSpec& spec) {
  return spec.quorum() == 0 ? static_cast<uint32_t>(spec.nodes_size()) : spec.quorum();
}

int NodeIndex(const v1::RunSpec& spec, absl::string_view name) {
  for (int i = 0; i < spec.nodes_size(); ++i) {
    if (spec.nodes(i).name() == name) return i;
  }
  return -1;
}

float LearningRate(const v1::RunSpec& spec, uint64_t step) {
  ISTHMUS_CHECK(step >= 1 && step <= spec.steps());
  const double lr = spec.optimizer().lr();
  const uint64_t warmup = spec.optimizer().warmup_steps();
  if (step <= warmup) {
    return static_cast<float>(lr * static_cast<double>(step) / static_cast<double>(warmup));
  }
  const double last = spec.optimizer().lr_final_ratio();
  const double done =
      static_cast<double>(step - warmup) / static_cast<double>(spec.steps() - warmup);
  return static_cast<float>(lr * (last + (1.0 - last) * 0.5 * (1.0 + std::cos(kPi * done))));
}

absl::StatusOr<std::vector<float>> DecayScales(const v1::OptimizerSpec& optimizer,
                                               const std::vector<std::string>& tensors) {
  std::vector<float> scales(tensors.size(), 1.0f);
  // From the last group to the first, so that the first one that matches has the last word.
  for (int i = optimizer.decay_groups_size() - 1; i >= 0; --i) {
    for (const std::string& pattern : optimizer.decay_groups(i).tensors()) {
      bool found = false;
      for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
        if (!MatchesGlob(pattern, tensors[tensor])) continue;
        scales[tensor] = optimizer.decay_groups(i).scale();
        found = true;
      }
      if (found) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer.decay_groups[", i, "].tensors: '", pattern,
                       "' matches no trainable tensor; names are like '",
                       tensors.empty() ? "" : tensors.back(), "'"));
    }
  }
  return scales;
}

}  // namespace isthmus
