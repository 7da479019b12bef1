// Checkpoints are folders of Hugging Face's, gptc export makes one, and transformers computes the same with both.
// Skipped where transformers is missing.
#include "tests/support/harness.h"
#include "tests/support/oracles.h"

#include "frontends/tokenizer/tokenizer.h"
#include "support/files.h"
#include "support/json.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

using namespace e2e;
using namespace gptc::test;
namespace fs = std::filesystem;

namespace {

using Names = std::set<std::string>;

Names namesIn(const std::string &dir) {
  Names names;
  for (const auto &e : fs::directory_iterator(dir))
    names.insert(e.path().filename());
  return names;
}

const Names kTexts = {"config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json",
                      "tokenizer_config.json"};

Names textsAnd(Names more) {
  more.insert(kTexts.begin(), kTexts.end());
  return more;
}

/// The loss that `gptrun eval` says in its one line, by the name of our validation loss; not a number where it has
/// none.
double lossIn(const std::string &output) {
  double loss = std::nan("");
  if (output.rfind("val loss ", 0) == 0)
    std::sscanf(output.c_str(), "val loss %lf", &loss);
  return loss;
}

struct ExportTest : ::testing::Test {
  Workplace w;
  double valLoss = 0;  // of the last evaluation

  /// Trains on a text with a tokenizer that has merges, letters beyond ASCII and an end of text.
  std::string trained(const std::vector<std::string> &more, const std::string &out = "out") {
    if (!fs::exists(w.path("data"))) {
      std::string text;
      for (int i = 0; i < 200; ++i)
        text += fmt::format("No. {}: “It is a truth universally acknowledged”, naïve as it is.\n", i * i);
      w.prepare(text, "bpe:300");
    }
    std::vector<std::string> settings = w.prepared();
    settings.insert(settings.end(), {"model.vocab_size=320",  // more than the tokenizer has
                                     "out_dir=" + w.path(out)});
    settings.insert(settings.end(), more.begin(), more.end());
    const std::string plan = w.compile(out + ".plan", settings);
    w.train(plan, out);
    valLoss = lastValLoss(w.path(out));
    return plan;
  }

  /// Opens the folder by transformers 5 and 4, and compares it with the last evaluation, or with another loss.
  void compare(const std::string &folder) { compare(folder, valLoss, 1e-5); }
  void compare(const std::string &folder, double loss, double tolerance) {
    std::string ids;
    const std::string text = "It is naïve: “512 truths”\n";
    for (int32_t id : gptc::Tokenizer::load(w.path("data/tokenizer.json")).encode(text))
      ids += fmt::format("{} ", id);
    writeFile(w.path("prompt.txt"), text);
    const std::string arguments = fmt::format("'{}' '{}' 16 {:.9f} {} '{}' '{}'", folder, w.path("data/val.bin"), loss,
                                              tolerance, w.path("prompt.txt"), ids);
    for (const std::string &version : transformersPaths()) {
      const Compared r = compareBy("tests/e2e/transformers_compare.py", arguments, version);
      if (r.isMissing())
        GTEST_SKIP() << "no Python with transformers and PyTorch: " << r.said;
      EXPECT_EQ(r.code, 0) << folder << "\n" << r.said;
      std::printf("%s", r.said.c_str());
    }
  }
};

const std::vector<std::string> kLlama = {"model.preset=llama", "model.n_head=4", "model.n_kv_head=2"};

TEST_F(ExportTest, ACheckpointHasExactlyTheseFiles) {
  const std::string plan = trained({});
  EXPECT_EQ(namesIn(plan + "/hf"), kTexts);
  const std::string all = w.path("out/checkpoints");
  for (const char *name : {"latest", "best", "step-00000009"}) {
    EXPECT_EQ(namesIn(all + "/" + name), textsAnd({"manifest.json", "model.safetensors", "state"})) << name;
    EXPECT_EQ(namesIn(all + "/" + name + "/state"), Names{"optimizer.safetensors"});
  }
  EXPECT_EQ(fs::read_symlink(all + "/latest"), "step-00000012");
  EXPECT_EQ(readFile(all + "/latest/tokenizer.json"), readFile(w.path("data/tokenizer.json")));
  EXPECT_EQ(gptc::parseJson(readFile(all + "/latest/config.json"))["vocab_size"], 320);
  EXPECT_EQ(gptc::parseJson(readFile(all + "/latest/generation_config.json"))["eos_token_id"], 299);
  // Named by its link it can be looked at and begun from, too.
  const Result r = w.gptrun({"eval", plan, "--checkpoint", all + "/latest"});
  EXPECT_EQ(r.code, 0) << r.output;
  w.train(w.compile("again.plan",
                    {"model.init_from=ckpt:" + all + "/best", "model.vocab_size=320",
                     "data.train=" + w.path("data/train.bin"), "data.val=" + w.path("data/val.bin"), "train.steps=1"}),
          "again");
}

TEST_F(ExportTest, OfSeveralRanksToo) {
  trained({"parallel.data=4", "train.micro_batch=1", "parallel.zero_stage=2"});
  const std::string at = w.path("out/checkpoints/latest");
  EXPECT_EQ(namesIn(at + "/state"),
            (Names{"optimizer-00001-of-00004.safetensors", "optimizer-00002-of-00004.safetensors",
                   "optimizer-00003-of-00004.safetensors", "optimizer-00004-of-00004.safetensors"}));
  Names names = namesIn(at);
  EXPECT_TRUE(names.count("model.safetensors.index.json"));
  std::erase_if(names, [](const std::string &n) { return n.starts_with("model-"); });
  EXPECT_EQ(names, textsAnd({"manifest.json", "model.safetensors.index.json", "state"}));
  const Result r = w.gptc({"export", w.path("out"), "-o", w.path("hf")});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(namesIn(w.path("hf")), textsAnd({"model.safetensors"}));
  // What one rank evaluates from it.
  auto evaluated = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"eval", w.path("out.plan")});
    const Result e = w.gptrun(args);
    EXPECT_EQ(e.code, 0) << e.output;
    return e.output.substr(0, e.output.find('('));
  };
  EXPECT_EQ(evaluated({"--checkpoint", w.path("hf")}), evaluated({}));
  compare(at);
  compare(w.path("hf"));
}

