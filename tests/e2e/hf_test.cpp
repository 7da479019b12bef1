// Small models of each family that transformers made, with random weights: hf/NAME holds config.json and safetensors,
// as transformers 5.24.0 writes them, and in golden.json the logits that it computes in fp32 (hf/make.py).
#include "frontends/hf_families.h"
#include "frontends/model_builder.h"
#include "frontends/model_text.h"
#include "ir/facts.h"
#include "ir/kernel/eval.h"
#include "ir/opdef.h"
#include "runtime/checkpoint/state_tensors.h"
#include "runtime/data/data.h"
#include "runtime/serve/sample.h"
#include "runtime/train/session.h"
#include "runtime/train/trainer.h"
#include "runtime/train/weights.h"
#include "support/files.h"
#include "support/json.h"
#include "tests/support/harness.h"
#include "tests/support/oracles.h"
#include "tools/compiler/inference.h"
#include "tools/planner/plan_module.h"

#include "llvm/ADT/StringExtras.h"

#include <cmath>
#include <filesystem>

using namespace e2e;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::string models = GPTC_SOURCE_DIR "/tests/e2e/hf/";

const char *const kNames[] = {"gpt2",    "llama",        "llama-odd", "llama-stretched", "llama-yarn",
                              "mistral", "mistral-full", "qwen2",     "qwen2-full",      "qwen3",
                              "smollm3", "olmo2",        "gpt_neox",  "gpt_neox-serial", "bloom",
                              "phi",     "gemma2",       "bert",      "modernbert"};

json goldenIn(const std::string &dir) { return json::parse(readFile(dir + "/golden.json")); }
json goldenOf(const std::string &name) { return goldenIn(models + name); }

std::vector<std::string> settingsOf(const gptc::ModelConfig &m) {
  std::vector<std::string> settings = {"train.micro_batch=1"};
  const std::string text = gptc::modelText(m);
  for (llvm::StringRef line : llvm::split(llvm::StringRef(text).rtrim(), '\n')) {
    const auto [key, value] = line.split(" #").first.rtrim().split(" = ");
    settings.push_back(fmt::format("model.{}={}", key.str(), value.str()));
  }
  return settings;
}

std::vector<std::string> weightsIn(const std::string &dir) {
  std::vector<std::string> files;
  for (const auto &entry : fs::directory_iterator(dir))
    if (entry.path().extension() == ".safetensors")
      files.push_back(entry.path());
  return files;
}

/// The parameters of a model, read as init_from reads them.
gptc::StateMap parametersOf(const gptc::Module &m, const std::vector<std::string> &paths) {
  using namespace gptc;
  const TensorFiles files(paths);
  StateMap states;
  for (const auto &s : m.states) {
    Tensor t(s->type);
    if (kindOf(*s) == StateKind::param) {
      const StateTensors tensors(*s, files, true);
      EXPECT_EQ(tensors.problem(), "");
      std::vector<float> dense(t.data.size());
      tensors.read(dense.data());
      t.data.assign(dense.begin(), dense.end());
    }
    states[s->name] = std::move(t);
  }
  return states;
}

/// Logits in float64, by the interpreter.
std::vector<double> logitsOf(const gptc::Module &m, gptc::StateMap states, const std::vector<double> &ids) {
  using namespace gptc;
  const Function &f = *m.function("eval");
  const Value *scores = nullptr;
  for (const Op &op : f.body)
    if (op.is(OpKind::cross_entropy))
      scores = op.operand(0);
  const Tensor x{Type(DType::i32, {1, int64_t(ids.size())}), ids};
  std::vector<double> logits;
  interpret(f, std::vector<Tensor>{x, x}, states, [&](const Op &op, llvm::ArrayRef<Tensor> results) {
    if (&op == scores->def)
      logits = results[0].data;
  });
  return logits;
}

std::unique_ptr<gptc::Module> built(gptc::ModelConfig model, int64_t tokens) {
  model.blockSize = tokens;
  return gptc::buildModel(gptc::readConfig("", settingsOf(model)), {.sampling = false});
}

