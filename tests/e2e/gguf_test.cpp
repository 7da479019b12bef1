// GGUF in and out: models of llama.cpp's layout against transformers, our own exported and read back, on any number of
// ranks, and by Python's package gguf and llama.cpp where they are installed.
#include "tests/support/harness.h"
#include "tests/support/oracles.h"

#include "frontends/gguf/gguf_model.h"
#include "frontends/gguf/vocabulary.h"
#include "frontends/tokenizer/tokenizer.h"
#include "frontends/toml_config.h"
#include "runtime/checkpoint/gguf_names.h"
#include "runtime/data/data.h"
#include "runtime/plan/plan.h"
#include "runtime/train/session.h"
#include "runtime/train/trainer.h"
#include "runtime/train/weights.h"
#include "tools/commands/export_gguf.h"
#include "tools/compiler/inference.h"
#include "tools/planner/plan_module.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

using namespace e2e;
using namespace gptc;
namespace fs = std::filesystem;

namespace {

const std::string goldens = GPTC_SOURCE_DIR "/tests/unit/frontends/gguf/";

struct Gguf : ::testing::Test {
  Workplace w;

  /// The validation loss of a plan's first weights, or of others.
  double lossOf(const std::string &dir, const std::string &weights = "") {
    Plan plan = loadPlan(dir);
    plan.run.outDir = w.path("nowhere");
    const Module &m = *plan.planned;
    const TokenData data(plan.run.valData, "data.val", m.attrs.getInt("vocab_size"), m.attrs.getInt("block_size"), 2,
                         maskToken(m));
    const ModelIdentity model = modelIdentity(m);
    Session session(inferencePlan(std::move(plan), kEvaluation, cacheDir()), cacheDir());
    const WeightsChoice choice = weights.empty() ? WeightsChoice() : WeightsChoice::parse(weights);
    loadForInference(session, model, choice, [](const std::string &what) { ADD_FAILURE() << what; });
    return evaluate(session.executor, data, session.plan.run.evalSteps)->loss;
  }

  std::string newest(const std::string &out) const {
    return fmt::format("{}/checkpoints/{}", out, w.checkpoints(out).back());
  }

  /// Exports the newest checkpoint of a run.
  void exportRun(const std::string &planDir, const std::string &out, const std::string &to, GgmlType type,
                 const std::string &tokenizer = "") {
    std::vector<std::string> files;
    for (const auto &entry : fs::directory_iterator(newest(out)))
      if (const std::string name = entry.path().filename().string();
          name.rfind("model", 0) == 0 && entry.path().extension() == ".safetensors")
        files.push_back(entry.path().string());
    const Config config = readConfig("", loadPlan(planDir).model);
    HfFiles described;
    if (!tokenizer.empty())
      described["tokenizer.json"] = readFile(tokenizer);
    exportGguf(to, {config, TensorFiles(files), described, "", tokenizer, "tiny", {type}});
  }

