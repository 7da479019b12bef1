// Emitted CUDA text on the host, for every op by itself, for random groups, and for all groups of a small GPT's
// training step: no race and no access out of bounds, whatever order threads and blocks run in; within the error bound
// of the kernel's own operations; and the same bits as the interpreter and, but for attention, as the machine code of
// the CPU, whose sums have the same order.
#include "cases.h"
#include "examples.h"
#include "pipeline.h"
#include "simt.h"

#include "codegen/codegen.h"
#include "codegen/cuda/emit.h"
#include "ir/access.h"
#include "ir/element.h"
#include "ir/kernel/bound.h"
#include "support/diagnostics.h"
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"
#include "tests/unit/codegen/random_group.h"
#include "tests/unit/codegen/random_kernel.h"
#include "tests/unit/codegen/row_products.h"
#include "tests/unit/codegen/rows_and_sums.h"
#include "tests/unit/codegen/support.h"
#include "tests/unit/passes/small_gpt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>

namespace gptc::test {
namespace {

TEST(CudaText, EveryOp) {
  std::vector<Case> cases;
  for (const OpDef *def : allOpDefs()) {
    if (!def->samples || !recipeOf(def->kind) || def->fusion == FusionKind::collective)
      continue;
    for (unsigned seed = 0; seed < sized(1u, 2u); ++seed)
      for (const OpDef::Sample &s : def->samples(seed)) {
        if (isForCpus(*def, s))
          continue;
        Group g = groupOf(def->kind, s.operandTypes, s.attrs, s.resultTypes);
        std::vector<Tensor> operands = randomOperands(g, seed);
        for (unsigned i = 0; i < operands.size() && i < s.operandValues.size(); ++i)
          if (!s.operandValues[i].data.empty()) {
            operands[i] = s.operandValues[i];
            for (double &v : operands[i].data)
              v = isFloat(operands[i].type.dtype) ? float(v) : v;
          }
        cases.push_back(makeCase(std::move(g), std::move(operands)));
      }
  }
  EXPECT_GT(cases.size(), 100u);
  check(cases);
}

struct CacheShape {
  const char *type;
  int64_t tokens, rows, heads, keyHeads, size, pos;
  bool alibi;
  int64_t window = 0;
  double softcap = 0;
};

/// A case whose caches are copied, and one whose stay where they are. In a group of the kind row_matmul a product reads
/// the result.
void addAttention(std::vector<Case> &cases, const char *kind, const CacheShape &n) {
  std::string parameters =
      fmt::format("%x: {0}[1,{1},{2}]; %k: {0}[{3},{4},{5}]; %v: {0}[{3},{4},{5}]; %p: i64[]", n.type, n.tokens,
                  (n.heads + 2 * n.keyHeads) * n.size, n.keyHeads, n.rows, n.size);
  std::string body =
      fmt::format("%o, %k2, %v2 = attention_cached %x, %k, %v, %p {{n_head={}, n_kv_head={}, alibi={}, window={}, "
                  "softcap={}}} : {}[1,{},{}], {}[{},{},{}], {}[{},{},{}]\n",
                  n.heads, n.keyHeads, n.alibi, n.window, double(n.softcap), n.type, n.tokens, n.heads * n.size, n.type,
                  n.keyHeads, n.rows, n.size, n.type, n.keyHeads, n.rows, n.size);
  std::vector<int64_t> inPlace = {-1, 1, 2};
  if (std::string_view(kind) == "row_matmul") {
    parameters += fmt::format("; %w: {}[{},40]; %z: f32[1,1,40]", n.type, n.heads * n.size);
    body += "%y = matmul %o, %w {out=\"f32\"} : f32[1,1,40]\n%s = add %y, %z : f32[1,1,40]\nyield %k2, %v2, %s";
    inPlace = {1, 2, -1};
  } else {
    body += "yield %o, %k2, %v2";
  }
  Group g = group(kind, parameters, body);
  std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()));
  for (Tensor &t : operands)
    for (double &v : t.data)
      v = roundTo(t.type.dtype, v);
  operands[3].data[0] = double(n.pos);
  Group stays = group(kind, parameters, body);
  stays.fused->attrs.set("in_place", inPlace);
  cases.push_back(makeCase(std::move(stays), operands));
  cases.push_back(makeCase(std::move(g), std::move(operands)));
}

