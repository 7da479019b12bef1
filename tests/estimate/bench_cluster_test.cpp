// gptc bench cluster: a file that forecasts can be made with, whose figures can be.
#include "../e2e/harness.h"

#include "codegen/codegen.h"
#include "frontends/cluster_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

using namespace gptc;
using namespace e2e;

TEST(BenchCluster, WritesWhatForecastsNeed) {
  Workplace w;
  const std::string file = w.path("here.toml");
  const Result r = w.gptc({"bench", "cluster", "--seconds", "0", "-o", file});
  ASSERT_EQ(r.code, 0) << r.output;
  const ClusterConfig c = loadCluster(file);
  const DeviceSpec &d = c.device;
  EXPECT_TRUE(d.isCpu);
  EXPECT_EQ(c.node.devices, int64_t(hostTarget().threads));
  EXPECT_TRUE(c.software.isGptc());
  EXPECT_GE(d.bf16, 0.9 * d.fp32);
  // Shares of a peak; all of it where the machine was disturbed while the peak was measured.
  for (double share : {d.matmul, d.attention, d.attentionGrad, d.elementwise, d.scatter}) {
    EXPECT_GT(share, 1e-4);
    EXPECT_LE(share, 1);
  }
  EXPECT_GT(d.matmul, d.elementwise);
  EXPECT_GT(d.cacheBandwidth, 0.5 * d.bandwidth);
  EXPECT_GT(d.launch, 0);
  EXPECT_LT(d.launch, 1e-3);
  if (c.node.devices > 1) {
    EXPECT_GT(c.node.bandwidth, 0.01 * d.bandwidth);
  }
  // With it a model is forecast on as many ranks as it has cores.
  const Result e = w.gptc({"estimate", w.modelFile(), "--cluster", file, "--gpus", std::to_string(c.node.devices),
                           "--set", "accumulate=1", "--json"});
  ASSERT_EQ(e.code, 0) << e.output;
  EXPECT_GT(double(nlohmann::json::parse(e.output)["s_per_step"]), 0);
  EXPECT_EQ(w.gptc({"bench", "cluster", "--seconds", "-1"}).code, 2);
  EXPECT_EQ(w.gptc({"bench", "cluster", "--help"}).code, 0);
}