  /// Runs the script that compares with Python's packages; skips the test if they are missing.
  void compare(const std::string &arguments) {
    const test::Compared r = test::compareBy("tests/e2e/gguf_compare.py", arguments);
    said = r.said;
    if (r.isMissing())
      GTEST_SKIP() << said;
    EXPECT_EQ(r.code, 0) << said;
    fmt::print("{}", said);
  }
  std::string said;  // by the last comparison
};

TEST_F(Gguf, LossesOfImportedModelsAreThoseOfTransformers) {
  std::ifstream losses(goldens + "losses.txt");
  std::string name;
  int compared = 0;
  for (double want; losses >> name >> want;) {
    const std::string file = fmt::format("{}{}.gguf", goldens, name), model = w.path(name + ".toml");
    ASSERT_EQ(w.gptc({"import", file, "-o", model}).code, 0);
    const std::string tokens = goldens + "tokens.bin", plan = w.path(name + ".plan");
    const Result r = w.gptc({"compile", model, "-o", plan, "--set", "data.train='" + tokens + "'", "--set",
                             "data.val='" + tokens + "'", "--set", "eval.steps=0", "--set", "train.micro_batch=1",
                             "--set", "train.global_batch_tokens=16"});
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_NEAR(lossOf(plan), want, 1e-5) << name;
    ++compared;
  }
  EXPECT_EQ(compared, int(ggufArchitectures().size()));
}

TEST_F(Gguf, WhatIsExportedComputesTheSame) {
  int n = 0;
  for (const std::vector<std::string> &family :
       std::vector<std::vector<std::string>>{{},
                                             {"model.preset=llama", "model.n_head=4", "model.n_kv_head=2"},
                                             {"model.preset=llama", "model.tie_embeddings=true", "model.n_head=1"},
                                             {"model.preset=bloom", "model.vocab_size=67"}}) {
    std::vector<std::string> settings = family;
    settings.insert(settings.end(), {"train.steps=4", "model.dropout=0.0"});
    const std::string plan = w.compile(fmt::format("plan{}", n), settings), out = fmt::format("out{}", n);
    w.train(plan, out);
    const std::string checkpoint = newest(w.path(out));
    const double loss = lossOf(plan, checkpoint);
    EXPECT_GT(loss, 1);
    for (const auto &[word, bound] :
         {std::pair{"fp32", 0.0}, {"bf16", 0.02}, {"fp16", 0.002}, {"q8_0", 0.02}, {"q4_0", 0.1}, {"q4_k", 0.1}}) {
      const std::string file = w.path(fmt::format("{}{}.gguf", n, word));
      const Result done = w.gptc({"export", w.path(out), "-o", file, "--format", "gguf", "--dtype", word});
      ASSERT_EQ(done.code, 0) << done.output;
      if (bound == 0)
        EXPECT_EQ(lossOf(plan, file), loss) << word;
      else
        EXPECT_NEAR(lossOf(plan, file), loss, bound) << word;
    }
    // Another plan begins with it, and it is that model.
    const std::string f32 = w.path(fmt::format("{}fp32.gguf", n));
    EXPECT_EQ(importGguf(GgufFile(f32)).nHead, loadPlan(plan).planned->attrs.getInt("n_head"));
    settings.push_back("model.init_from='gguf:" + f32 + "'");
    EXPECT_EQ(lossOf(w.compile(fmt::format("again{}", n), settings)), loss);
    ++n;
  }
  EXPECT_EQ(ggufFormatOf("q5_k"), std::nullopt);
}

TEST_F(Gguf, WeightsAreExportedWithoutTraining) {
  for (const std::string name : {"llama", "gpt2"}) {
    const std::string file = fmt::format("{}{}.gguf", goldens, name), model = w.path(name + ".toml");
    ASSERT_EQ(w.gptc({"import", file, "-o", model}).code, 0);
    auto compile = [&](const std::string &init, const std::string &plan) {
      const Result r = w.gptc({"compile", model,
                               "-o",      w.path(plan),
                               "--set",   "model.init_from='" + init + "'",
                               "--set",   "data.train='" + goldens + "tokens.bin'",
                               "--set",   "data.val='" + goldens + "tokens.bin'",
                               "--set",   "eval.steps=0",
                               "--set",   "train.micro_batch=1",
                               "--set",   "train.global_batch_tokens=16",
                               "--set",   "precision.compute=bf16",
                               "--set",   "out_dir='" + w.path(plan + "-out") + "'"});
      EXPECT_EQ(r.code, 0) << r.output;
      return w.path(plan);
    };
    const std::string plan = compile("gguf:" + file, name + ".plan");
    const double loss = lossOf(plan);
    // Whatever the plan computes in, weights stay as they are.
    const std::string folder = w.path(name + "-hf"), again = w.path(name + "-again.gguf");
    for (const std::vector<std::string> &to :
         std::vector<std::vector<std::string>>{{folder}, {again, "--format", "gguf"}}) {
      std::vector<std::string> words = {"export", plan, "-o"};
      words.insert(words.end(), to.begin(), to.end());
      const Result done = w.gptc(words);
      ASSERT_EQ(done.code, 0) << done.output;
      EXPECT_NE(done.output.find("weights     " + file), std::string::npos) << done.output;
      EXPECT_FALSE(fs::exists(to[0] + ".first"));
    }
    // Neither the weights nor what no export wrote is replaced; what an export wrote is.
    const std::string own = compile("gguf:" + again, name + "-own.plan"), others = w.path(name + "-others.gguf");
    fs::copy(file, others);
    for (const auto &[from, to, said] :
         {std::tuple{own, again, "holds the weights with which the plan begins"},
          {compile("hf:" + folder, name + "-own-hf.plan"), folder, "holds the weights with which the plan begins"},
          {plan, others, "no GGUF file that an export wrote"}}) {
      const Result refused = w.gptc({"export", from, "-o", to});
      EXPECT_EQ(refused.code, 4) << refused.output;
      EXPECT_NE(refused.output.find(said), std::string::npos) << refused.output;
    }
    EXPECT_EQ(readFile(others), readFile(file));
    EXPECT_EQ(w.gptc({"export", plan, "-o", again}).code, 0) << "the ending says the format";
    EXPECT_TRUE(fs::is_regular_file(again));
    EXPECT_EQ(lossOf(compile("hf:" + folder, name + "-hf.plan")), loss);
    EXPECT_EQ(lossOf(compile("gguf:" + again, name + "-again.plan")), loss);
    const GgufFile before(file), after(again);
    for (const GgufTensor &t : before.tensors()) {
      std::vector<float> a(size_t(t.rows() * t.columns())), b(a.size());
      before.read(t, 0, int64_t(a.size()), a.data());
      const GgufTensor *same = after.find(t.name);
      ASSERT_TRUE(same) << t.name;
      after.read(*same, 0, int64_t(b.size()), b.data());
      EXPECT_EQ(a, b) << t.name;
    }
  }
  // The weights may have been replaced since the plan was made.
  const std::string config = w.path("llama-hf/config.json");
  writeFile(config,
            std::regex_replace(readFile(config), std::regex("\"rms_norm_eps\": [^,]*"), "\"rms_norm_eps\": 0.5"));
  const Result other = w.gptc({"export", w.path("llama-hf.plan"), "-o", w.path("other")});
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.output.find("rms_norm_eps = 0.5, but model.norm_eps = 1e-06"), std::string::npos) << other.output;
  const Result none = w.gptc({"export", w.compile("plan", {}), "-o", w.path("none")});
  EXPECT_NE(none.output.find("train first"), std::string::npos) << none.output;
  EXPECT_EQ(none.code, 3);
}