// More rows than threads, narrow storage, heads that no vector divides, and scores that shared memory cannot hold.
TEST(CudaText, AttentionWithCache) {
  std::vector<Case> cases;
  for (const CacheShape &n :
       {CacheShape{"bf16", 1, 700, 2, 1, 64, 650, false}, CacheShape{"f16", 3, 300, 2, 2, 24, 290, true},
        CacheShape{"f32", 2, 270, 3, 1, 7, 1, true}, CacheShape{"bf16", 3, 700, 2, 1, 64, 650, false, 300, 2},
        CacheShape{"f32", 1, 12000, 1, 1, 4, 600, false}})
    addAttention(cases, "attention_cached", n);
  EXPECT_EQ(cases.back().gpu.params.size(), 8u) << "no workspace for scores";
  check(cases);
}

// No key before the new one, parts that are empty, partly filled, before the window or cut by it, and a last part that
// is smaller than the others.
TEST(CudaText, AttentionInPartsOfKeys) {
  std::vector<Case> cases;
  for (const CacheShape &n :
       {CacheShape{"bf16", 1, 700, 4, 2, 64, 650, false}, CacheShape{"f16", 1, 300, 2, 2, 24, 0, true},
        CacheShape{"f32", 1, 270, 3, 1, 7, 269, true}, CacheShape{"bf16", 1, 700, 2, 1, 64, 650, false, 300, 2},
        CacheShape{"f32", 1, 4200, 2, 2, 4, 9999, false}, CacheShape{"f32", 1, 9, 2, 1, 130, 5, false}})
    for (const char *kind : {"attention_split", "row_matmul"})
      addAttention(cases, kind, n);
  check(cases);
}

// Of long rows few blocks take many each, so that the memory for weights has an end.
TEST(CudaText, AttentionOfLongRows) {
  const Target target = cudaTarget("cuda:sm_90a");
  for (OpKind kind : {OpKind::attention, OpKind::attention_grad}) {
    const Type qkv(DType::f32, {2, 24000, 3 * 17}), out(DType::f32, {2, 24000, 17}), lse(DType::f32, {2, 1, 24000});
    const bool backward = kind == OpKind::attention_grad;
    Group g = groupOf(kind, backward ? std::vector<Type>{out, qkv, out, lse} : std::vector<Type>{qkv},
                      attrs({{"n_head", int64_t(1)}}), {});
    LoweredGroup low = lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target);
    EXPECT_EQ(kir::verify(low.kernel), std::vector<std::string>());
    int64_t bytes = 0;
    for (int64_t b : low.workspaceBytes)
      bytes += b;
    EXPECT_GT(bytes, 0);
    EXPECT_LT(bytes, int64_t(200) << 20);
  }
}

// To f8e4m3 and back, by vectors and one by one, transposed too: every code, what lies between them and beyond them.
TEST(CudaText, EightBits) {
  std::vector<Case> cases;
  auto add = [&](const char *args, const char *body, auto value) {
    for (int vec : {1, 4, 16}) {
      Group g = group("pointwise", args, body);
      std::vector<Tensor> operands = randomOperands(g, 1);
      for (size_t i = 0; i < operands[0].data.size(); ++i)
        operands[0].data[i] = value(i);
      Schedule s{.recipe = RecipeKind::pointwise};
      s.vec = vec, s.threads = 64;
      cases.push_back(makeCase(std::move(g), std::move(operands), s));
    }
  };
  auto code = [](size_t i) { return double(kir::floatOfE4M3(uint8_t(i))); };
  add("%x: f8e4m3[256]", "%y = cast %x {dtype=\"f32\"} : f32[256]\nyield %y", code);
  add("%x: f32[1036]; %s: f32[]",
      "%p = mul %x, %s : f32[1036]\n%y = cast %p {dtype=\"f8e4m3\"} : f8e4m3[1036]\nyield %y",
      [&](size_t i) { return float(code(i / 4) * (1 + double(i % 4) * 0x1p-4)); });
  add("%x: f32[37,64]",
      "%t = transpose %x {perm=[1,0]} : f32[64,37]\n%y = cast %t {dtype=\"f8e4m3\"} : f8e4m3[64,37]\nyield %y",
      [](size_t i) { return std::ldexp(double(i % 29) - 14, int(i % 23) - 13); });
  check(cases);
}

