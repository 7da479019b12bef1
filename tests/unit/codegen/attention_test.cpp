// The attention recipes: values against the reference, and sums that neither blocks nor tasks may reorder.
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"

#include "ir/element.h"
#include "ir/kernel/eval.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <tuple>

namespace gptc::test {
namespace {

constexpr OpKind kinds[] = {OpKind::attention, OpKind::attention_grad, OpKind::attention_cached};

Group attentionOf(OpKind kind, llvm::ArrayRef<Type> operands, const AttrMap &attributes) {
  Group g = groupOf(kind, operands, attributes, {});
  g.fused->attrs.set("kind", opDef(kind).name);
  return g;
}
Type f32(std::initializer_list<int64_t> dims) {
  return Type(DType::f32, llvm::SmallVector<Dim>(dims.begin(), dims.end()));
}

TEST(Attention, Samples) {
  for (OpKind kind : kinds)
    for (unsigned seed = 0; seed < sized(1u, 6u); ++seed)
      for (const OpDef::Sample &s : opDef(kind).samples(seed)) {
        Group g = attentionOf(kind, s.operandTypes, s.attrs);
        std::vector<Tensor> operands = randomOperands(g, seed);
        for (unsigned i = 0; i < operands.size(); ++i)
          if (i < s.operandValues.size() && !s.operandValues[i].data.empty())
            operands[i] = s.operandValues[i];
        for (Tensor &t : operands)
          if (t.type.dtype == DType::f32)
            for (double &v : t.data)
              v = float(v);
        check(g, operands);
        if (HasFailure())
          return;
      }
}

struct Case {
  int64_t batch, tokens, heads, kvHeads, size;
  bool causal;
  double p;
  bool alibi = false;
  DType stored = DType::f32;
  int64_t ofHeads = 0;  // 0: these are all
  double scale = 0, softcap = 0;
  int64_t window = 0;
  std::vector<int64_t> documents = {};  // their tokens, of which each sequence begins with another; none: no documents
};

/// Where the document of each token begins and ends.
Tensor boundsOf(const Case &c) {
  Tensor bounds(Type(DType::i64, {c.batch, c.tokens, 2}));
  for (int64_t b = 0; b < c.batch; ++b) {
    int64_t begin = 0;
    for (size_t d = 0; begin < c.tokens; ++d) {
      const int64_t end = std::min(c.tokens, begin + c.documents[(d + size_t(b)) % c.documents.size()]);
      for (int64_t i = begin; i < end; ++i) {
        bounds.data[size_t(2 * (b * c.tokens + i))] = double(begin);
        bounds.data[size_t(2 * (b * c.tokens + i) + 1)] = double(end);
      }
      begin = end;
    }
  }
  return bounds;
}

/// A forward group and a backward one, with operands that belong together.
struct Both {
  Group forward, backward;
  std::vector<Tensor> in, out, gradIn;
};
Both both(const Case &c, unsigned seed) {
  AttrMap at = attrs({{"n_head", c.heads},
                      {"n_kv_head", c.kvHeads},
                      {"causal", c.causal},
                      {"alibi", c.alibi},
                      {"p", c.p},
                      {"stream", int64_t(5)},
                      {"scale", c.scale},
                      {"softcap", c.softcap},
                      {"window", c.window},
                      {"documents", !c.documents.empty()}});
  std::vector<Type> types = {f32({c.batch, c.tokens, (c.heads + 2 * c.kvHeads) * c.size}).withDType(c.stored)};
  for (int i = 0; c.p > 0 && i < 3; ++i)
    types.push_back(Type::scalar(DType::i64));
  if (!c.documents.empty())
    types.push_back(Type(DType::i64, {c.batch, c.tokens, 2}));
  if (c.ofHeads) {
    at.set("of_heads", c.ofHeads);
    types.push_back(Type::scalar(DType::i64));
  }
  Both b;
  b.forward = attentionOf(OpKind::attention, types, at);
  b.in = randomOperands(b.forward, seed, 1000);
  if (!c.documents.empty())
    b.in[types.size() - 1 - (c.ofHeads ? 1 : 0)] = boundsOf(c);
  b.out = interpretFused(*b.forward.fused, b.in);
  std::vector<Type> gradTypes = {b.out[0].type, types[0], b.out[0].type, b.out[1].type};
  gradTypes.insert(gradTypes.end(), types.begin() + 1, types.end());
  b.backward = attentionOf(OpKind::attention_grad, gradTypes, at);
  b.gradIn = randomOperands(b.backward, seed + 1, 1000);
  b.gradIn[1] = b.in[0];
  for (int i = 0; i < 2; ++i) {
    b.gradIn[2 + i] = b.out[i];
    for (double &v : b.gradIn[2 + i].data)  // o is rounded as it is stored
      v = float(v);
  }
  for (size_t i = 1; i < b.in.size(); ++i)
    b.gradIn[3 + i] = b.in[i];
  return b;
}

void compare(const Case &c, bool interpreted = false) {
  Both b = both(c, unsigned(c.tokens));
  std::string what = fmt::format(
      "B{} T{} H{}/{} D{} causal {} p {} alibi {} scale {} softcap {} window {} documents {}", c.batch, c.tokens,
      c.heads, c.kvHeads, c.size, c.causal, c.p, c.alibi, c.scale, c.softcap, c.window, fmt::join(c.documents, " "));
  for (DType compute : {DType::f64, DType::f32}) {
    expectWithinBound(b.forward, b.in, {.compute = compute, .compiled = !interpreted}, what);
    expectWithinBound(b.backward, b.gradIn, {.compute = compute, .compiled = !interpreted}, what + " backward");
  }
}

TEST(Attention, EdgeShapes) {
  OneIn some(3);
  for (int64_t tokens : {1, 2, 13, 14, 15, 31, 32, 33, 64, 97, 127, 128, 129})
    for (bool causal : {true, false}) {
      if (some.skips())
        continue;
      compare({1, tokens, 1, 1, 8, causal, 0});
      if (HasFailure())
        return;
    }
}

TEST(Attention, HeadSizes) {
  OneIn some(3);
  for (int64_t size : {1, 7, 8, 16, 17, 32, 64, 80, 128})
    for (int64_t tokens : {5, 45}) {
      if (some.skips())
        continue;
      compare({1, tokens, 2, 1, size, true, 0});
      if (HasFailure())
        return;
    }
}

TEST(Attention, GroupedQueriesAndDropout) {
  OneIn some(5);
  for (int64_t tokens : {9, 33})
    for (auto [heads, kvHeads] : {std::pair<int64_t, int64_t>{6, 2}, {4, 1}, {3, 3}})
      for (double p : {0.0, 0.3}) {
        if (some.skips())
          continue;
        compare({2, tokens, heads, kvHeads, 16, true, p});
        if (HasFailure())
          return;
      }
  compare({1, 130, 4, 2, 8, true, 0.3});
  compare({1, 211, 2, 1, 8, false, 0.3});
}

// In pairs, and converted where the CPU has no dot products of them. Odd heads, odd numbers of tokens, several blocks.
TEST(Attention, Narrow) {
  OneIn some(2);
  Target with = hostTarget(), without = hostTarget();
  with.bf16Dot = true, without.bf16Dot = false;
  for (auto [tokens, size, causal] : {std::tuple<int64_t, int64_t, bool>{1, 8, true},
                                      {13, 7, true},
                                      {33, 16, false},
                                      {64, 64, true},
                                      {150, 17, true}})
    for (auto [stored, target] : {std::pair(DType::bf16, &with), {DType::bf16, &without}, {DType::f16, &without}}) {
      if (some.skips())
        continue;
      Case c{2, tokens, 2, 1, size, causal, tokens == 33 ? 0.3 : 0.0, tokens == 13, stored};
      std::string what = fmt::format("{} {} {} {}", tokens, size, nameOf(stored).str(), target->bf16Dot);
      Both b = both(c, unsigned(tokens));
      EXPECT_EQ(defaultSchedule(*b.forward.fused, *target).pairs, target->bf16Dot);
      EXPECT_EQ(defaultSchedule(*b.backward.fused, *target).pairs, target->bf16Dot);
      expectWithinBound(b.forward, b.in, {.target = *target}, what);
      expectWithinBound(b.backward, b.gradIn, {.target = *target}, what + " backward");
      if (HasFailure())
        return;
    }
}

// Slopes and dropout of the heads that these are, of all.
TEST(Attention, SomeOfAllHeads) {
  for (auto [heads, kvHeads, p, alibi] :
       {std::tuple<int64_t, int64_t, double, bool>{2, 1, 0.3, false}, {3, 3, 0, true}, {4, 2, 0.3, true}})
    for (DType stored : {DType::f32, DType::bf16}) {
      compare({2, 33, heads, kvHeads, 16, heads != 3, p, alibi, stored, 2000});
      if (HasFailure())
        return;
    }
}

// Every mix of what a model may ask for is one kernel each way.
TEST(Attention, Alibi) {
  OneIn some(5);
  for (int64_t tokens : {9, 33})
    for (auto [heads, kvHeads] : {std::pair<int64_t, int64_t>{6, 2}, {4, 1}, {3, 3}})
      for (bool causal : {true, false}) {
        if (some.skips())
          continue;
        compare({2, tokens, heads, kvHeads, 16, causal, heads == 4 ? 0.3 : 0.0, true});
        if (HasFailure())
          return;
      }
  compare({1, 211, 3, 1, 8, true, 0.3, true});
}

// Windows shorter than a tile, around its rows and around panels of keys, and nearly all.
TEST(Attention, Windows) {
  OneIn some(4);
  for (int64_t tokens : {33, 97, 150})
    for (int64_t window : {1, 2, 7, 13, 14, 15, 16, 17, 31, 32, 33, 64, 96, 149, 150}) {
      if (some.skips())
        continue;
      compare({.batch = 1, .tokens = tokens, .heads = 2, .kvHeads = 1, .size = 12, .causal = true, .window = window});
      if (HasFailure())
        return;
    }
}

// The same to both sides, with everything else that scores may have.
TEST(Attention, WindowsToBothSides) {
  OneIn some(11), others(2);
  for (int64_t tokens : {33, 97, 150, 300})
    for (int64_t window : {1, 2, 7, 13, 14, 15, 16, 17, 31, 32, 33, 64, 96, 149, 150}) {
      if (some.skips())
        continue;
      compare({.batch = 1, .tokens = tokens, .heads = 2, .kvHeads = 1, .size = 12, .causal = false, .window = window});
      if (HasFailure())
        return;
    }
  for (DType stored : {DType::f32, DType::bf16, DType::f16})
    for (const Case &c : {Case{1, 129, 2, 1, 7, false, 0, true, stored, 0, 0, 3, 40},
                          Case{2, 77, 3, 1, 24, false, 0.25, true, stored, 2000, 0.1, 50, 9},
                          Case{1, 211, 2, 2, 16, false, 0.3, false, stored, 0, 0, 0, 33}}) {
      if (others.skips())
        continue;
      compare(c);
      if (HasFailure())
        return;
    }
}

TEST(Attention, ScalesCapsAndWindows) {
  OneIn some(3);
  for (DType stored : {DType::f32, DType::bf16, DType::f16})
    for (const Case &c : {Case{2, 45, 2, 1, 16, false, 0, false, stored, 0, 0.5},
                          Case{1, 45, 2, 2, 16, false, 0, false, stored, 0, 0, 2},
                          Case{1, 70, 4, 2, 16, true, 0.25, false, stored, 0, 0.3, 1.5, 19},
                          Case{1, 129, 2, 1, 7, true, 0, true, stored, 0, 0, 3, 40},
                          Case{1, 77, 3, 1, 24, true, 0.25, true, stored, 2000, 0.1, 50, 64}}) {
      if (some.skips())
        continue;
      compare(c);
      if (HasFailure())
        return;
    }
}

// Documents shorter than a tile and longer than a block of keys, that begin within tiles and panels and between them.
TEST(Attention, Documents) {
  OneIn some(13);
  for (DType stored : {DType::f32, DType::bf16, DType::f16})
    for (bool causal : {true, false})
      for (const std::vector<int64_t> &documents :
           {std::vector<int64_t>{1}, {13, 14, 15}, {40, 3, 54}, {1, 200}, {32, 64}, {5, 7, 150, 2, 2, 33}})
        for (const Case &c : {Case{.batch = 2, .tokens = 97, .heads = 2, .kvHeads = 1, .size = 16},
                              Case{.batch = 1, .tokens = 211, .heads = 2, .kvHeads = 2, .size = 7, .p = 0.25},
                              Case{.batch = 1,
                                   .tokens = 150,
                                   .heads = 4,
                                   .kvHeads = 2,
                                   .size = 24,
                                   .alibi = true,
                                   .ofHeads = 2000,
                                   .softcap = 2,
                                   .window = 19}}) {
          if (some.skips())
            continue;
          Case with = c;
          with.stored = stored, with.causal = causal, with.documents = documents;
          compare(with);
          if (HasFailure())
            return;
        }
}

// A document has the bits of a sequence of its own, each way, wherever it is and whatever stands beside it; in pairs of
// bf16 at even places.
TEST(Attention, DocumentsAreAsAlone) {
  auto rowsOf = [](const Tensor &t, int64_t dim, int64_t begin, int64_t count) {  // of a batch of one
    Type type = t.type;
    const int64_t rows = type.dim(unsigned(dim));
    type.dims[unsigned(dim)] = Dim(count);
    int64_t before = 1, each = 1;
    for (int64_t d = 0; d < int64_t(type.rank()); ++d)
      (d < dim ? before : each) *= d == dim ? 1 : type.dim(unsigned(d));
    Tensor part(type);
    for (int64_t i = 0; i < before; ++i)
      std::copy_n(t.data.begin() + (i * rows + begin) * each, count * each, part.data.begin() + i * count * each);
    return part;
  };
  OneIn some(5);
  for (const Case &c :
       {Case{.batch = 1, .tokens = 190, .heads = 4, .kvHeads = 2, .size = 24, .causal = true},
        Case{.batch = 1, .tokens = 190, .heads = 2, .kvHeads = 2, .size = 8, .causal = false},
        Case{.batch = 1,
             .tokens = 190,
             .heads = 2,
             .kvHeads = 1,
             .size = 16,
             .causal = true,
             .alibi = true,
             .window = 21},
        Case{.batch = 1,
             .tokens = 190,
             .heads = 2,
             .kvHeads = 1,
             .size = 16,
             .causal = false,
             .alibi = true,
             .softcap = 2},
        Case{.batch = 1, .tokens = 190, .heads = 2, .kvHeads = 1, .size = 16, .causal = false, .window = 11}})
    for (DType stored : {DType::f32, DType::bf16})
      for (const char *sizes : {"", "vec=16 mr=14 nr=32 qb=28 kb=32", "vec=8 mr=6 nr=16 qb=60 kb=48"}) {
        if (some.skips())
          continue;
        Case packed = c;
        packed.stored = stored;
        packed.documents = stored == DType::bf16 ? std::vector<int64_t>{38, 2, 70, 16, 64}
                                                 : std::vector<int64_t>{37, 1, 71, 5, 12, 64};
        Target target = hostTarget();
        target.bf16Dot = true;
        auto runWith = [&](const char *recipe, const Group &g, const std::vector<Tensor> &in) {
          Options o{.target = target};
          if (*sizes) {
            Schedule s;
            EXPECT_TRUE(Schedule::parse(fmt::format("{} {}", recipe, sizes), s));
            s.pairs = stored == DType::bf16;
            o.schedule = s;
          }
          return run(g, in, o);
        };
        Both all = both(packed, 5);
        const std::vector<Tensor> out = runWith("attention", all.forward, all.in),
                                  grad = runWith("attention_grad", all.backward, all.gradIn);
        int64_t begin = 0;
        for (const int64_t count : packed.documents) {
          Case one = packed;
          one.tokens = count, one.documents = {};
          const Both alone = both(one, 5);
          const std::string what =
              fmt::format("{} tokens from {} on, {} {}", count, begin, nameOf(stored).str(), sizes);
          expectSame({rowsOf(out[0], 1, begin, count), rowsOf(out[1], 2, begin, count)},
                     runWith("attention", alone.forward, {rowsOf(all.in[0], 1, begin, count)}), what);
          expectSame({rowsOf(grad[0], 1, begin, count)},
                     runWith("attention_grad", alone.backward,
                             {rowsOf(all.gradIn[0], 1, begin, count), rowsOf(all.gradIn[1], 1, begin, count),
                              rowsOf(all.gradIn[2], 1, begin, count), rowsOf(all.gradIn[3], 2, begin, count)}),
                     what + " backward");
          begin += count;
          if (HasFailure())
            return;
        }
      }
}

/// The number of vector loops that a kernel runs. Loads of integers give what was stored, else `loaded` of their index.
class VectorLoops {
public:
  using Loaded = std::function<int64_t(int64_t index)>;
  explicit VectorLoops(Loaded loaded) : loaded(std::move(loaded)) {}
  int64_t of(const kir::Kernel &k) {
    for (const kir::Stmt &s : k.body)
      run(*s);
    return count;
  }

private:
  const Loaded loaded;
  int64_t count = 0;
  std::map<const kir::VarNode *, int64_t> values;
  std::map<std::pair<const void *, int64_t>, int64_t> stored;

