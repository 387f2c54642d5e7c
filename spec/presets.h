// The presets: for each method the values that its paper gives, as a RunSpec that one's own values
// are laid over.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

struct Preset {
  absl::string_view name;
  absl::string_view paper;    // where it comes from
  absl::string_view summary;  // what it is for, a sentence
  absl::string_view values;   // RunSpec fields in text format
};

// In the order in which people should read them.
const std::vector<Preset>& Presets();

// Null: there is none of that name.
const Preset* FindPreset(absl::string_view name);

// Lays what is in `spec` over the values of its preset (empty: "demo"). A stage whose kind is given
// and is another than the preset's has none of its values. An unknown name changes nothing; the
// check of the spec refuses it.
void FillPreset(v1::RunSpec* spec);

}  // namespace isthmus
