#include "worker/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "base/whole_file.h"
#include "worker/hf_config.h"
#include "worker/json_text.h"

namespace isthmus {
namespace {

constexpr char kConfigFile[] = "config.json";
constexpr char kTensorFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr char kOtherTensorFile[] = "pytorch_model.bin";
constexpr char kConfigKey[] = "config";  // in a file's metadata
constexpr char kPrefix[] = "transformer.";
constexpr char kTiedCopy[] = "lm_head.weight";
constexpr char kEmbedding[] = "transformer.wte.weight";
// Files of one checkpoint: a model of 10^12 parameters in Transformers' files of 5 GB has 800.
constexpr size_t kCheckpointFilesMax = 4096;
// Values compared at a time.
constexpr uint64_t kCompareElements = uint64_t{1} << 16;

// Masks that Transformers' files may hold beside the parameters.
bool IsBuffer(absl::string_view name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias");
}

bool IsFile(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::string InFolder(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(absl::StripSuffix(folder, "/"), "/", name);
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::error_code ignored;
  // A pipe has no end, and to open one waits for its other side.
  if (std::filesystem::exists(path, ignored) && !IsFile(path)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is not a regular file"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open '", path, "'"));
  const auto bytes = std::filesystem::file_size(path, ignored);
  if (bytes > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path, "' has ", bytes, " bytes; the limit is ", kSafetensorsHeaderBytesMax));
  }
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint(path));
  if (IsFolder(path)) {
    ISTHMUS_RETURN_IF_ERROR(checkpoint->OpenFolder());
    return checkpoint;
  }
  ISTHMUS_RETURN_IF_ERROR(checkpoint->OpenFile(path));
  const auto& metadata = checkpoint->files_[0]->metadata();
  if (const auto config = metadata.find(kConfigKey); config != metadata.end()) {
    checkpoint->config_path_ = path;
    ISTHMUS_ASSIGN_OR_RETURN(checkpoint->model_, ParseGpt2Config(config->second, path));
  }
  return checkpoint;
}

absl::Status Checkpoint::OpenFolder() {
  config_path_ = InFolder(path_, kConfigFile);
  ISTHMUS_ASSIGN_OR_RETURN(const std::string config, ReadText(config_path_));
  ISTHMUS_ASSIGN_OR_RETURN(model_, ParseGpt2Config(config, config_path_));
  if (IsFile(InFolder(path_, kTensorFile))) return OpenFile(InFolder(path_, kTensorFile));
  if (IsFile(InFolder(path_, kIndexFile))) return OpenIndexed(InFolder(path_, kIndexFile));
  const bool has_other = IsFile(InFolder(path_, kOtherTensorFile));
  return absl::NotFoundError(absl::StrCat(
      "the checkpoint '", path_, "' has neither ", kTensorFile, " nor ", kIndexFile,
      has_other ? "; only safetensors is read: load it in Transformers and save_pretrained it again"
                : ""));
}