  int64_t value(const kir::Expr &e) {
    using kir::ExprKind;
    switch (e->kind) {
    case ExprKind::IntImm:
      return e->ival;
    case ExprKind::Var:
      return values.at(e->var.get());
    case ExprKind::Binary:
      if (isFloat(e->args[0]->dtype))
        return 0;
      return kir::evalInt(e->bop, e->args[0]->dtype, value(e->args[0]), value(e->args[1]));
    case ExprKind::Select:
      return value(e->args[0]) ? value(e->args[1]) : value(e->args[2]);
    case ExprKind::Load: {
      const int64_t index = value(e->args[0]);
      const auto it = stored.find({e->buffer.get(), index});
      return it == stored.end() ? loaded(index) : it->second;
    }
    default:
      return 0;
    }
  }
  void runAll(const std::vector<kir::Stmt> &body) {
    for (const kir::Stmt &s : body)
      run(*s);
  }
  void run(const kir::StmtNode &s) {
    switch (s.kind) {
    case kir::StmtKind::For: {
      if (s.loop == kir::LoopKind::vector) {
        ++count;
        return;
      }
      const int64_t begin = value(s.begin), n = value(s.extent);
      for (int64_t i = 0; i < n; ++i) {
        values[s.var.get()] = begin + i;
        runAll(s.body);
      }
      return;
    }
    case kir::StmtKind::Let:
      if (!isFloat(s.value->dtype))
        values[s.var.get()] = value(s.value);
      return runAll(s.body);
    case kir::StmtKind::Store:
      if (!isFloat(s.value->dtype))
        stored[{s.buffer.get(), value(s.index)}] = value(s.value);
      return;
    case kir::StmtKind::If:
      return runAll(isFloat(s.value->dtype) || value(s.value) ? s.body : s.orelse);
    default:
      return runAll(s.body);
    }
  }
};

// What a window or a document hides wholly is not computed: the work grows with the tokens, not with their square. With
// a cache it is that of the window.
TEST(Attention, WhatIsHiddenIsSkipped) {
  const int64_t size = 32;
  auto work = [&](OpKind kind, int64_t tokens, int64_t window, bool documents = false, bool causal = true) {
    AttrMap at = attrs({{"n_head", int64_t(1)}, {"window", window}});
    const Type qkv = f32({1, tokens, 3 * size}), o = f32({1, tokens, size}), lse = f32({1, 1, tokens}),
               one = f32({1, 1, 3 * size}), cache = f32({1, tokens, size}), pos = Type::scalar(DType::i64);
    std::vector<Type> operands = kind == OpKind::attention        ? std::vector<Type>{qkv}
                                 : kind == OpKind::attention_grad ? std::vector<Type>{o, qkv, o, lse}
                                                                  : std::vector<Type>{one, cache, cache, pos};
    if (documents) {
      at.set("documents", true);
      operands.push_back(Type(DType::i64, {1, tokens, 2}));
    }
    if (kind != OpKind::attention_cached)
      at.set("causal", causal);
    const Group g = attentionOf(kind, operands, at);
    const Target target = hostTarget();
    // In a cache the last place; documents of 40 tokens.
    const auto loaded = [&](int64_t i) {
      return !documents ? tokens - 1 : std::min(tokens, i / 2 / 40 * 40 + i % 2 * 40);
    };
    return double(VectorLoops(loaded).of(lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target).kernel));
  };
  const int64_t tokens = 2048, window = 64;
  for (OpKind kind : kinds) {
    SCOPED_TRACE(nameOf(kind).str());
    const double all = work(kind, 2 * tokens, 0) / work(kind, tokens, 0),
                 some = work(kind, 2 * tokens, window) / work(kind, tokens, window);
    EXPECT_GT(all, kind == OpKind::attention_cached ? 1.9 : 3);
    EXPECT_LE(some, kind == OpKind::attention_cached ? 1 : 2.05);
    EXPECT_EQ(work(kind, tokens, tokens), work(kind, tokens, 0)) << "a window of all";
    if (kind == OpKind::attention_cached)
      continue;
    for (bool causal : {true, false})
      EXPECT_LE(work(kind, 2 * tokens, 0, true, causal) / work(kind, tokens, 0, true, causal), 2.05) << causal;
    EXPECT_LE(work(kind, 2 * tokens, window, false, false) / work(kind, tokens, window, false, false), 2.05);
  }
}

TEST(Attention, Interpreted) { compare({2, 40, 4, 2, 8, true, 0.25}, true); }

// Blocks, tasks and where keys are packed are the schedule's; the sums are the op's.
TEST(Attention, SizesNeverChangeBits) {
  OneIn some(3);
  const std::vector<int64_t> none, parts = {31, 2, 77};
  for (const auto &[causal, p, alibi, stored, softcap, window, documents] :
       {std::tuple<bool, double, bool, DType, double, int64_t, std::vector<int64_t>>{true, 0, false, DType::f32, 0, 0,
                                                                                     none},
        {true, 0.2, true, DType::f32, 0, 0, none},
        {false, 0.2, true, DType::f32, 0, 0, none},
        {true, 0.2, true, DType::bf16, 0, 0, none},
        {true, 0, false, DType::f32, 2, 37, none},
        {true, 0.2, true, DType::bf16, 2, 50, none},
        {true, 0, false, DType::bf16, 0, 5, none},
        {true, 0.2, false, DType::f32, 0, 0, parts},
        {false, 0, true, DType::bf16, 0, 0, parts},
        {false, 0.2, false, DType::f32, 0, 37, none},
        {false, 0, true, DType::bf16, 2, 12, parts}}) {
    Both b = both({2, 151, 6, 2, 24, causal, p, alibi, stored, 0, 0, softcap, window, documents}, 1);
    Target target = hostTarget();
    target.bf16Dot = true;
    std::vector<Tensor> forward = run(b.forward, b.in, {.target = target}),
                        backward = run(b.backward, b.gradIn, {.target = target});
    for (const char *text : {"attention vec=16 mr=14 nr=32", "attention vec=8 mr=6 nr=16 qb=12",
                             "attention vec=16 mr=5 nr=32 qb=50 packB=1", "attention vec=4 mr=1 nr=8 packB=1"}) {
      if (some.skips())
        continue;
      Schedule s;
      ASSERT_TRUE(Schedule::parse(text, s)) << text;
      s.pairs = stored == DType::bf16;
      expectSame(run(b.forward, b.in, {.schedule = s}), forward, text);
    }
    for (const char *text :
         {"attention_grad vec=16 mr=14 nr=32 qb=14 kb=32", "attention_grad vec=8 mr=6 nr=16 qb=60 kb=48",
          "attention_grad vec=16 mr=9 nr=32 qb=1000 kb=1000", "attention_grad vec=16 task=1 mr=8 nr=32 qb=40 kb=64"}) {
      if (some.skips())
        continue;
      Schedule s;
      ASSERT_TRUE(Schedule::parse(text, s)) << text;
      s.pairs = stored == DType::bf16;
      expectSame(run(b.backward, b.gradIn, {.schedule = s}), backward, text);
    }
  }
}

// A sequence does not know its batch.
TEST(Attention, BatchNeverChangesBits) {
  Both two = both({2, 50, 2, 2, 16, true, 0.2}, 3), one = both({1, 50, 2, 2, 16, true, 0.2}, 3);
  auto half = [](const Tensor &t, int i) {
    Type type = t.type;
    type.dims[0] = Dim(1);
    int64_t n = type.elements();
    return Tensor(type, std::vector<double>(t.data.begin() + i * n, t.data.begin() + (i + 1) * n));
  };
  std::vector<Tensor> out = run(two.forward, two.in, {}), grad = run(two.backward, two.gradIn, {});
  for (int i = 0; i < 2; ++i) {
    std::vector<Tensor> in = {half(two.in[0], i), two.in[1], two.in[2], two.in[3]};
    in[3].data[0] += i;
    expectSame(run(one.forward, in, {}), {half(out[0], i), half(out[1], i)}, "forward");
    std::vector<Tensor> gradIn;
    for (int k = 0; k < 4; ++k)
      gradIn.push_back(half(two.gradIn[k], i));
    gradIn.insert(gradIn.end(), in.begin() + 1, in.end());
    expectSame(run(one.backward, gradIn, {}), {half(grad[0], i)}, "backward");
  }
}

// Long sequences: workspaces and smaller tiles instead of more stack than a thread may have. Of a causal one, what
// comes first does not know of the rest: not its results, nor its gradient where none comes from there.
TEST(Attention, LongSequences) {
  const int64_t tokens = 2500, few = 200, size = 64;
  AttrMap at = attrs({{"n_head", int64_t(1)}, {"n_kv_head", int64_t(1)}, {"causal", true}});
  auto first = [&](const Tensor &t) {  // of [1, tokens, width] or [1, 1, tokens]
    Type type = t.type;
    for (Dim &d : type.dims)
      d = d.logical == tokens ? Dim(few) : d;
    return Tensor(type, std::vector<double>(t.data.begin(), t.data.begin() + type.elements()));
  };
  Group all = attentionOf(OpKind::attention, {f32({1, tokens, 3 * size})}, at),
        part = attentionOf(OpKind::attention, {f32({1, few, 3 * size})}, at);
  std::vector<Tensor> in = randomOperands(all, 2), out = run(all, in);
  EXPECT_NE(lowerGroup(*all.fused, defaultSchedule(*all.fused, hostTarget()), hostTarget()).workspaceBytes,
            lowerGroup(*part.fused, defaultSchedule(*part.fused, hostTarget()), hostTarget()).workspaceBytes);
  expectSame({first(out[0]), first(out[1])}, run(part, {first(in[0])}), "forward");

  Tensor dy(out[0].type);
  for (int64_t i = 0; i < few * size; ++i)
    dy.data[i] = out[0].data[dy.data.size() - 1 - i];
  auto gradientOf = [&](const std::vector<Tensor> &operands) {
    std::vector<Type> types;
    for (const Tensor &t : operands)
      types.push_back(t.type);
    return run(attentionOf(OpKind::attention_grad, types, at), operands)[0];
  };
  const Tensor whole = gradientOf({dy, in[0], out[0], out[1]}),
               want = gradientOf({first(dy), first(in[0]), first(out[0]), first(out[1])});
  for (size_t i = 0; i < whole.data.size(); ++i)
    ASSERT_EQ(whole.data[i], i < want.data.size() ? want.data[i] : 0) << i;
  const Target target = hostTarget();
  for (int64_t tokens : {1024, 2048, 4096, 16384, 65536})
    for (int64_t size : {64, 128, 256}) {
      AttrMap at = attrs({{"n_head", int64_t(8)}, {"n_kv_head", int64_t(1)}});
      for (DType stored : {DType::f32, DType::bf16}) {
        Type qkv = f32({1, tokens, 10 * size}).withDType(stored), o = f32({1, tokens, 8 * size}).withDType(stored),
             lse = f32({1, 8, tokens});
        for (const Group &g :
             {attentionOf(OpKind::attention, {qkv}, at), attentionOf(OpKind::attention_grad, {o, qkv, o, lse}, at)})
          for (DType compute : {DType::f32, DType::f64}) {
            LoweredGroup low = lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target, compute);
            std::vector<std::string> errors = kir::verify(low.kernel);
            EXPECT_TRUE(errors.empty()) << errors[0] << " " << tokens << " " << size;
          }
      }
    }
}

