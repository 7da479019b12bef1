#include "support.h"

#include "tests/support/content.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace gptc::estimate_test {

std::string sourceFile(const std::string &name) { return GPTC_SOURCE_DIR "/" + name; }

std::string readSource(const std::string &name) { return test::contentOf(sourceFile(name)); }

ClusterConfig clusterOf(const std::string &text) {
  const std::string file = testing::TempDir() + fmt::format("gptc-cluster-{}.toml", ::getpid());
  std::ofstream(file) << text;
  ClusterConfig c = loadCluster(file);
  std::filesystem::remove(file);
  return c;
}

ClusterConfig jeanZay() { return loadCluster(sourceFile("examples/clusters/jean-zay.toml")); }

ClusterConfig jeanZayWithGptc() {
  ClusterConfig c = jeanZay();
  c.software = SoftwareSpec();
  return c;
}

std::vector<std::string> smallModel() {
  return {"model.n_embd=64", "model.n_head=4", "model.vocab_size=500", "model.block_size=128", "train.micro_batch=2"};
}

Config bloom(const ClusterConfig &cluster, int64_t gpus, const std::vector<std::string> &settings) {
  return readForForecast(sourceFile("examples/bloom-7b1.toml"), settings, gpus, cluster);
}

Estimate forecast(const ClusterConfig &cluster, int64_t gpus, const std::vector<std::string> &settings) {
  Forecaster f(bloom(cluster, gpus, settings), cluster);
  return f.estimate(f.strategyFor(gpus));
}

}  // namespace gptc::estimate_test
