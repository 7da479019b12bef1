// Weights in panels: a training step keeps its results, and what is packed is what was last written.
#include "small_gpt.h"

#include "ir/facts.h"
#include "passes/decisions.h"
#include "passes/pass.h"
#include "support/diagnostics.h"

namespace gptc::test {
namespace {

/// The panels of a state.
Tensor panels(const State &packed, const Tensor &of) {
  Module m;
  Block &body = m.addFunction("pack")->body;
  const Op *pack = Builder(body).op(
      OpKind::pack, {body.addArg(of.type)},
      attrs({{"cols", packed.type.dim(2) / stepOfPanels(of.type.dtype)}, {"tb", packed.attrs.getBool("tb")}}));
  const Tensor *operand = &of;
  return pack->def().reference(*pack, std::span(&operand, 1))[0];
}

std::vector<const State *> packedStates(const Module &m) {
  std::vector<const State *> all;
  for (const auto &s : m.states)
    if (s->attrs.getString("kind") == "packed")
      all.push_back(s.get());
  return all;
}

class Packed : public testing::TestWithParam<SmallGpt> {};

TEST_P(Packed, StepsGiveTheSame) {
  const SmallGpt o = GetParam();
  auto plain = smallGpt(o);
  runPasses(*plain, "autodiff,optimizer");
  auto m = plain->clone();
  runPasses(*m, "pack-weights{all=true,cols=4}");
  ASSERT_EQ(verify(*m), std::vector<std::string>());
  // Of each weight a copy for AB and one for AB'; the classifier's is turned where the others' are not.
  EXPECT_EQ(packedStates(*m).size(), o.gated ? 10u : 8u);
  auto twoSteps = [&](const Module &module) {
    StateMap state = initialState(module);
    for (const State *s : packedStates(module))
      state[s->name] = panels(*s, state[s->attrs.getString("of")]);
    std::vector<std::vector<double>> results;
    for (int step = 0; step < 2; ++step)
      for (const Tensor &t : trainStep(module, o, o.batch * o.accumulate, state))
        results.push_back(t.data);
    for (const auto &s : plain->states)
      results.push_back(state[s->name].data);
    for (const State *s : packedStates(module))
      EXPECT_EQ(state[s->name].data, panels(*s, state[s->attrs.getString("of")]).data) << s->name;
    return results;
  };
  const std::vector<std::vector<double>> expected = twoSteps(*plain);
  EXPECT_EQ(twoSteps(*m), expected);
  for (const char *pass : {"canonicalize", "cse", "dce", "recompute-cheap", "fuse", "order", "remat{budget=full}",
                           "settle-writes", "plan-memory"}) {
    runPasses(*m, pass);
    EXPECT_EQ(twoSteps(*m), expected) << "after " << pass;
  }
  // No matrix is made of panels in memory.
  for (const auto &f : m->functions)
    for (const Op &op : f->body)
      EXPECT_FALSE(op.body && op.body->front()->is(OpKind::unpack) && op.attrs.getString("kind") != "matmul")
          << print(op);
  const std::string text = print(*m);
  runPasses(*m, "pack-weights{all=true,cols=4}");
  EXPECT_EQ(print(*m), text);
}

INSTANTIATE_TEST_SUITE_P(Models, Packed,
                         testing::Values(SmallGpt{}, SmallGpt{.accumulate = 2}, SmallGpt{.tied = false},
                                         SmallGpt{.rmsnorm = true, .gated = true}));

/// A step of `calls` micro-batches with one product of `rows` rows by a [512,2048] and its input's gradient.
std::unique_ptr<Module> oneWeight(int64_t rows, int64_t calls, const std::string &more = "") {
  return parseModule(fmt::format(R"(module {{accumulate={}{}}} {{
      state @w : f32[512,2048] {{kind="param"}}
      func @accumulate(%x: f32[{},512], %dy: f32[{},2048]) -> (f32[{},2048], f32[{},512]) {{
        %w = read @w : f32[512,2048]
        %y = matmul %x, %w : f32[{},2048]
        %dx = matmul %dy, %w {{tb=true}} : f32[{},512]
        return %y, %dx
      }}
      func @update(%g: f32[512,2048]) -> () {{
        %w = read @w : f32[512,2048]
        %w1 = sub %w, %g : f32[512,2048]
        write @w, %w1
        return
      }}
    }})",
                                 calls, more, rows, rows, rows, rows, rows, rows),
                     "one.gir");
}

Target machine() {
  Target t;
  t.threads = 2;
  t.vectorBytes = 64;
  t.vectorRegisters = 32;
  t.l3Bytes = 32 << 20;
  return t;
}