/// Finite, NaN, or an infinity of the same sign.
void expectSameKind(const std::vector<Tensor> &got, const std::vector<Tensor> &want, const std::string &what) {
  for (size_t r = 0; r < want.size(); ++r)
    for (size_t i = 0; i < want[r].data.size(); ++i) {
      const double a = got[r].data[i], b = want[r].data[i];
      ASSERT_TRUE(std::isfinite(b) ? std::isfinite(a) : a == b || (std::isnan(a) && std::isnan(b)))
          << what << ": result " << r << " element " << i << " of " << want[r].data.size() << " is " << a << ", not "
          << b;
    }
}

/// Each sequence of the batch has one element of q, k, v or do that is not finite: what the mask hides from it stays as
/// it was.
void plant(Case c, const std::vector<const char *> &forwards, const std::vector<const char *> &backwards) {
  const int64_t heads[] = {0, c.heads, c.heads + c.kvHeads, -1};  // of q, k and v; of do
  const double bad[] = {std::nan(""), HUGE_VAL};
  const int64_t tokens[] = {0, c.tokens / 2, c.tokens - 1};
  c.batch = std::size(heads) * std::size(bad) * std::size(tokens);
  std::string what = fmt::format("T{} H{}/{} D{} causal {} p {} alibi {} {}", c.tokens, c.heads, c.kvHeads, c.size,
                                 c.causal, c.p, c.alibi, nameOf(c.stored).str()) +
                     fmt::format(" softcap {} window {}", c.softcap, c.window);
  Both b = both(c, unsigned(c.tokens));
  const int64_t width = (c.heads + 2 * c.kvHeads) * c.size;
  int64_t sequence = 0;
  for (int64_t head : heads)
    for (double v : bad)
      for (int64_t token : tokens) {
        const int64_t row = sequence++ * c.tokens + token;
        if (head < 0)
          b.gradIn[0].data[row * c.heads * c.size + c.size / 2] = v;
        else
          b.in[0].data[row * width + head * c.size + c.size / 2] = v;
      }
  const std::vector<Tensor> out = interpretFused(*b.forward.fused, b.in);
  b.gradIn[1] = b.in[0], b.gradIn[2] = out[0], b.gradIn[3] = out[1];
  const std::vector<Tensor> grad = interpretFused(*b.backward.fused, b.gradIn);
  Target with = hostTarget();
  with.bf16Dot = true;
  auto each = [&](const Group &g, const std::vector<Tensor> &in, const std::vector<Tensor> &want,
                  const std::vector<const char *> &schedules) {
    expectSameKind(run(g, in, {.target = with}), want, what);
    for (const char *text : schedules) {
      Schedule s;
      ASSERT_TRUE(Schedule::parse(text, s)) << text;
      s.pairs = c.stored == DType::bf16;
      expectSameKind(run(g, in, {.schedule = s, .target = with}), want, what + " " + text);
    }
  };
  each(b.forward, b.in, out, forwards);
  each(b.backward, b.gradIn, grad, backwards);
}