// A library's product takes rows of padding along, if they are 0: of f8e4m3, which is made anew each time.
TEST(CudaText, ZerosLieBelowRowsOfEightBits) {
  const Target target = cudaTarget("cuda:sm_90a");
  for (const char *type : {"f8e4m3", "bf16"}) {
    const Group g = group("pointwise", "%x: f32[5->8,16]",
                          fmt::format("%y = cast %x {{dtype=\"{0}\"}} : {0}[5->8,16]\nyield %y", type));
    const LoweredGroup low = lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target);
    std::vector<std::vector<double>> memory = {std::vector<double>(128, 3), std::vector<double>(128, -7)};
    kir::interpret(low.kernel, memory);
    for (size_t i = 0; i < 128; ++i)
      EXPECT_EQ(memory[1][i], i < 80 ? 3 : *type == 'f' ? 0 : -7) << type << " " << i;
  }
}

TEST(CudaText, RandomPointwiseGroups) {
  std::vector<Case> cases;
  for (unsigned seed = 0; seed < sized(24u, 60u); ++seed) {
    Source s(seed);
    Group g = randomGroup(s, false);
    std::vector<Tensor> operands = randomOperands(g, seed);
    Schedule schedule{.recipe = RecipeKind::pointwise};
    schedule.vec = 1 << s.between(0, 3);
    schedule.threads = int(32 * s.between(1, 9));
    cases.push_back(makeCase(std::move(g), std::move(operands), schedule));
  }
  check(cases);
}

TEST(CudaText, RandomRowGroups) {
  std::vector<Case> cases;
  for (unsigned seed = 0; seed < sized(16u, 40u); ++seed) {
    Source s(1000 + seed);
    Group g = randomGroup(s, true);
    std::vector<Tensor> operands = randomOperands(g, seed);
    cases.push_back(makeCase(std::move(g), std::move(operands)));
  }
  check(cases);
}

// On the host exp of rows has the bits of the CPU, and on a GPU those of its instruction.
TEST(CudaText, RowsWithPowersTwoUlpsOffAreWithinTheBounds) {
  std::vector<Case> cases;
  auto add = [&](const char *args, const char *body, double spread) {
    Group g = group("row", args, body);
    std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()), 7);
    for (double &x : operands[0].data)
      x = roundTo(operands[0].type.dtype, x * spread);
    cases.push_back(makeCase(std::move(g), std::move(operands)));
    EXPECT_NE(kir::print(cases.back().gpu).find("exp_approx("), std::string::npos);
  };
  for (double spread : {0.1, 1.0, 30.0}) {
    add("%x: f32[5,1]", "%y = softmax %x : f32[5,1]\nyield %y", spread);
    add("%x: bf16[7,129->130]", "%y = softmax %x : bf16[7,129->130]\nyield %y", spread);
    add("%x: f32[3,4100]; %z: f32[3,4100]", "%s = add %x, %z : f32[3,4100]\n%y = softmax %s : f32[3,4100]\nyield %y",
        spread);
    add("%x: bf16[6,7->128]; %t: i32[6]; %d: f32[6]",
        "%n, %l = cross_entropy %x, %t : f32[6], f32[6]\n"
        "%g = cross_entropy_grad %x, %t, %l, %d : bf16[6,7->128]\nyield %n, %g",
        spread);
  }
  check(cases, true);
}

TEST(CudaText, RowsTogetherWithSumsOverTokens) {
  std::vector<Case> cases;
  for (const RowsAndSums &n : rowsAndSums())
    for (const char *schedule : {"row_fold vec=64 threads=512", "row_fold vec=64 threads=128"}) {
      Group g = n.together();
      std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()), 7);
      Schedule s;
      ASSERT_TRUE(Schedule::parse(schedule, s));
      cases.push_back(makeCase(std::move(g), std::move(operands), s));
    }
  check(cases);
}