/// The folder with its weights is there only while it is exported.
TEST_F(Gguf, ATokenizerOfAPlanIsNamedAsThePlanDoes) {
  const std::string model = w.path("model.toml"), tokenizer = w.path("pieces.json"), plan = w.path("p.plan");
  ASSERT_EQ(w.gptc({"import", goldens + "llama.gguf", "-o", model}).code, 0);
  auto exported = [&](const std::string &set) {
    const Result r = w.gptc({"compile", model, "-o", plan, "--set", "data.train='" + goldens + "tokens.bin'", "--set",
                             "data.val='" + goldens + "tokens.bin'", "--set", "eval.steps=0", "--set",
                             "train.micro_batch=1", "--set", "train.global_batch_tokens=16", "--set", set});
    EXPECT_EQ(r.code, 0) << r.output;
    const Result done = w.gptc({"export", plan, "-o", w.path("x.gguf")});
    EXPECT_EQ(done.output.find(".first"), std::string::npos) << done.output;
    return done;
  };
  writeFile(tokenizer, R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5]]}})");
  const Result refused = exported("data.tokenizer='" + tokenizer + "'");
  EXPECT_EQ(refused.code, 3) << refused.output;
  EXPECT_NE(refused.output.find("data.tokenizer " + tokenizer + " has a model Unigram"), std::string::npos)
      << refused.output;
  const Result without = exported("train.seed=1");
  EXPECT_EQ(without.code, 0) << without.output;
  EXPECT_NE(without.output.find("none: data.tokenizer gives no tokenizer.json"), std::string::npos) << without.output;
}

