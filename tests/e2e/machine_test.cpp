// What a run takes from the machine, other instruction sets, and the other commands of gptrun.
#include "tests/support/harness.h"

#include "runtime/plan/plan.h"
#include "support/json.h"

#include <cmath>
#include <regex>

using namespace e2e;

namespace {

struct MachineTest : ::testing::Test {
  double lastLoss(const std::string &outDir) {
    std::string text = logLines(outDir).at(logLines(outDir).size() - 2);
    return std::stod(text.substr(text.find("loss=") + 5));
  }
  Workplace w;
};

TEST_F(MachineTest, MemoryIsThatOfThePlan) {
  std::string plan =
      w.compile("plan", {"model.n_layer=4", "model.n_embd=256", "model.n_head=4", "model.block_size=128",
                         "train.global_batch_tokens=2048", "train.micro_batch=16", "eval.every=0", "train.steps=2"});
  int64_t arena = gptc::loadPlan(plan).planned->attrs.getInt("arena_bytes");
  ASSERT_GT(arena, 100 << 20) << "too small to tell";
  int64_t base = w.gptrun({"--help"}).peakMemory;
  Result r = w.gptrun({plan});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_GE(r.peakMemory - base, arena * 95 / 100);
  EXPECT_LE(r.peakMemory - base, arena + (100 << 20));
}

TEST_F(MachineTest, WithoutAvx512) {
  std::string plan = w.compile("plan");
  ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("full")}).code, 0);
  const std::map<std::string, std::string> masked = {{"GPTC_CPU_FEATURES", "-avx512f"}};
  // The same plan on the lesser machine, and a plan made there.
  Result r = w.gptrun({plan, "--out-dir", w.path("masked")}, masked);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NEAR(lastLoss(w.path("masked")), lastLoss(w.path("full")), 1e-3);
  ASSERT_EQ(w.run("gptc", {"compile", w.modelFile(), "-o", w.path("small")}, masked).code, 0);
  EXPECT_EQ(gptc::loadPlan(w.path("small")).target.vectorBytes, 32u);
  ASSERT_EQ(w.gptrun({w.path("small"), "--out-dir", w.path("small-out")}, masked).code, 0);
  EXPECT_NEAR(lastLoss(w.path("small-out")), lastLoss(w.path("full")), 1e-3);
}

TEST_F(MachineTest, TrainingLearnsAndEvalAgrees) {
  std::string plan = w.compile("plan", {"train.steps=150", "model.dropout=0", "eval.every=50", "log.every=10"});
  ASSERT_EQ(w.gptrun({plan}).code, 0);
  std::vector<std::string> log = logLines(w.path("out"));
  EXPECT_EQ(log.size(), 1u + 15u + 3u);
  double val = std::stod(log.back().substr(log.back().find("val_loss=") + 9));
  // The rule of the data leaves about 0.1 jumps: well below the entropy of the vocabulary, ln 64 = 4.16.
  EXPECT_LT(val, 1.5);
  Result r = w.gptrun({"eval", plan});
  ASSERT_EQ(r.code, 0) << r.output;
  std::smatch m;
  ASSERT_TRUE(std::regex_search(r.output, m, std::regex("val loss ([0-9.]+)"))) << r.output;
  EXPECT_NEAR(std::stod(m[1]), val, 1e-4);
  // From anywhere: paths in a plan do not depend on where it is run.
  nlohmann::json manifest = gptc::parseJson(readFile(plan + "/manifest.json"));
  EXPECT_EQ(manifest["run"]["train_data"], w.path("train.bin"));
}

TEST_F(MachineTest, SamplesAreRepeatable) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += "the cat sat on the mats. ";  // 25 characters: windows of 16 see it from every place
  w.useText(text, {"--val-fraction", "0.1"});
  std::string plan = w.compile("plan", {"train.steps=200", "model.dropout=0", "eval.sample_every=100",
                                        "eval.sample_prompt=the cat", "eval.sample_tokens=12", "log.every=100"});
  Result r = w.gptrun({plan});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("step 100  sample: the cat"), std::string::npos) << r.output;
  auto sample = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"sample", plan, "--prompt", "the cat", "--max-tokens", "60"};
    args.insert(args.end(), more.begin(), more.end());
    Result r = w.gptrun(args);
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output;
  };
  std::string greedy = sample({"--temperature", "0"});
  EXPECT_EQ(greedy.substr(0, 40), "the cat sat on the mats. the cat sat on ") << "learned by heart";
  EXPECT_EQ(sample({"--seed", "1"}), sample({"--seed", "1", "--threads", "1"}));
  EXPECT_NE(sample({"--seed", "1", "--temperature", "5"}), sample({"--seed", "2", "--temperature", "5"}));
  EXPECT_EQ(sample({"--top-k", "1"}), greedy);
  EXPECT_EQ(w.gptrun({"sample", plan, "--prompt", "Q"}).code, 3) << "a character that the tokenizer does not know";

  // A vocabulary of 1000 for the 11 characters of the text: of nearly equal probabilities, and yet all 60 tokens show.
  plan = w.compile("wide", {"train.steps=2", "eval.sample_every=1", "eval.sample_prompt=the cat",
                            "eval.sample_tokens=9", "model.vocab_size=1000", "out_dir=" + w.path("wide-out")});
  const std::string note = "note: the model has 1000 tokens and the tokenizer 11; samples never hold the other 989\n";
  r = w.gptrun({plan});
  EXPECT_EQ(r.output.find(note), r.output.rfind(note)) << "said once: " << r.output;
  EXPECT_TRUE(std::regex_search(r.output, std::regex("sample: the cat.{9}\n"))) << r.output;
  const std::string wide = sample({"--temperature", "50"});
  EXPECT_EQ(wide.substr(0, note.size()), note);
  EXPECT_EQ(wide.size(), note.size() + 7 + 60 + 1) << wide;
}

}  // namespace