TEST(Attention, NotFiniteStaysBehindTheMask) {
  const std::vector<const char *> forwards = {"attention vec=16 mr=14 nr=32", "attention vec=8 mr=5 nr=16 qb=15",
                                              "attention vec=16 mr=6 nr=32 packB=1", "attention vec=4 mr=1 nr=8"},
                                  backwards = {"attention_grad vec=16 mr=14 nr=32 qb=14 kb=32",
                                               "attention_grad vec=8 mr=5 nr=16 qb=60 kb=48",
                                               "attention_grad vec=16 task=1 mr=8 nr=32 qb=40 kb=64"};
  for (DType stored : {DType::f32, DType::bf16}) {
    for (int64_t tokens : {1, 2, 13, 131})
      plant({1, tokens, 1, 1, 8, true, 0, false, stored}, {}, {});
    plant({1, 45, 4, 2, 5, true, 0.3, true, stored}, forwards, backwards);
    plant({1, 40, 1, 1, 17, true, 0, false, stored}, forwards, backwards);
    plant({1, 33, 4, 1, 7, false, 0.3, true, stored}, {}, {});
    for (int64_t window : {3, 20, 33})
      for (bool causal : {true, false})
        plant({1, 75, 2, 1, 5, causal, 0, false, stored, 0, 0, window == 20 ? 2.0 : 0, window}, forwards, backwards);
    for (bool causal : {true, false})
      plant({1, 75, 2, 1, 5, causal, 0, false, stored, 0, 0, 0, 0, {9, 30, 1, 22}}, forwards, backwards);
    if (HasFatalFailure())
      return;
  }
}

