// Tables that are looked up and multiplied, in few bits: one for both, and the numbers of the blocks for tokens.
#include "small_gpt.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "ir/ops/op_support.h"
#include "ir/quantized.h"
#include "passes/analysis/liveness.h"
#include "passes/decisions.h"
#include "passes/pass.h"

namespace gptc::test {
namespace {

constexpr int64_t rows = 50, tokens = 6;

/// A function that looks tokens up and multiplies what it finds with @wte, in a layer so that each format is taken. The
/// table of tokens is @wte, or one of its own.
std::unique_ptr<Module> model(QuantFormat format, bool tied) {
  const std::string table = fmt::format("f32[{},{}]", rows, elementsOf(format)),
                    own = tied ? "" : fmt::format("state @own : {} {{kind=\"param\"}}\n", table);
  auto m = parseModule(fmt::format(R"(module {{weights="{}"}} {{
      state @wte : {} {{kind="param"}}
      {}func @step(%i: i32[1,{}]) -> (f32[1,{},{}]) {{
        %t = read @{} : {}
        %w = read @wte : {}
        %h = embedding %t, %i : f32[1,{},{}]
        %y = matmul %h, %w {{tb=true}} : f32[1,{},{}] layer=0
        return %y
      }}
    }})",
                                   nameOf(format), table, own, tokens, tokens, rows, tied ? "wte" : "own", table, table,
                                   tokens, elementsOf(format), tokens, rows),
                       "tied.gir");
  runPasses(*m, "quantize-weights");
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  return m;
}

/// Random blocks for the states of kind `quantized`.
StateMap blocksOf(const Module &m) {
  StateMap all;
  ops::SampleSource source(3);
  for (const auto &s : m.states) {
    if (kindOf(*s) != StateKind::quantized)
      continue;
    Tensor t(s->type);
    for (double &v : t.data)
      v = s->type.dtype == DType::u32 ? double(uint32_t(source.bits())) : double(float(_Float16(source.uniform(0, 1))));
    all[s->name] = std::move(t);
  }
  return all;
}

/// The table that blocks stand for.
Tensor tableOf(const StateMap &blocks, QuantFormat format) {
  const int64_t k = elementsOf(format), mask = (1 << bitsOf(format)) - 1;
  const Tensor &numbers = blocks.find("numbers.wte")->second, &scales = blocks.find("scales.wte")->second;
  Tensor table(Type(DType::f32, {Dim(rows), Dim(k)}));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < k; ++i) {
      const QuantizedPlace p = quantizedPlace(i, row, k, numbers.type.dim(2), format);
      const auto number =
          double(int64_t(uint32_t(numbers.data[size_t(p.word)]) >> p.shift & mask) - quantOffset(format));
      double &to = table.data[size_t(row * k + i)];
      to = number * scales.data[size_t(p.scale)];
      if (format == QuantFormat::q4_k) {
        const Tensor &supers = blocks.find("supers.wte")->second;
        const uint32_t six = uint32_t(scales.data[size_t(p.scale)]) >> p.scaleShift;
        to = supers.data[size_t(p.d)] * (six & 63) * number - supers.data[size_t(p.dmin)] * (six >> 8 & 63);
      }
    }
  return table;
}

TEST(QuantizeWeights, ATiedTableIsThereOnce) {
  for (const QuantFormat format : quantFormats) {
    const auto once = model(format, true), twice = model(format, false);
    EXPECT_TRUE(isInFiles(*once->state("wte")));
    EXPECT_FALSE(isInFiles(*twice->state("own"))) << "what is only looked up stays";
    StateMap blocks = blocksOf(*once), both = blocksOf(*twice);
    EXPECT_EQ(blocks.size(), format == QuantFormat::q4_k ? 3u : 2u);
    ASSERT_EQ(both["numbers.wte"].data, blocks["numbers.wte"].data);
    both["own"] = tableOf(blocks, format);
    const std::vector<Tensor> ids = {
        Tensor(Type(DType::i32, {Dim(1), Dim(tokens)}), {0, 31, 32, double(rows - 1), -3, double(rows + 7)})};
    const std::vector<Tensor> got = interpret(*once->function("step"), ids, blocks),
                              want = interpret(*twice->function("step"), ids, both);
    EXPECT_EQ(got[0].data, want[0].data) << nameOf(format);
    EXPECT_NE(std::vector<double>(got[0].data.begin(), got[0].data.begin() + rows),
              std::vector<double>(got[0].data.begin() + rows, got[0].data.begin() + 2 * rows));
  }
}

TEST(QuantizeWeights, APlanHasTheTablesBytesLess) {
  for (const QuantFormat format : quantFormats) {
    const auto once = model(format, true), twice = model(format, false);
    int64_t kept = 0;
    for (const auto &s : once->states)
      if (kindOf(*s) == StateKind::quantized)
        kept += alignedBytes(s->type);
    const int64_t table = alignedBytes(once->state("wte")->type);
    const std::vector<Decision> decisions = decisionsOf(*once);
    ASSERT_EQ(decisions.size(), 1u);
    EXPECT_EQ(decisions[0].effect.memory, double(kept - table));
    EXPECT_NE(decisions[0].note.find("tokens are looked up in the blocks of wte"), std::string::npos)
        << decisions[0].note;
    EXPECT_EQ(decisionsOf(*twice)[0].note.find("looked up"), std::string::npos);
    for (Module *m : {once.get(), twice.get()})
      runPasses(*m, "fuse,plan-memory");
    EXPECT_EQ(fact<&MemoryFacts::arenaBytes>(*twice) - fact<&MemoryFacts::arenaBytes>(*once), table);
  }
}

}  // namespace
}  // namespace gptc::test