absl::Status Checkpoint::OpenIndexed(const std::string& index_path) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::string text, ReadText(index_path));
  const nlohmann::ordered_json index = ParseJson(text);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("'", index_path, "' has no weight_map"));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || absl::StrContains(name, '/')) {
      return absl::InvalidArgumentError(absl::StrCat("'", index_path, "': the file of tensor '",
                                                     tensor, "' is no name in the folder"));
    }
    names.insert(name);
  }
  if (names.size() > kCheckpointFilesMax) {
    return absl::InvalidArgumentError(absl::StrCat("'", index_path, "' names ", names.size(),
                                                   " files; the limit is ", kCheckpointFilesMax));
  }
  for (const std::string& name : names) {
    ISTHMUS_RETURN_IF_ERROR(OpenFile(InFolder(path_, name)));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenFile(const std::string& path) {
  ISTHMUS_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  for (const auto& [name, entry] : file->entries()) {
    const auto [place, added] = file_of_.emplace(name, file.get());
    if (added) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' is in '", path,
                                                   "' and in '", place->second->path(), "'"));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

std::string Checkpoint::NameInFile(const std::string& name) const {
  if (file_of_.count(name) != 0) return name;
  const std::string bare(absl::StripPrefix(name, kPrefix));
  return file_of_.count(bare) != 0 ? bare : "";
}

absl::Status Checkpoint::Check(const v1::ModelSpec& run,
                               const std::vector<NamedShape>& wanted) const {
  if (model_.has_value()) ISTHMUS_RETURN_IF_ERROR(CheckSameModel(run, *model_, config_path_));
  std::set<std::string> known;
  for (const NamedShape& tensor : wanted) {
    const std::string name = NameInFile(tensor.name);
    if (name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("start file '", path_, "' lacks tensor '", tensor.name, "'"));
    }
    known.insert(name);
    const std::vector<int64_t>& shape = file_of_.at(name)->entries().at(name).shape;
    if (shape == tensor.shape) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("start file '", path_, "': tensor '", tensor.name, "' has shape [",
                     absl::StrJoin(shape, ", "), "]; the run's model has [",
                     absl::StrJoin(tensor.shape, ", "), "]"));
  }
  for (const auto& [name, file] : file_of_) {
    if (known.count(name) != 0 || IsBuffer(name)) continue;
    if (name == kTiedCopy) {
      ISTHMUS_RETURN_IF_ERROR(CheckTied());
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("start file '", path_, "' has a tensor '", name,
                                                   "' that the run's model has not"));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckTied() const {
  const std::string embedding = NameInFile(kEmbedding);
  const auto differs = [&](const std::string& how) {
    return absl::InvalidArgumentError(
        absl::StrCat("start file '", path_, "': ", kTiedCopy, " and ", kEmbedding, " differ ", how,
                     "; the trainer's GPT-2 ties its output layer to the embedding"));
  };
  if (embedding.empty()) return differs("(there is no such embedding)");
  const SafetensorsEntry& one = file_of_.at(kTiedCopy)->entries().at(kTiedCopy);
  const SafetensorsEntry& other = file_of_.at(embedding)->entries().at(embedding);
  if (one.shape != other.shape) return differs("in shape");
  uint64_t elements = 1;
  for (int64_t size : one.shape) elements *= static_cast<uint64_t>(size);
  std::vector<float> left, right;
  for (uint64_t first = 0; first < elements; first += kCompareElements) {
    const uint64_t count = std::min(kCompareElements, elements - first);
    left.resize(count);
    right.resize(count);
    ISTHMUS_RETURN_IF_ERROR(file_of_.at(kTiedCopy)->Read(kTiedCopy, first, absl::MakeSpan(left)));
    ISTHMUS_RETURN_IF_ERROR(file_of_.at(embedding)->Read(embedding, first, absl::MakeSpan(right)));
    const auto [a, b] = std::mismatch(left.begin(), left.end(), right.begin());
    if (a == left.end()) continue;
    return differs(absl::StrCat("at element ", first + static_cast<uint64_t>(a - left.begin()),
                                " (", *a, " and ", *b, ")"));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(const std::string& name, uint64_t first_element,
                              absl::Span<float> values) const {
  const std::string found = NameInFile(name);
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat("'", path_, "' has no tensor '", name, "'"));
  }
  return file_of_.at(found)->Read(found, first_element, values);
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(
    const std::string& path, const v1::ModelSpec& model, const std::vector<NamedShape>& tensors) {
  auto writer = std::unique_ptr<CheckpointWriter>(new CheckpointWriter());
  writer->config_ = Gpt2ConfigJson(model);
  const bool is_folder = absl::EndsWith(path, "/") || IsFolder(path);
  if (is_folder) {
    if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the folder '", path, "'"));
    }
    writer->config_path_ = InFolder(path, kConfigFile);
  }
  ISTHMUS_ASSIGN_OR_RETURN(writer->tensors_,
                           SafetensorsWriter::Create(is_folder ? InFolder(path, kTensorFile) : path,
                                                     tensors, {{kConfigKey, writer->config_}}));
  return writer;
}

absl::Status CheckpointWriter::Finish() {
  // First the small one: with the tensors in place the checkpoint is complete.
  if (!config_path_.empty()) ISTHMUS_RETURN_IF_ERROR(WriteFileWhole(config_path_, config_));
  return tensors_->Finish();
}

absl::Status CheckCanSave(const std::string& path) {
  const std::string bare(absl::StripSuffix(path, "/"));
  if (bare != path && IsFile(bare)) {
    return absl::ErrnoToStatus(ENOTDIR, absl::StrCat("cannot write into '", path, "'"));
  }
  if (!IsFolder(path)) return CheckCanWrite(bare);
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write into the folder '", path, "'"));
  }
  const std::string config_path = InFolder(path, kConfigFile);
  if (!IsFile(config_path)) return absl::OkStatus();
  ISTHMUS_ASSIGN_OR_RETURN(const std::string config, ReadText(config_path));
  if (ParseGpt2Config(config, config_path).ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "'", config_path, "' is not that of a model like ours; save into another folder"));
}

}  // namespace isthmus