struct Outcome {
  std::string choice;
  size_t copies;
  std::vector<Decision> decisions;
};
Outcome packOn(std::unique_ptr<Module> m, const Target &target, const std::string &options = "") {
  PipelineOptions quiet;
  quiet.reproFile = "";
  runPipeline(*m, parsePipeline("pack-weights" + options, &target), quiet);
  std::vector<Decision> all = decisionsOf(*m);
  return {all.empty() ? "" : all[0].choice, packedStates(*m).size(), all};
}

TEST(PackWeights, PaysWhereOneWriteServesManyProducts) {
  const Target target = machine();
  EXPECT_EQ(packOn(oneWeight(256, 1), target).choice, "none");
  const Outcome many = packOn(oneWeight(256, 64), target);
  EXPECT_EQ(many.choice, "1 copies for AB, 1 for AB'");
  EXPECT_EQ(many.copies, 2u);
  ASSERT_EQ(many.decisions.size(), 1u);
  EXPECT_EQ(many.decisions[0].effect.memory, 2 * 4.0 * 512 * 2048);
  EXPECT_EQ(many.decisions[0].effect.traffic, 4 * 4.0 * 512 * 2048);
  EXPECT_LT(many.decisions[0].effect.ms, 0);
  EXPECT_EQ(many.decisions[0].rejected.at(0).choice, "none");
}

TEST(PackWeights, LeavesAloneWhatItCannotOrMayNot) {
  const Target target = machine();
  EXPECT_EQ(packOn(oneWeight(256, 64, ", pack_weights=false"), target).copies, 0u);
  EXPECT_EQ(packOn(oneWeight(256, 1, ", pack_weights=true"), target).copies, 2u);
  EXPECT_EQ(packOn(oneWeight(4, 64), target).copies, 0u) << "few rows stream their weight";
  EXPECT_EQ(packOn(oneWeight(5, 64), target).copies, 2u);
  EXPECT_EQ(packOn(oneWeight(256, 64, ", remat=\"full\""), target).choice, "none") << "memory is short";
  EXPECT_EQ(packOn(oneWeight(256, 64, ", remat=\"8GiB\""), target).choice, "none");
  // 4 MiB of states and 8 of copies.
  EXPECT_EQ(packOn(oneWeight(256, 64), target, "{available=25165823}").choice, "none");
  EXPECT_EQ(packOn(oneWeight(256, 64), target, "{available=25165824}").copies, 2u);
  Target gpu = target;
  gpu.warp = 32;
  EXPECT_EQ(packOn(oneWeight(256, 64), gpu).copies, 0u);
  EXPECT_THROW(packOn(oneWeight(256, 64, ", pack_weights=true"), gpu), UserError);
  EXPECT_THROW(packOn(oneWeight(3, 64, ", pack_weights=true"), target), UserError);
}

// In a module that trains nothing. What products read of a low copy they read of its panels.
TEST(PackWeights, PanelsTakeThePlaceOfLowCopies) {
  const char *text = R"(module {
    state @w : f32[33,50] {kind="param"}
    state @low.w : bf16[33,50] {kind="low", of="w"}
    func @step_1(%x: bf16[1,33]) -> (f32[1,50]) {
      %unused = read @w : f32[33,50]
      %w = read @low.w : bf16[33,50]
      %y = matmul %x, %w {out="f32"} : f32[1,50]
      return %y
    }
  })";
  for (const bool pairs : {true, false}) {
    Target target = machine();
    target.bf16Dot = pairs;  // or kernels take words apart
    std::unique_ptr<Module> m = parseModule(text, "served.gir");
    PipelineOptions quiet;
    quiet.reproFile = "";
    runPipeline(*m, parsePipeline("pack-weights", &target), quiet);
    ASSERT_EQ(verify(*m), std::vector<std::string>());
    ASSERT_EQ(packedStates(*m).size(), 1u);
    EXPECT_TRUE(isInFiles(*m->state("w")));
    EXPECT_EQ(m->state("low.w"), nullptr);
    const State *packed = packedStates(*m)[0];
    EXPECT_EQ(packed->type.str(), "bf16[2,17,64]");
    EXPECT_EQ(packed->attrs.getString("of"), "w");
    EXPECT_EQ(decisionsOf(*m).at(0).choice, "1 weight");
    // Of a parameter in memory panels have its own type.
    eraseFact<&StateFacts::memory>(*m->state("w"));
    EXPECT_EQ(verify(*m).size(), 1u);
  }
}

}  // namespace
}  // namespace gptc::test
