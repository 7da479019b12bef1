// The examples of model families learn: each is trained for a few steps on Shakespeare. GPTC_SHAKESPEARE names the text
// where it does not lie in ../shared/data.
#include "tests/support/harness.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>

using namespace e2e;

namespace {

class Example : public ::testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(Families, Example, ::testing::Values("llama-small", "bloom-small", "encoder-small"),
                         [](auto &info) {
                           std::string name = info.param;
                           return name.substr(0, name.find('-'));
                         });

/// The loss on the last tenth of the text of somebody who knows how frequent each character is in the rest, and
/// nothing else.
double lossOfFrequencies(const std::string &text) {
  const size_t split = text.size() * 9 / 10;
  std::map<char, double> count;
  for (char c : text)
    count[c] = 1;
  for (char c : text.substr(0, split))
    ++count[c];
  double loss = 0;
  for (char c : text.substr(split))
    loss -= std::log(count[c] / double(split + count.size()));
  return loss / double(text.size() - split);
}

TEST_P(Example, Learns) {
  if (GetParam() != std::string("bloom-small"))
    GPTC_LEFT_TO_ALL();
  const char *given = std::getenv("GPTC_SHAKESPEARE");
  const std::string text = given ? given : GPTC_SOURCE_DIR "/../shared/data/tinyshakespeare.txt";
  if (!std::filesystem::exists(text))
    GTEST_SKIP() << "no " << text << "; GPTC_SHAKESPEARE can name it";
  Workplace w;
  Result r = w.gptc({"data", "prepare", text, "--tokenizer", "char", "--out", w.path("data")});
  ASSERT_EQ(r.code, 0) << r.output;

  std::vector<std::string> args = {"compile", std::string(GPTC_SOURCE_DIR "/examples/") + GetParam() + ".toml", "-o",
                                   w.path("plan")};
  for (const std::string &s :
       {"data.train=" + w.path("data/train.bin"), "data.val=" + w.path("data/val.bin"),
        "data.tokenizer=" + w.path("data/tokenizer.json"), "out_dir=" + w.path("run"), std::string("train.steps=60"),
        std::string("optimizer.warmup_steps=5"), std::string("eval.steps=0"), std::string("log.mfu_peak=1e11")}) {
    args.push_back("--set");
    args.push_back(s);
  }
  r = w.gptc(args);
  ASSERT_EQ(r.code, 0) << r.output;
  r = w.gptrun({w.path("plan")});
  ASSERT_EQ(r.code, 0) << r.output;

  // Better than that, it has learned from what stands around a character.
  const std::string last = logLines(w.path("run")).back();
  const std::string prefix = "step=60 val_loss=";
  ASSERT_EQ(last.substr(0, prefix.size()), prefix);
  EXPECT_LT(std::atof(last.c_str() + prefix.size()), lossOfFrequencies(readFile(text))) << last;

  r = w.gptrun({"sample", w.path("plan"), "--prompt", "KING", "--max-tokens", "70"});
  if (GetParam() == std::string("encoder-small")) {
    EXPECT_EQ(r.code, 3) << r.output;
  } else {
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_GE(r.output.size(), 4u + 70u) << "the context is 64: sampling goes past it\n" << r.output;
  }
}

TEST(Examples, ShowWhatHoldsBeforeTheirTokenizersAreMade) {
  Workplace w;
  const std::string model = w.path("austen.toml");
  std::filesystem::copy(GPTC_SOURCE_DIR "/examples/austen.toml", model);
  const Result r = w.gptc({"config", model});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("\n# vocab_size: the tokenizer's, and "), std::string::npos) << r.output;
  EXPECT_EQ(r.output.find("\nvocab_size = "), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("\nn_layer = 6 "), std::string::npos) << r.output;
}

}  // namespace
