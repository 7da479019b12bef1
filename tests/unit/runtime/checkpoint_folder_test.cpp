// What a checkpoint's folder holds, the links beside it, and what becomes of it for other programs.
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_saver.h"
#include "runtime/checkpoint/export_folder.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/state.h"
#include "runtime/device/cpu_executor.h"
#include "runtime/plan/manifest.h"
#include "runtime/plan/plan.h"

#include "support/diagnostics.h"
#include "support/json.h"
#include "temp_dir.h"

#include "llvm/ADT/StringRef.h"

#include <bit>
#include <cmath>
#include <memory>
#include <set>

using namespace gptc;
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

// 37 of 40 rows are logical; the second weight has the name and the place of another program's.
const char *kStates = R"(module {arena_bytes=65536} {
  state @wte.weight : f32[37->40,9] {kind="param", hf="transformer.wte.weight", at=0}
  state @fc.weight : f32[9,4] {kind="param", hf="transformer.fc.weight", hf_transpose=true, at=2048}
  state @m.wte.weight : f32[37->40,9] {kind="moment", at=4096}
  state @step : i64[] {kind="counter", at=8192}
})";

using Names = std::set<std::string>;

Names namesIn(const std::string &dir) {
  Names names;
  for (const auto &e : fs::directory_iterator(dir))
    names.insert(e.path().filename());
  return names;
}

struct CheckpointFolder : ::testing::Test {
  CheckpointFolder()
      : module(parseModule(kStates, "test")), host(hostTarget(1)), pool(1), arena(65536),
        executor(*module, host, host, arena, pool, ""), store(dir.path) {
    model = modelIdentity(*module);
    model.keys["n_head"] = "2";
    float *wte = weights();
    for (int i = 0; i < 37 * 9; ++i)
      wte[i] = 1 + float(i) * 0x1p-12f;
    float *fc = static_cast<float *>(executor.state("fc.weight"));
    for (int i = 0; i < 36; ++i)
      fc[i] = float(i);
  }
  float *weights() { return static_cast<float *>(executor.state("wte.weight")); }
  std::string save(int64_t step, std::optional<double> valLoss = {}, const HfFiles &described = kDescribed,
                   int64_t keep = 0) {
    CheckpointSaver saver(executor, store, false, described);
    saver.save({step, "plan", model, "data", "", "", {}, {}, valLoss}, keep);
    EXPECT_EQ(saver.takeProblemOfLinks(), "");
    return stepDir(step);
  }
  std::optional<CheckpointInfo> load() {
    warnings.clear();
    return store.loadNewest(executor, model, false, [&](const std::string &w) { warnings.push_back(w); });
  }
  std::string stepDir(int64_t step) { return dir / fmt::format("checkpoints/step-{:08}", step); }
  std::string link(const char *name) {
    std::error_code e;
    return fs::read_symlink(dir / "checkpoints/" + name, e).string();
  }
  /// Changes a manifest and gives it a right checksum again.
  void forge(const std::string &checkpoint, const std::function<void(json &)> &change) {
    json j = parseJson<json>(readFile(checkpoint + "/manifest.json"));
    change(j);
    j["blake3"] = manifestChecksum(j);
    writeFile(checkpoint + "/manifest.json", j.dump(2));
  }

  static inline const HfFiles kDescribed = {
      {"config.json", R"({"model_type": "gpt2", "torch_dtype": "float32", "dtype": "float32", "n_head": 2})"},
      {"generation_config.json", R"({"eos_token_id": [7, 9]})"},
      {"tokenizer.json", "anything"}};
  TempDir dir;
  std::unique_ptr<Module> module;
  const Target host;
  ThreadPool pool;
  Arena arena;
  CpuExecutor executor;
  CheckpointStore store;
  ModelIdentity model;
  std::vector<std::string> warnings;
};

