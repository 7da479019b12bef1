// Weights in panels (compile.pack_weights): the bits of a run that packs in every product, wherever panels are filled
// from: initial values, updates, checkpoints, other ranks.
#include "tests/support/harness.h"

#include "codegen/codegen.h"

#include "llvm/ADT/STLExtras.h"

using namespace e2e;

namespace {

struct Setting {
  const char *name;
  std::vector<std::string> settings;
};

/// Panels hold bf16 only where the CPU multiplies pairs of it. Elsewhere wishing for them is an error, and all there is
/// to test.
bool isRefusedHere(Workplace &w, const Setting &setting) {
  if (gptc::hostTarget().bf16Dot || !llvm::is_contained(setting.settings, "precision.compute=bf16"))
    return false;
  std::vector<std::string> args = {
      "compile", w.modelFile(),        "-o", w.path("refused"), "--set", "compile.pack_weights=true",
      "--set",   "train.micro_batch=1"};
  for (const std::string &s : setting.settings)
    args.insert(args.end(), {"--set", s});
  const Result r = w.gptc(args);
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("this CPU has no dot products of it"), std::string::npos) << r.output;
  return true;
}

class Packed : public testing::TestWithParam<Setting> {
protected:
  /// Widths that are no multiple of a panel, of a vector or of two; 16 tokens at a time, four times a step.
  std::string compile(const std::string &name, const std::string &wish) {
    std::vector<std::string> all = {"compile.pack_weights=" + wish, "model.n_embd=36", "model.ffn_dim=77",
                                    "model.vocab_size=67", "train.micro_batch=1"};
    all.insert(all.end(), GetParam().settings.begin(), GetParam().settings.end());
    return w.compile(name, all);
  }
  std::string after(const std::string &command, const std::string &plan, const std::string &out,
                    std::vector<std::string> more = {}) {
    std::vector<std::string> args = {command, plan, "--out-dir", w.path(out)};
    args.insert(args.end(), more.begin(), more.end());
    Result r = w.gptrun(args);
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output;
  }
  Workplace w;
};

TEST_P(Packed, SameBitsAsPackedByEachProduct) {
  if (isRefusedHere(w, GetParam()))
    return;
  const std::string packed = compile("packed", "true"), plain = compile("plain", "false");
  const std::string planned = readFile(packed + "/planned.gir");
  EXPECT_NE(planned.find("kind=\"packed\""), std::string::npos);
  EXPECT_NE(planned.find("tb=true} : "), std::string::npos);
  EXPECT_EQ(readFile(plain + "/planned.gir").find("packed"), std::string::npos);

  const std::string want = w.train(plain, "plain-out");
  ASSERT_FALSE(want.empty());
  EXPECT_TRUE(want == w.train(packed, "out", {"--threads", "2"}));
  EXPECT_EQ(logLines(w.path("out")), logLines(w.path("plain-out")));
  EXPECT_EQ(want.find("panels."), std::string::npos);
  EXPECT_TRUE(want == w.train(packed, "one", {"--threads", "1"}));

  // From a checkpoint of the other plan, too.
  w.train(plain, "parts", {"--steps", "5"});
  w.train(packed, "parts", {"--steps", "8", "--resume", "must"});
  EXPECT_TRUE(want == w.train(plain, "parts", {"--resume", "must"}));
  EXPECT_EQ(logLines(w.path("plain-out")), logLines(w.path("parts")));
}

TEST_P(Packed, EvaluatesAlike) {
  if (isRefusedHere(w, GetParam()))
    return;
  const std::string packed = compile("packed", "true"), plain = compile("plain", "false");
  w.train(plain, "out");
  // Without the seconds behind it.
  auto loss = [](const std::string &output) {
    const size_t at = output.find("val loss ");
    return at == std::string::npos ? "" : output.substr(at, output.find("  (", at) - at);
  };
  const std::string want = loss(after("eval", plain, "out"));
  EXPECT_FALSE(want.empty());
  EXPECT_EQ(loss(after("eval", packed, "out")), want);
}

