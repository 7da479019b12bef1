// gptc bench cluster: a file that forecasts can be made with, whose figures can be.
#include "tests/support/harness.h"

#include "codegen/codegen.h"
#include "frontends/cluster_config.h"
#include "support/json.h"

#include <gtest/gtest.h>

using namespace gptc;
using namespace e2e;

TEST(BenchCluster, WritesWhatForecastsNeed) {
  Workplace w;
  const std::string file = w.path("here.toml");
  const Result r = w.run("gptc", {"bench", "cluster", "--seconds", "0", "-o", file}, {{"LD_PRELOAD", cacheShim()}});
  ASSERT_EQ(r.code, 0) << r.output;
  const ClusterConfig c = loadCluster(file);
  const DeviceSpec &d = c.device;
  EXPECT_TRUE(d.isCpu);
  EXPECT_EQ(c.node.devices, int64_t(hostTarget().threads));
  EXPECT_TRUE(c.software.isGptc());
  EXPECT_GT(d.bf16, 0);
  // Within the ranges of the fit, whatever else the machine did meanwhile. (The file has four digits.)
  const std::pair<double, double> shares[] = {
      {d.matmul, 0.05}, {d.attention, 0.02}, {d.attentionGrad, 0.02}, {d.elementwise, 0.005}, {d.scatter, 1e-5}};
  for (auto [share, least] : shares) {
    EXPECT_GE(share, 0.999 * least);
    EXPECT_LE(share, 1);
  }
  EXPECT_GE(d.cacheBandwidth, 0.999 * d.bandwidth * 0.5 / 1.2);
  EXPECT_GE(d.launch, 0.999e-7);
  EXPECT_LE(d.launch, 1.001e-4);
  if (c.node.devices > 1) {
    EXPECT_GT(c.node.bandwidth, 0);
  }
  // With it a model is forecast on as many ranks as it has cores.
  const Result e = w.gptc({"estimate", w.modelFile(), "--cluster", file, "--gpus", std::to_string(c.node.devices),
                           "--set", "accumulate=1", "--json"});
  ASSERT_EQ(e.code, 0) << e.output;
  EXPECT_GT(double(parseJson(e.output)["s_per_step"]), 0);
  EXPECT_EQ(w.gptc({"bench", "cluster", "--seconds", "-1"}).code, 2);
  EXPECT_EQ(w.gptc({"bench", "cluster", "--help"}).code, 0);
}