// Its checksum is right, and what it says of the data cannot be: it is damaged, and not the data another.
TEST_F(CheckpointFolder, WhoseDataCannotBeAStreamIsDamaged) {
  const std::string first = save(1), second = save(2);
  auto files = [](int64_t place) {
    return json{{{"name", "a.bin"}, {"tokens", 9}, {"blake3", std::string(64, 'a')}},
                {{"name", "b.bin"}, {"tokens", 9}, {"blake3", std::string(64, 'b')}, {"first", place}}};
  };
  forge(second, [&](json &j) { j["data_files"] = files(9); });
  auto info = load();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->step, 2);
  EXPECT_EQ(info->data.files[1].first, 9);
  forge(second, [&](json &j) { j["data_files"] = files(8); });
  info = load();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->step, 1) << "the one before it";
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("manifest.json: data_files[1]: \"first\" is 8, and the files before it end at token 9"),
            std::string::npos)
      << warnings[0];
  forge(first, [&](json &j) { j["data_files"] = nullptr; });
  EXPECT_EQ(codeThrown([&] { load(); }), int(ErrorCode::CheckpointDamaged));
}

TEST_F(CheckpointFolder, HoldsWeightsAndTheirDescriptionAndApartFromThemWhatOnlyGptcReads) {
  const std::string at = save(3);
  EXPECT_EQ(namesIn(at), (Names{"config.json", "generation_config.json", "manifest.json", "model.safetensors", "state",
                                "tokenizer.json"}));
  EXPECT_EQ(namesIn(at + "/state"), Names{"optimizer.safetensors"});
  for (const auto &[name, text] : kDescribed)
    EXPECT_EQ(readFile(at + "/" + name), text) << name;
  const SafetensorsFile file(at + "/model.safetensors");
  EXPECT_TRUE(file.find("transformer.wte.weight")) << "as transformers 4 needs it beside lm_head.weight";
  ASSERT_TRUE(load());
  EXPECT_EQ(warnings, std::vector<std::string>());
  // A plan of an earlier version describes nothing.
  EXPECT_EQ(namesIn(save(4, {}, {})), (Names{"manifest.json", "model.safetensors", "state"}));
}

TEST_F(CheckpointFolder, OfEarlierVersionsIsRead) {
  const std::string at = save(3, {}, {});
  fs::rename(at + "/state/optimizer.safetensors", at + "/optimizer.safetensors");
  fs::remove(at + "/state");
  // Names had no prefix.
  std::string weights = readFile(at + "/model.safetensors");
  for (size_t found; (found = weights.find("transformer.")) != std::string::npos;)
    weights.erase(found, 12).insert(weights.find("}}") + 2, 12, ' ');
  writeFile(at + "/model.safetensors", weights);
  forge(at, [&](json &j) {
    j["schema"] = 2;
    j["files"] = {{"model.safetensors", blake3(weights)},
                  {"optimizer.safetensors", j["files"]["state/optimizer.safetensors"]}};
  });
  const float kept = this->weights()[5];
  this->weights()[5] = 0;
  const auto info = load();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->step, 3);
  EXPECT_EQ(info->notes, std::vector<std::string>());
  EXPECT_EQ(warnings, std::vector<std::string>());
  EXPECT_EQ(this->weights()[5], kept);
  damageFile(at + "/optimizer.safetensors", 200);
  EXPECT_EQ(codeThrown([&] { load(); }), int(ErrorCode::CheckpointDamaged));
}

TEST_F(CheckpointFolder, NamesThatLeadOutOfItAreRefused) {
  const std::string at = save(3);
  for (const char *name : {"../model.safetensors", "state/../../model.safetensors", "state/a/model.safetensors",
                           "/model.safetensors", "state/.."}) {
    forge(at, [&](json &j) { j["files"][name] = std::string(64, 'a'); });
    EXPECT_EQ(codeThrown([&] { load(); }), int(ErrorCode::CheckpointDamaged)) << name;
    EXPECT_EQ(codeThrown([&] { CheckpointStore::published(at); }), int(ErrorCode::CheckpointDamaged)) << name;
    forge(at, [&](json &j) { j["files"].erase(name); });
  }
  EXPECT_TRUE(load());
}

