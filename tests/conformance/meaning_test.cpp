// What ops mean, against values from elsewhere: the reference rules are the truth for all else, so they need a witness
// of their own.
#include "one_op.h"

#include "ir/ops/op_support.h"

#include <cmath>

namespace gptc::conformance {
namespace {

std::vector<Tensor> evaluate(OpKind kind, std::vector<Tensor> inputs, AttrMap at = {}) {
  OpDef::Sample s{.attrs = std::move(at)};
  for (const Tensor &t : inputs)
    s.operandTypes.push_back(t.type);
  s.operandValues = std::move(inputs);
  return makeOneOp(opDef(kind), s, 0).reference();
}

Tensor row(std::vector<double> v) {
  int64_t n = int64_t(v.size());
  return Tensor(Type(DType::f32, {n}), std::move(v));
}
Tensor step(int64_t v) { return Tensor::scalar(double(v), DType::i64); }

// Infinities and NaN would leave no factor that brings the rest into range.
TEST(Meaning, LargestMagnitudesAreFinite) {
  EXPECT_EQ(evaluate(OpKind::row_abs_max, {row({0.5, -3, INFINITY, NAN, 2})})[0].data[0], 3);
  EXPECT_EQ(evaluate(OpKind::row_abs_max, {row({NAN, -INFINITY})})[0].data[0], 0);
}

TEST(Meaning, OrthonormalRowsByHand) {
  const Tensor x(Type(DType::f32, {4, 3}), {3, 0, 4, 6, 0, 8, 1, 2, 1, 0, 0, 0});
  const std::vector<double> y = evaluate(OpKind::orthogonalize, {x})[0].data;
  // The second is twice the first. Of the third, (1, 2, 1) less 1.4 (0.6, 0, 0.8) is left, (0.16, 2, -0.12).
  const double length = std::sqrt(0.16 * 0.16 + 4 + 0.12 * 0.12);
  const std::vector<double> expected = {0.6, 0, 0.8, 0, 0, 0, 0.16 / length, 2 / length, -0.12 / length, 0, 0, 0};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(y[i], expected[i], 1e-15) << i;
  // What is a thousandth of the row is kept, a hundred-thousandth is not, and nothing hides a NaN.
  auto second = [](double rest) {
    return evaluate(OpKind::orthogonalize, {Tensor(Type(DType::f32, {2, 2}), {1, 0, 1, rest})})[0].data;
  };
  EXPECT_NEAR(second(1e-3)[3], 1, 1e-12);
  EXPECT_EQ(second(1e-5)[3], 0);
  EXPECT_TRUE(std::isnan(second(NAN)[3]));
  EXPECT_TRUE(std::isnan(second(INFINITY)[3]));
}

TEST(Meaning, RowsThatAreNotUsableComeFromElsewhere) {
  const Tensor x(Type(DType::f32, {4, 2}), {1, 2, 0, 0, 3, NAN, -INFINITY, 4}),
      y(Type(DType::f32, {4, 2}), {5, 6, 7, 8, 9, 10, 11, 12});
  EXPECT_EQ(evaluate(OpKind::usable_rows, {x, y})[0].data, (std::vector<double>{1, 2, 0, 0, 9, 10, 11, 12}));
  EXPECT_EQ(evaluate(OpKind::usable_rows, {x, y}, attrs({{"nonzero", true}}))[0].data,
            (std::vector<double>{1, 2, 7, 8, 9, 10, 11, 12}));
}

TEST(Meaning, GeluIsTheTanhApproximation) {
  Tensor y = evaluate(OpKind::gelu_tanh, {row({1, -2, 0.3, 0})})[0];  // torch.nn.functional.gelu(x, approximate="tanh")
  EXPECT_NEAR(y.data[0], 0.8411919906082768, 1e-15);
  EXPECT_NEAR(y.data[1], -0.04540230591222494, 1e-15);
  EXPECT_NEAR(y.data[2], 0.18537092354275922, 1e-15);
  EXPECT_EQ(y.data[3], 0);
}

TEST(Meaning, LayernormAndCrossEntropyByHand) {
  // Mean 2, variance 2/3.
  auto y = evaluate(OpKind::layernorm, {row({1, 2, 3}), row({1, 10, 2}), row({0, 5, 1})}, attrs({{"eps", 0.0}}));
  double s = 1 / std::sqrt(2.0 / 3);
  EXPECT_NEAR(y[0].data[0], -s, 1e-15);
  EXPECT_NEAR(y[0].data[1], 5, 1e-15);
  EXPECT_NEAR(y[0].data[2], 2 * s + 1, 1e-15);
  EXPECT_EQ(y[1].data[0], 2);
  EXPECT_NEAR(y[2].data[0], s, 1e-15);

  Tensor logits(Type(DType::f32, {3, 2}), {0, 0, 1, 3, 5, 5});
  Tensor targets(Type(DType::i32, {3}), {0, 0, -1});
  auto nll = evaluate(OpKind::cross_entropy, {logits, targets});
  EXPECT_NEAR(nll[0].data[0], std::log(2.0), 1e-15);
  EXPECT_NEAR(nll[0].data[1], 2 + std::log1p(std::exp(-2.0)), 1e-15);
  EXPECT_EQ(nll[0].data[2], 0);
}

TEST(Meaning, LearningRateFollowsNanoGPT) {
  auto rate = [](const char *kind, int64_t at, int64_t warmup = 100) {
    return evaluate(
               OpKind::lr_schedule, {step(at)},
               attrs(
                   {{"kind", kind}, {"lr", 1e-3}, {"warmup", warmup}, {"steps", int64_t(2000)}, {"min_ratio", 0.1}}))[0]
        .data[0];
  };
  // get_lr of nanoGPT's train.py with warmup_iters 100, lr_decay_iters 2000, min_lr 1e-4.
  EXPECT_NEAR(rate("cosine", 0), 9.900990099009901e-06, 1e-18);
  EXPECT_NEAR(rate("cosine", 50), 0.000504950495049505, 1e-18);
  EXPECT_NEAR(rate("cosine", 99), 0.0009900990099009901, 1e-18);
  EXPECT_NEAR(rate("cosine", 100), 0.001, 1e-18);
  EXPECT_NEAR(rate("cosine", 1000), 0.0005871607054625496, 1e-18);
  EXPECT_NEAR(rate("cosine", 1500), 0.0002452232927684166, 1e-18);
  EXPECT_NEAR(rate("cosine", 2000), 1e-4, 1e-18);
  EXPECT_NEAR(rate("cosine", 3000), 1e-4, 1e-18);
  EXPECT_NEAR(rate("constant", 50), 0.000504950495049505, 1e-18);
  EXPECT_NEAR(rate("constant", 3000), 1e-3, 1e-18);
  EXPECT_NEAR(rate("linear", 1050), 0.55e-3, 1e-18);
  EXPECT_NEAR(rate("linear", 0, 0), 1e-3, 1e-18);
  // The last fifth of the steps: 1600 .. 2000.
  EXPECT_NEAR(rate("wsd", 1600), 1e-3, 1e-18);
  EXPECT_NEAR(rate("wsd", 1800), 0.55e-3, 1e-18);
  EXPECT_NEAR(rate("wsd", 2000), 1e-4, 1e-18);
}

TEST(Meaning, LearningRateFallsInDecayStepsOrWithTheRoot) {
  auto rate = [](const char *kind, int64_t at, int64_t warmup, int64_t decay) {
    return evaluate(OpKind::lr_schedule, {step(at)},
                    attrs({{"kind", kind},
                           {"lr", 1e-3},
                           {"warmup", warmup},
                           {"steps", int64_t(2000)},
                           {"min_ratio", 0.1},
                           {"decay", decay}}))[0]
        .data[0];
  };
  EXPECT_NEAR(rate("wsd", 1000, 100, 1000), 1e-3, 1e-18);
  EXPECT_NEAR(rate("wsd", 1500, 100, 1000), 0.55e-3, 1e-18);
  EXPECT_NEAR(rate("wsd", 1999, 100, 0), 1e-3, 1e-18);
  EXPECT_NEAR(rate("wsd", 1050, 100, 5000), 0.55e-3, 1e-18);  // no longer than from the warm-up to the end
  // get_inverse_sqrt_schedule of transformers, num_warmup_steps 100 and 0 (then timescale 10000).
  EXPECT_NEAR(rate("inverse_sqrt", 50, 100, -1), 0.000504950495049505, 1e-18);
  EXPECT_NEAR(rate("inverse_sqrt", 100, 100, -1), 1e-3, 1e-18);
  EXPECT_NEAR(rate("inverse_sqrt", 400, 100, -1), 0.5e-3, 1e-18);
  EXPECT_NEAR(rate("inverse_sqrt", 2500, 100, -1), 0.2e-3, 1e-18);  // beyond `steps`, too
  EXPECT_NEAR(rate("inverse_sqrt", 1000000, 100, -1), 1e-4, 1e-18);
  EXPECT_NEAR(rate("inverse_sqrt", 0, 0, -1), 1e-3, 1e-18);
  EXPECT_NEAR(rate("inverse_sqrt", 30000, 0, -1), 0.5e-3, 1e-18);
}

TEST(Meaning, AdamWFollowsPyTorch) {
  // torch.optim.AdamW([0.5], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1), gradients 0.3 and -0.7.
  AttrMap at = attrs({{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}});
  auto run = [&](Tensor p, double g, Tensor m, Tensor v, int64_t t, double scale = 1) {
    return evaluate(
        OpKind::adamw,
        {std::move(p), row({g}), std::move(m), std::move(v), Tensor::scalar(1e-2), step(t), Tensor::scalar(scale)}, at);
  };
  auto one = run(row({0.5}), 0.3, row({0}), row({0}), 0);
  EXPECT_NEAR(one[0].data[0], 0.4895000003333333, 1e-15);
  auto two = run(one[0], -0.7, one[1], one[2], 1);
  EXPECT_NEAR(two[0].data[0], 0.49317640654480926, 1e-15);
  EXPECT_NEAR(two[1].data[0], -0.04299999999999998, 1e-15);
  EXPECT_NEAR(two[2].data[0], 0.028775000000000026, 1e-15);
  // Clipping multiplies the gradient; a negative scale leaves all as it was, even where the gradient is not a number.
  EXPECT_EQ(run(row({0.5}), 0.6, row({0}), row({0}), 0, 0.5)[0].data[0], one[0].data[0]);
  auto skipped = run(one[0], NAN, one[1], one[2], 1, -1);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(skipped[i].data[0], one[i].data[0]);
}

TEST(Meaning, SgdFollowsPyTorch) {
  // torch.optim.SGD([0.5], lr=1e-2, momentum=0.9, weight_decay=0.1), gradients 0.3, -0.7, 0.2; with and without
  // nesterov.
  const double gradients[] = {0.3, -0.7, 0.2};
  const double heavy[] = {0.4965, 0.4998535, 0.5003717965}, ahead[] = {0.49335, 0.502877635, 0.5008410539935001};
  for (bool nesterov : {false, true}) {
    AttrMap at = attrs({{"momentum", 0.9}, {"nesterov", nesterov}, {"weight_decay", 0.1}});
    Tensor p = row({0.5}), m = row({0});
    for (int i = 0; i < 3; ++i) {
      // Clipping multiplies the gradient and not what decays.
      auto next = evaluate(OpKind::sgd, {p, row({gradients[i] * 2}), Tensor::scalar(1e-2), Tensor::scalar(0.5), m}, at);
      p = next[0], m = next[1];
      EXPECT_NEAR(p.data[0], (nesterov ? ahead : heavy)[i], 1e-15);
    }
    if (nesterov) {
      EXPECT_NEAR(m.data[0], -0.0518107364999999, 1e-15);
    }
    auto skipped = evaluate(OpKind::sgd, {p, row({NAN}), Tensor::scalar(1e-2), Tensor::scalar(-1), m}, at);
    EXPECT_EQ(skipped[0].data, p.data);
    EXPECT_EQ(skipped[1].data, m.data);
  }
  auto plain = evaluate(OpKind::sgd, {row({0.5}), row({0.3}), Tensor::scalar(1e-2), Tensor::scalar(1)});
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_NEAR(plain[0].data[0], 0.497, 1e-15);
}

/// Steps of Adafactor from the ops of which passes/optimizer.cpp makes it.
struct AdafactorSteps {
  Tensor p, v, column;
  void step(const Tensor &g, int64_t t, double scale) {
    const bool factored = p.type.rank() == 2;
    const Tensor factor = Tensor::scalar(scale), lr = Tensor::scalar(1e-2), now = conformance::step(t);
    auto one = [](OpKind kind, std::vector<Tensor> in, AttrMap at = {}) {
      return evaluate(kind, std::move(in), std::move(at))[0];
    };
    auto total = [&](const Tensor &x) {
      return x.type.isScalar() ? x : one(OpKind::reduce_sum, {x}, attrs({{"lead", int64_t(1)}}));
    };
    const int64_t rows = factored ? p.type.dim(0) : 1;
    auto squares = factored ? one(OpKind::row_squares, {g}) : one(OpKind::mul, {g, g});
    v = one(OpKind::adafactor_moment, {v, squares, factor, now}, attrs({{"count", factored ? p.type.dim(1) : 1}}));
    std::vector<Tensor> statistics = {v};
    if (factored) {
      column = one(OpKind::adafactor_moment, {column, one(OpKind::column_squares, {g}), factor, now},
                   attrs({{"count", rows}}));
      statistics.insert(statistics.end(), {column, total(v)});
    }
    std::vector<Tensor> in = {g, factor};
    in.insert(in.end(), statistics.begin(), statistics.end());
    const Tensor updates = total(one(OpKind::adafactor_squares, in, attrs({{"rows", rows}})));
    const Tensor size = one(OpKind::adafactor_size, {updates, lr, now, total(one(OpKind::row_squares, {p}))},
                            attrs({{"count", p.type.elements()}}));
    in = {p, g, factor, lr, size};
    in.insert(in.end(), statistics.begin(), statistics.end());
    p = one(OpKind::adafactor, in, attrs({{"rows", rows}, {"weight_decay", 0.1}}));
  }
};

TEST(Meaning, AdafactorFollowsPyTorch) {
  // torch.optim.Adafactor([P, V], lr=1e-2, eps=(2**-23, 1e-3), weight_decay=0.1) in float64.
  const Type matrix(DType::f32, {2, 3});
  AdafactorSteps P{Tensor(matrix, {0.5, -1.0, 0.25, 2.0, 0.125, -0.75}), row({0, 0}), row({0, 0, 0})};
  AdafactorSteps V{row({0.5, -0.25}), row({0, 0}), {}};
  const double wantP[3][6] = {{0.4866680860287424, -0.9885350639204855, 0.24663089540025143, 1.9969742949115359,
                               0.11591246480572971, -0.7342906659524993},
                              {0.4777045576243845, -0.9806333122012018, 0.2443237601974228, 1.994299732005745,
                               0.1098758331785205, -0.7236741250267703},
                              {0.47722685306676016, -0.9796526788890005, 0.24407943643722538, 1.9923054322737392,
                               0.10976595734534197, -0.7229504509017436}};
  const double wantV[3][2] = {{0.4955471529247895, -0.2457971529247895},
                              {0.49114019157008426, -0.24163994157008428},
                              {0.4867785956615637, -0.23752784591156373}};
  for (int t = 0; t < 3; ++t) {
    Tensor g(matrix, {0.3, -0.7, 0.1, 0.02, 0.5, -0.4}), h = row({0.3, -0.01});
    for (double &x : g.data)
      x *= 2 * (1 - 0.5 * t);  // halved again by the clipping
    for (double &x : h.data)
      x *= 2 * (1 + t);
    P.step(g, t, 0.5);
    V.step(h, t, 0.5);
    for (int i = 0; i < 6; ++i)
      EXPECT_NEAR(P.p.data[i], wantP[t][i], 1e-14) << t;
    for (int i = 0; i < 2; ++i)
      EXPECT_NEAR(V.p.data[i], wantV[t][i], 1e-14) << t;
  }
  EXPECT_NEAR(P.v.data[0], 0.06546356907690008, 1e-15);
  EXPECT_NEAR(P.v.data[1], 0.04553601482908439, 1e-15);
  EXPECT_NEAR(P.column.data[1], 0.12316027402603232, 1e-15);
  EXPECT_NEAR(V.v.data[1], 0.0005329512164250971, 1e-16);
}

TEST(Meaning, ClipScale) {
  auto scale = [](double norm, double max) {
    return evaluate(OpKind::clip_scale, {Tensor::scalar(norm)}, attrs({{"max", max}}))[0].data[0];
  };
  EXPECT_NEAR(scale(4, 1), 1 / 4.000001, 1e-15);
  EXPECT_EQ(scale(0.5, 1), 1);
  EXPECT_EQ(scale(4, 0), 1);
  EXPECT_EQ(scale(INFINITY, 1), -1);
  EXPECT_EQ(scale(NAN, 0), -1);
}

TEST(Meaning, DropoutDrawsAsItSays) {
  constexpr int64_t n = 20000;
  Tensor x(Type(DType::f32, {2, n}));
  std::fill(x.data.begin(), x.data.end(), 1.0);
  AttrMap at = attrs({{"p", 0.2}, {"stream", int64_t(7)}});
  auto run = [&](int64_t seed, int64_t step0, int64_t seq0) {
    return evaluate(OpKind::dropout, {x, step(seed), step(step0), step(seq0)}, at)[0].data;
  };
  std::vector<double> y = run(1, 2, 3);
  double sum = 0;
  for (double v : y) {
    ASSERT_TRUE(v == 0 || v == 1.25);
    sum += v;
  }
  EXPECT_NEAR(sum / double(2 * n), 1, 5 * 0.5 / std::sqrt(2.0 * n));
  // Sequence 4 looks the same whether it comes second in this batch or first in the next.
  std::vector<double> next = run(1, 2, 4);
  EXPECT_TRUE(std::equal(y.begin() + n, y.end(), next.begin()));
  EXPECT_NE(y, next);
  EXPECT_NE(y, run(1, 3, 3));
  EXPECT_NE(y, run(2, 2, 3));
}

/// Attention as a model without the op would write it.
std::string decomposition(bool causal) {
  return fmt::format(R"(
    func @f(%qkv: f32[2,5,54], %seed: i64[], %step: i64[], %seq0: i64[]) -> (f32[2,5,18], f32[2,5,18]) {{
      %o, %lse = attention %qkv, %seed, %step, %seq0 {{n_head=3, p=0.3, stream=5, causal={}}} : f32[2,5,18], f32[2,3,5]
      %q = slice %qkv {{dim=2, start=0, size=18}} : f32[2,5,18]
      %k = slice %qkv {{dim=2, start=18, size=18}} : f32[2,5,18]
      %v = slice %qkv {{dim=2, start=36, size=18}} : f32[2,5,18]
      %q4 = reshape %q : f32[2,5,3,6]
      %k4 = reshape %k : f32[2,5,3,6]
      %v4 = reshape %v : f32[2,5,3,6]
      %qt = transpose %q4 {{perm=[0,2,1,3]}} : f32[2,3,5,6]
      %kt = transpose %k4 {{perm=[0,2,1,3]}} : f32[2,3,5,6]
      %vt = transpose %v4 {{perm=[0,2,1,3]}} : f32[2,3,5,6]
      %raw = matmul %qt, %kt {{batch=2, tb=true}} : f32[2,3,5,5]
      %scale = constant {{value=0.40824829046386302}} : f32[]
      %scaled = mul %raw, %scale : f32[2,3,5,5]
      %masked = causal_mask %scaled : f32[2,3,5,5]
      %p = softmax {} : f32[2,3,5,5]
      %d = dropout %p, %seed, %step, %seq0 {{p=0.3, stream=5}} : f32[2,3,5,5]
      %ot = matmul %d, %vt {{batch=2}} : f32[2,3,5,6]
      %o4 = transpose %ot {{perm=[0,2,1,3]}} : f32[2,5,3,6]
      %o3 = reshape %o4 : f32[2,5,18]
      return %o, %o3
    }})",
                     causal, causal ? "%masked" : "%scaled");
}

TEST(Meaning, AttentionEqualsItsDecomposition) {
  for (bool causal : {true, false}) {
    auto m = parseModule(decomposition(causal), "attention.gir");
    ASSERT_EQ(verify(*m), std::vector<std::string>());
    StateMap none;
    std::vector<Tensor> args = {normals(Type(DType::f32, {2, 5, 54}), 3), step(11), step(12), step(13)};
    std::vector<Tensor> r = interpret(*m->function("f"), args, none);
    for (size_t i = 0; i < r[0].data.size(); ++i)
      ASSERT_NEAR(r[0].data[i], r[1].data[i], 1e-14) << i;
  }
}

TEST(Meaning, GroupedQueriesRepeatKeysAndValues) {
  // Two query heads on one key head, as if that head stood there twice.
  Tensor grouped = normals(Type(DType::f32, {1, 4, 4 * 3}), 1);
  Tensor repeated(Type(DType::f32, {1, 4, 6 * 3}));
  for (int t = 0; t < 4; ++t)
    for (int h = 0; h < 6; ++h)
      for (int c = 0; c < 3; ++c)
        repeated.data[(t * 6 + h) * 3 + c] = grouped.data[(t * 4 + (h < 2 ? h : h < 4 ? 2 : 3)) * 3 + c];
  auto a = evaluate(OpKind::attention, {grouped}, attrs({{"n_head", int64_t(2)}, {"n_kv_head", int64_t(1)}}));
  auto b = evaluate(OpKind::attention, {repeated}, attrs({{"n_head", int64_t(2)}}));
  EXPECT_EQ(a[0].data, b[0].data);
  EXPECT_EQ(a[1].data, b[1].data);
}

/// Tokens with a cache, some at once, then one at a time, get what attention gives them all at once.
void cacheContinues(int64_t window) {
  int64_t n = 6, width = 3 * 2 * 4;
  Tensor qkv = normals(Type(DType::f32, {1, n, width}), 2);
  AttrMap at = attrs({{"n_head", int64_t(2)}, {"window", window}, {"softcap", 1.5}});
  Tensor whole = evaluate(OpKind::attention, {qkv}, at)[0];
  Tensor k(Type(DType::f32, {2, 8, 4})), v = k;
  // Three tokens, then one at a time.
  for (auto [from, count] : {std::pair<int64_t, int64_t>{0, 3}, {3, 1}, {4, 1}, {5, 1}}) {
    Tensor part(Type(DType::f32, {1, count, width}),
                {qkv.data.begin() + from * width, qkv.data.begin() + (from + count) * width});
    auto r = evaluate(OpKind::attention_cached, {part, k, v, step(from)}, at);
    for (size_t i = 0; i < r[0].data.size(); ++i)
      ASSERT_NEAR(r[0].data[i], whole.data[size_t(from) * 8 + i], 1e-14);
    k = r[1], v = r[2];
  }
}

// What is in a cache of 8 bits is what a token sees of another, in one call with it or in a later one.
TEST(Meaning, ACacheOf8BitsIsReadAsItIsKept) {
  const int64_t n = 5, width = 4 * 32;  // two heads of queries, one of keys and values
  const AttrMap at = attrs({{"n_head", int64_t(2)}, {"n_kv_head", int64_t(1)}});
  const Tensor qkv = normals(Type(DType::f32, {1, n, width}), 2);
  const Tensor numbers(Type(DType::u32, {1, 8, 8})), scales(Type(DType::f16, {1, 8, 1}));
  const auto whole = evaluate(OpKind::attention_cached, {qkv, numbers, numbers, step(0), scales, scales}, at);
  Tensor k = numbers, v = numbers, ks = scales, vs = scales;
  for (auto [from, count] : {std::pair<int64_t, int64_t>{0, 2}, {2, 1}, {3, 2}}) {
    const Tensor part(Type(DType::f32, {1, count, width}),
                      {qkv.data.begin() + from * width, qkv.data.begin() + (from + count) * width});
    auto r = evaluate(OpKind::attention_cached, {part, k, v, step(from), ks, vs}, at);
    for (size_t i = 0; i < r[0].data.size(); ++i)
      ASSERT_EQ(r[0].data[i], whole[0].data[size_t(from) * 64 + i]);
    k = r[1], v = r[2], ks = r[3], vs = r[4];
  }
  for (size_t i = 1; i < 5; ++i)
    EXPECT_EQ((i == 1 ? k : i == 2 ? v : i == 3 ? ks : vs).data, whole[i].data) << i;
  // By hand: the first token sees its own value, in steps of a 127th of the largest element.
  double most = 0;
  for (int64_t d = 0; d < 32; ++d)
    most = std::max(most, std::fabs(qkv.data[size_t(96 + d)]));
  for (int64_t d = 0; d < 32; ++d) {
    const double steps = whole[0].data[size_t(d)] / whole[4].data[0];
    EXPECT_NEAR(steps, std::round(steps), 1e-9) << d;
    EXPECT_NEAR(whole[0].data[size_t(d)], qkv.data[size_t(96 + d)], most / 127 * 0.5005) << d;
  }
  EXPECT_NEAR(whole[4].data[0], most / 127, most / 127 * 0x1p-11);
}

// As Gemma 2 has it: the scale is given, scores are capped, and a query sees the last keys only, itself among them.
TEST(Meaning, ScaleCapAndWindowEqualTheirDecomposition) {
  auto m = parseModule(R"(
    func @f(%qkv: f32[2,5,54]) -> (f32[2,5,18], f32[2,5,18]) {
      %o, %lse = attention %qkv {n_head=3, scale=0.3, softcap=0.7, window=2} : f32[2,5,18], f32[2,3,5]
      %q = slice %qkv {dim=2, start=0, size=18} : f32[2,5,18]
      %k = slice %qkv {dim=2, start=18, size=18} : f32[2,5,18]
      %v = slice %qkv {dim=2, start=36, size=18} : f32[2,5,18]
      %q4 = reshape %q : f32[2,5,3,6]
      %k4 = reshape %k : f32[2,5,3,6]
      %v4 = reshape %v : f32[2,5,3,6]
      %qt = transpose %q4 {perm=[0,2,1,3]} : f32[2,3,5,6]
      %kt = transpose %k4 {perm=[0,2,1,3]} : f32[2,3,5,6]
      %vt = transpose %v4 {perm=[0,2,1,3]} : f32[2,3,5,6]
      %raw = matmul %qt, %kt {batch=2, tb=true} : f32[2,3,5,5]
      %scale = constant {value=0.3} : f32[]
      %scaled = mul %raw, %scale : f32[2,3,5,5]
      %cap = constant {value=0.7} : f32[]
      %caps = div %scaled, %cap : f32[2,3,5,5]
      %t = tanh %caps : f32[2,3,5,5]
      %capped = mul %t, %cap : f32[2,3,5,5]
      %masked = causal_mask %capped {window=2} : f32[2,3,5,5]
      %p = softmax %masked : f32[2,3,5,5]
      %ot = matmul %p, %vt {batch=2} : f32[2,3,5,6]
      %o4 = transpose %ot {perm=[0,2,1,3]} : f32[2,5,3,6]
      %o3 = reshape %o4 : f32[2,5,18]
      return %o, %o3
    })",
                       "attention.gir");
  ASSERT_EQ(verify(*m), std::vector<std::string>());
  StateMap none;
  std::vector<Tensor> args = {normals(Type(DType::f32, {2, 5, 54}), 3)};
  std::vector<Tensor> r = interpret(*m->function("f"), args, none);
  for (size_t i = 0; i < r[0].data.size(); ++i)
    ASSERT_NEAR(r[0].data[i], r[1].data[i], 1e-14) << i;
  // By hand: row 3 sees keys 2 and 3.
  const std::vector<double> y = evaluate(OpKind::causal_mask, {normals(Type(DType::f32, {4, 4}), 1)},
                                         attrs({{"window", int64_t(2)}, {"value", 9.0}}))[0]
                                    .data;
  for (int i = 0; i < 16; ++i)
    EXPECT_EQ(y[i] == 9.0, i % 4 > i / 4 || i % 4 < i / 4 - 1) << i;
}

