// Shapes at and around the sizes of vectors, register tiles and cache blocks, and primes, for the ops whose recipes
// have such sizes. Samples of the definitions are smaller: gradients are checked element by element there.
#include "kernel_case.h"
#include "tests/support/whole_run.h"

#include "ir/ops/op_support.h"

#include <array>

namespace gptc::conformance {
namespace {

using Sample = OpDef::Sample;

constexpr int64_t edges[] = {1, 2, 15, 16, 17, 127, 128, 129, 251, 384};

void check(OpKind kind, llvm::ArrayRef<Sample> samples) {
  for (DType compute : {DType::f64, DType::f32}) {
    std::vector<std::unique_ptr<Case>> cases;
    for (const Sample &s : samples)
      cases.push_back(makeCase(opDef(kind), s, unsigned(cases.size()), compute));
    checkEmitted(cases);
    if (::testing::Test::HasFatalFailure())
      return;
  }
}

Type f32(std::initializer_list<Dim> dims) { return Type(DType::f32, llvm::ArrayRef<Dim>(dims.begin(), dims.size())); }

TEST(Edges, MatmulInEachDimension) {
  std::vector<Sample> samples;
  for (int64_t n : edges)
    for (auto [ta, tb] : {std::pair(false, false), {false, true}, {true, false}}) {
      for (auto [m, k, c] : {std::array<int64_t, 3>{n, 19, 33}, {13, n, 35}, {7, 21, n}}) {
        AttrMap at;
        if (ta)
          at = attrs({{"ta", true}, {"fold", std::max<int64_t>(1, k / 3)}});
        if (tb)
          at.set("tb", true);
        samples.push_back(
            {.operandTypes = {ta ? f32({k, m}) : f32({m, k}), tb ? f32({c, k}) : f32({k, c})}, .attrs = at});
      }
    }
  check(OpKind::matmul, samples);
}

TEST(Edges, MatmulBeyondEveryBlock) {
  // Large enough that each cache block has a neighbour and a rest, in two dimensions at a time.
  check(OpKind::matmul, {{.operandTypes = {f32({47, 521}), f32({521, 67})}},
                         {.operandTypes = {f32({301, 23}), f32({23, 97})}},
                         {.operandTypes = {f32({9, 60}), f32({Dim(1031, 1088), 60})}, .attrs = attrs({{"tb", true}})},
                         {.operandTypes = {f32({2, 128, 45}), f32({2, 128, 71})},
                          .attrs = attrs({{"ta", true}, {"fold", int64_t(128)}})},
                         {.operandTypes = {f32({3, 64, 130}), f32({3, 64, 20}), f32({130, 20})},
                          .attrs = attrs({{"ta", true}, {"fold", int64_t(64)}})}});
}

TEST(Edges, AttentionRowsAndHeads) {
  std::vector<Sample> forward, backward;
  auto add = [&](int64_t rows, int64_t heads, int64_t keyHeads, int64_t size, bool causal, int64_t window = 0,
                 double softcap = 0) {
    Type qkv = f32({1, rows, (heads + 2 * keyHeads) * size}), o = f32({1, rows, heads * size}),
         lse = f32({1, heads, rows});
    AttrMap at = attrs({{"n_head", heads}, {"n_kv_head", keyHeads}, {"causal", causal}});
    if (window)
      at.set("window", window);
    if (softcap != 0)
      at.set("softcap", softcap);
    forward.push_back({.operandTypes = {qkv}, .attrs = at});
    // What the backward pass needs of the forward pass, as the reference has it.
    OneOp one = makeOneOp(opDef(OpKind::attention), forward.back(), unsigned(rows));
    std::vector<Tensor> results = one.reference();
    backward.push_back({.operandTypes = {o, qkv, o, lse},
                        .attrs = at,
                        .operandValues = {Tensor(), one.inputs[0], results[0], results[1]}});
  };
  for (int64_t rows : {1, 2, 15, 17, 64, 65, 127, 129}) {
    add(rows, 2, 1, 5, true);
    add(rows, 1, 1, 16, rows % 2 == 0);
  }
  add(65, 1, 1, 64, true);
  add(33, 1, 1, 127, true);
  add(129, 1, 1, 1, false);
  test::OneIn some(5);
  for (int64_t window : {1, 15, 16, 17, 64, 128})
    for (bool causal : {true, false})
      if (!some.skips())
        add(129, 2, 1, 5, causal, window, window % 2 ? 0 : 2.5);
  check(OpKind::attention, forward);
  check(OpKind::attention_grad, backward);
}

TEST(Edges, AttentionOverACache) {
  std::vector<Sample> samples;
  for (int64_t capacity : {1, 17, 128, 300})
    for (int64_t pos : {int64_t(0), capacity / 2, capacity - 1}) {
      Type cache = f32({2, capacity, 64});
      samples.push_back({.operandTypes = {f32({1, 1, 6 * 64}), cache, cache, Type::scalar(DType::i64)},
                         .attrs = attrs({{"n_head", int64_t(2)}}),
                         .operandValues = {Tensor(), Tensor(), Tensor(), Tensor::scalar(double(pos), DType::i64)}});
      for (int64_t window : {int64_t(1), capacity / 2 + 1}) {
        samples.push_back(samples.back());
        samples.back().attrs.set("window", window);
      }
    }
  check(OpKind::attention_cached, samples);
}

TEST(Edges, Rows) {
  for (OpKind kind : {OpKind::softmax, OpKind::layernorm, OpKind::row_max}) {
    std::vector<Sample> samples;
    for (int64_t n : edges) {
      Sample s{.operandTypes = {f32({3, n})}};
      if (kind == OpKind::layernorm)
        s.operandTypes.push_back(f32({n}));
      samples.push_back(std::move(s));
      // One row, and many short ones.
      if (kind != OpKind::layernorm)
        samples.push_back({.operandTypes = {f32({n, 5})}});
    }
    check(kind, samples);
  }
}

TEST(Edges, CrossEntropyOverAPaddedVocabulary) {
  std::vector<Sample> samples;
  ops::SampleSource source(1);
  for (int64_t v : edges) {
    Type rows(DType::i32, {5});
    samples.push_back({.operandTypes = {f32({5, Dim(v, (v + 127) / 128 * 128)}), rows},
                       .operandValues = {Tensor(), source.integers(rows, -1, v - 1)}});
  }
  check(OpKind::cross_entropy, samples);
}

/// Scores of which exp overflows: the largest of a row must be subtracted first.
TEST(Edges, LargeScores) {
  ops::SampleSource source(3);
  const Type scores = f32({3, 129}), targets(DType::i32, {3}), qkv = f32({1, 19, 3 * 8});
  check(OpKind::softmax, Sample{.operandTypes = {scores}, .operandValues = {source.uniforms(scores, -900, 900)}});
  check(OpKind::cross_entropy,
        Sample{.operandTypes = {scores, targets},
               .operandValues = {source.uniforms(scores, -900, 900), source.integers(targets, 0, 128)}});
  check(OpKind::attention, Sample{.operandTypes = {qkv},
                                  .attrs = attrs({{"n_head", int64_t(1)}}),
                                  .operandValues = {source.uniforms(qkv, -30, 30)}});
}

TEST(Edges, SumsOverTokens) {
  std::vector<Sample> sums, squares;
  for (int64_t n : edges)
    for (int64_t fold : {int64_t(0), int64_t(1), int64_t(64)}) {
      AttrMap at = attrs({{"lead", int64_t(1)}, {"fold", fold}});
      sums.push_back({.operandTypes = {f32({n, 3})}, .attrs = at});
      sums.push_back({.operandTypes = {f32({7, n})}, .attrs = at});
      squares.push_back({.operandTypes = {f32({n, 35})}, .attrs = attrs({{"block", fold ? fold : 4096}})});
    }
  check(OpKind::reduce_sum, sums);
  check(OpKind::sum_squares, squares);
}

TEST(Edges, EmbeddingGradient) {
  std::vector<Sample> samples;
  ops::SampleSource source(2);
  for (int64_t n : edges)
    for (auto [tokens, vocab, columns] : {std::array<int64_t, 3>{n, 7, 9}, {64, n, 9}, {31, 5, n}}) {
      Type ids(DType::i32, {tokens});
      samples.push_back({.operandTypes = {f32({tokens, columns}), ids},
                         .attrs = attrs({{"vocab", vocab}}),
                         .operandValues = {Tensor(), source.integers(ids, 0, vocab - 1)}});
    }
  check(OpKind::embedding_grad, samples);
}

TEST(Edges, Pointwise) {
  std::vector<Sample> samples;
  for (int64_t n : edges) {
    samples.push_back({.operandTypes = {f32({n, 3}), f32({3})}});
    samples.push_back({.operandTypes = {f32({3, n}), f32({n})}});
    samples.push_back({.operandTypes = {f32({2, Dim(n, n + 1)}), f32({2, Dim(n, n + 1)})}});
  }
  check(OpKind::mul, samples);
}

}  // namespace
}  // namespace gptc::conformance