TEST(CudaText, ProductsOfFewRows) {
  std::vector<Case> cases;
  for (const RowProduct &p : rowProducts())
    for (int64_t rows : {1, 2, 3}) {
      Group g = p.of(rows);
      std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()), 7);
      cases.push_back(makeCase(std::move(g), std::move(operands), {}, rows == 2 ? "cuda:sm_75" : "cuda:sm_90a"));
    }
  check(cases);
}

TEST(CudaText, SumsOverTokensAndTensors) {
  std::vector<Case> cases;
  auto add = [&](const char *kind, const char *args, const char *body) {
    Group g = group(kind, args, body);
    std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()), 7);
    cases.push_back(makeCase(std::move(g), std::move(operands)));
  };
  // Few and many columns, a last block that is not full, sums that go on, full results beside them, padding.
  add("fold", "%x: f32[37,5]; %y: f32[37,5]; %i: f32[5]",
      "%h = mul %x, %y : f32[37,5]\n%s = reduce_sum %h, %i {fold=8, lead=1} : f32[5]\n"
      "%t = reduce_sum %x {fold=8, lead=1} : f32[5]\nyield %h, %s, %t");
  add("fold", "%x: f32[4,16,129->130]; %b: f32[129->130]",
      "%h = add %x, %b : f32[4,16,129->130]\n%s = reduce_sum %h {fold=16, lead=2} : f32[129->130]\nyield %s");
  add("fold", "%x: f32[1000]", "%s = reduce_sum %x {fold=16, lead=1} : f32[]\nyield %s");
  add("fold", "%x: bf16[33,70]", "%s = reduce_sum %x {fold=64, lead=1} : f32[70]\nyield %s");
  add("reduce_all", "%x: f32[9,1001]", "%s = sum_squares %x : f32[]\nyield %s");
  add("reduce_all", "%x: f32[4100]; %y: f32[7]",
      "%s = sum_squares %x : f32[]\n%r = sqrt %s : f32[]\n%h = neg %x : f32[4100]\nyield %r, %h");
  add("scatter", "%d: f32[40,66]; %i: i32[40]; %t: f32[7,66]",
      "%e = embedding_grad %d, %i, %t {vocab=7} : f32[7,66]\nyield %e");
  check(cases);
}

// In one phase and in two, by threads of one column and of several, with rows loaded ahead: always the same bits.
TEST(CudaText, FoldsByWidthAndPhase) {
  std::vector<Case> cases;
  auto add = [&](const char *args, const char *body) {
    for (int64_t phases : {0, 1})
      for (const auto &[width, ahead] : {std::pair(1, 1), {4, 8}, {8, 3}}) {
        Group g = group("fold", args, body);
        std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()), 7);
        Schedule s = defaultSchedule(*g.fused, cudaTarget("cuda:sm_90a"));
        s.mc = phases, s.vec = width, s.unroll = ahead;
        cases.push_back(makeCase(std::move(g), std::move(operands), s));
      }
  };
  // Blocks of one row, a last block that is not full, sums that go on with full results beside them, columns that no
  // width but 2 divides, padded ones.
  add("%x: f32[10,3,24]", "%s = reduce_sum %x {fold=1, lead=1} : f32[3,24]\nyield %s");
  add("%x: f32[37,8]; %y: f32[37,8]; %i: f32[8]",
      "%h = mul %x, %y : f32[37,8]\n%s = reduce_sum %h, %i {fold=8, lead=1} : f32[8]\n"
      "%t = reduce_sum %x {fold=8, lead=1} : f32[8]\nyield %h, %s, %t");
  add("%x: bf16[48,70]", "%s = reduce_sum %x {fold=24, lead=1} : f32[70]\nyield %s");
  add("%x: f32[4,16,60->64]", "%s = reduce_sum %x {fold=16, lead=2} : f32[60->64]\nyield %s");
  add("%x: f32[30,5]", "%s = reduce_sum %x {fold=10, lead=1} : f32[5]\nyield %s");
  add("%x: f32[2,16]; %i: f32[]", "%s = reduce_sum %x, %i {fold=32, lead=2} : f32[]\nyield %s");
  check(cases);
}

