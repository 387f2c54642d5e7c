#include "worker/train_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/safetensors.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

using Texts = std::map<std::string, std::string>;

constexpr char kForm[] = "1";
constexpr char kFormKey[] = "isthmus_checkpoint";
constexpr char kShaKey[] = "sha256";
constexpr char kPendingKey[] = "pending";
constexpr char kTakenKey[] = "taken";
constexpr char kBeta1Key[] = "beta1_power_bits";
constexpr char kBeta2Key[] = "beta2_power_bits";
// With local steps only.
constexpr char kInnerBeta1Key[] = "inner_beta1_power_bits";
constexpr char kInnerBeta2Key[] = "inner_beta2_power_bits";
constexpr char kWorkKey[] = "work";  // STEPS:TOKENS:ROUNDS, carried

constexpr char kParameters[] = "parameters";
constexpr char kResidual[] = "residual";
constexpr char kMoment1[] = "moment1";
constexpr char kMoment2[] = "moment2";
constexpr char kInner1[] = "inner1";
constexpr char kInner2[] = "inner2";
constexpr char kX[] = "x";

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("checkpoint '", path, "' is damaged: ", what));
}

std::string PartName(absl::string_view kind, const StatePart& part) {
  return absl::StrCat(kind, "/", part.tensor, "@", part.first_element);
}

std::string PieceName(const char* kind, uint64_t round, size_t piece) {
  return absl::StrCat(kind, "/", round, "/", piece);
}

// The facts as texts, without the SHA-256.
Texts TextsOf(const TrainState& state) {
  const TrainFacts& facts = state.facts;
  std::vector<std::string>
      pending;  // ROUND:DECAY_BITS:PIECES:LR_BITS, and :TAKEN if there are some
  for (const PendingContribution& sent : state.method.pending) {
    pending.push_back(absl::StrCat(sent.round, ":", absl::bit_cast<uint32_t>(sent.decay), ":",
                                   sent.pieces.size(), ":", absl::bit_cast<uint32_t>(sent.lr)));
    if (!sent.taken.empty()) absl::StrAppend(&pending.back(), ":", sent.taken.size());
  }
  Texts texts = {{kFormKey, kForm},
                 {"run", facts.run},
                 {"node", facts.node},
                 {"rank", absl::StrCat(facts.rank)},
                 {"ranks", absl::StrCat(facts.ranks)},
                 {"group_id", absl::BytesToHexString(facts.group_id)},
                 {"fingerprint", absl::BytesToHexString(facts.fingerprint)},
                 {"start_state_sha256", absl::BytesToHexString(facts.start_state_sha256)},
                 {"round", absl::StrCat(facts.round)},
                 {"step", absl::StrCat(facts.step)},
                 {"update_sha256", absl::BytesToHexString(facts.update_sha256)},
                 {"attempt", absl::StrCat(facts.attempt)},
                 {kBeta1Key, absl::StrCat(absl::bit_cast<uint64_t>(state.method.step.beta1_power))},
                 {kBeta2Key, absl::StrCat(absl::bit_cast<uint64_t>(state.method.step.beta2_power))},
                 {kPendingKey, absl::StrJoin(pending, ",")}};
  if (!state.inner.first_moments.empty()) {
    texts[kInnerBeta1Key] = absl::StrCat(absl::bit_cast<uint64_t>(state.inner.beta1_power));
    texts[kInnerBeta2Key] = absl::StrCat(absl::bit_cast<uint64_t>(state.inner.beta2_power));
  }
  if (const LocalWork& work = state.method.work; work.steps > 0) {
    texts[kWorkKey] = absl::StrCat(work.steps, ":", work.tokens, ":", state.method.carried_rounds);
  }
  return texts;
}

// One tensor of the file.
struct Entry {
  NamedShape shape;
  absl::string_view bytes;
};