INSTANTIATE_TEST_SUITE_P(
    All, Packed,
    testing::Values(Setting{"fp32", {}}, Setting{"bf16", {"precision.compute=bf16"}},
                    Setting{"bf16_moments", {"precision.compute=bf16", "precision.optimizer_state=bf16"}},
                    Setting{"llama", {"model.preset=llama", "model.n_kv_head=1"}},
                    Setting{"adafactor", {"optimizer.name=adafactor"}}, Setting{"remat", {"compile.remat=full"}}),
    [](auto &info) { return info.param.name; });

class PackedRanks : public testing::TestWithParam<Setting> {};

// What ranks read in panels is whole (ZeRO 1 and 2), their own part (tensor), or nothing (ZeRO 3 gathers it).
TEST_P(PackedRanks, SameBitsAsPackedByEachProduct) {
  Workplace w;
  if (isRefusedHere(w, GetParam()))
    return;
  auto state = [&](const std::string &wish) {
    std::vector<std::string> all = {"compile.pack_weights=" + wish, "train.micro_batch=1", "model.ffn_dim=80"};
    all.insert(all.end(), GetParam().settings.begin(), GetParam().settings.end());
    const std::string plan = w.compile(wish, all), out = w.path(wish + "-out");
    EXPECT_EQ(readFile(plan + "/planned.gir").find("kind=\"packed\"") != std::string::npos, wish == "true");
    Result r = w.gptrun({plan, "--ranks-per-node", "2", "--out-dir", out, "--steps", "4"});
    EXPECT_EQ(r.code, 0) << r.output;
    return w.finalState(out);
  };
  const std::string want = state("false");
  EXPECT_FALSE(want.empty());
  EXPECT_TRUE(want == state("true"));
}

INSTANTIATE_TEST_SUITE_P(
    All, PackedRanks,
    testing::Values(Setting{"zero0", {"parallel.data=2", "parallel.zero_stage=0"}},
                    Setting{"zero1", {"parallel.data=2", "parallel.zero_stage=1"}},
                    Setting{"zero2_bf16", {"parallel.data=2", "parallel.zero_stage=2", "precision.compute=bf16"}},
                    Setting{"tensor", {"parallel.tensor=2"}},
                    Setting{"tensor_bf16", {"parallel.tensor=2", "precision.compute=bf16"}}),
    [](auto &info) { return info.param.name; });

TEST(PackedChoice, WhatGathersAtItsUseHasNoPanels) {
  Workplace w;
  std::vector<std::string> args = {"compile", w.modelFile(), "-o", w.path("plan")};
  for (const char *setting :
       {"parallel.data=2", "parallel.zero_stage=3", "train.micro_batch=1", "compile.pack_weights=true"})
    args.insert(args.end(), {"--set", setting});
  Result r = w.gptc(args);
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("no weight can be kept in panels: ranks gather weights where they use them"),
            std::string::npos)
      << r.output;
}

TEST(PackedChoice, IsSaidAndPaysHere) {
  Workplace w;
  auto decisionOf = [&](const std::vector<std::string> &settings) {
    Result r = w.gptc({"explain", w.compile("plan", settings)});
    EXPECT_EQ(r.code, 0) << r.output;
    const size_t at = r.output.find("pack-weights panels");
    return at == std::string::npos ? "" : r.output.substr(at, r.output.find('\n', at) - at);
  };
  const std::vector<std::string> wide = {"model.n_embd=256", "train.micro_batch=1", "train.global_batch_tokens=16"};
  EXPECT_NE(decisionOf(wide).find("none"), std::string::npos);
  std::vector<std::string> often = wide;
  often.back() = "train.global_batch_tokens=1024";
  EXPECT_NE(decisionOf(often).find("copies for AB"), std::string::npos);
}

}  // namespace