// Without a causal mask a window reaches as far to both sides, as in ModernBERT, and ends with its document.
TEST(Meaning, WindowsOfEncodersReachToBothSides) {
  auto m = parseModule(R"(
    func @f(%qkv: f32[1,7,18], %documents: i64[1,7,2]) -> (f32[1,7,6], f32[1,7,6], f32[1,7,6]) {
      %o, %lse = attention %qkv {causal=false, n_head=1, window=3} : f32[1,7,6], f32[1,1,7]
      %od, %lsed = attention %qkv, %documents {causal=false, documents=true, n_head=1, window=3} : f32[1,7,6], f32[1,1,7]
      %q = slice %qkv {dim=2, start=0, size=6} : f32[1,7,6]
      %k = slice %qkv {dim=2, start=6, size=6} : f32[1,7,6]
      %v = slice %qkv {dim=2, start=12, size=6} : f32[1,7,6]
      %raw = matmul %q, %k {batch=1, tb=true} : f32[1,7,7]
      %scale = constant {value=0.4082482904638630} : f32[]
      %scaled = mul %raw, %scale : f32[1,7,7]
      %masked = causal_mask %scaled {two_sided=true, window=3} : f32[1,7,7]
      %p = softmax %masked : f32[1,7,7]
      %o3 = matmul %p, %v {batch=1} : f32[1,7,6]
      return %o, %od, %o3
    })",
                       "attention.gir");
  ASSERT_EQ(verify(*m), std::vector<std::string>());
  StateMap none;
  Tensor whole(Type(DType::i64, {1, 7, 2})), parts = whole;
  for (size_t i = 0; i < 7; ++i) {
    whole.data[2 * i + 1] = 7;
    parts.data[2 * i] = i < 4 ? 0 : 4;
    parts.data[2 * i + 1] = i < 4 ? 4 : 7;
  }
  const Tensor qkv = normals(Type(DType::f32, {1, 7, 18}), 3);
  const std::vector<Tensor> one = interpret(*m->function("f"), std::vector<Tensor>{qkv, whole}, none),
                            two = interpret(*m->function("f"), std::vector<Tensor>{qkv, parts}, none);
  for (size_t i = 0; i < one[0].data.size(); ++i) {
    ASSERT_NEAR(one[0].data[i], one[2].data[i], 1e-14) << i;
    ASSERT_NEAR(one[1].data[i], one[2].data[i], 1e-14) << i;
    // Tokens 0, 1 and 6 see none of the other document.
    const size_t row = i / 6;
    if (row < 2 || row == 6)
      ASSERT_NEAR(two[1].data[i], one[2].data[i], 1e-14) << i;
    else
      ASSERT_GT(std::abs(two[1].data[i] - one[2].data[i]), 1e-6) << i;
  }
  const std::vector<double> y = evaluate(OpKind::causal_mask, {normals(Type(DType::f32, {5, 5}), 1)},
                                         attrs({{"window", int64_t(2)}, {"two_sided", true}, {"value", 9.0}}))[0]
                                    .data;
  for (int i = 0; i < 25; ++i)
    EXPECT_EQ(y[i] == 9.0, std::abs(i % 5 - i / 5) > 1) << i;
}