// Large scores: the maximum is taken out before the exponential.
TEST(Attention, LargeScores) {
  Both b = both({1, 40, 1, 1, 16, true, 0}, 4);
  for (double &v : b.in[0].data)
    v *= 64;
  expectWithinBound(b.forward, b.in, {}, "forward");
}

/// One query of so large elements that multiplying its scores rounds by more than what exponentials can take: its row
/// is the value of its largest score, and no other row changes a bit. Both ways.
void expectRowOfTheLargest(const Case &c, double huge, DType compute) {
  SCOPED_TRACE(fmt::format("{} D{} causal {} alibi {} {} in {}", nameOf(c.stored).str(), c.size, c.causal, c.alibi,
                           huge, nameOf(compute).str()));
  Options o{.compute = compute, .target = hostTarget()};
  o.target->bf16Dot = c.stored == DType::bf16;
  Both b = both(c, 3);
  const std::vector<Tensor> before = run(b.forward, b.in, o);
  b.gradIn[2] = before[0], b.gradIn[3] = before[1];
  const Tensor gradBefore = run(b.backward, b.gradIn, o)[0];
  const int64_t planted = 30, head = 1, width = (c.heads + 2 * c.kvHeads) * c.size;
  for (int64_t x = 0; x < c.size; ++x)
    b.in[0].data[planted * width + head * c.size + x] = roundTo(c.stored, huge * (1 + double(x % 3)));

  const std::vector<Tensor> out = run(b.forward, b.in, o), want = interpretFused(*b.forward.fused, b.in);
  for (int64_t i = 0; i < c.tokens; ++i)
    for (int64_t h = 0; h < c.heads; ++h) {
      const bool here = i == planted && h == head;
      for (int64_t x = 0; x < c.size; ++x) {
        const int64_t at = (i * c.heads + h) * c.size + x;
        const double is = (here ? want : before)[0].data[at];
        ASSERT_NEAR(out[0].data[at], is, here && compute == DType::f64 ? 1e-12 : 0) << "row " << i << " of head " << h;
      }
      const int64_t at = h * c.tokens + i;
      if (here) {
        ASSERT_NEAR(out[1].data[at] / want[1].data[at], 1, 1e-5);
      } else {
        ASSERT_EQ(out[1].data[at], before[1].data[at]);
      }
    }

  b.gradIn[1] = b.in[0], b.gradIn[2] = want[0], b.gradIn[3] = want[1];
  const Tensor exact = interpretFused(*b.backward.fused, b.gradIn)[0];
  b.gradIn[2] = out[0], b.gradIn[3] = out[1];
  const Tensor grad = run(b.backward, b.gradIn, o)[0];
  for (size_t k = 0; k < grad.data.size(); ++k) {
    ASSERT_TRUE(std::isfinite(grad.data[k])) << k;
    const int64_t i = int64_t(k) / width, at = int64_t(k) % width / c.size;
    if (at >= c.heads + c.kvHeads) {
      ASSERT_NEAR(grad.data[k], exact.data[k], c.stored == DType::bf16 ? 0.1 : 1e-4) << "of values";
    } else if (at < c.heads && (i != planted || at != head)) {
      ASSERT_EQ(grad.data[k], gradBefore.data[k]) << "of other queries";
    }
  }
}

