// Sampling and evaluation, which are planned by themselves: in the memory that they alone need, with the bits that they
// have inside training, and of any checkpoint.
#include "tests/support/harness.h"

#include "codegen/codegen.h"
#include "frontends/toml_config.h"
#include "ir/plan_check.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/data.h"
#include "runtime/train/session.h"
#include "runtime/train/trainer.h"
#include "runtime/train/weights.h"
#include "support/diagnostics.h"
#include "tools/compiler/compile.h"
#include "tools/compiler/inference.h"

#include <filesystem>
using namespace e2e;
using namespace gptc;
namespace fs = std::filesystem;

namespace {

struct InferenceTest : ::testing::Test {
  /// What `gptrun eval` prints, with all its digits.
  double lossOf(const std::string &dir, const std::string &outDir, const WeightsChoice &choice = {}) {
    Plan plan = loadPlan(dir);
    plan.run.outDir = outDir;
    const Module &m = *plan.planned;
    const TokenData data(plan.run.valData, "data.val", m.attrs.getInt("vocab_size"), m.attrs.getInt("block_size"), 2,
                         maskToken(m));
    const ModelIdentity model = modelIdentity(m);
    Session session(inferencePlan(std::move(plan), kEvaluation, cacheDir()), cacheDir());
    loadForInference(session, model, choice, [](const std::string &w) { ADD_FAILURE() << w; });
    return evaluate(session.executor, data, session.plan.run.evalSteps)->loss;
  }
  Workplace w;
};

int64_t bytesOf(const Module &m, const std::string &kind) {
  int64_t bytes = 0;
  for (const auto &s : m.states)
    if (s->attrs.getString("kind") == kind)
      bytes += (s->type.bytes() + planAlignment - 1) / planAlignment * planAlignment;
  return bytes;
}

// 25 MB of weights in fp32: what training holds besides is not there when a text is continued.
TEST_F(InferenceTest, TheArenaHoldsWeightsCacheAndActivations) {
  for (const char *compute : {"fp32", "bf16"}) {
    const Config config =
        readConfig(w.modelFile(), {"model.n_layer=2", "model.n_embd=512", "model.n_head=8", "model.block_size=128",
                                   "train.global_batch_tokens=8192", "train.micro_batch=16",
                                   std::string("precision.compute=") + compute});
    Plan plan;
    plan.target = hostTarget();
    plan.planned = planModule(config, plan.target, "", int64_t(1) << 62);
    const int64_t training = plan.planned->attrs.getInt("arena_bytes"), cache = bytesOf(*plan.planned, "cache");
    const int64_t weights = bytesOf(*plan.planned, "param");
    ASSERT_GT(weights, 24 << 20);

    Plan sampling{.planned = plan.planned->clone(), .target = plan.target};
    sampling = inferencePlan(std::move(sampling), kSampling, "");
    const Module &s = *sampling.planned;
    EXPECT_EQ(checkPlan(s), std::vector<std::string>());
    EXPECT_EQ(s.functions.size(), 2u);
    // All is there once: in bf16 most of it in two bytes, which hold what a matrix multiplication reads.
    const int64_t held = bytesOf(s, "param");
    if (compute == std::string("fp32"))
      EXPECT_EQ(held, weights);
    else
      EXPECT_LT(held, weights * 55 / 100);
    EXPECT_EQ(bytesOf(s, "cache"), cache);
    EXPECT_EQ(bytesOf(s, "moment") + bytesOf(s, "grad"), 0);
    const int64_t copies = bytesOf(s, "packed") + bytesOf(s, "low"), activations = 2 << 20;
    EXPECT_LE(copies, weights);
    EXPECT_GE(s.attrs.getInt("arena_bytes"), held + copies + cache);
    EXPECT_LE(s.attrs.getInt("arena_bytes"), held + copies + cache + activations);
    EXPECT_LT(s.attrs.getInt("arena_bytes"), training / 4);

    const Plan evaluation = inferencePlan(std::move(plan), kEvaluation, "");
    EXPECT_EQ(bytesOf(*evaluation.planned, "cache"), 0);
    EXPECT_LT(evaluation.planned->attrs.getInt("arena_bytes"), training / 2);
  }
}

TEST_F(InferenceTest, TheBitsAreThoseOfEvaluationInsideTraining) {
  int n = 0;
  const std::string panels = hostTarget().bf16Dot ? "true" : "auto";  // of bf16, which other CPUs keep none of
  for (std::vector<std::string> settings : std::vector<std::vector<std::string>>{
           {},
           {"precision.compute=bf16", "train.micro_batch=2", "compile.pack_weights=" + panels},
           {"precision.compute=fp16", "compile.remat=full"},
           {"model.preset=llama", "precision.compute=bf16", "model.tie_embeddings=false"}}) {
    settings.push_back("train.steps=4");
    const std::string plan = w.compile("plan" + std::to_string(n), settings), out = "out" + std::to_string(n++);
    w.train(plan, out);
    const double inside = lastValLoss(w.path(out));
    EXPECT_GT(inside, 1);
    EXPECT_EQ(lossOf(plan, w.path(out)), inside);
  }
}

// Ranks share the memory of training: one of them alone could not train in its budget, but it can evaluate.
TEST_F(InferenceTest, ABudgetOfSeveralRanksIsNotOneOfEvaluation) {
  const std::vector<std::string> ranks = {"model.n_layer=3", "train.micro_batch=1", "parallel.logical_shards=4",
                                          "parallel.data=2", "parallel.zero_stage=2"};
  auto compiled = [&](const char *name, const std::string &remat) {
    std::vector<std::string> settings = ranks;
    settings.push_back("compile.remat=" + remat);
    return w.compile(name, settings);
  };
  const int64_t least = loadPlan(compiled("full", "full")).planned->attrs.getInt("arena_bytes");
  const std::string plan = compiled("tight", std::to_string(least) + "B"), out = w.path("out");
  const Result trained = w.gptrun({plan, "--out-dir", out, "--ranks-per-node", "2"});
  ASSERT_EQ(trained.code, 0) << trained.output;
  EXPECT_THROW(PlanForRanks(loadPlan(plan), 1).write(w.path("one"), cacheDir()), UserError)
      << "one rank trains in as little memory: the test shows nothing";
  const Result r = w.gptrun({"eval", plan, "--out-dir", out});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.rfind("val loss ", 0), 0u) << r.output;
  EXPECT_EQ(lossOf(plan, out), lastValLoss(out));
  EXPECT_FALSE(fs::exists(out + "/plan-1-ranks"));
}