std::vector<Entry> EntriesOf(const TrainState& state) {
  std::vector<Entry> entries;
  const auto add = [&](const char* kind, const std::vector<std::vector<float>>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const absl::string_view bytes(reinterpret_cast<const char*>(values[i].data()),
                                    values[i].size() * sizeof(float));
      entries.push_back(
          {{PartName(kind, state.parts[i]), {static_cast<int64_t>(values[i].size())}}, bytes});
    }
  };
  add(kParameters, state.parameters);
  add(kResidual, state.method.residual);
  add(kMoment1, state.method.step.first_moments);
  add(kMoment2, state.method.step.second_moments);
  add(kInner1, state.inner.first_moments);
  add(kInner2, state.inner.second_moments);
  add(kX, state.method.x);
  const auto add_pieces = [&](const char* kind, uint64_t round, const auto& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      entries.push_back({{PieceName(kind, round, i),
                          {static_cast<int64_t>(pieces[i].size())},
                          /*is_bytes=*/true},
                         pieces[i]});
    }
  };
  for (const PendingContribution& sent : state.method.pending) {
    add_pieces(kPendingKey, sent.round, sent.pieces);
    add_pieces(kTakenKey, sent.round, sent.taken);
  }
  // As a reader's map has them.
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.shape.name < b.shape.name; });
  return entries;
}

// Of all texts and tensors but the hash itself; both ascending by name.
class StateHash {
 public:
  explicit StateHash(const Texts& texts) {
    for (const auto& [key, text] : texts) {
      if (key == kShaKey || key == "format") continue;
      hash_.UpdateSized(key);
      hash_.UpdateSized(text);
    }
  }
  void Add(absl::string_view name, absl::string_view bytes) {
    hash_.UpdateSized(name);
    hash_.UpdateSized(bytes);
  }
  std::string Finish() { return absl::BytesToHexString(hash_.Finish()); }

 private:
  Sha256 hash_;
};

// Reads the texts; remembers the first that is wrong.
class TextReader {
 public:
  explicit TextReader(const Texts* texts) : texts_(texts) {}
  std::string Text(const char* key) {
    const auto found = texts_->find(key);
    if (found != texts_->end()) return found->second;
    Wrong(key);
    return "";
  }
  template <typename Number>
  Number Read(const char* key) {
    Number number = 0;
    if (!absl::SimpleAtoi(Text(key), &number)) Wrong(key);
    return number;
  }
  std::string Hex(const char* key, size_t bytes) {
    const std::string text = Text(key);
    const bool good =
        text.size() == 2 * bytes && text.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!good) Wrong(key);
    return good ? absl::HexStringToBytes(text) : "";
  }
  void Wrong(const char* key) {
    if (wrong_.empty()) wrong_ = key;
  }
  const std::string& wrong() const { return wrong_; }

 private:
  const Texts* texts_;
  std::string wrong_;
};

absl::StatusOr<TrainFacts> FactsOf(const Texts& texts, const std::string& path) {
  TextReader reader(&texts);
  if (reader.Text(kFormKey) != kForm) {
    return Damaged(path, "it is none, or one of another version");
  }
  TrainFacts facts;
  facts.run = reader.Text("run");
  facts.node = reader.Text("node");
  facts.rank = reader.Read<uint32_t>("rank");
  facts.ranks = reader.Read<uint32_t>("ranks");
  facts.group_id = reader.Hex("group_id", kGroupIdBytes);
  facts.fingerprint = reader.Hex("fingerprint", kSha256Bytes);
  facts.start_state_sha256 = reader.Hex("start_state_sha256", kSha256Bytes);
  facts.round = reader.Read<uint64_t>("round");
  facts.step = reader.Read<uint64_t>("step");
  facts.update_sha256 = reader.Hex("update_sha256", kSha256Bytes);
  facts.attempt = reader.Read<uint64_t>("attempt");
  if (facts.round == 0 || facts.round > kStepsMax) reader.Wrong("round");
  if (!reader.wrong().empty()) {
    return Damaged(path, absl::StrCat("its header has no good '", reader.wrong(), "'"));
  }
  return facts;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenFile(const std::string& path) {
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path);
  if (file.ok() || !absl::IsInvalidArgument(file.status())) return file;
  return Damaged(path, file.status().message());
}