/// Relative L2 distance of the logits of the first `tokens` tokens from those of the golden beside a model.
double distance(const std::string &dir, size_t tokens) {
  const json golden = goldenIn(dir);
  std::vector<double> ids = golden.at("ids");
  ids.resize(std::min(ids.size() - 1, tokens));
  const auto m = built(gptc::readHfConfig(dir), int64_t(ids.size()));
  const std::vector<double> logits = logitsOf(*m, parametersOf(*m, weightsIn(dir)), ids);
  double difference = 0, norm = 0;
  size_t i = 0;
  for (size_t row = 0; row < ids.size(); ++row)
    for (const double theirs : golden.at("logits").at(row)) {
      difference += (logits.at(i) - theirs) * (logits.at(i) - theirs);
      norm += theirs * theirs;
      ++i;
    }
  EXPECT_EQ(i, logits.size());
  return std::sqrt(difference / norm);
}

class Hf : public ::testing::TestWithParam<const char *> {};

/// How far logits are from the golden beside a model, which must be little.
void compareWithGolden(const std::string &dir) {
  const double apart = distance(dir, 1000);
  EXPECT_LE(apart, 1e-5) << dir;
  gptc::test::sayMeasured("logits", apart);
}

TEST_P(Hf, LogitsAreThoseOfTransformers) { compareWithGolden(models + GetParam()); }