// A thread of one lane and of several, in CUDA blocks of one block of elements and of several: always the same bits.
TEST(CudaText, SumsOfAllByWidth) {
  std::vector<Case> cases;
  auto add = [&](const char *args, const char *body) {
    for (const auto &[width, threads] : {std::pair(1, 64), {2, 64}, {4, 64}, {4, 128}, {8, 32}}) {
      Group g = group("reduce_all", args, body);
      std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()), 7);
      Schedule s = defaultSchedule(*g.fused, cudaTarget("cuda:sm_90a"));
      s.vec = width, s.threads = threads;
      cases.push_back(makeCase(std::move(g), std::move(operands), s));
    }
  };
  // Blocks that the lanes divide or do not, a last block that is not full, less than a block, full results beside the
  // sum, padded rows, narrow storage.
  add("%x: f32[9,1001]", "%s = sum_squares %x {block=512} : f32[]\nyield %s");
  add("%x: f32[700]", "%s = sum_squares %x {block=100} : f32[]\nyield %s");
  add("%x: f32[61]", "%s = sum_squares %x : f32[]\nyield %s");
  add("%x: f32[3,96]; %y: f32[3,96]",
      "%h = mul %x, %y : f32[3,96]\n%s = sum_squares %h {block=64} : f32[]\n%r = sqrt %s : f32[]\nyield %h, %r");
  add("%x: f32[5->8,30->32]", "%s = sum_squares %x {block=64} : f32[]\nyield %s");
  add("%x: bf16[4,130]", "%s = sum_squares %x {block=128} : f32[]\nyield %s");
  check(cases);
}

TEST(CudaText, ListsOfTokens) {
  std::vector<Case> cases;
  auto add = [&](int64_t tokens, int64_t columns, int64_t rows, int64_t chunk, bool goesOn, int width = 4) {
    Group g = group("scatter",
                    fmt::format("%d: f32[{},{}]; %i: i32[{}]; %t: f32[{},{}]", tokens, columns, tokens, rows, columns),
                    fmt::format("%e = embedding_grad %d, %i{} {{vocab={}}} : f32[{},{}]\nyield %e",
                                goesOn ? ", %t" : "", rows, rows, columns));
    std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()), 2 * rows);  // half of them outside
    for (size_t n = 0; n < operands[1].data.size(); ++n)
      if (n % 3)
        operands[1].data[n] = n % 2 ? 5 : -1;
    Schedule s = defaultSchedule(*g.fused, cudaTarget("cuda:sm_90a"));
    s.task = chunk, s.vec = width;
    cases.push_back(makeCase(std::move(g), std::move(operands), s));
  };
  // Several chunks, several turns of a chunk, several segments of rows; widths of four, two, one column, several blocks
  // for a row.
  add(1300, 12, 9, 512, true);
  add(2100, 6, 300, 1024, false);
  add(700, 5, 140, 1024, true);
  add(37, 1100, 3, 512, false);
  add(700, 16, 9, 1024, true, 8);
  add(700, 12, 9, 512, false, 8);
  add(700, 8, 9, 512, true, 1);
  check(cases);
}

TEST(CudaText, NarrowStorage) {
  std::vector<Case> cases;
  for (const char *type : {"bf16", "f16"}) {
    auto add = [&](const char *kind, std::string args, std::string body) {
      for (std::string *text : {&args, &body})
        for (size_t at; (at = text->find("T[")) != std::string::npos;)
          text->replace(at, 1, type);
      Group g = group(kind, args, body);
      std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()));
      // Large, tiny and odd values, too.
      for (size_t i = 0; const double v : {1e38, -65519.9, 65520.0, 1e-40, -3e-8, 6.1e-5, 0.1, -0.0})
        operands[0].data[i++] = float(v);
      for (Tensor &t : operands)
        for (double &v : t.data)
          v = roundTo(t.type.dtype, v);
      cases.push_back(makeCase(std::move(g), std::move(operands), {}));
    };
    add("pointwise", "%x: T[300,256]; %b: T[256]",
        "%h = add %x, %b : T[300,256]\n%y = cast %h {dtype=\"f32\"} : f32[300,256]\nyield %h, %y");
    add("pointwise", "%x: f32[33,7]", fmt::format("%y = cast %x {{dtype=\"{}\"}} : T[33,7]\nyield %y", type));
    add("row", "%x: T[5,100]; %g: f32[100]; %b: f32[100]",
        "%y, %m, %r = layernorm %x, %g, %b {eps=1e-5} : T[5,100], f32[5], f32[5]\nyield %y, %m, %r");
    add("row", "%x: T[5,100]", "%y = softmax %x : T[5,100]\nyield %y");
  }
  check(cases);
}