absl::Status CheckSha256(const SafetensorsFile& file) {
  StateHash hash(file.metadata());
  for (const auto& [name, entry] : file.entries()) {
    ISTHMUS_ASSIGN_OR_RETURN(const absl::string_view bytes, file.Bytes(name));
    hash.Add(name, bytes);
  }
  const auto said = file.metadata().find(kShaKey);
  const std::string found = hash.Finish();
  if (said != file.metadata().end() && said->second == found) return absl::OkStatus();
  return Damaged(file.path(), absl::StrCat("its content has SHA-256 ", found.substr(0, 12),
                                           ", it says another one"));
}

// Where the values of a kind of tensor lie, over all files of a set.
class Pieces {
 public:
  // Takes the file's entries of this kind.
  void Add(const SafetensorsFile& file, absl::string_view kind) {
    for (const auto& [name, entry] : file.entries()) {
      absl::string_view rest = name;
      const size_t at = name.rfind('@');
      uint64_t first = 0;
      if (!absl::ConsumePrefix(&rest, kind) || !absl::ConsumePrefix(&rest, "/") ||
          at == std::string::npos || !absl::SimpleAtoi(name.substr(at + 1), &first)) {
        continue;
      }
      const uint64_t elements = (entry.end - entry.begin) / sizeof(float);
      by_tensor_[name.substr(kind.size() + 1, at - kind.size() - 1)][first] = {&file, elements};
      ++count_;
    }
  }
  size_t count() const { return count_; }

  absl::Status Read(absl::string_view kind, const StatePart& part,
                    std::vector<float>* values) const {
    values->resize(part.elements);
    for (uint64_t done = 0; done < part.elements;) {
      const uint64_t from = part.first_element + done;
      const Piece* piece = nullptr;
      uint64_t first = 0;
      if (const auto tensor = by_tensor_.find(part.tensor); tensor != by_tensor_.end()) {
        auto after = tensor->second.upper_bound(from);
        if (after != tensor->second.begin()) {
          first = std::prev(after)->first;
          piece = &std::prev(after)->second;
        }
      }
      if (piece == nullptr || from >= first + piece->elements) {
        return absl::FailedPreconditionError(
            absl::StrCat("the checkpoint has no ", kind, " of '", part.tensor, "' from element ",
                         from, " on, which this rank holds; it is of another cut of the model"));
      }
      const uint64_t count = std::min(first + piece->elements - from, part.elements - done);
      const absl::Status read =
          piece->file->Read(PartName(kind, {part.tensor, first, 0}), from - first,
                            absl::MakeSpan(*values).subspan(done, count));
      if (!read.ok()) return Damaged(piece->file->path(), read.message());
      done += count;
    }
    return absl::OkStatus();
  }

 private:
  struct Piece {
    const SafetensorsFile* file = nullptr;
    uint64_t elements = 0;
  };
  std::map<std::string, std::map<uint64_t, Piece>> by_tensor_;  // by first element
  size_t count_ = 0;
};

using Files = std::vector<std::unique_ptr<SafetensorsFile>>;

// Leaves *values empty where no file has the kind.
absl::Status ReadParts(const Files& files, const char* kind, const std::vector<StatePart>& parts,
                       std::vector<std::vector<float>>* values) {
  Pieces pieces;
  for (const auto& file : files) pieces.Add(*file, kind);
  if (pieces.count() == 0 && kind != absl::string_view(kParameters)) return absl::OkStatus();
  values->resize(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    ISTHMUS_RETURN_IF_ERROR(pieces.Read(kind, parts[i], &(*values)[i]));
  }
  return absl::OkStatus();
}

// A rank's own file has its parts and no others. The file is whole, so its names and sizes are what
// its writer meant.
absl::Status CheckParts(const SafetensorsFile& file, const std::vector<StatePart>& parts) {
  size_t held = 0;
  for (const auto& [name, entry] : file.entries()) {
    if (name.rfind(absl::StrCat(kParameters, "/"), 0) == 0) ++held;
  }
  for (const StatePart& part : parts) {
    const auto found = file.entries().find(PartName(kParameters, part));
    const auto elements = static_cast<int64_t>(part.elements);
    if (found != file.entries().end() && found->second.shape == std::vector<int64_t>{elements}) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint '", file.path(), "' has not the ", part.elements, " elements of '",
                     part.tensor, "' from ", part.first_element,
                     " on that this rank holds; it is of another cut of the "
                     "model"));
  }
  if (held == parts.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("checkpoint '", file.path(), "' has ", held,
                                                    " parts of tensors, this rank holds ",
                                                    parts.size()));
}

