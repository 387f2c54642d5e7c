// Model checkpoints as Hugging Face Transformers has them. A checkpoint is a folder
//
//   config.json
//   model.safetensors                     or model.safetensors.index.json and the files it names
//
// or one safetensors file, which carries the text of config.json in its metadata. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/safetensors.h"
#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

// An open checkpoint of ours or of Transformers' GPT-2. Thread-compatible.
class Checkpoint {
 public:
  // NOT_FOUND: no such file, or a folder without one of the above. INVALID_ARGUMENT: a file of it
  // that is damaged, or of another model than GPT-2. Each names the file.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  // What its configuration says; nullopt: a file that carries none.
  const std::optional<v1::ModelSpec>& model() const { return model_; }

  // INVALID_ARGUMENT naming the file and, of what is wrong first: the field in which the
  // configuration differs from the run's; a tensor of `wanted` that is missing or has another
  // shape; one that is not wanted. Names may lack "transformer." in the file; buffers of attention
  // masks are passed over, and so is lm_head.weight when it equals wte.weight, to which it is tied.
  absl::Status Check(const v1::ModelSpec& run, const std::vector<NamedShape>& wanted) const;

  // As SafetensorsFile::Read, by the model's name.
  absl::Status Read(const std::string& name, uint64_t first_element,
                    absl::Span<float> values) const;

 private:
  explicit Checkpoint(const std::string& path) : path_(path) {}
  absl::Status OpenFolder();
  absl::Status OpenIndexed(const std::string& index_path);
  absl::Status OpenFile(const std::string& path);
  absl::Status CheckTied() const;
  // Its name in the files; empty: it is not there.
  std::string NameInFile(const std::string& name) const;

  const std::string path_;
  std::optional<v1::ModelSpec> model_;
  std::string config_path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> file_of_;  // by the name in the file
};

// Writes one, tensor after tensor. The files appear under their names when Finish returns OK.
class CheckpointWriter {
 public:
  // `path`: a folder if it ends with '/' or is one (it is made if it is not there), else a file.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const std::string& path, const v1::ModelSpec& model, const std::vector<NamedShape>& tensors);

  // All elements of the next tensor, in the order given to Create.
  absl::Status Write(absl::Span<const float> values) { return tensors_->Write(values); }
  absl::Status Finish();

 private:
  CheckpointWriter() = default;

  std::unique_ptr<SafetensorsWriter> tensors_;
  std::string config_path_, config_;
};

// Whether a checkpoint may be written at `path`, as far as that can be told without doing it.
// FAILED_PRECONDITION: a folder with the config.json of something else, which would be lost.
absl::Status CheckCanSave(const std::string& path);

}  // namespace isthmus