/// The groups of a model's training step that have a CUDA recipe, once each.
void addGroups(const SmallGpt &o, std::vector<Case> &cases, const char *compute = "fp32", const char *moments = "fp32",
               const char *optimizer = "adamw") {
  std::unique_ptr<Module> m = smallGpt(o);
  m->attrs.set("compute", std::string(compute));
  m->attrs.set("optimizer_state", std::string(moments));
  m->attrs.set("optimizer", std::string(optimizer));
  m->attrs.set("momentum", 0.75);
  m->attrs.set("first_moment", 0.75);
  runPasses(*m, passesUntilFused());
  std::set<std::string> known;
  unsigned seed = 0;
  for (const auto &f : m->functions)
    for (Op &op : f->body) {
      if (!op.is(OpKind::fused) || !known.insert(groupKey(op)).second)
        continue;
      Group g = alone(op);
      std::vector<Tensor> operands = randomOperands(g, ++seed, 3);
      cases.push_back(makeCase(std::move(g), std::move(operands)));
    }
}

TEST(CudaText, GroupsOfATrainingStep) {
  std::vector<Case> cases;
  addGroups({}, cases);
  addGroups({.dropout = 0.2, .rmsnorm = true}, cases);
  addGroups({.width = 128, .vocab = 65, .dropout = 0.1, .decomposed = true}, cases);
  addGroups({.width = 32, .vocab = 65, .dropout = 0.1}, cases, "bf16", "bf16");
  addGroups({.width = 32, .vocab = 65}, cases, "fp16");
  addGroups({.width = 32, .vocab = 65}, cases, "bf16", "bf16", "sgd");
  addGroups({.width = 32, .vocab = 65}, cases, "bf16", "fp32", "adafactor");
  EXPECT_GT(cases.size(), 60u);
  check(cases);
}

// Where a compiler refuses the templates of attention and matmul.
TEST(CudaText, LoopTreesInPlaceOfTemplates) {
  std::vector<Case> cases;
  addGroups({.dropout = 0.2}, cases);
  addGroups({.width = 32, .vocab = 65, .dropout = 0.1}, cases, "bf16", "bf16");
  addGroups({.width = 32, .vocab = 65}, cases, "fp16");
  cases = withLoopTrees(std::move(cases));
  int attention = 0;
  for (const Case &c : cases)
    attention += llvm::StringRef(c.g.fused->attrs.getString("kind")).starts_with("attention");
  EXPECT_GE(attention, 6);
  EXPECT_GE(int(cases.size()) - attention, 12);
  check(cases);
}

bool holdsPairs(const kir::StmtNode &s) {
  std::function<bool(const kir::Expr &)> inExpr = [&](const kir::Expr &e) {
    return e && (e->kind == kir::ExprKind::Pair || e->kind == kir::ExprKind::LoadPair ||
                 e->kind == kir::ExprKind::Dot || llvm::any_of(e->args, inExpr));
  };
  auto inStmt = [](const kir::Stmt &t) { return holdsPairs(*t); };
  return inExpr(s.begin) || inExpr(s.extent) || inExpr(s.index) || inExpr(s.value) || llvm::any_of(s.body, inStmt) ||
         llvm::any_of(s.orelse, inStmt);
}

