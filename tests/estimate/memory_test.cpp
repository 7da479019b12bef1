// Memory of our own plans on GPUs: forecasts against the plans themselves, which need no GPU.
#include "codegen/cuda/nvrtc.h"
#include "tests/support/whole_run.h"
#include "tools/compiler/compile.h"
#include "tools/estimate/search.h"

#include "support.h"

#include "llvm/ADT/StringExtras.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace gptc::estimate_test {
namespace {

/// H100s with as much memory, of which the driver takes nothing.
ClusterConfig gpus(double memory = 1e15) {
  ClusterConfig c = loadCluster(sourceFile("examples/clusters/8xh100.toml"));
  c.device.memory = memory;
  c.software.context = 0;
  return c;
}

/// A GPT so small that plans of all its layers cost little.
std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> all = {"model.preset=gpt2",    "model.n_embd=128",    "model.n_head=4",
                                  "model.vocab_size=512", "model.block_size=64", "train.micro_batch=2"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// What `gptc compile` plans for that strategy.
int64_t arenaOf(const Config &base, const Strategy &s) {
  Config c = base;
  c.parallel.data = c.parallel.logicalShards = s.data();
  c.parallel.tensor = s.tensor;
  c.parallel.zeroStage = s.zeroStage;
  c.parallel.offload = s.offload ? "optimizer" : "none";
  c.train.accumulate = s.accumulate;
  c.compile.remat = s.remat ? "full" : "none";
  c.compile.target = "cuda:sm_80";
  c.compile.autotune = "off";
  Target target = targetOnGpus(c);
  return planModule(c, target, "", int64_t(1) << 62)->attrs.getInt("arena_bytes");
}

std::vector<Strategy> strategies(int64_t gpus, bool offload) {
  std::vector<Strategy> all;
  for (int64_t stage : {0, 1, 2, 3})
    for (int64_t tensor : {1, 2})
      for (int64_t accumulate : {1, 4})
        for (bool remat : {false, true})
          for (bool off : {false, true}) {
            if (off && !offload)
              continue;
            Strategy s;
            s.gpus = gpus;
            s.tensor = tensor;
            s.zeroStage = s.data() > 1 ? stage : 0;
            s.microBatch = 2;
            s.accumulate = accumulate;
            s.remat = remat;
            s.offload = off;
            all.push_back(s);
          }
  return all;
}

std::string nameOf(const Strategy &s, const char *model) {
  return fmt::format("{} on {} GPUs, {} x {}, {}", s.name(), s.gpus, s.microBatch, s.accumulate, model);
}

struct Model {
  const char *name;
  std::vector<std::string> settings;
};
const Model models[] = {
    {"GPT-2", {}}, {"fp32", {"precision.compute=fp32"}}, {"llama", {"model.preset=llama", "model.n_kv_head=2"}}};

TEST(MemoryOnGpus, IsTheArenaToTheByte) {
  test::OneIn some(3);
  for (const Model &m : models) {
    const ClusterConfig c = gpus();
    std::vector<std::string> settings = small({"model.n_layer=2"});
    settings.insert(settings.end(), m.settings.begin(), m.settings.end());
    Forecaster f(bloom(c, 4, settings), c);
    for (const Strategy &s : strategies(4, m.settings.empty())) {
      if (some.skips())
        continue;
      const Estimate e = f.forecast(s);
      ASSERT_EQ(e.problem, "");
      EXPECT_EQ(int64_t(e.bytesPeak()), arenaOf(f.config(), s)) << nameOf(s, m.name);
    }
  }
}

TEST(MemoryOnGpus, OfAPlanIsThatOfTheCompiledOne) {
  std::string why;
  if (!Nvrtc::find(why))
    GTEST_SKIP() << why;
  char dir[] = "/tmp/gptc-memory-XXXXXX";
  ASSERT_TRUE(mkdtemp(dir));
  CompileRequest request;
  request.settings = small({"name=t", "model.n_layer=1", "train.global_batch_tokens=128", "precision.compute=bf16",
                            "compile.target=cuda:sm_80", "compile.autotune=off"});
  request.planDir = dir;
  request.cacheDir = test::sharedFolder("cuda-cache");
  Config config;
  Plan plan;
  const CompileReport report = compilePlan(request, config, plan);
  std::filesystem::remove_all(dir);
  ASSERT_TRUE(plan.target.callsLibrary()) << "whose workspaces are most of it";
  EXPECT_EQ(planModule(config, plan.target, "", int64_t(1) << 62)->attrs.getInt("arena_bytes"), report.arenaBytes);
}

// A plan's offsets leave gaps, which may change with the number of layers where ranks add up while a layer computes.
TEST(MemoryOnGpus, OfDeepModelsIsThatOfTheWholePlan) {
  test::OneIn some(3);
  for (const Model &m : {models[0], models[2]}) {
    const ClusterConfig c = gpus();
    std::vector<std::string> settings = small({"model.n_layer=7"});
    settings.insert(settings.end(), m.settings.begin(), m.settings.end());
    Forecaster f(bloom(c, 4, settings), c);
    for (const Strategy &s : strategies(4, false)) {
      if (some.skips())
        continue;
      const int64_t arena = arenaOf(f.config(), s);
      const double said = f.forecast(s).bytesPeak();
      EXPECT_NEAR(said / double(arena), 1, m.settings.empty() ? 0 : 0.005) << nameOf(s, m.name);
    }
  }
}

TEST(MemoryOnGpus, OfZeRO3OnOtherNumbersOfGpusIsCloseToTheWholePlan) {
  const ClusterConfig c = gpus();
  const Config config = bloom(c, 4, small({"model.n_layer=7"}));
  const auto plans = std::make_shared<Forecaster::Plans>();
  for (int64_t n : {4, 16})
    for (const Strategy &s : strategies(n, false)) {
      if (s.zeroStage != 3)
        continue;
      Forecaster f(config, c, plans);
      const double arena = double(arenaOf(f.config(), s)), said = f.forecast(s).bytesPeak();
      EXPECT_NEAR(said / arena, 1, 0.02) << nameOf(s, "GPT-2");
    }
}

// Formulas serve --search, and say what cannot fit. They count what every plan has. With several passes a step that is
// most of it (up to the gaps between offsets: hence 1.01). Of one pass a plan has more at its peak: two buckets of 25
// MiB of gradients under way with what ranks add them in, which is all of a model as small as these, and the factors of
// products that wait for those; and with ZeRO-3 parameters of several layers.
TEST(MemoryOnGpus, OfFormulasIsTheLeastThatAPlanTakes) {
  test::OneIn some(3);
  for (const Model &m : models) {
    const ClusterConfig c = gpus();
    // The workspace of cuBLASLt, 32 MiB, is more than all else here.
    std::vector<std::string> settings = small({"model.n_layer=4", "compile.library_calls=off"});
    settings.insert(settings.end(), m.settings.begin(), m.settings.end());
    Forecaster f(bloom(c, 8, settings), c);
    for (const Strategy &s : strategies(8, false)) {
      if (some.skips())
        continue;
      const double formula = f.estimate(s).bytesPeak() / f.forecast(s).bytesPeak();
      EXPECT_LE(formula, 1.01) << nameOf(s, m.name);
      EXPECT_GE(formula, s.accumulate > 1 && s.zeroStage < 3 ? 0.7 : 0.3) << nameOf(s, m.name);
    }
  }
}

// 130, 390 and 330 rows are no 4 equal pieces: with every stage of ZeRO a rank has those gradients whole, and no pieces
// of them besides.
TEST(MemoryOnGpus, WhatDoesNotDivideIsCountedOnceInFormulas) {
  const ClusterConfig c = gpus();
  const std::vector<std::string> odd = small(
      {"model.n_layer=12", "model.n_embd=130", "model.n_head=5", "model.ffn_dim=330", "compile.library_calls=off"});
  Forecaster f(bloom(c, 4, odd), c);
  for (Strategy s : strategies(4, false)) {
    if (s.tensor > 1 || s.zeroStage == 0)
      continue;
    const double divided = f.estimate(s).bytesPeak();
    s.zeroStage = 0;
    EXPECT_LE(divided, f.estimate(s).bytesPeak()) << nameOf(s, "GPT-2");
  }
}

// 768 rows are no 512 equal pieces, and no 1024.
TEST(MemoryOnGpus, WhatDoesNotDivideStaysWholeInFormulas) {
  const ClusterConfig c = gpus();
  auto at = [&](int64_t n, int64_t stage) {
    Forecaster f(bloom(c, n,
                       {"model.preset=gpt2", "model.n_layer=2", "model.n_embd=768", "model.n_head=12",
                        "train.micro_batch=1", "accumulate=2"}),
                 c);
    Strategy s = f.strategyFor(n);
    s.zeroStage = stage;
    return std::pair(f.forecast(s), f.estimate(s));
  };
  for (int64_t stage : {1, 3}) {
    const auto [plan, formula] = at(512, stage);
    ASSERT_TRUE(plan.planned);
    EXPECT_NEAR(formula.bytesResident() / plan.bytesResident(), 1, 0.1) << stage;
    const Estimate said = at(1024, stage).first;
    EXPECT_FALSE(said.planned);
    EXPECT_GT(said.bytesResident(), 0.9 * plan.bytesResident()) << stage;
  }
}

TEST(Search, TakesWhatFitsByItsPlan) {
  int differ = 0;
  for (double memory : {26e9, 32e9, 40e9, 48e9, 64e9, 80e9}) {
    const ClusterConfig c = gpus(memory);
    Forecaster f(bloom(c, 8, {}), c);
    const std::vector<Estimate> found = searchStrategies(f, 8);
    const std::optional<Estimate> best = runnable(f, found);
    ASSERT_TRUE(best);
    const Estimate again = f.forecast(best->strategy);
    EXPECT_EQ(again.bytesPeak(), best->bytesPeak());
    EXPECT_TRUE(best->fits()) << memory;
    EXPECT_LE(best->bytesPeak(), memory);
    const auto first = llvm::find_if(found, [](const Estimate &e) { return e.fits() && !e.predictedOnly; });
    differ +=
        first->strategy.name() != best->strategy.name() || first->strategy.microBatch != best->strategy.microBatch;
  }
  EXPECT_GT(differ, 0) << "formulas alone would have done";
}

}  // namespace
}  // namespace gptc::estimate_test