TEST(Attention, HugeScores) {
  OneIn some(3);
  for (double huge : {1e6, 1e10, -1e30}) {
    for (auto [stored, causal, alibi, size] : {std::tuple<DType, bool, bool, int64_t>{DType::f32, true, false, 16},
                                               {DType::f32, false, true, 12},
                                               {DType::bf16, true, false, 24},
                                               {DType::bf16, false, true, 7}})
      if (!some.skips())
        expectRowOfTheLargest({1, 45, 2, 1, size, causal, 0, alibi, stored}, huge, DType::f32);
    expectRowOfTheLargest({1, 45, 2, 1, 12, true, 0, false, DType::f32}, huge, DType::f64);
    if (HasFatalFailure())
      return;
  }
}

// With a cache, too, a huge maximum goes first.
TEST(Attention, HugeScoresWithACache) {
  const OpDef::Sample s = opDef(OpKind::attention_cached).samples(1)[0];
  const Group g = attentionOf(OpKind::attention_cached, s.operandTypes, s.attrs);
  std::vector<Tensor> operands = randomOperands(g, 1);
  for (unsigned i = 0; i < operands.size(); ++i)
    if (i < s.operandValues.size() && !s.operandValues[i].data.empty())
      operands[i] = s.operandValues[i];
  const int64_t size = operands[1].type.dim(2);
  for (int64_t x = 0; x < size; ++x)
    operands[0].data[x] = float(1e30 * (1 + double(x % 3)));
  const Tensor want = interpretFused(*g.fused, operands)[0], got = run(g, operands)[0];
  for (size_t i = 0; i < got.data.size(); ++i)
    EXPECT_NEAR(got.data[i], want.data[i], 1e-5) << i;
}

}  // namespace
}  // namespace gptc::test