// Random kernels of every operator and statement, each in one thread: the interpreter's bits. GPTC_FUZZ_KERNELS asks
// for a longer run.
TEST(CudaText, RandomKernels) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  std::vector<kir::Kernel> kernels;
  std::vector<CudaKernel> texts;
  std::vector<std::vector<std::vector<double>>> inputs;
  std::vector<std::string> symbols;
  std::string text;
  const unsigned count = kernelsToTry(sized(24, 60));
  ASSERT_GT(count, 0u);
  for (unsigned seed = 0; kernels.size() < count; ++seed) {
    RandomKernel r(seed + 777, seed % 2 ? DType::f64 : DType::f32);
    kir::Kernel k = r.build();
    if (llvm::any_of(k.body, [](const kir::Stmt &s) { return holdsPairs(*s); }))
      continue;
    inOneThread(k);
    ASSERT_EQ(kir::verify(k), std::vector<std::string>()) << seed << kir::print(k);
    texts.push_back(emitCuda(k, fmt::format("k{}", kernels.size())));
    text += texts.back().text;
    for (const CudaPhase &p : texts.back().phases)
      symbols.push_back(p.symbol);
    kernels.push_back(std::move(k));
    inputs.push_back(r.inputs());
  }
  const simt::HostModule module(text, symbols);
  for (size_t i = 0; i < kernels.size(); ++i) {
    auto want = inputs[i];
    kir::interpret(kernels[i], want, true);
    std::vector<DeviceBuffer> memory;
    std::vector<simt::Param> params;
    for (size_t p = 0; p < want.size(); ++p)
      memory.emplace_back(kernels[i].params[p], inputs[i][p]);
    for (size_t p = 0; p < want.size(); ++p) {
      const kir::BufferNode &b = *kernels[i].params[p];
      params.push_back({b.name, memory[p].data(), b.size * int64_t(sizeOf(b.dtype)), b.written});
    }
    for (const CudaPhase &p : texts[i].phases)
      ASSERT_EQ(simt::launch(module.find(p.symbol), params, p.blocks, p.threads), "")
          << texts[i].text << kir::print(kernels[i]);
    for (size_t p = 0; p < want.size(); ++p) {
      const std::vector<double> got = memory[p].values();
      for (size_t k = 0; k < got.size(); ++k)
        ASSERT_TRUE(sameNumber(got[k], want[p][k])) << "kernel " << i << ": element " << k << " of " << params[p].name
                                                    << " is " << got[k] << ", not " << want[p][k] << "\n"
                                                    << kir::print(kernels[i]) << texts[i].text;
    }
  }
}

/// Runs the kernel whole, which must be right, and without each of its barriers in turn, which must be found.
/// `shared`: pairs of parameters that are one memory. Returns what is in memory after the whole kernel ran.
std::vector<std::vector<float>> checkBarriers(const kir::Kernel &k, size_t atLeast,
                                              const std::vector<std::pair<unsigned, unsigned>> &shared = {}) {
  const CudaKernel whole = emitCuda(k, "whole");
  const std::string word = "barrier();";
  std::vector<std::string> kernels = {"whole_p0"};
  std::string text = whole.text;
  for (size_t at = whole.text.find(word); at != std::string::npos; at = whole.text.find(word, at + 1)) {
    std::string name = fmt::format("without{}", kernels.size());
    CudaKernel other = emitCuda(k, name);
    other.text.erase(other.text.find(word, at), word.size());
    text += other.text;
    kernels.push_back(name + "_p0");
  }
  EXPECT_GT(kernels.size(), atLeast) << whole.text;
  const simt::HostModule module(text, kernels);
  std::vector<std::vector<float>> result;
  for (const std::string &name : kernels) {
    std::vector<std::vector<float>> memory;
    std::vector<simt::Param> params;
    for (const kir::Buffer &b : k.params) {
      std::vector<float> &m = memory.emplace_back(b->size);
      for (size_t i = 0; i < m.size(); ++i)
        m[i] = float(i % 13) - 6;
      params.push_back({b->name, m.data(), b->size * 4, b->written});
    }
    for (auto [one, other] : shared)
      params[one].data = params[other].data;
    const std::string found = simt::launch(module.find(name), params, whole.phases[0].blocks, whole.phases[0].threads);
    if (result.empty()) {
      EXPECT_EQ(found, "") << whole.text;
      result = memory;
    } else {
      EXPECT_TRUE(found.find("race") != std::string::npos || found.find("nobody") != std::string::npos)
          << name << ": " << found << "\n"
          << whole.text;
    }
  }
  return result;
}