TEST_F(Gguf, EveryArchitectureHasNamesOfTensors) {
  GgufWriter(w.path("x.gguf"), {{"general.architecture", std::string("x")}}, {}).finish();
  std::string said;  // lists those whose metadata is read
  try {
    importGguf(GgufFile(w.path("x.gguf")));
  } catch (const UserError &e) {
    said = e.diagnostics.at(0).message;
  }
  const std::string names = said.substr(std::min(said.size(), said.find(", but only ")));
  for (const std::string &name : ggufArchitectures())
    EXPECT_NE(names.find('"' + name + '"'), std::string::npos) << name << ": " << said;
  EXPECT_EQ(std::count(names.begin(), names.end(), '"'), 2 * int64_t(ggufArchitectures().size())) << said;
}

TEST_F(Gguf, AnyNumberOfRanksBeginsWithTheSameWeights) {
  auto expectSame = [&](const std::string &what, std::vector<std::string> settings, const std::string &weights) {
    settings.insert(settings.end(), {"model.init_from='" + weights + "'", "parallel.logical_shards=2",
                                     "train.micro_batch=2", "log.every=1"});
    auto losses = [&](const std::string &part, const std::vector<std::string> &more, const std::string &ranks) {
      std::vector<std::string> all = settings;
      all.insert(all.end(), more.begin(), more.end());
      const std::string name = what + part;
      w.train(w.compile(name, all), name + "-out", {"--ranks-per-node", ranks});
      return logLines(w.path(name + "-out"));
    };
    const std::vector<std::string> one = losses("one", {}, "1");
    ASSERT_FALSE(one.empty()) << what;
    EXPECT_EQ(losses("pieces", {"parallel.data=2", "parallel.zero_stage=3"}, "2"), one) << what;
    // Ranks that share heads add in another order.
    const std::vector<std::string> tensor = losses("tensor", {"parallel.tensor=2"}, "2");
    ASSERT_EQ(tensor.size(), one.size()) << what;
    auto first = [](const std::vector<std::string> &lines) {
      std::istringstream words(lines[0]);
      double step = 0, loss = 0;
      words >> step >> loss;
      return loss;
    };
    EXPECT_NEAR(first(tensor), first(one), 1e-5) << what;
  };
  // Three tensors for queries, keys and values; one of all heads.
  for (const std::vector<std::string> &family :
       std::vector<std::vector<std::string>>{{"model.preset=llama", "model.n_kv_head=2"}, {"model.preset=bloom"}}) {
    std::vector<std::string> settings = family;
    settings.insert(settings.end(), {"model.n_head=4", "model.dropout=0.0", "train.steps=3"});
    const std::string name = family[0].substr(family[0].find('=') + 1), plan = w.compile(name, settings),
                      file = w.path(name + ".gguf"), folder = w.path(name + "-hf");
    w.train(plan, name + "-out");
    exportRun(plan, w.path(name + "-out"), file, GgmlType::f32);
    ASSERT_EQ(w.gptc({"export", w.path(name + "-out"), "-o", folder}).code, 0);
    expectSame(name + "-gguf-", settings, "gguf:" + file);
    expectSame(name + "-hf-", settings, "hf:" + folder);
  }
}

