#include "spec/manifest.h"

#include <algorithm>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

std::string DTypeName(int dtype) {
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
      return "float32";
    case v1::DTYPE_BFLOAT16:
      return "bfloat16";
    default:
      return absl::StrCat("number ", dtype);
  }
}

std::string ShapeText(const v1::TensorSpec& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]");
}

// Names stand in log lines and messages, so they must not break them.
bool IsPrintable(const std::string& name) {
  return std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f;
  });
}

absl::Status ValidateName(int number, const std::string& name) {
  if (name.empty() || name.size() > kTensorNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", number, " has a name of ",
                                                   name.size(), " bytes; a name has 1 to ",
                                                   kTensorNameBytesMax));
  }
  if (!IsPrintable(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", number, " has a control character in its name; rename it"));
  }
  return absl::OkStatus();
}

absl::Status ValidateTensor(int number, const v1::TensorSpec& tensor) {
  ISTHMUS_RETURN_IF_ERROR(ValidateName(number, tensor.name()));
  const std::string who = absl::StrCat("tensor ", number, " '", tensor.name(), "'");
  if (tensor.dtype() != v1::DTYPE_FLOAT32) {
    return absl::InvalidArgumentError(absl::StrCat(who, " has dtype ", DTypeName(tensor.dtype()),
                                                   "; this version exchanges float32 only"));
  }
  if (tensor.shape_size() > static_cast<int>(kTensorDimensionsMax)) {
    return absl::InvalidArgumentError(absl::StrCat(
        who, " has ", tensor.shape_size(), " dimensions; the limit is ", kTensorDimensionsMax));
  }
  uint64_t elements = 1;
  for (int i = 0; i < tensor.shape_size(); ++i) {
    if (tensor.shape(i) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(who, " has size 0 in dimension ", i,
                                                     "; leave empty tensors out of the manifest"));
    }
    if (tensor.shape(i) > kTensorElementsMax / elements) {
      return absl::InvalidArgumentError(absl::StrCat(who, " has shape ", ShapeText(tensor),
                                                     "; the limit is ", kTensorElementsMax,
                                                     " elements, split the tensor"));
    }
    elements *= tensor.shape(i);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateManifest(const v1::Manifest& manifest) {
  if (manifest.tensors().empty()) {
    return absl::InvalidArgumentError(
        "the manifest has 0 tensors; name at least one tensor to train");
  }
  if (manifest.tensors_size() > static_cast<int>(kTensorsMax)) {
    return absl::ResourceExhaustedError(absl::StrCat("the manifest has ", manifest.tensors_size(),
                                                     " tensors; the limit is ", kTensorsMax));
  }
  if (manifest.ByteSizeLong() > kManifestBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the manifest has ", manifest.ByteSizeLong(),
                                                     " bytes; the limit is ", kManifestBytesMax,
                                                     ", shorten the tensor names"));
  }
  std::unordered_set<std::string> names;
  for (int i = 0; i < manifest.tensors_size(); ++i) {
    ISTHMUS_RETURN_IF_ERROR(ValidateTensor(i, manifest.tensors(i)));
    if (!names.insert(manifest.tensors(i).name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", i, " '", manifest.tensors(i).name(),
                       "' has the name of an earlier one; list a tied tensor once"));
    }
  }
  return absl::OkStatus();
}

std::string Fingerprint(const v1::Manifest& manifest) {
  Sha256 hash;
  for (const v1::TensorSpec& tensor : manifest.tensors()) {
    hash.UpdateSized(tensor.name());
    hash.UpdateU64(static_cast<uint64_t>(tensor.dtype()));
    hash.UpdateU64(static_cast<uint64_t>(tensor.shape_size()));
    for (uint64_t size : tensor.shape()) hash.UpdateU64(size);
  }
  return hash.Finish();
}

std::string ManifestDifference(const v1::Manifest& ours, const v1::Manifest& theirs) {
  const int both = std::min(ours.tensors_size(), theirs.tensors_size());
  for (int i = 0; i < both; ++i) {
    const v1::TensorSpec& our = ours.tensors(i);
    const v1::TensorSpec& their = theirs.tensors(i);
    if (our.name() != their.name()) {
      return absl::StrCat("tensor ", i, " is '", their.name(), "', the run has '", our.name(), "'");
    }
    const std::string who = absl::StrCat("tensor ", i, " '", our.name(), "'");
    if (our.dtype() != their.dtype()) {
      return absl::StrCat(who, " has dtype ", DTypeName(their.dtype()), ", the run has ",
                          DTypeName(our.dtype()));
    }
    if (ShapeText(our) != ShapeText(their)) {
      return absl::StrCat(who, " has shape ", ShapeText(their), ", the run has ", ShapeText(our));
    }
  }
  if (ours.tensors_size() != theirs.tensors_size()) {
    const bool more = theirs.tensors_size() > both;
    return absl::StrCat("there are ", theirs.tensors_size(), " tensors, the run has ",
                        ours.tensors_size(), "; '",
                        more ? theirs.tensors(both).name() : ours.tensors(both).name(), "' is ",
                        more ? "not in the run" : "missing");
  }
  return "";
}

}  // namespace isthmus