TEST(CudaText, EveryBarrierIsNeeded) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  // z lies where m does, so that it is stored after all threads have read m.
  Group g = group("row", "%x: f32[3,100]; %g: f32[100]; %m: f32[3]",
                  "%y, %r = rmsnorm %x, %g {eps=0.1} : f32[3,100], f32[3]\n%z = add %r, %m : f32[3]\n"
                  "%s = softmax %y : f32[3,100]\nyield %s, %z");
  std::vector<Tensor> operands = randomOperands(g, 1);
  checkBarriers(makeCase(std::move(g), std::move(operands)).gpu, 4, {{4, 2}});
}

// What no recipe writes yet: threads that meet again and again, and branches that a whole block takes.
TEST(CudaText, BarriersInLoopsAndBranches) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  using namespace kir;
  // The names are words of the language, of the device layer and of CUDA: what a kernel calls its own clashes with
  // none.
  Buffer x = makeBuffer("load", DType::f32, Storage::global, 256),
         y = makeBuffer("store", DType::f32, Storage::global, 6, true);
  Buffer part = makeBuffer("expF32", DType::f32, Storage::shared, 64);
  Var b = makeVar("thread"), i = makeVar("blockIndex"), t = makeVar("int"), s = makeVar("hypotf", DType::f32);
  Expr slot = kir::ref(b) * 3 + kir::ref(i);
  auto once = [&](Expr value) { return loop(LoopKind::block_thread, makeVar("u"), imm(1), {store(y, slot, value)}); };
  Stmt fill = loop(LoopKind::block_thread, t, imm(64),
                   {store(part, kir::ref(t), load(x, kir::ref(b) * 64 + kir::ref(i) * 64 + kir::ref(t)))});
  Stmt either =
      ifThen(binary(BinaryOp::eq, kir::ref(i), imm(1)), {once(kir::ref(s))}, {once(kir::ref(s) * kir::ref(s))});
  Kernel k{"loops",
           {x, y},
           {loop(LoopKind::grid, b, imm(2),
                 {alloc(part, {loop(LoopKind::serial, i, imm(3),
                                    {fill, let(s, hreduce(part, BinaryOp::add), {either})})})})}};
  ASSERT_EQ(verify(k), std::vector<std::string>());
  const std::vector<std::vector<float>> got = checkBarriers(k, 2);
  std::vector<std::vector<double>> want = {{}, std::vector<double>(6)};
  for (int n = 0; n < 256; ++n)
    want[0].push_back(n % 13 - 6);
  interpret(k, want, true);
  for (size_t n = 0; n < 6; ++n)
    EXPECT_EQ(got[1][n], want[1][n]) << n;
}

// What only one side of a branch writes, threads behind the branch read.
TEST(CudaText, BarrierBehindABranch) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  using namespace kir;
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 128),
         y = makeBuffer("y", DType::f32, Storage::global, 128, true);
  Buffer part = makeBuffer("part", DType::f32, Storage::shared, 64);
  Var b = makeVar("b"), t = makeVar("t"), u = makeVar("u");
  Stmt fill =
      loop(LoopKind::block_thread, t, imm(64), {store(part, kir::ref(t), load(x, kir::ref(b) * 64 + kir::ref(t)))});
  Stmt turn = loop(LoopKind::block_thread, u, imm(64),
                   {store(y, kir::ref(b) * 64 + kir::ref(u), load(part, imm(63) - kir::ref(u)))});
  Stmt always = ifThen(binary(BinaryOp::lt, kir::ref(b), imm(2)), {fill}, {});
  Kernel k{"behind", {x, y}, {loop(LoopKind::grid, b, imm(2), {alloc(part, {always, turn})})}};
  ASSERT_EQ(verify(k), std::vector<std::string>());
  const std::vector<std::vector<float>> got = checkBarriers(k, 1);
  for (int n = 0; n < 128; ++n)
    EXPECT_EQ(got[1][n], (n / 64 * 64 + 63 - n % 64) % 13 - 6) << n;
}

}  // namespace
}  // namespace gptc::test