TEST_F(Gguf, CompilingComparesTheFileWithTheModel) {
  const std::string file = goldens + "gpt2.gguf", model = w.path("model.toml");
  ASSERT_EQ(w.gptc({"import", file, "-o", model}).code, 0);
  const Result r = w.gptc({"compile", model, "-o", w.path("p.plan"), "--set", "model.n_head=4", "--set",
                           "data.train='" + goldens + "tokens.bin'"});
  EXPECT_EQ(r.code, 3);
  EXPECT_NE(r.output.find("gpt2.attention.head_count = 2, but model.n_head = 4"), std::string::npos) << r.output;
  // A file that arrives, or changes, after the plan was made is compared when the run starts.
  const std::string late = w.path("late.gguf");
  const Result compiled =
      w.gptc({"compile", model, "-o", w.path("late.plan"), "--set", "model.init_from='gguf:" + late + "'", "--set",
              "data.train='" + goldens + "tokens.bin'", "--set", "model.norm_eps=1e-6"});
  ASSERT_EQ(compiled.code, 0) << compiled.output;
  EXPECT_NE(compiled.output.find("is not checked"), std::string::npos) << compiled.output;
  EXPECT_EQ(w.gptrun({w.path("late.plan"), "--steps", "1"}).code, 3) << "it is not there";
  fs::copy(file, late);
  const Result started = w.gptrun({w.path("late.plan"), "--steps", "1"});
  EXPECT_EQ(started.code, 3) << started.output;
  EXPECT_NE(started.output.find("gpt2.attention.layer_norm_epsilon = 1e-05, but model.norm_eps = 1e-06"),
            std::string::npos)
      << started.output;
}

TEST_F(Gguf, PythonsPackageReadsWhatIsExported) {
  w.prepare(numberedCats(), "bpe:290");
  ASSERT_FALSE(HasFailure());
  const std::string tokenizer = w.path("data/tokenizer.json");
  const std::string plan =
      w.compile("plan", {"model.preset=llama", "model.n_head=4", "model.vocab_size=300", "train.steps=1"});
  w.train(plan, "out");
  exportRun(plan, w.path("out"), w.path("x.gguf"), GgmlType::q8_0, tokenizer);
  compare(fmt::format("read '{}' '{}/model.safetensors' '{}'", w.path("x.gguf"), newest(w.path("out")), tokenizer));
}

TEST_F(Gguf, SmolLM2IsImportedAndItsBlocksAreReadAsGgmlDoes) {
  compare("find");
  if (IsSkipped())
    return;
  const std::string path = said;
  const ModelConfig m = importGguf(GgufFile(path));
  EXPECT_EQ(m.nLayer, 30);
  EXPECT_EQ(m.nKvHead, 3);
  EXPECT_EQ(m.ropeTheta, 1e5);
  EXPECT_TRUE(m.tieEmbeddings);
  const auto vocabulary = readVocabulary(GgufFile(path));
  ASSERT_TRUE(vocabulary);
  EXPECT_EQ(vocabulary->pre, "smollm");
  EXPECT_EQ(vocabulary->tokens[size_t(vocabulary->eos)], "<|im_end|>");
  const GgufFile f(path);
  std::string sums;
  for (const GgufTensor &t : f.tensors()) {
    std::vector<uint32_t> bits(size_t(t.rows() * t.columns()));
    f.read(t, 0, int64_t(bits.size()), reinterpret_cast<float *>(bits.data()));
    uint64_t sum = 0;
    for (const uint32_t b : bits)
      sum += b;
    sums += fmt::format("{} {}\n", t.name, sum);
  }
  writeFile(w.path("sums.txt"), sums);
  compare(fmt::format("sums '{}' '{}'", path, w.path("sums.txt")));
}