// A shorter context takes the first rows of a table of positions.
TEST_P(Hf, PositionsMayBeCropped) {
  const std::string name = GetParam();
  if (name != "bert" && name != "modernbert") {  // which see tokens to come
    EXPECT_LE(distance(models + name, 7), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Hf, ::testing::ValuesIn(kNames), [](const auto &info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Folders as transformers 4 writes them: its spelling of config.json, its names and shards. Skipped where it is
// missing.
TEST(HfOfTransformers4, LogitsAreThoseOfTransformers) {
  Workplace w;
  const std::vector<std::string> &paths = gptc::test::transformersPaths();
  if (paths.size() < 2)
    GTEST_SKIP() << "no transformers 4";
  const gptc::test::Compared made =
      gptc::test::compareBy("tests/e2e/hf/make.py", fmt::format("models '{}'", w.path("made")), paths[1]);
  if (made.isMissing())
    GTEST_SKIP() << made.said;
  ASSERT_EQ(made.code, 0) << made.said;
  for (const std::string name : kNames) {
    const std::string dir = w.path("made/" + name);
    EXPECT_EQ(json::parse(readFile(dir + "/config.json"))["transformers_version"].get<std::string>().substr(0, 2),
              "4.");
    compareWithGolden(dir);
  }
}

// Before families had tables, every model but Llama's had GPT-2's names and layouts in checkpoints.
TEST(HfNames, OlderCheckpointsAreRead) {
  using namespace gptc;
  Workplace w;
  const auto m = built(readHfConfig(models + "bloom"), 20);
  StateMap states = parametersOf(*m, weightsIn(models + "bloom"));
  std::vector<TensorInfo> infos;
  for (const auto &s : m->states)
    if (kindOf(*s) == StateKind::param) {
      infos.push_back({s->name, DType::f32, {}});
      for (const Dim &d : s->type.dims)
        infos.back().shape.push_back(d.logical);
    }
  SafetensorsWriter writer(w.path("model.safetensors"), infos, {});
  for (const TensorInfo &t : infos) {
    const std::vector<double> &data = states[t.name].data;
    const std::vector<float> dense(data.begin(), data.end());
    writer.write(dense.data(), dense.size() * sizeof(float));
  }
  writer.finish();
  for (auto &[name, tensor] : parametersOf(*m, {w.path("model.safetensors")}))
    EXPECT_EQ(tensor.data, states[name].data) << name.str();
}

class HfImport : public ::testing::Test {
protected:
  Workplace w;

  static void writeTokens(const std::string &path, const std::vector<int> &ids) {
    std::string bytes;
    for (const int id : ids) {
      bytes += char(id & 255);
      bytes += char(id >> 8);
    }
    writeFile(path, bytes);
  }
  static double lossOf(const std::string &plan, const std::string &outDir, const gptc::WeightsChoice &choice = {}) {
    using namespace gptc;
    Plan p = loadPlan(plan);
    p.run.outDir = outDir;
    const Module &m = *p.planned;
    const TokenData data(p.run.valData, "data.val", m.attrs.getInt("vocab_size"), m.attrs.getInt("block_size"), 1,
                         maskToken(m));
    const ModelIdentity model = modelIdentity(m);
    Session session(inferencePlan(std::move(p), kEvaluation, e2e::cacheDir()), e2e::cacheDir());
    loadForInference(session, model, choice, [](const std::string &warning) { ADD_FAILURE() << warning; });
    return evaluate(session.executor, data, 0)->loss;
  }
};

// What docs show: import, compile, evaluate, sample, train, and its own checkpoint again.
TEST_F(HfImport, FromAFolderToText) {
  const std::string dir = w.path("tiny-llama"), file = w.path("mine.toml"), plan = w.path("mine.plan");
  fs::copy(models + "llama", dir);
  writeTokens(w.path("ids.bin"), goldenOf("llama").at("ids"));
  writeFile(w.path("text.txt"), "a tiny text, and that again: a tiny text.\n");
  ASSERT_EQ(w.gptc({"data", "prepare", w.path("text.txt"), "--tokenizer", "char", "--out", dir}).code, 0);
  Result r = w.gptc({"import", dir, "-o", file});
  ASSERT_EQ(r.code, 0) << r.output;
  const std::string text = readFile(file);
  for (const char *part : {"name = \"tiny-llama\"\n", "\nn_kv_head = 1 ", "\nposition = \"rope\"\n",
                           "/tiny-llama/tokenizer.json\"\n", "# tokens that end a text: 2\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_EQ(w.gptc({"import", dir, "-o", file}).code, 4);
  EXPECT_EQ(w.gptc({"import", dir, "-o", file, "--force"}).code, 0);
  EXPECT_EQ(readFile(file), text);

  std::vector<std::string> args = {"compile", file, "-o", plan};
  for (const std::string &setting :
       {"data.train=" + w.path("ids.bin"), "data.val=" + w.path("ids.bin"), std::string("train.steps=2"),
        std::string("train.micro_batch=1"), std::string("train.global_batch_tokens=20"), std::string("eval.steps=0"),
        "out_dir=" + w.path("out")})
    args.insert(args.end(), {"--set", setting});
  r = w.gptc(args);
  ASSERT_EQ(r.code, 0) << r.output;
  const double loss = goldenOf("llama").at("loss");
  EXPECT_NEAR(lossOf(plan, w.path("out")), loss, 1e-5 * loss);
  r = w.gptrun({"eval", plan});
  EXPECT_EQ(r.output.rfind(fmt::format("val loss {:.4f}", loss), 0), 0u) << r.output;
  r = w.gptrun({"sample", plan, "--prompt", "a tiny", "--max-tokens", "5", "--seed", "1"});
  EXPECT_EQ(r.code, 0) << r.output;
  // The folder as it is.
  const Result direct = w.gptrun({"sample", dir, "--prompt", "a tiny", "--max-tokens", "5", "--seed", "1"});
  EXPECT_EQ(direct.code, 0) << direct.output;
  EXPECT_NE(direct.output.find("note: fp32 with a context of 20 tokens"), std::string::npos) << direct.output;
  EXPECT_EQ(direct.output.substr(0, direct.output.find("note: ")), r.output.substr(0, r.output.find("note: ")));
  r = w.gptrun({plan});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(lossOf(plan, w.path("out")), loss);
}

TEST_F(HfImport, WhatIsWrongWithTokensIsSaid) {
  const std::string dir = w.path("llama"), file = w.path("mine.toml");
  fs::copy(models + "llama", dir);
  const std::string plain = w.gptc({"import", dir, "-o", file, "--force"}).output;
  EXPECT_EQ(plain.find("warning: "), std::string::npos) << plain;
  writeFile(dir + "/tokenizer.json", "");
  const Result r = w.gptc({"import", dir, "-o", file, "--force"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("warning: " + file + " names no tokenizer, as " + dir + "/tokenizer.json cannot be used: "),
            std::string::npos)
      << r.output;
  EXPECT_NE(readFile(file).find("# tokenizer = "), std::string::npos);
  json config = json::parse(readFile(dir + "/config.json"));
  for (const json &id : {json("x"), json(-1), json(1e23), json({2, 2.5})}) {
    config["eos_token_id"] = id;
    fs::remove(dir + "/config.json");
    writeFile(dir + "/config.json", config.dump());
    const Result refused = w.gptc({"import", dir, "-o", file, "--force"});
    EXPECT_EQ(refused.code, 3) << id << refused.output;
    EXPECT_NE(refused.output.find(dir + "/config.json: eos_token_id is " + id.dump() + ", and"), std::string::npos)
        << refused.output;
  }
}

/// Writes a GPT-2 with a large embedding in bf16.
void writeLargeModel(const std::string &dir, int64_t vocab, int64_t width) {
  using namespace gptc;
  fs::create_directories(dir);
  writeFile(dir + "/config.json", json{{"model_type", "gpt2"},
                                       {"n_layer", 1},
                                       {"n_head", 4},
                                       {"n_embd", width},
                                       {"n_positions", 8},
                                       {"vocab_size", vocab}}
                                      .dump());
  ModelConfig model = readHfConfig(dir);
  const auto m = built(model, 8);
  std::vector<TensorInfo> infos;
  for (const auto &s : m->states)
    if (kindOf(*s) == StateKind::param)
      for (FileTensor &t : fileTensors(*s)) {
        t.info.dtype = DType::bf16;
        infos.push_back(t.info);
      }
  SafetensorsWriter writer(dir + "/model.safetensors", infos, {});
  for (const TensorInfo &t : infos) {
    const std::vector<uint16_t> ones(t.elements(), 0x3c00);
    writer.write(ones.data(), ones.size() * 2);
  }
  writer.finish();
}

// Weights are read in pieces: beside the arena, a conversion of 64 MB takes a few.
TEST_F(HfImport, TakesLittleMemory) {
  const int64_t vocab = 1 << 16, width = 512;
  const std::string dir = w.path("large"), plan = w.path("large.plan");
  writeLargeModel(dir, vocab, width);
  writeTokens(w.path("ids.bin"), std::vector<int>(9, 3));
  Result r = w.gptc({"import", dir, "-o", w.path("large.toml")});
  ASSERT_EQ(r.code, 0) << r.output;
  std::vector<std::string> args = {"compile", w.path("large.toml"), "-o", plan};
  for (const std::string &setting :
       {"data.train=" + w.path("ids.bin"), "data.val=" + w.path("ids.bin"), std::string("train.micro_batch=1"),
        std::string("train.global_batch_tokens=8"), std::string("eval.steps=0"), "out_dir=" + w.path("out"),
        std::string("compile.pack_weights=false")})
    args.insert(args.end(), {"--set", setting});
  r = w.gptc(args);
  ASSERT_EQ(r.code, 0) << r.output;
  r = w.gptrun({"eval", plan});
  ASSERT_EQ(r.code, 0) << r.output;
  gptc::Plan inference = gptc::inferencePlan(gptc::loadPlan(plan), gptc::kEvaluation, e2e::cacheDir());
  const int64_t arena = inference.planned->attrs.getInt("arena_bytes");
  // The program itself, its compiler and its threads: what a model without large tensors takes.
  const Result small = w.gptrun({"--version"});
  EXPECT_LE(r.peakMemory - arena, (int64_t(64) << 20) + small.peakMemory)
      << r.peakMemory << " with an arena of " << arena << ", and without a model " << small.peakMemory;
}

}  // namespace
