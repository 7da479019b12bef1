// The line through two shallow graphs against graphs of full depth.
#include "tools/estimate/workload.h"

#include "support.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gptc::estimate_test {
namespace {

struct Case {
  const char *name;
  bool ours;
  std::vector<std::string> settings;
};

const std::vector<Case> &cases() {
  static const std::vector<Case> all = {
      {"GptcBloom", true, {}},
      {"GptcWithoutPositions", true, {"model.position=none", "train.micro_batch=1"}},
      {"GptcLlama", true, {"model.preset=llama", "model.ffn_dim=192", "model.n_kv_head=2"}},
      {"GptcGpt2Fp32", true, {"model.preset=gpt2", "precision.compute=fp32", "model.dropout=0.1"}},
      {"GptcLongContext", true, {"model.block_size=1024"}},
      {"GptcLargeVocabulary", true, {"model.vocab_size=50000"}},
      {"OthersBloom", false, {}},
      {"OthersLongContext", false, {"model.block_size=1024"}},
      {"OthersLargeVocabulary", false, {"model.vocab_size=50000"}},
      {"OthersGpt2Fp32", false, {"model.preset=gpt2", "precision.compute=fp32"}},
  };
  return all;
}

class Line : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Workload, Line, testing::ValuesIn(cases()), [](auto &info) { return info.param.name; });

TEST_P(Line, IsTheGraphOfFullDepth) {
  for (int64_t layers : {1, 3, 4, 7, 24}) {
    std::vector<std::string> settings = smallModel();
    settings.push_back(fmt::format("model.n_layer={}", layers));
    settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
    const ClusterConfig cluster = GetParam().ours ? jeanZayWithGptc() : jeanZay();
    const Config config = bloom(cluster, 1, settings);
    const Workload line = workloadOf(config, cluster), whole = workloadOf(config, cluster, layers);
    SCOPED_TRACE(fmt::format("{} layers", layers));
    // Sums of whole numbers below 2^53: equal to the last bit.
    EXPECT_EQ(line.flops, whole.flops);
    EXPECT_EQ(line.parameters, whole.parameters);
    EXPECT_EQ(line.forwardFlops, whole.forwardFlops);
    EXPECT_EQ(line.updateBytes, whole.updateBytes);
    EXPECT_NEAR(line.seconds / whole.seconds, 1, 1e-9);
    EXPECT_EQ(line.activations, whole.activations);
    EXPECT_EQ(line.checkpointed, whole.checkpointed);
    double sum = 0, again = 0;
    for (const auto &[name, bytes] : line.buffers)
      sum += bytes;
    for (const auto &[name, bytes] : line.checkpointedBuffers)
      again += bytes;
    EXPECT_NEAR(sum / line.activations, 1, 1e-9) << "the buffers named are not those of the peak";
    EXPECT_NEAR(again / line.checkpointed, 1, 1e-9);
  }
}

TEST(Workload, SoftwareThatFusesHoldsLess) {
  // A context that makes attention the largest, and a vocabulary that makes the loss.
  const ClusterConfig plain = jeanZay();
  auto peak = [&](const ClusterConfig &c, const char *large) {
    std::vector<std::string> settings = smallModel();
    settings.insert(settings.end(), {"model.n_layer=2", large});
    return workloadOf(bloom(c, 1, settings), c).activations;
  };
  ClusterConfig attention = plain, loss = plain, kernels = plain;
  attention.software.fusedAttention = true;
  loss.software.fusedLoss = true;
  kernels.software.fusedKernels = true;
  for (const char *large : {"model.block_size=1024", "model.vocab_size=50000"})
    EXPECT_LT(peak(kernels, large), peak(plain, large)) << large;
  // Probabilities of 4 heads in 2 layers and 2 sequences, as bf16 at least.
  EXPECT_GE(peak(plain, "model.block_size=1024") - peak(attention, "model.block_size=1024"),
            2.0 * 4 * 2 * 2 * 1024 * 1024);
  // Gradients of logits, as bf16 at least.
  EXPECT_GE(peak(plain, "model.vocab_size=50000") - peak(loss, "model.vocab_size=50000"), 2.0 * 2 * 128 * 50000);
}

}  // namespace
}  // namespace gptc::estimate_test