TEST_F(Gguf, LlamaCppComputesTheSame) {
  // One character is one token, so that texts and tokens are the same.
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += char('A' + (i * i * 7 + i * 3 + i / 11) % 50);
  w.prepare(text, "char");
  ASSERT_FALSE(HasFailure());
  std::string arguments = "llama '" + goldens + "'";
  for (const auto &[name, settings] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"gpt2", {}},
           {"llama", {"model.preset=llama", "model.n_kv_head=2"}},
           {"llama-scaled",
            {"model.preset=llama", "model.n_kv_head=2", "model.rope_scaling=llama3", "model.rope_factor=4",
             "model.rope_original_block_size=128"}},
           {"qwen2", {"model.preset=llama", "model.n_kv_head=2", "model.qkv_bias=true", "model.tie_embeddings=true"}},
           {"qwen3", {"model.preset=llama", "model.n_kv_head=2", "model.qk_norm=head"}},
           {"bloom", {"model.preset=bloom"}}}) {
    std::vector<std::string> all = w.prepared();
    all.insert(all.end(), settings.begin(), settings.end());
    all.insert(all.end(), {"model.n_head=4", "model.block_size=256", "model.dropout=0.0", "train.micro_batch=1",
                           "train.global_batch_tokens=256", "train.steps=30", "optimizer.lr=3e-3", "eval.every=0",
                           "model.vocab_size=50"});
    const std::string plan = w.compile(name, all), out = name + "-out", file = w.path(name + ".gguf");
    w.train(plan, out);
    exportRun(plan, w.path(out), file, GgmlType::f32);
    const std::string architecture = name.substr(0, name.find('-'));
    EXPECT_EQ(GgufFile(file).text("general.architecture"), architecture);
    EXPECT_EQ(GgufFile(file).find("rope_freqs.weight") != nullptr, architecture != name) << name;
    const Result r = w.gptrun(
        {"sample", plan, "--out-dir", w.path(out), "--prompt", "ABC", "--max-tokens", "200", "--temperature", "0"});
    ASSERT_EQ(r.code, 0) << r.output;
    writeFile(w.path(name + ".txt"), r.output);
    arguments += fmt::format(" '{}' '{}' '{}'", file, w.path("data/tokenizer.json"), w.path(name + ".txt"));
  }
  compare(arguments);
}

// A run with SentencePiece's pieces, of a vocabulary that the model fills up.
TEST_F(Gguf, LlamaCppMakesTheTokensOfPieces) {
  const std::string pieces = GPTC_SOURCE_DIR "/tests/unit/frontends/tokenizers/sp-bpe-llama.model";
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += fmt::format("The {} boats came in at dusk; {} women counted them,  naïve.\n", i, i % 7);
  w.prepare(text, pieces);
  ASSERT_FALSE(HasFailure());
  const std::string plan = w.compile(
      "plan", {"model.preset=llama", "model.n_head=4", "model.n_kv_head=2", "model.block_size=64",
               "model.vocab_size=403", "model.dropout=0.0", "train.micro_batch=1", "train.global_batch_tokens=64",
               "train.steps=20", "data.train='" + w.path("data/train.bin") + "'",
               "data.val='" + w.path("data/val.bin") + "'", "data.tokenizer='" + pieces + "'"});
  w.train(plan, "out");
  const std::string file = w.path("x.gguf");
  const Result done = w.gptc({"export", w.path("out"), "-o", file});
  ASSERT_EQ(done.code, 0) << done.output;
  const auto vocabulary = readVocabulary(GgufFile(file));
  ASSERT_TRUE(vocabulary);
  EXPECT_EQ(vocabulary->model, "llama");
  EXPECT_EQ(vocabulary->types[402], GgufVocabulary::unused);
  // What comes back is the same tokenizer.
  const std::string prompt = "  The boats <s>counted</s>\n it's 河の水 over ☃ never\t";
  const std::vector<int32_t> ids = Tokenizer::load(file).encode(prompt);
  EXPECT_EQ(ids, Tokenizer::load(pieces).encode(prompt));
  const Result loss = w.gptrun({"eval", plan, "--out-dir", w.path("out"), "--steps", "0"});
  double value = 0;  // of four decimals
  ASSERT_EQ(std::sscanf(loss.output.c_str(), "val loss %lf", &value), 1) << loss.output;
  writeFile(w.path("prompt.txt"), prompt);
  compare(fmt::format("loss '{}' '{}' 64 {} {} '{}' '{}'", file, w.path("data/val.bin"), value, 1e-3 + 5e-5 / value,
                      w.path("prompt.txt"), fmt::join(ids, " ")));
}

}  // namespace