// People edit generation_config.json. That is no reason to go back to an older checkpoint, but it is not published.
TEST_F(CheckpointFolder, ItsDescriptionMayChangeUnderTraining) {
  const std::string at = save(3);
  writeFile(at + "/generation_config.json", "{}");
  ASSERT_TRUE(load());
  EXPECT_EQ(warnings, std::vector<std::string>());
  std::string said;
  EXPECT_EQ(codeThrown([&] { CheckpointStore::published(at); }, &said), int(ErrorCode::CheckpointDamaged));
  EXPECT_NE(said.find("generation_config.json does not match its checksum"), std::string::npos) << said;
}

// ---- links

TEST_F(CheckpointFolder, LinksLeadToTheNewestAndTheBest) {
  save(1);
  EXPECT_EQ(link("latest"), "step-00000001");
  EXPECT_EQ(namesIn(dir / "checkpoints"), (Names{"latest", "step-00000001"}));
  save(2, 1.5);
  save(3, 2.0);
  EXPECT_EQ(link("latest"), "step-00000003");
  EXPECT_EQ(link("best"), "step-00000002");
  EXPECT_EQ(readFile(dir / "checkpoints/best/generation_config.json"), kDescribed.at("generation_config.json"));
  EXPECT_EQ(CheckpointStore::loadParameters(executor, model, dir / "checkpoints/best").step, 2);
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{3, 2, 1})) << "they are no checkpoints themselves";
  save(4, {}, kDescribed, 1);
  EXPECT_EQ(namesIn(dir / "checkpoints"), (Names{"latest", "best", "step-00000004", "step-00000002"}));
  store.noteValidation(4, 1.0);
  EXPECT_EQ(store.updateLinks(), "");
  EXPECT_EQ(link("best"), "step-00000004");
  // What is set aside is no longer the newest.
  save(5);
  store.setAsideBeyond(4);
  EXPECT_EQ(store.updateLinks(), "");
  EXPECT_EQ(link("latest"), "step-00000004");
}

TEST_F(CheckpointFolder, ALinkWithNothingToLeadToGoes) {
  const std::string at = save(1, 1.5);
  EXPECT_EQ(link("best"), "step-00000001");
  forge(at, [](json &j) { j.erase("val_loss"); });
  EXPECT_EQ(store.updateLinks(), "");
  EXPECT_EQ(namesIn(dir / "checkpoints"), (Names{"latest", "step-00000001"}));
}

TEST_F(CheckpointFolder, WhatIsNoLinkIsLeftAlone) {
  save(1);
  fs::create_directories(dir / "checkpoints/best/of/mine");
  fs::remove(dir / "checkpoints/latest");
  writeFile(dir / "checkpoints/latest", "a note");
  CheckpointSaver saver(executor, store, false, kDescribed);
  saver.save({2, "plan", model, "data", "", "", {}, {}, 1.0}, 1);
  EXPECT_NE(saver.takeProblemOfLinks().find("is no link"), std::string::npos);
  EXPECT_EQ(saver.takeProblemOfLinks(), "") << "said once";
  EXPECT_EQ(readFile(dir / "checkpoints/latest"), "a note");
  EXPECT_TRUE(fs::exists(dir / "checkpoints/best/of/mine"));
  EXPECT_EQ(store.steps(), std::vector<int64_t>{2}) << "saved and pruned all the same";
}

TEST_F(CheckpointFolder, WhatAKilledRewriteOfAManifestLeftIsRemoved) {
  save(2, 1.0);
  const std::string left = dir / "checkpoints/step-00000002/manifest.json.tmp7";
  writeFile(left, "{");
  store.cleanUp();
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(dir / "checkpoints/step-00000002/manifest.json"));
}

