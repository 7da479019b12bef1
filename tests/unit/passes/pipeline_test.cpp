// Passes keep the meaning of a training step; the pass manager reads pipelines and reports failures.
#include "small_gpt.h"

#include "ir/plan_check.h"
#include "support/diagnostics.h"
#include "tests/support/content.h"

#include <filesystem>

namespace gptc::test {
namespace {

class Passes : public testing::TestWithParam<SmallGpt> {};

TEST_P(Passes, KeepTheMeaningOfTwoSteps) {
  SmallGpt o = GetParam();
  auto m = smallGpt(o);
  runPasses(*m, "autodiff,optimizer");
  auto twoSteps = [&](std::vector<std::vector<double>> &results) {
    StateMap state = initialState(*m);
    for (int step = 0; step < 2; ++step)
      for (const Tensor &t : trainStep(*m, o, o.batch * o.accumulate, state))
        results.push_back(t.data);
    for (const auto &s : m->states)
      results.push_back(state[s->name].data);
  };
  std::vector<std::vector<double>> expected;
  twoSteps(expected);
  for (const char *pass : {"canonicalize", "cse", "dce", "canonicalize", "recompute-cheap", "fuse", "order",
                           "remat{budget=full}", "settle-writes", "plan-memory"}) {
    runPasses(*m, pass);
    std::vector<std::vector<double>> now;
    twoSteps(now);
    EXPECT_EQ(now, expected) << "after " << pass;
  }
  EXPECT_EQ(checkPlan(*m), std::vector<std::string>());
  for (const auto &f : m->functions)
    for (const Op &op : f->body)
      EXPECT_TRUE(op.isOneOf(OpKind::fused, OpKind::read, OpKind::write, OpKind::reshape, OpKind::ret)) << print(op);
  // Once done, a pass finds nothing more to do.
  std::string text = print(*m);
  runPasses(*m, "canonicalize,cse,dce,fuse,settle-writes,plan-memory");
  EXPECT_EQ(print(*m), text);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Passes,
    testing::Values(SmallGpt{}, SmallGpt{.accumulate = 2}, SmallGpt{.dropout = 0.25, .tied = false},
                    SmallGpt{.batch = 1, .accumulate = 2, .dropout = 0.25, .decomposed = true},
                    SmallGpt{.bias = false, .rmsnorm = true},
                    SmallGpt{.width = 8, .tied = false, .bias = false, .rmsnorm = true, .rope = true, .gated = true},
                    SmallGpt{.dropout = 0.25, .alibi = true, .causal = false}));

// Padding changes types and nothing else: what steps return, and the logical content of every state.
TEST_P(Passes, APaddedVocabularyGivesTheSameBits) {
  SmallGpt o = GetParam();
  std::vector<std::vector<double>> contents[2];
  for (bool pad : {false, true}) {
    auto m = smallGpt(o);
    runPasses(*m, pad ? "pad-vocab{multiple=16},autodiff,optimizer" : "autodiff,optimizer");
    for (const char *name : {"wte", "m.wte", "v.wte", o.tied ? "wte" : "head"})
      EXPECT_EQ(m->state(name)->type.padded(0), pad ? 16 : o.vocab) << name;
    StateMap state = initialState(*m);
    for (int step = 0; step < 2; ++step)
      for (const Tensor &t : trainStep(*m, o, o.batch * o.accumulate, state))
        contents[pad].push_back(t.data);
    for (const auto &s : m->states)
      contents[pad].push_back(state[s->name].data);
  }
  EXPECT_EQ(contents[0], contents[1]);
}

TEST(Passes, DefaultPipelineParses) {
  registerPass(
      {"select-recipes", "stands in for the one of codegen", [](Module &, const PassOptions &) { return false; }, {}});
  auto uses = parsePipeline(defaultPipeline(), nullptr);
  EXPECT_STREQ(uses.front().pass->name, "canonicalize");
  EXPECT_STREQ(uses.back().pass->name, "plan-memory");
}

TEST(Pipeline, ReadsOptions) {
  auto uses = parsePipeline(" fuse{max=8, epilogue=false} , cse,fuse{} ", nullptr);
  ASSERT_EQ(uses.size(), 3u);
  EXPECT_STREQ(uses[1].pass->name, "cse");
  EXPECT_EQ(uses[0].options.values.getInt("max"), 8);
  EXPECT_EQ(uses[0].options.values.getBool("epilogue", true), false);
  EXPECT_TRUE(parsePipeline("", nullptr).empty());
}

TEST(Pipeline, NamesWhatIsWrong) {
  auto errorOf = [](const char *text) {
    try {
      parsePipeline(text, nullptr);
    } catch (const UserError &e) {
      EXPECT_EQ(e.exitCode(), 2);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(errorOf("cse,autodif").find("did you mean 'autodiff'?"), std::string::npos);
  EXPECT_NE(errorOf("fuse{maxx=3}").find("did you mean 'max'?"), std::string::npos);
  EXPECT_NE(errorOf("cse{a=1}").find("it takes none"), std::string::npos);
  EXPECT_NE(errorOf("fuse{max}").find("needs a value"), std::string::npos);
  EXPECT_NE(errorOf("fuse{max=}").find("expected a value"), std::string::npos);
  EXPECT_NE(errorOf("fuse{max=1").find("expected an option or '}'"), std::string::npos);
  EXPECT_NE(errorOf("fuse{max=\"1}").find("does not end"), std::string::npos);
  EXPECT_NE(errorOf("cse dce").find("expected ','"), std::string::npos);
  EXPECT_NE(errorOf(",").find("expected the name"), std::string::npos);
}

TEST(Pipeline, AFailureCanBeRepeated) {
  registerPass({"break",
                "leaves a return in front",
                [](Module &m, const PassOptions &) {
                  Function &f = *m.functions[0];
                  Builder(f.body, f.body.front()).ret({});
                  return true;
                },
                {}});
  auto folder = std::filesystem::temp_directory_path() / ("gptc-pipeline-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  PipelineOptions options;
  options.reproFile = (folder / "repro.gir").string();
  options.dumpDir = (folder / "dump").string();
  auto m = parseModule("func @f(%x: f32[]) -> (f32[]) { return %x }", "t.gir");
  std::string before = print(*m), message;
  try {
    runPipeline(*m, parsePipeline("cse,break,dce", nullptr), options);
  } catch (const InternalError &e) {
    message = e.what();
  }
  EXPECT_NE(message.find("pass 'break': left an invalid module"), std::string::npos) << message;
  EXPECT_NE(message.find("--passes='break'"), std::string::npos) << message;
  EXPECT_EQ(print(*parseModule(test::contentOf(options.reproFile), "repro.gir")), before);
  EXPECT_TRUE(std::filesystem::exists(folder / "dump" / "01-cse.gir"));
  EXPECT_FALSE(std::filesystem::exists(folder / "dump" / "03-dce.gir"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gptc::test