TEST(Meaning, CacheContinuesWhatAttentionDoesAtOnce) {
  for (int64_t window : {0, 3}) {
    SCOPED_TRACE(window);
    cacheContinues(window);
  }
}

TEST(Meaning, IntegersWrap) {
  Type i32(DType::i32, {2});
  EXPECT_EQ(evaluate(OpKind::add, {Tensor(i32, {2147483647, -5}), Tensor(i32, {1, 3})})[0].data,
            (std::vector<double>{-2147483648.0, -2}));
  EXPECT_EQ(evaluate(OpKind::mul, {Tensor(i32, {65536, 3}), Tensor(i32, {65537, -4})})[0].data,
            (std::vector<double>{65536, -12}));
}

TEST(Meaning, EmbeddingGradientKeepsThePaddingOfItsTable) {
  Type table(DType::f32, {Dim(5, 8), 3}), ids(DType::i32, {4});
  OneOp one = makeOneOp(opDef(OpKind::embedding), {.operandTypes = {table, ids}}, 1);
  Builder b(one.f->body, one.f->body.back());
  Value *dy[] = {b.constant(1, one.op->result()->type)};
  GradCtx c{b, *one.op, dy};
  EXPECT_EQ(opDef(OpKind::embedding).grad(c)[0]->type.str(), table.str());
}

}  // namespace
}  // namespace gptc::conformance