// Heads and features lie on two ranks; the folder is that of one, which trained the same but for the order of sums.
TEST_F(ExportTest, OfRanksThatShareLayersToo) {
  std::vector<std::string> settings = kLlama;
  settings.push_back("model.dropout=0.0");
  trained(settings, "one");
  const double alone = valLoss;
  settings.push_back("parallel.tensor=2");
  trained(settings);
  EXPECT_NEAR(valLoss, alone, 1e-3 * alone);
  const std::string one = w.path("one-hf"), hf = w.path("hf");
  for (const auto &[run, to] : {std::pair{w.path("one"), one}, {w.path("out"), hf}}) {
    const Result r = w.gptc({"export", run, "-o", to});
    ASSERT_EQ(r.code, 0) << r.output;
  }
  EXPECT_EQ(namesIn(hf), textsAnd({"model.safetensors"}));
  EXPECT_EQ(readFile(hf + "/config.json"), readFile(one + "/config.json"));
  // One rank evaluates it by its own plan.
  const Result r = w.gptrun({"eval", w.path("one.plan"), "--checkpoint", hf});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NEAR(lossIn(r.output), valLoss, 5e-5 + 1e-5 * valLoss) << r.output;
  compare(w.path("out/checkpoints/latest"));
  compare(hf);
}

// Whatever a run computes in, the weights are those that it trains.
TEST_F(ExportTest, OfATrainingInBf16TheWeightsInFull) {
  std::vector<std::string> settings = kLlama;
  settings.push_back("precision.compute=bf16");
  const std::string plan = trained(settings), hf = w.path("hf");
  Result r = w.gptc({"export", w.path("out"), "-o", hf});
  ASSERT_EQ(r.code, 0) << r.output;
  const std::string weights = readFile(hf + "/model.safetensors");
  EXPECT_EQ(weights.find("\"BF16\""), std::string::npos);
  EXPECT_NE(weights.find("\"F32\""), std::string::npos);
  auto evaluated = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "eval");
    const Result e = w.gptrun(args);
    EXPECT_EQ(e.code, 0) << e.output;
    return e.output.substr(0, e.output.find('('));
  };
  EXPECT_EQ(evaluated({plan, "--checkpoint", hf}), evaluated({plan}));
  // Another run that begins with the folder has the same weights, and evaluates them in fp32 as transformers does.
  settings.back() = "precision.compute=fp32";
  settings.insert(settings.end(), {"model.vocab_size=320", "data.train=" + w.path("data/train.bin"),
                                   "data.val=" + w.path("data/val.bin"), "model.init_from=hf:" + hf});
  const std::string full = w.compile("full.plan", settings);
  r = w.gptrun({"eval", full, "--checkpoint", hf});
  ASSERT_EQ(r.code, 0) << r.output;
  const double loss = lossIn(r.output);
  EXPECT_NEAR(loss, valLoss, 0.02 * valLoss) << "of the run, in bf16";
  compare(hf, loss, 5e-5 / loss + 1e-5);
}

