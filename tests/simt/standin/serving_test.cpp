// Servers call a GPU from threads of their own.
#include "standins.h"
#include "tests/support/http_client.h"
#include "tests/support/json_lines.h"
#include "tests/support/served.h"

#include <cmath>

namespace gptc::test {
namespace {

using nlohmann::json;

class ServingTest : public testing::Test {
protected:
  void SetUp() override {
    useStandins();
    if (!e2e::Served::isBuilt())
      GTEST_SKIP() << "gptrun serve needs cpp-httplib";
    std::string text;
    for (int i = 0; i < 100; ++i)
      text += "the cat sat on the mat. ";
    w.useText(text);
    const std::vector<std::string> settings = {"train.steps=3", "model.dropout=0.0"};
    const std::string onCpu = w.compile("cpu", settings);
    w.train(onCpu, "out");
    weights = w.path("out/checkpoints/latest");
    std::vector<std::string> onGpu = settings;
    onGpu.insert(onGpu.end(), {"compile.target=cuda:sm_90a", "compile.library_calls=off"});
    cpu = onCpu, gpu = w.compile("gpu", onGpu);
  }
  /// The vector of a text; null if there is none.
  json vectorOf(const std::string &plan, const std::string &text) {
    const e2e::Result r = w.gptrun({"embed", plan, "--checkpoint", weights, "--text", text});
    EXPECT_EQ(r.code, 0) << r.output;
    const std::vector<json> lines = objectLines(r.output);
    return lines.empty() ? json() : lines[0].at("vector");
  }
  e2e::Workplace w;
  std::string cpu, gpu, weights;
};

TEST_F(ServingTest, TextsAreThoseOfSample) {
  e2e::Served server({gpu, "--checkpoint", weights, "--slots", "2", "--model-name", "tiny"}, w.path("serve.log"));
  ASSERT_NE(server.port(), 0);
  const HttpReply r =
      ask(server.port(), "/v1/completions", json{{"prompt", "the cat"}, {"max_tokens", 8}, {"temperature", 0}}.dump());
  ASSERT_EQ(r.status, 200) << r.body << server.output();
  EXPECT_EQ(server.stop().code, 0);
  const e2e::Result sampled = w.gptrun({"sample", gpu, "--checkpoint", weights, "--slots", "2", "--prompt", "the cat",
                                        "--max-tokens", "8", "--temperature", "0"});
  ASSERT_EQ(sampled.code, 0) << sampled.output;
  EXPECT_NE(sampled.output.find("the cat" + r.json()["choices"][0]["text"].get<std::string>()), std::string::npos)
      << sampled.output << r.body;
}

TEST_F(ServingTest, VectorsAreNearTheCpus) {
  const std::string text = "the cat sat on";
  const json here = vectorOf(cpu, text), there = vectorOf(gpu, text);
  ASSERT_EQ(here.size(), there.size());
  ASSERT_FALSE(here.empty());
  for (size_t i = 0; i < here.size(); ++i)
    EXPECT_NEAR(here[i].get<double>(), there[i].get<double>(), 1e-4) << i;

  e2e::Served server({gpu, "--checkpoint", weights, "--embeddings", "--model-name", "tiny"}, w.path("serve.log"));
  ASSERT_NE(server.port(), 0);
  const HttpReply r = ask(server.port(), "/v1/embeddings", json{{"input", text}}.dump());
  ASSERT_EQ(r.status, 200) << r.body << server.output();
  EXPECT_EQ(r.json()["data"][0]["embedding"], there);
  EXPECT_EQ(server.stop().code, 0);
}

// Products have the CPU's bits, attention has its own: what 8 bits round may go one step further.
TEST_F(ServingTest, WeightsOfFewBitsAreReadOnGpus) {
  const std::string text = "the cat sat on";
  const json wide = vectorOf(gpu, text);
  for (const char *format : {"q8_0", "q4_0"}) {
    std::vector<std::string> settings = {"train.steps=3", "model.dropout=0.0",
                                         fmt::format("precision.weights={}", format)};
    const std::string here = w.compile(fmt::format("cpu-{}", format), settings);
    settings.insert(settings.end(), {"compile.target=cuda:sm_90a", "compile.library_calls=off"});
    const std::string there = w.compile(fmt::format("gpu-{}", format), settings);
    const json want = vectorOf(here, text), got = vectorOf(there, text);
    ASSERT_EQ(want.size(), got.size()) << format;
    ASSERT_FALSE(got.empty()) << format;
    EXPECT_NE(got, wide) << format;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i].get<double>(), want[i].get<double>(), 0.01) << format << " " << i;
    const e2e::Result sampled = w.gptrun(
        {"sample", there, "--checkpoint", weights, "--prompt", "the cat", "--max-tokens", "4", "--temperature", "0"});
    EXPECT_EQ(sampled.code, 0) << sampled.output;
    EXPECT_NE(sampled.output.find(fmt::format("weights as {}", format)), std::string::npos) << sampled.output;
  }
}

}  // namespace
}  // namespace gptc::test