TEST_F(CheckpointFolder, LinksAreNeverFollowedToRemove) {
  fs::create_directories(dir / "elsewhere/step-00000001/state");
  writeFile(dir / "elsewhere/step-00000001/precious", "x");
  fs::create_directories(dir / "checkpoints");
  const std::string there = dir / "elsewhere";
  for (const char *name : {"latest", "best", ".latest.tmp", ".best.tmp", ".step-00000009.tmp"})
    fs::create_directory_symlink(there, dir / "checkpoints/" + name);
  fs::create_directory_symlink(there + "/step-00000001", dir / "checkpoints/step-00000001");
  writeFile(there + "/step-00000001/manifest.json.tmp7", "x");
  store.cleanUp();
  EXPECT_TRUE(fs::exists(there + "/step-00000001/manifest.json.tmp7"));
  fs::remove(dir / "checkpoints/step-00000001");
  EXPECT_EQ(namesIn(dir / "checkpoints"), (Names{"latest", "best"})) << "what a killed process left";
  EXPECT_EQ(store.updateLinks(), "");
  EXPECT_EQ(link("best"), there) << "not ours";
  save(2, 1.0);
  EXPECT_EQ(link("latest"), "step-00000002");
  EXPECT_EQ(link("best"), "step-00000002");
  // A checkpoint that lies elsewhere, and that prune passes by.
  fs::rename(stepDir(2), dir / "elsewhere/step-00000002");
  fs::create_directory_symlink(dir / "elsewhere/step-00000002", stepDir(2));
  save(3, 0.5, kDescribed, 1);
  EXPECT_EQ(store.steps(), std::vector<int64_t>{3});
  EXPECT_TRUE(fs::exists(dir / "elsewhere/step-00000002/model.safetensors"));
  EXPECT_TRUE(fs::exists(dir / "elsewhere/step-00000001/precious"));
}

// ---- export

struct ExportFolder : CheckpointFolder {
  Exported write(const std::string &name, const ExportOptions &options = {}) {
    return exportFolder(CheckpointStore::published(stepDir(3)), dir / name, options);
  }
  int code(const std::string &name, const ExportOptions &options = {}, std::string *said = nullptr) {
    return codeThrown([&] { write(name, options); }, said);
  }
};