TEST_F(ExportTest, OfARunAPlanOrACheckpoint) {
  const std::string plan = trained({"checkpoint.keep=9"});
  auto exported = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "export");
    args.insert(args.end(), {"-o", w.path("hf")});
    const Result r = w.gptc(args);
    EXPECT_EQ(r.code, 0) << r.output;
    return readFile(w.path("hf/model.safetensors"));
  };
  const std::string newest = exported({w.path("out")}), third = exported({plan, "--checkpoint", "3"});
  EXPECT_EQ(exported({plan}), newest);
  EXPECT_EQ(exported({w.path("out/checkpoints/latest")}), newest);
  EXPECT_EQ(exported({w.path("out/checkpoints/step-00000003")}), third);
  EXPECT_NE(third, newest);
  EXPECT_EQ(exported({w.path("out"), "--checkpoint", "best"}), exported({w.path("out/checkpoints/best")}));
  EXPECT_LT(exported({plan, "--dtype", "bf16"}).size(), newest.size() * 6 / 10);
  // A damaged newest one is passed over, as in sampling.
  const std::string file = w.path("out/checkpoints/step-00000012/model.safetensors");
  std::string bytes = readFile(file);
  bytes[bytes.size() - 5] ^= 1;
  writeFile(file, bytes);
  const Result r = w.gptc({"export", plan, "-o", w.path("hf")});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("warning: passing over a damaged checkpoint"), std::string::npos) << r.output;
  EXPECT_EQ(readFile(w.path("hf/model.safetensors")), exported({plan, "--checkpoint", "9"}));
  EXPECT_EQ(w.gptc({"export", plan, "-o", w.path("hf"), "--checkpoint", "12"}).code, 5);
}

TEST_F(ExportTest, WhatNoFamilyHoldsIsSaidAndKeepsItsOwnDescription) {
  const std::vector<std::string> settings = {"model.position=alibi", "model.activation=swiglu", "train.steps=1"};
  std::vector<std::string> args = {"compile", w.modelFile(), "-o", w.path("plan")};
  for (const std::string &s : settings)
    args.insert(args.end(), {"--set", s});
  Result r = w.gptc(args);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("export      no family of Hugging Face's holds this model: the nearest has another "
                          "activation, position\n"),
            std::string::npos)
      << r.output;
  w.train(w.path("plan"), "out");
  const std::string at = w.path("out/checkpoints/latest");
  EXPECT_EQ(gptc::parseJson(readFile(at + "/config.json"))["model_type"], "gptc");
  EXPECT_EQ(w.gptc({"export", at, "-o", w.path("hf")}).code, 3);
  // gptc reads it, also without the rest of the checkpoint, and compares what it says.
  fs::create_directories(w.path("copy"));
  for (const char *name : {"/config.json", "/model.safetensors"})
    fs::copy(at + name, w.path("copy") + name);
  auto from = [&](const std::string &more) {
    std::vector<std::string> again = args;
    again.insert(again.end(), {"--set", "model.init_from=hf:" + w.path("copy"), "--set", more});
    return w.gptc(again);
  };
  EXPECT_EQ(from("model.dropout=0.0").code, 0);
  r = from("model.position=rope");
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("position = \"alibi\", but model.position = \"rope\""), std::string::npos) << r.output;
}

TEST_F(ExportTest, ATokenizerThatJsonCannotHoldIsSaidAtEachStep) {
  const std::string tokenizer = GPTC_SOURCE_DIR "/tests/unit/frontends/tokenizers/sp-suffix.model";
  const Result made = w.gptc({"compile", w.modelFile(), "-o", w.path("plan"), "--set", "data.tokenizer=" + tokenizer,
                              "--set", "model.vocab_size=400", "--set", "train.steps=1"});
  ASSERT_EQ(made.code, 0) << made.output;
  EXPECT_NE(made.output.find("tokenizer   checkpoints and exports get none, as tokenizer.json cannot hold it: spaces"),
            std::string::npos)
      << made.output;
  w.train(w.path("plan"), "out");
  EXPECT_FALSE(namesIn(w.path("out/checkpoints/latest")).count("tokenizer_config.json"));
  const Result folder = w.gptc({"export", w.path("out"), "-o", w.path("hf")});
  EXPECT_NE(folder.output.find("tokenizer   none: "), std::string::npos) << folder.output;
  const Result gguf = w.gptc({"export", w.path("out"), "-o", w.path("x.gguf"), "--format", "gguf"});
  EXPECT_EQ(gguf.code, 0) << gguf.output;
  EXPECT_NE(gguf.output.find("vocabulary  none: "), std::string::npos) << gguf.output;
}

/// Makes a plan and a checkpoint of it as they were before either described its model.
void makeEarlier(const std::string &plan, const std::string &checkpoint) {
  for (const std::string &of : {plan, checkpoint}) {
    nlohmann::ordered_json j = gptc::parseJson<nlohmann::ordered_json>(readFile(of + "/manifest.json"));
    for (const std::string &name : kTexts)
      j["files"].erase(of == plan ? "hf/" + name : name), fs::remove(of + "/" + name);
    j.erase("blake3");
    nlohmann::json sorted = j;
    sorted["blake3"] = gptc::blake3(sorted.dump());
    writeFile(of + "/manifest.json", sorted.dump(2));
  }
  fs::remove_all(plan + "/hf");
}