TEST_F(InferenceTest, AnyCheckpointIsEvaluated) {
  const std::string plan = w.compile("plan", {"eval.every=3"}), out = w.path("out");
  w.train(plan, "out", {"--steps", "6"});
  // Step 3 is to be the best for good, and step 6 was evaluated by who went on.
  const CheckpointStore store(out);
  ASSERT_EQ(store.steps(), (std::vector<int64_t>{6, 3}));
  store.noteValidation(3, 0.5);
  w.train(plan, "out");
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{12, 9, 3})) << "keep = 2, and the best";

  auto evaluated = [&](std::vector<std::string> more, int code = 0) {
    more.insert(more.begin(), {"eval", plan, "--out-dir", out});
    const Result r = w.gptrun(more);
    EXPECT_EQ(r.code, code) << r.output;
    return r.output;
  };
  auto of = [&](const std::string &word, const std::string &step) {
    EXPECT_NE(evaluated({"--checkpoint", word}).find("(" + out + "/checkpoints/" + step + ", "), std::string::npos)
        << word;
  };
  of("best", "step-00000003");
  of("9", "step-00000009");
  const std::string elsewhere = w.path("elsewhere");
  fs::copy(out + "/checkpoints/step-00000003", elsewhere, fs::copy_options::recursive);
  auto loss = [](const std::string &line) { return line.substr(0, line.find('(')); };
  const std::string best = loss(evaluated({"--checkpoint", "best"}));
  EXPECT_NE(best, loss(evaluated({})));
  EXPECT_EQ(loss(evaluated({"--checkpoint", elsewhere})), best);
  fs::remove(elsewhere + "/manifest.json");  // as another program would write it
  EXPECT_EQ(loss(evaluated({"--checkpoint", elsewhere})), best);
  EXPECT_EQ(loss(evaluated({"--data", w.path("val.bin")})).substr(0, 5), "loss ");
  EXPECT_EQ(loss(evaluated({"--data", w.path("val.bin")})), loss(evaluated({})).substr(4));
  EXPECT_NE(loss(evaluated({"--data", w.path("train.bin")})), loss(evaluated({})).substr(4));

  EXPECT_NE(evaluated({"--checkpoint", "7"}, 3).find(", but of steps 3, 9, 12"), std::string::npos);
  EXPECT_NE(evaluated({"--checkpoint", "newest"}, 2).find("no step, and no folder"), std::string::npos);
  writeFile(w.path("far.bin"), std::string("\1\0\2\0\377\0", 6));
  EXPECT_NE(evaluated({"--data", w.path("far.bin")}, 3).find("token 255 at position 2 is beyond the vocabulary of 64"),
            std::string::npos);
  std::string wide;
  for (int i = 0; i < 100; ++i)
    wide += std::string(1, char(i % 60 + 1)) + std::string(3, '\0');
  writeFile(w.path("wide.bin"), wide);
  EXPECT_NE(evaluated({"--data", w.path("wide.bin")}, 3).find("wider tokens"), std::string::npos);
}

TEST_F(InferenceTest, HelpSaysWhatIsTakenByDefault) {
  const std::string help = w.gptrun({"sample", "--help"}).output;
  for (const char *text :
       {"--checkpoint STEP|best|DIR", "default: the newest checkpoint", "tokens to generate; default: 256",
        "default: 0.8", "0: all; default: 0", "probability; default: 1", "choice; default: 1337"})
    EXPECT_NE(help.find(text), std::string::npos) << text << "\n" << help;
}

// A run that a signal or --steps ended before it could evaluate does so when it goes on; that counts for the checkpoint
// which is there already.
TEST_F(InferenceTest, TheBestIsFoundAfterAnEvaluationThatWasMadeUpFor) {
  const std::string plan = w.compile("plan", {"eval.every=6", "checkpoint.every=6", "train.steps=12"}),
                    out = w.path("out");
  w.train(plan, "out");
  const CheckpointStore store(out);
  ASSERT_TRUE(store.best());
  // As if it had been stopped in the last moment: nothing is known of step 12.
  std::string log = readFile(out + "/log.jsonl");
  log.erase(log.rfind("{\"step\": 12, \"val_loss\""));
  writeFile(out + "/log.jsonl", log);
  store.noteValidation(12, 1e9);
  EXPECT_EQ(store.best(), 6);
  w.train(plan, "out");
  EXPECT_EQ(store.best(), 12);
}

}  // namespace