absl::Status ReadPieces(const SafetensorsFile& file, const char* kind, uint64_t round,
                        uint32_t count, std::vector<std::string>* pieces) {
  for (uint32_t i = 0; i < count; ++i) {
    ISTHMUS_ASSIGN_OR_RETURN(const absl::string_view bytes, file.Bytes(PieceName(kind, round, i)));
    pieces->emplace_back(bytes);
  }
  return absl::OkStatus();
}

absl::Status ReadPending(const SafetensorsFile& file, const std::string& text,
                         std::vector<PendingContribution>* pending) {
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(item, ':');
    PendingContribution sent;
    uint32_t decay_bits = 0, pieces = 0, lr_bits = 0, taken = 0;
    // Before there was overlap, nothing asked for the learning rate.
    if (fields.size() < 3 || fields.size() > 5 || !absl::SimpleAtoi(fields[0], &sent.round) ||
        !absl::SimpleAtoi(fields[1], &decay_bits) || !absl::SimpleAtoi(fields[2], &pieces) ||
        (fields.size() > 3 && !absl::SimpleAtoi(fields[3], &lr_bits)) ||
        (fields.size() > 4 && !absl::SimpleAtoi(fields[4], &taken))) {
      return Damaged(file.path(), absl::StrCat("'", item, "' is no pending contribution"));
    }
    sent.decay = absl::bit_cast<float>(decay_bits);
    sent.lr = absl::bit_cast<float>(lr_bits);
    ISTHMUS_RETURN_IF_ERROR(ReadPieces(file, kPendingKey, sent.round, pieces, &sent.pieces));
    ISTHMUS_RETURN_IF_ERROR(ReadPieces(file, kTakenKey, sent.round, taken, &sent.taken));
    pending->push_back(std::move(sent));
  }
  return absl::OkStatus();
}

absl::Status ReadWork(const SafetensorsFile& file, MethodState* method) {
  const auto text = file.metadata().find(kWorkKey);
  if (text == file.metadata().end()) return absl::OkStatus();
  const std::vector<std::string> fields = absl::StrSplit(text->second, ':');
  if (fields.size() == 3 && absl::SimpleAtoi(fields[0], &method->work.steps) &&
      absl::SimpleAtoi(fields[1], &method->work.tokens) &&
      absl::SimpleAtoi(fields[2], &method->carried_rounds)) {
    return absl::OkStatus();
  }
  return Damaged(file.path(), absl::StrCat("'", text->second, "' says nothing of local steps"));
}

// Ranks reserve and settle the same rounds, each its part of them.
absl::Status JoinPending(const std::string& path, std::vector<PendingContribution> part,
                         std::vector<PendingContribution>* whole) {
  bool same = part.size() == whole->size();
  for (size_t i = 0; same && i < part.size(); ++i) {
    PendingContribution& sent = (*whole)[i];
    same = part[i].round == sent.round && part[i].decay == sent.decay && part[i].lr == sent.lr;
    for (std::string& piece : part[i].pieces) sent.pieces.push_back(std::move(piece));
    for (std::string& piece : part[i].taken) sent.taken.push_back(std::move(piece));
  }
  if (same) return absl::OkStatus();
  return Damaged(path, "its pending rounds are not those of the other ranks");
}

