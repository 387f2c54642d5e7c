// Checkpoints in the form of Hugging Face Transformers: what is read, what is refused. No torch.
#include "worker/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/whole_file.h"
#include "worker/hf_config.h"
#include "worker/json_text.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

// Enough of a GPT-2 for names and shapes.
v1::ModelSpec Spec() {
  v1::ModelSpec spec;
  spec.set_layers(1);
  spec.set_heads(2);
  spec.set_width(4);
  spec.set_context(3);
  spec.set_vocab(5);
  return spec;
}
const std::vector<NamedShape>& Shapes() {
  static const auto* const shapes =
      new std::vector<NamedShape>{{"transformer.wte.weight", {5, 4}},
                                  {"transformer.h.0.ln_1.weight", {4}},
                                  {"transformer.ln_f.bias", {4}}};
  return *shapes;
}

std::vector<float> ValuesOf(const NamedShape& tensor, float start) {
  size_t elements = 1;
  for (int64_t size : tensor.shape) elements *= static_cast<size_t>(size);
  std::vector<float> values(elements);
  for (size_t i = 0; i < elements; ++i) values[i] = start + static_cast<float>(i);
  return values;
}

// A folder of its own for each test, empty.
class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "/" + info->name();
    std::filesystem::remove_all(folder_);
    mkdir(folder_.c_str(), 0777);
  }
  std::string In(const std::string& name) const { return folder_ + "/" + name; }

  // Writes tensors, values counting up from 0, 100, 200 ...
  void WriteTensors(const std::string& name, const std::vector<NamedShape>& tensors) {
    auto writer = SafetensorsWriter::Create(In(name), tensors);
    ASSERT_TRUE(writer.ok()) << writer.status();
    float start = 0;
    for (const NamedShape& tensor : tensors) {
      ASSERT_TRUE((*writer)->Write(ValuesOf(tensor, start)).ok());
      start += 100;
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  void WriteConfig(const std::string& text) {
    ASSERT_TRUE(WriteFileWhole(In("config.json"), text).ok());
  }
  void Save(const std::string& path) {
    auto writer = CheckpointWriter::Create(path, Spec(), Shapes());
    ASSERT_TRUE(writer.ok()) << writer.status();
    float start = 0;
    for (const NamedShape& tensor : Shapes()) {
      ASSERT_TRUE((*writer)->Write(ValuesOf(tensor, start)).ok());
      start += 100;
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  // It is good, and the tensors of Shapes() have their values.
  void ExpectGood(const std::string& path) {
    auto checkpoint = Checkpoint::Open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const absl::Status checked = (*checkpoint)->Check(Spec(), Shapes());
    ASSERT_TRUE(checked.ok()) << checked;
    float start = 0;
    for (const NamedShape& tensor : Shapes()) {
      std::vector<float> values = ValuesOf(tensor, 0);
      ASSERT_TRUE((*checkpoint)->Read(tensor.name, 0, absl::MakeSpan(values)).ok());
      EXPECT_EQ(values, ValuesOf(tensor, start));
      start += 100;
    }
  }
  std::string Refusal(const std::string& path) {
    auto checkpoint = Checkpoint::Open(path);
    const absl::Status status =
        checkpoint.ok() ? (*checkpoint)->Check(Spec(), Shapes()) : checkpoint.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  std::string folder_;
};

std::vector<NamedShape> BareShapes() {
  std::vector<NamedShape> shapes = Shapes();
  for (NamedShape& tensor : shapes) tensor.name = tensor.name.substr(12);
  return shapes;
}

TEST_F(CheckpointTest, AFolderAndAFileComeBack) {
  Save(In("new/"));
  ExpectGood(In("new"));
  Save(In("new"));  // it is a folder now
  ExpectGood(In("new/"));
  EXPECT_FALSE(std::filesystem::exists(In("new/model.safetensors.part")));
  Save(In("one.safetensors"));
  ExpectGood(In("one.safetensors"));
  for (const std::string& path : {In("new"), In("one.safetensors")}) {
    auto checkpoint = Checkpoint::Open(path);
    ASSERT_TRUE((*checkpoint)->model().has_value());
    EXPECT_EQ((*checkpoint)->model()->SerializeAsString(), Spec().SerializeAsString());
  }
}

TEST_F(CheckpointTest, WhatIsNotFinishedLeavesNothing) {
  { ASSERT_TRUE(CheckpointWriter::Create(In("left/"), Spec(), Shapes()).ok()); }
  EXPECT_TRUE(std::filesystem::is_empty(In("left")));
}

TEST_F(CheckpointTest, TellsWhetherItCanBeSaved) {
  EXPECT_TRUE(CheckCanSave(In("new/")).ok());
  EXPECT_TRUE(CheckCanSave(folder_).ok());
  EXPECT_TRUE(CheckCanSave(In("file")).ok());
  EXPECT_EQ(CheckCanSave(In("none/new/")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CheckCanSave("/nowhere/file").code(), absl::StatusCode::kNotFound);
  WriteConfig(Gpt2ConfigJson(Spec()));
  EXPECT_TRUE(CheckCanSave(folder_).ok());
  WriteConfig(R"({"port": 80})");
  EXPECT_EQ(CheckCanSave(folder_).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointTest, AcceptsNamesWithoutPrefixBuffersAndTheTiedCopy) {
  std::vector<NamedShape> shapes = BareShapes();
  shapes.push_back({"h.0.attn.bias", {1, 1, 3, 3}});
  shapes.push_back({"h.0.attn.masked_bias", {}});
  WriteTensors("bare.safetensors", shapes);
  ExpectGood(In("bare.safetensors"));
  EXPECT_FALSE((*Checkpoint::Open(In("bare.safetensors")))->model().has_value());
}

TEST_F(CheckpointTest, TheTiedCopyMustBeEqual) {
  auto write = [&](float last, const std::vector<int64_t>& shape) {
    const NamedShape copy = {"lm_head.weight", shape};
    auto writer = SafetensorsWriter::Create(In("tied.safetensors"),
                                            {Shapes()[0], Shapes()[1], Shapes()[2], copy});
    float start = 0;
    for (const NamedShape& tensor : Shapes()) {
      EXPECT_TRUE((*writer)->Write(ValuesOf(tensor, start)).ok());
      start += 100;
    }
    std::vector<float> values = ValuesOf(copy, 0);
    values.back() = last;
    EXPECT_TRUE((*writer)->Write(values).ok());
    EXPECT_TRUE((*writer)->Finish().ok());
  };
  write(19, {5, 4});
  ExpectGood(In("tied.safetensors"));
  write(20, {5, 4});
  EXPECT_THAT(
      Refusal(In("tied.safetensors")),
      HasSubstr("lm_head.weight and transformer.wte.weight differ at element 19 (20 and 19)"));
  write(19, {4, 5});
  EXPECT_THAT(Refusal(In("tied.safetensors")), HasSubstr("differ in shape"));
}

TEST_F(CheckpointTest, ReadsFilesThatAnIndexNames) {
  WriteConfig(Gpt2ConfigJson(Spec()));
  const std::vector<NamedShape> shapes = BareShapes();
  nlohmann::json index;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::string name = "model-0000" + std::to_string(i) + "-of-00003.safetensors";
    auto writer = SafetensorsWriter::Create(In(name), {shapes[i]});
    ASSERT_TRUE((*writer)->Write(ValuesOf(shapes[i], 100 * static_cast<float>(i))).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
    index["weight_map"][shapes[i].name] = name;
  }
  const std::string index_file = In("model.safetensors.index.json");
  ASSERT_TRUE(WriteFileWhole(index_file, index.dump()).ok());
  ExpectGood(folder_);
  index["weight_map"]["h.0.ln_1.weight"] = "../elsewhere.safetensors";
  ASSERT_TRUE(WriteFileWhole(index_file, index.dump()).ok());
  EXPECT_THAT(Refusal(folder_), HasSubstr("'h.0.ln_1.weight' is no name in the folder"));
  index["weight_map"]["h.0.ln_1.weight"] = "gone.safetensors";
  ASSERT_TRUE(WriteFileWhole(index_file, index.dump()).ok());
  EXPECT_EQ(Checkpoint::Open(folder_).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileWhole(index_file, "[]").ok());
  EXPECT_THAT(Refusal(folder_), HasSubstr("has no weight_map"));
}

TEST_F(CheckpointTest, RefusesOtherTensorsAndNamesThem) {
  std::vector<NamedShape> shapes = Shapes();
  shapes.pop_back();
  WriteTensors("lacks", shapes);
  EXPECT_THAT(Refusal(In("lacks")), HasSubstr("lacks tensor 'transformer.ln_f.bias'"));
  shapes.push_back({"transformer.ln_f.bias", {5}});
  WriteTensors("shape", shapes);
  EXPECT_THAT(Refusal(In("shape")),
              HasSubstr("'transformer.ln_f.bias' has shape [5]; the run's model has [4]"));
  shapes = Shapes();
  shapes.push_back({"transformer.h.1.ln_1.weight", {4}});
  WriteTensors("more", shapes);
  EXPECT_THAT(Refusal(In("more")), HasSubstr("a tensor 'transformer.h.1.ln_1.weight' that"));
}

TEST_F(CheckpointTest, RefusesFoldersThatAreNoCheckpoint) {
  EXPECT_EQ(Checkpoint::Open(In("nothing")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Checkpoint::Open(folder_).status().message()), HasSubstr("config.json"));
  WriteConfig(Gpt2ConfigJson(Spec()));
  EXPECT_THAT(std::string(Checkpoint::Open(folder_).status().message()),
              HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  ASSERT_TRUE(WriteFileWhole(In("pytorch_model.bin"), "x").ok());
  EXPECT_THAT(std::string(Checkpoint::Open(folder_).status().message()),
              HasSubstr("only safetensors is read"));
}

TEST_F(CheckpointTest, NamesTheFieldInWhichTheConfigurationDiffers) {
  WriteTensors("model.safetensors", Shapes());
  const nlohmann::json good = nlohmann::json::parse(Gpt2ConfigJson(Spec()));
  const auto refusal = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[field] = value;
    WriteConfig(changed.dump());
    return Refusal(folder_);
  };
  EXPECT_THAT(refusal("n_layer", 2),
              HasSubstr("config.json': n_layer is 2, but model.layers of the run is 1"));
  EXPECT_THAT(refusal("n_head", 4), HasSubstr("n_head is 4, but model.heads of the run is 2"));
  EXPECT_THAT(refusal("n_head", 3), HasSubstr("n_head is 3; it must divide n_embd"));
  EXPECT_THAT(refusal("vocab_size", 0), HasSubstr("vocab_size is 0; it must be 1 to 16777216"));
  EXPECT_THAT(refusal("n_positions", "x"), HasSubstr("n_positions is \"x\""));
  EXPECT_THAT(refusal("model_type", "llama"), HasSubstr("model_type is \"llama\""));
  EXPECT_THAT(refusal("activation_function", "relu"), HasSubstr("activation_function is \"relu\""));
  EXPECT_THAT(refusal("layer_norm_epsilon", 1e-6), HasSubstr("layer_norm_epsilon is 1e-06"));
  EXPECT_THAT(refusal("n_inner", 7), HasSubstr("n_inner is 7"));
  EXPECT_THAT(refusal("tie_word_embeddings", false), HasSubstr("tie_word_embeddings is false"));
  EXPECT_THAT(refusal("scale_attn_by_inverse_layer_idx", true),
              HasSubstr("scale_attn_by_inverse_layer_idx is true"));
  nlohmann::json small = good;  // what Transformers leaves out has its default
  for (const char* field : {"n_ctx", "n_inner", "tie_word_embeddings", "activation_function"}) {
    small.erase(field);
  }
  small["n_inner"] = 16;
  WriteConfig(small.dump());
  ExpectGood(folder_);
  small.erase("n_embd");
  WriteConfig(small.dump());
  EXPECT_THAT(Refusal(folder_), HasSubstr("n_embd is missing; it must be 1 to 65536"));
  WriteConfig("{");
  EXPECT_THAT(Refusal(folder_), HasSubstr("is not a JSON object"));
}

TEST_F(CheckpointTest, DeepNestingAndPipesAreRefused) {
  const std::string deep(200000, '['), end(200000, ']');
  for (const char* field : {"n_layer", "model_type", "tie_word_embeddings"}) {
    const std::string text = std::string("{\"") + field + "\":" + deep + end + "}";
    const auto parsed = ParseGpt2Config(text, "config.json");
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("nested deeper than 32"));
  }
  EXPECT_FALSE(ParseJson("{\"a\":[[1]]}").is_discarded());
  ASSERT_EQ(mkfifo(In("config.json").c_str(), 0666), 0);
  EXPECT_THAT(std::string(Checkpoint::Open(folder_).status().message()),
              HasSubstr("config.json' is not a regular file"));
}

TEST_F(CheckpointTest, AFileIsNoFolderToSaveInto) {
  std::ofstream(In("plain")) << "x";
  EXPECT_FALSE(CheckCanSave(In("plain/")).ok());
  EXPECT_TRUE(CheckCanSave(In("plain")).ok());
  EXPECT_TRUE(CheckCanSave(In("new/")).ok());
}

}  // namespace
}  // namespace isthmus
