// Times of gptc's plans on GPUs by the code of their kernels.
#include "support.h"

#include "codegen/cuda/nvrtc.h"
#include "codegen/cuda/sass.h"
#include "support/diagnostics.h"
#include "tests/support/whole_run.h"
#include "tools/planner/cache_dir.h"

#include <gtest/gtest.h>

#include <set>

namespace gptc::estimate_test {
namespace {

ClusterConfig h200() { return loadCluster(sourceFile("examples/clusters/8xh200.toml")); }

std::vector<std::string> small(int64_t layers, std::vector<std::string> more = {}) {
  std::vector<std::string> all = smallModel();
  all.push_back(fmt::format("model.n_layer={}", layers));
  all.push_back("train.global_batch_tokens=512");
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class TimesByCode : public testing::Test {
protected:
  void SetUp() override {
    std::string why;
    if (!Nvrtc::find(why))
      GTEST_SKIP() << why;
    if (findDisassembler().empty())
      GTEST_SKIP() << "no nvdisasm: tools/setup --cuda brings it";
  }
  static CodeTimes of(const Config &c) { return timesByCode(c, *gpuSheet("H200"), defaultCacheDir()); }
  static CodeTimes of(int64_t layers) { return of(bloom(h200(), 1, small(layers))); }
};

TEST_F(TimesByCode, LayersTakeEqualTimes) {
  const CodeTimes two = of(2), three = of(3), seven = of(7);
  EXPECT_GT(three.passes, two.passes);
  EXPECT_DOUBLE_EQ(seven.passes, three.passes + 4 * (three.passes - two.passes));
  EXPECT_GE(seven.optimizer, three.optimizer);
  EXPECT_GT(three.optimizer, 0);
}

// Architectures write some instructions in another way.
TEST_F(TimesByCode, EveryArchitectureIsRead) {
  std::set<llvm::StringRef> known;
  for (const GpuSheet &gpu : gpuSheets()) {
    if (known.size() == test::sized(2u, 20u) || !known.insert(gpu.arch).second)
      continue;
    const CodeTimes t = timesByCode(bloom(h200(), 1, small(1, {"precision.compute=fp32"})), gpu, defaultCacheDir());
    EXPECT_GT(t.passes, t.optimizer) << gpu.name.str();
    EXPECT_GT(t.optimizer, 0) << gpu.name.str();
  }
  EXPECT_GT(known.size(), test::sized(1u, 6u));
}

TEST_F(TimesByCode, AreTheForecastsOfPlans) {
  Forecaster f(bloom(h200(), 8, small(2, {"train.global_batch_tokens=4096"})), h200());
  Strategy s = f.strategyFor(8);
  s.zeroStage = 1;
  const Estimate formula = f.forecast(s);
  EXPECT_FALSE(formula.byCode);
  f.takeTimesByCode();
  const Estimate e = f.forecast(s);
  EXPECT_TRUE(e.byCode);
  EXPECT_TRUE(e.planned);
  EXPECT_GT(e.compute, 0);
  EXPECT_EQ(e.recompute, 0);
  EXPECT_GT(e.compute, formula.compute) << "so small a model is launches, which the formula does not count";
  EXPECT_EQ(e.reduce, formula.reduce);
  EXPECT_EQ(e.bytesPeak(), formula.bytesPeak());
  const double exposed = e.reduce + e.gather - e.hidden;
  EXPECT_DOUBLE_EQ(e.step, e.compute + e.recompute + e.optimizer + exposed + e.overhead);

  s.remat = true;
  const Estimate again = f.forecast(s);
  EXPECT_GT(again.recompute, 0);
  EXPECT_GT(again.compute + again.recompute, e.compute);
}

TEST_F(TimesByCode, OfOffloadLeaveTheUpdateToTheHost) {
  const ClusterConfig cluster = h200();
  ASSERT_TRUE(cluster.node.knowsHost());
  Forecaster f(bloom(cluster, 1, small(2)), cluster);
  f.takeTimesByCode();
  Strategy s = f.strategyFor(1);
  s.offload = true;
  const Estimate e = f.forecast(s);
  EXPECT_TRUE(e.byCode) << e.problem;
  EXPECT_EQ(e.optimizer, 0);
  EXPECT_GT(e.host, 0);
}

TEST(TimesByCodeOf, OtherMachinesAreRefused) {
  auto codeOf = [](const ClusterConfig &cluster) -> std::optional<ErrorCode> {
    try {
      Forecaster(bloom(cluster, 1, small(2)), cluster).takeTimesByCode();
    } catch (const UserError &e) {
      return e.diagnostics[0].code;
    }
    return std::nullopt;
  };
  EXPECT_EQ(codeOf(h200()), std::nullopt);
  EXPECT_EQ(codeOf(jeanZay()), ErrorCode::Contradiction) << "DeepSpeed";
  ClusterConfig unknown = h200();
  unknown.device.name = "a GPU of ours";
  EXPECT_EQ(codeOf(unknown), ErrorCode::UnknownValue);
  ClusterConfig cpus = h200();
  cpus.device.isCpu = true;
  EXPECT_EQ(codeOf(cpus), ErrorCode::Contradiction);
}

}  // namespace
}  // namespace gptc::estimate_test