absl::StatusOr<TrainState> StateOf(const Files& files, const std::vector<StatePart>& parts) {
  TrainState state;
  ISTHMUS_ASSIGN_OR_RETURN(state.facts, FactsOf(files[0]->metadata(), files[0]->path()));
  state.parts = parts;
  MethodState& method = state.method;
  const std::pair<const char*, std::vector<std::vector<float>>*> kinds[] = {
      {kParameters, &state.parameters},
      {kResidual, &method.residual},
      {kMoment1, &method.step.first_moments},
      {kMoment2, &method.step.second_moments},
      {kInner1, &state.inner.first_moments},
      {kInner2, &state.inner.second_moments},
      {kX, &method.x}};
  for (const auto& [kind, values] : kinds) {
    ISTHMUS_RETURN_IF_ERROR(ReadParts(files, kind, parts, values));
  }
  uint64_t tokens = 0;
  for (const auto& file : files) {
    method.work = {};
    ISTHMUS_RETURN_IF_ERROR(ReadWork(*file, &method));
    tokens += method.work.tokens;
    TextReader texts(&file->metadata());
    std::vector<PendingContribution> pending;
    ISTHMUS_RETURN_IF_ERROR(ReadPending(*file, texts.Text(kPendingKey), &pending));
    if (file == files.front()) {
      method.pending = std::move(pending);
      continue;
    }
    ISTHMUS_RETURN_IF_ERROR(JoinPending(file->path(), std::move(pending), &method.pending));
  }
  method.work.tokens = tokens;
  TextReader texts(&files[0]->metadata());
  if (!state.inner.first_moments.empty()) {
    state.inner.beta1_power = absl::bit_cast<double>(texts.Read<uint64_t>(kInnerBeta1Key));
    state.inner.beta2_power = absl::bit_cast<double>(texts.Read<uint64_t>(kInnerBeta2Key));
  }
  method.step.beta1_power = absl::bit_cast<double>(texts.Read<uint64_t>(kBeta1Key));
  method.step.beta2_power = absl::bit_cast<double>(texts.Read<uint64_t>(kBeta2Key));
  if (!texts.wrong().empty()) {
    return Damaged(files[0]->path(), "its bias corrections are missing");
  }
  return state;
}

}  // namespace

absl::Status WriteTrainState(const std::string& path, const TrainState& state) {
  const std::vector<Entry> entries = EntriesOf(state);
  Texts texts = TextsOf(state);
  StateHash hash(texts);
  std::vector<NamedShape> shapes;
  for (const Entry& entry : entries) {
    hash.Add(entry.shape.name, entry.bytes);
    shapes.push_back(entry.shape);
  }
  texts[kShaKey] = hash.Finish();
  ISTHMUS_ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::Create(path, shapes, texts));
  for (const Entry& entry : entries) {
    if (entry.shape.is_bytes) {
      ISTHMUS_RETURN_IF_ERROR(writer->WriteBytes(entry.bytes));
      continue;
    }
    ISTHMUS_RETURN_IF_ERROR(writer->Write(absl::MakeConstSpan(
        reinterpret_cast<const float*>(entry.bytes.data()), entry.bytes.size() / sizeof(float))));
  }
  return writer->Finish();
}

absl::StatusOr<TrainFacts> ReadTrainFacts(const std::string& path) {
  ISTHMUS_ASSIGN_OR_RETURN(const auto file, OpenFile(path));
  return FactsOf(file->metadata(), path);
}

absl::StatusOr<TrainState> ReadTrainState(const std::string& path,
                                          const std::vector<StatePart>& parts) {
  Files files(1);
  ISTHMUS_ASSIGN_OR_RETURN(files[0], OpenFile(path));
  ISTHMUS_RETURN_IF_ERROR(CheckSha256(*files[0]));
  ISTHMUS_RETURN_IF_ERROR(CheckParts(*files[0], parts));
  return StateOf(files, parts);
}

absl::StatusOr<TrainState> ReadTrainStates(const std::vector<std::string>& paths,
                                           const std::vector<StatePart>& parts) {
  Files files;
  std::string group_id;
  for (size_t rank = 0; rank < paths.size(); ++rank) {
    ISTHMUS_ASSIGN_OR_RETURN(auto file, OpenFile(paths[rank]));
    ISTHMUS_ASSIGN_OR_RETURN(const TrainFacts facts, FactsOf(file->metadata(), paths[rank]));
    if (rank == 0) group_id = facts.group_id;
    if (facts.rank != rank || facts.ranks != paths.size() || facts.group_id != group_id) {
      return absl::FailedPreconditionError(
          absl::StrCat("checkpoint '", paths[rank], "' is of rank ", facts.rank, " of ",
                       facts.ranks, " or of another trainer group than '", paths[0],
                       "'; the files of a set belong together"));
    }
    ISTHMUS_RETURN_IF_ERROR(CheckSha256(*file));
    files.push_back(std::move(file));
  }
  return StateOf(files, parts);
}

}  // namespace isthmus