TEST_F(ExportTest, OfEarlierVersionsByItsPlan) {
  // A table of positions says the context; a model with rotations needs its plan for that, too.
  int n = 0;
  for (const std::vector<std::string> &family : {std::vector<std::string>(), kLlama}) {
    const std::string out = fmt::format("out{}", n++), plan = trained(family, out);
    const std::string at = w.path(out + "/checkpoints/step-00000012"), hf = w.path(out + "-hf");
    const std::string whole = w.path(out + "/whole/x.gguf"), ours = w.path(out + "/x.gguf");
    fs::create_directory(w.path(out + "/whole"));
    Result r = w.gptc({"export", at, "-o", whole, "--format", "gguf"});
    ASSERT_EQ(r.code, 0) << r.output;
    makeEarlier(plan, at);
    r = w.gptc({"export", at, "-o", hf});
    EXPECT_EQ(r.code, 3) << r.output;
    EXPECT_NE(r.output.find("has no config.json"), std::string::npos) << r.output;
    r = w.gptc({"export", at, "-o", ours, "--format", "gguf"});
    EXPECT_EQ(r.code, family.empty() ? 0 : 3) << r.output;
    EXPECT_EQ(r.output.find("has no config.json: an earlier version wrote it") == std::string::npos, family.empty())
        << r.output;
    // The mark of the plan has gone with its manifest: it must be below the working folder.
    for (const std::string &more : {"-o " + hf, "--format gguf -o " + ours}) {
      const std::string program =
          fmt::format("cd '{}' && exec '" GPTC_BIN_DIR "/gptc' export {}.plan {}", w.path(""), out, more);
      r = Process({"/bin/sh", "-c", program}, {{"GPTC_CACHE", cacheDir()}}, w.path("output")).wait();
      EXPECT_EQ(r.code, 0) << r.output;
    }
    EXPECT_EQ(namesIn(hf), textsAnd({"model.safetensors"}));
    // With the vocabulary, which the checkpoint has no more.
    EXPECT_TRUE(readFile(ours) == readFile(whole)) << out;
  }
}

TEST_F(ExportTest, WithoutLinksARunGoesOn) {
  fs::create_directories(w.path("out/checkpoints/latest/of/mine"));
  const std::string plan = w.compile("plan", {"out_dir=" + w.path("out")});
  const Result r = w.gptrun({plan});
  EXPECT_EQ(r.code, 0) << r.output;
  const size_t note = r.output.find("note: without links to the newest and the best checkpoint");
  EXPECT_NE(note, std::string::npos) << r.output;
  EXPECT_EQ(r.output.find("note: without links", note + 1), std::string::npos) << r.output;
  EXPECT_EQ(fs::read_symlink(w.path("out/checkpoints/best")), "step-00000012");
  EXPECT_TRUE(fs::exists(w.path("out/checkpoints/latest/of/mine")));
}

TEST_F(ExportTest, TransformersComputesTheSame) {
  for (const bool tied : {true, false})
    for (const auto &[family, keys] : {std::pair<std::string, std::vector<std::string>>{"gpt2", {}},
                                       {"llama", kLlama},
                                       {"bloom", {"model.preset=bloom"}},
                                       {"gpt_neox", {"model.position=rope", "model.activation=gelu"}}}) {
      const std::string out = fmt::format("{}-{}", family, tied ? "tied" : "untied");
      std::vector<std::string> settings = keys;
      settings.push_back(fmt::format("model.tie_embeddings={}", tied));
      trained(settings, out);
      const std::string latest = w.path(out + "/checkpoints/latest");
      EXPECT_EQ(gptc::parseJson(readFile(latest + "/config.json"))["model_type"], family);
      compare(latest);
      if (IsSkipped())
        return;
    }
}

// Both evaluate the rounded weights; gptrun prints four decimals.
TEST_F(ExportTest, TransformersComputesTheSameFromBf16) {
  const std::string plan = trained(kLlama), hf = w.path("hf");
  Result r = w.gptc({"export", plan, "-o", hf, "--dtype", "bf16"});
  ASSERT_EQ(r.code, 0) << r.output;
  r = w.gptrun({"eval", plan, "--checkpoint", hf});
  ASSERT_EQ(r.code, 0) << r.output;
  const double loss = lossIn(r.output);
  ASSERT_TRUE(std::isfinite(loss)) << r.output;
  EXPECT_NE(fmt::format("{:.4f}", loss), fmt::format("{:.4f}", valLoss));
  compare(hf, loss, 5e-5 / loss + 1e-5);
}

}  // namespace