TEST_F(ExportFolder, HasTheWeightsWithoutPaddingAndNoOptimizer) {
  save(3);
  const Exported done = write("out");
  EXPECT_EQ(done.tensors, 2);
  EXPECT_EQ(done.bytes, 4 * (37 * 9 + 36));
  EXPECT_EQ(namesIn(dir / "out"),
            (Names{"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}));
  const SafetensorsFile file(dir / "out/model.safetensors");
  ASSERT_TRUE(file.find("transformer.wte.weight"));
  EXPECT_EQ(file.find("transformer.wte.weight")->shape, (std::vector<int64_t>{37, 9}));
  std::vector<float> fc(36);
  file.read(*file.find("transformer.fc.weight"), fc.data());
  EXPECT_EQ(fc[1], 4) << "[out, in], as the checkpoint has it";
  EXPECT_EQ(parseJson(readFile(dir / "out/config.json"))["dtype"], "float32");
  EXPECT_EQ(readFile(dir / "out/tokenizer.json"), "anything");
}

TEST_F(ExportFolder, RoundsToNearestEven) {
  weights()[0] = 1 + 0x1p-8f, weights()[1] = 1 + 0x3p-8f;  // ties of bf16
  weights()[2] = 1 + 0x1p-11f, weights()[3] = 65519;       // of fp16; the largest that rounds to its maximum
  weights()[4] = NAN, weights()[5] = -INFINITY;
  save(3);
  EXPECT_EQ(write("b", {.dtype = DType::bf16}).bytes, 2 * (37 * 9 + 36));
  EXPECT_EQ(parseJson(readFile(dir / "b/config.json"))["torch_dtype"], "bfloat16");
  std::vector<uint16_t> b(37 * 9);
  const SafetensorsFile bf16(dir / "b/model.safetensors");
  bf16.read(*bf16.find("transformer.wte.weight"), b.data());
  EXPECT_EQ(b[0], 0x3f80);
  EXPECT_EQ(b[1], 0x3f82);
  write("h", {.dtype = DType::f16});
  EXPECT_EQ(parseJson(readFile(dir / "h/config.json"))["dtype"], "float16");
  std::vector<_Float16> h(37 * 9);
  const SafetensorsFile f16(dir / "h/model.safetensors");
  f16.read(*f16.find("transformer.wte.weight"), h.data());
  EXPECT_EQ(h[2], 1);
  EXPECT_EQ(h[3], 65504);
  EXPECT_TRUE(std::isnan(float(h[4])));
  EXPECT_EQ(float(h[5]), -INFINITY);
  weights()[7] = 65520;  // rounds to infinity
  save(3);
  std::string said;
  EXPECT_EQ(code("i", {.dtype = DType::f16}, &said), int(ErrorCode::OutOfRange));
  EXPECT_NE(said.find("tensor transformer.wte.weight holds 65520"), std::string::npos) << said;
  EXPECT_EQ(namesIn(dir.path), (Names{"b", "checkpoints", "h"})) << "nothing of it is left";
}

TEST_F(ExportFolder, DividesWhatIsLarge) {
  save(3);
  EXPECT_EQ(write("out", {.fileBytes = 200}).files, 2);
  EXPECT_EQ(namesIn(dir / "out"),
            (Names{"config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json",
                   "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}));
  const nlohmann::json index = parseJson(readFile(dir / "out/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * (37 * 9 + 36));
  ASSERT_EQ(index["weight_map"].size(), 2u);
  for (const auto &[name, file] : index["weight_map"].items())
    EXPECT_TRUE(SafetensorsFile(dir / "out/" + file.get<std::string>()).find(name)) << name;
  std::fill_n(weights(), 9, -1.f);
  loadWeights(executor, dir / "out", modelIdentity(*module));
  EXPECT_EQ(weights()[1], 1 + 0x1p-12f);
}

TEST_F(ExportFolder, ReplacesWhatAnExportWroteAndNothingElse) {
  save(3);
  fs::create_directories(dir / "out");
  EXPECT_EQ(code("out"), 0) << "empty";
  weights()[0] = 77;
  save(3);
  EXPECT_EQ(code("out"), 0);
  const SafetensorsFile file(dir / "out/model.safetensors");
  float first = 0;
  file.read(*file.find("transformer.wte.weight"), 0, &first, 4);
  EXPECT_EQ(first, 77);
  const int refused = int(ErrorCode::Unwritable);
  for (const char *more : {"README.md", "state", "model-other.safetensors"}) {
    const std::string path = dir / "out/" + more;
    if (*more == 's')
      fs::create_directories(path);
    else
      writeFile(path, "mine");
    EXPECT_EQ(code("out"), refused) << more;
    EXPECT_TRUE(fs::exists(path));
    fs::remove_all(path);
  }
  EXPECT_EQ(code("out"), 0);
  // A folder of the same names that another program wrote, a checkpoint, and the folder of the run.
  fs::create_directories(dir / "theirs");
  SafetensorsWriter(dir / "theirs/model.safetensors", {}, {{"format", "pt"}}).finish();
  EXPECT_EQ(code("theirs"), refused);
  EXPECT_EQ(code("checkpoints/step-00000003"), refused);
  EXPECT_EQ(code("checkpoints"), refused);
  EXPECT_EQ(code("."), refused);
  writeFile(dir / "file", "mine");
  EXPECT_EQ(code("file"), refused);
  fs::create_directory_symlink(dir / "out", dir / "link");
  EXPECT_EQ(code("link"), refused);
  EXPECT_TRUE(load());
}

/// A line of /proc/self/status in bytes, of which the peak was reset.
int64_t memory(const std::string &line) {
  const std::string status = readFile("/proc/self/status");
  return std::stoll(status.substr(status.find(line + ":") + line.size() + 1)) * 1024;
}

// Larger than what an export may take.
TEST_F(ExportFolder, ReadsInPieces) {
  const int64_t rows = 20 << 10, columns = 2048;
  {
    SafetensorsWriter w(dir / "large.safetensors", {{"transformer.wte.weight", DType::f32, {rows, columns}}}, {});
    const std::vector<float> row(columns, 0.1f);
    for (int64_t i = 0; i < rows; ++i)
      w.write(row.data(), row.size() * sizeof(float));
    w.finish();
  }
  ASSERT_EQ(fs::file_size(dir / "large.safetensors") >> 20, 160u);
  writeFile("/proc/self/clear_refs", "5");
  const int64_t before = memory("VmRSS");
  exportFolder({.info = {}, .weights = {dir / "large.safetensors"}, .described = kDescribed}, dir / "out",
               {.dtype = DType::bf16});
  EXPECT_LE(memory("VmHWM") - before, 64 << 20);
  EXPECT_EQ(fs::file_size(dir / "out/model.safetensors") >> 20, 80u);
}

TEST_F(ExportFolder, NeedsAModelThatAFamilyHolds) {
  std::string said;
  save(3, {}, {});
  EXPECT_EQ(code("out", {}, &said), int(ErrorCode::MissingKey));
  save(3, {}, {{"config.json", R"({"model_type": "gptc", "no_family_holds": ["position", "bias"], "position": "alibi",
                            "bias": false})"}});
  EXPECT_EQ(code("out", {}, &said), int(ErrorCode::Contradiction));
  EXPECT_NE(said.find("holds its model.position = \"alibi\", model.bias = false"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST_F(ExportFolder, TakesNoCodeAlong) {
  for (const HfFiles &files :
       {HfFiles{{"config.json", R"({"model_type": "gpt2", "auto_map": {"AutoModel": "modeling.Mine"}})"}},
        HfFiles{{"config.json", "{}"}, {"modeling.py", "{}"}}, HfFiles{{"config.json", "[1]"}}}) {
    save(3, {}, files);
    EXPECT_EQ(code("out"), int(ErrorCode::CheckpointDamaged));
  }
}

TEST_F(ExportFolder, OfDamagedWeightsIsNone) {
  save(3);
  damageFile(stepDir(3) + "/model.safetensors", 600);
  EXPECT_EQ(code("out"), int(ErrorCode::CheckpointDamaged));
  EXPECT_FALSE(fs::exists(dir / "out"));
}

// Another program's index is hostile until it is checked: every file that it names is one of its folder.
TEST(WeightFiles, NamesThatLeadOutOfTheFolderAreRefused) {
  const TempDir dir;
  fs::create_directories(dir / "model/sub");
  const std::string folder = dir / "model", index = folder + "/model.safetensors.index.json";
  auto said = [&](const json &map) -> std::string {
    writeFile(index, json{{"weight_map", map}}.dump());
    try {
      weightFiles(folder);
    } catch (const UserError &e) {
      EXPECT_FALSE(e.diagnostics[0].help.empty());
      return fmt::format("{} {}", int(e.diagnostics[0].code), e.diagnostics[0].message);
    }
    return "";
  };
  const std::string inside = "model-00001-of-00002.safetensors", before = fmt::format("504 {}: ", index);
  EXPECT_EQ(said({{"a", inside}, {"b", inside}}), "");
  EXPECT_EQ(weightFiles(folder), std::vector{folder + "/" + inside});
  // There, so that nothing else refuses them.
  for (const char *there : {"outside.safetensors", "model/sub/x.safetensors"})
    writeFile(dir / there, "mine");
  for (const std::string &name :
       {std::string("../outside.safetensors"), dir / "outside.safetensors", std::string("sub/x.safetensors"),
        std::string("./") + inside, std::string("../model/") + inside, std::string("/"), std::string(".."),
        std::string("."), std::string()})
    EXPECT_EQ(said({{"a", inside}, {"b", name}}),
              fmt::format("{}it names \"{}\", which is no file of this folder", before, name));
  EXPECT_EQ(said({{"a", std::string("x\0y", 3)}}), before + "it names \"x\", which is no file of this folder");
  EXPECT_EQ(said(json::object()), before + "no tensors");
  EXPECT_EQ(said({{"a", inside}, {"b", 3}}), before + "weight_map has 3 where the name of a file is needed");
  for (const json &other : {json(3), json::array({inside}), json(nullptr), json(inside)})
    EXPECT_EQ(said(other), fmt::format("{}weight_map is {}, where an object is needed", before, other.dump()));
}

}  // namespace
