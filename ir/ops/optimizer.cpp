// The optimizer: learning rate, clipping, AdamW, SGD (Adafactor: adafactor.cpp). All are ops of the graph without
// gradients.
//
// Values that depend only on the step (learning rate, bias corrections) are computed in f64 even in f32 kernels: at
// small t, 1 - beta^t loses half of f32's digits. They are uniform, so that they are computed once per kernel task, not
// per element.
#include "ir/ops/op_support.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace gptc {
using namespace ops;
using kir::BinaryOp;
using kir::Expr;
using kir::UnaryOp;

namespace {

// Loss scaling as in PyTorch's GradScaler. Within these bounds the factor is a power of two far from the limits of f32.
constexpr int64_t goodSteps = 2000;
constexpr double leastLossScale = 1, mostLossScale = 0x1p24;

constexpr NotApplicable notDifferentiated{"the optimizer runs after the gradients"};

Expr d(double v) { return kir::fimm(v, DType::f64); }

// ---- learning rate --------------------------------------------------------------------------------------------------

/// The schedule of one op. With it = step:
///   it < warmup   lr * (it+1) / (warmup+1), as nanoGPT does
///   constant      lr
///   linear        from lr at `warmup` down to min at `steps`, min beyond
///   cosine        the same, along half a cosine (Loshchilov & Hutter 2017)
///   wsd           warm-up, stable, decay: lr, then linear over the last `decay` steps (Hu et al. 2024), which are a
///                 fifth of all unless the attribute says otherwise
///   inverse_sqrt  lr * sqrt(T / (it - warmup + T)), at least min, with T = warmup, or 10000 without a warm-up (Vaswani
///                 et al. 2017; T as in get_inverse_sqrt_schedule of transformers); `steps` does not matter
/// where min = lr * min_ratio.
struct LrSchedule {
  std::string kind;
  double lr, least;
  int64_t warmup, steps, decay, decayFrom;

  explicit LrSchedule(const Op &op)
      : kind(op.attrs.getString("kind", "constant")), lr(op.attrs.getFloat("lr")),
        least(lr * op.attrs.getFloat("min_ratio")), warmup(op.attrs.getInt("warmup")), steps(op.attrs.getInt("steps")),
        decay(op.attrs.getInt("decay", -1)),
        decayFrom(kind == "wsd" ? std::max(warmup, steps - (decay < 0 ? steps / 5 : decay)) : warmup) {}
  /// The number of steps in which the rate falls.
  double decaySteps() const { return double(std::max<int64_t>(1, steps - decayFrom)); }
  /// T of inverse_sqrt.
  double timescale() const { return double(warmup > 0 ? warmup : 10000); }
};

std::string checkLrSchedule(const Op &op) {
  LrSchedule s(op);
  constexpr int64_t most = int64_t(1) << 40;
  double ratio = op.attrs.getFloat("min_ratio");
  if (s.kind != "constant" && s.kind != "linear" && s.kind != "cosine" && s.kind != "wsd" && s.kind != "inverse_sqrt")
    return fmt::format("kind {:?} is none of constant, linear, cosine, wsd, inverse_sqrt", s.kind);
  if (!std::isfinite(s.lr) || s.lr < 0)
    return fmt::format("lr = {} must be finite and not negative", s.lr);
  if (!(ratio >= 0 && ratio <= 1))
    return fmt::format("min_ratio = {} must be between 0 and 1", ratio);
  if (s.warmup < 0 || s.warmup > most || s.steps < 0 || s.steps > most)
    return fmt::format("warmup = {} and steps = {} must be between 0 and 2^40", s.warmup, s.steps);
  if (s.decay < -1 || s.decay > most)
    return fmt::format("decay = {} must be between 0 and 2^40, or -1 for a fifth of steps", s.decay);
  return "";
}

std::vector<Tensor> referenceLrSchedule(const Op &op, std::span<const Tensor *const> in) {
  LrSchedule s(op);
  double it = in[0]->data[0], rate = s.lr;
  if (it < double(s.warmup)) {
    rate = s.lr * (it + 1) / double(s.warmup + 1);
  } else if (s.kind == "inverse_sqrt") {
    rate = std::max(s.least, s.lr * std::sqrt(s.timescale() / (it - double(s.warmup) + s.timescale())));
  } else if (s.kind != "constant") {
    double ratio = std::clamp((it - double(s.decayFrom)) / s.decaySteps(), 0.0, 1.0);
    double left = s.kind == "cosine" ? 0.5 * (1.0 + std::cos(std::numbers::pi * ratio)) : 1.0 - ratio;
    rate = s.least + left * (s.lr - s.least);
  }
  return {Tensor::scalar(rate, op.result()->type.dtype)};
}

std::vector<Expr> lowerLrSchedule(LowerCtx &c) {
  LrSchedule s(c.op);
  Expr step = c.operand(0), it = kir::cast(DType::f64, step), rate = d(s.lr);
  if (s.kind == "inverse_sqrt") {
    Expr since = kir::max(it - d(double(s.warmup)), d(0)) + d(s.timescale());
    rate = kir::max(d(s.least), d(s.lr) * kir::unary(UnaryOp::sqrt, d(s.timescale()) / since));
  } else if (s.kind != "constant") {
    Expr ratio = kir::cast(DType::f64, step - kir::imm(s.decayFrom)) * d(1.0 / s.decaySteps());
    ratio = kir::min(kir::max(ratio, d(0)), d(1));
    Expr left =
        s.kind == "cosine" ? d(0.5) * (d(1) + kir::unary(UnaryOp::cos, d(std::numbers::pi) * ratio)) : d(1) - ratio;
    rate = d(s.least) + left * d(s.lr - s.least);
  }
  Expr rising = (it + d(1)) * d(s.lr / double(s.warmup + 1));
  return {kir::cast(c.compute(), kir::select(kir::lt(step, kir::imm(s.warmup)), rising, rate))};
}

// ---- AdamW ----------------------------------------------------------------------------------------------------------

struct Adam {
  double beta1, beta2, eps, decay;
  explicit Adam(const Op &op)
      : beta1(op.attrs.getFloat("beta1", 0.9)), beta2(op.attrs.getFloat("beta2", 0.999)),
        eps(op.attrs.getFloat("eps", 1e-8)), decay(op.attrs.getFloat("weight_decay", 0)) {}
};

// Stochastic rounding to bf16 (Gupta et al. 2015, "Deep learning with limited numerical precision"). The 16 bits that
// bf16 drops are a fraction f of its last place; the magnitude grows by one place with probability f: 16 random bits
// are added to the f32 and the lower half is cut off. The mean is exact, while rounding to nearest would lose every
// change below half a place: at beta2 = 0.999 a second moment would never fall. The bits of element i are those of
// random(seed, step, stream, sequence 0, index0 + i): the upper half for m, the lower for v. index0 is 0 unless the
// parameter is a rank's piece: then along "data" the index at which the piece begins in the whole, along "tensor" the
// number of elements of the ranks before.

constexpr uint32_t keptHalf = 0xffff0000;

Expr roundStochastically(const Expr &x, const Expr &bits16) {
  Expr b = kir::bitcast(DType::u32, x) + bits16;
  return kir::bitcast(DType::f32, kir::binary(BinaryOp::and_, b, kir::imm(keptHalf, DType::u32)));
}

double roundStochastically(double x, uint32_t bits16) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(float(x)) + bits16) & keptHalf);
}

/// Whether an update rounds that moment stochastically.
bool roundsStochastically(const Op &op, unsigned moment) {
  return takesSeed(op) && op.operand(moment)->type.dtype == DType::bf16;
}

/// The random bits of the current element of an update. `step` and `seed` are operand indices; index0 may follow seed.
Expr roundingBits(LowerCtx &c, unsigned step, unsigned seed) {
  const Type &type = c.op.operand(0)->type;
  std::vector<Expr> at = c.index();
  Expr i = kir::imm(0);
  for (unsigned d = 0; d < type.rank(); ++d)
    i = i * type.dim(int(d)) + at[d];
  if (seed + 1 < c.op.numOperands())
    i = c.operand(seed + 1) + i;
  else if (type.elements() <= int64_t(1) << 32)
    i = kir::cast(DType::u32, i);
  return randomBitsExpr(randomKeyExpr(c.operand(seed), c.operand(step), c.stream(), kir::imm(0)), i);
}

/// roundingBits for reference rules, by the element's index.
class RoundingBits {
public:
  RoundingBits(const Op &op, std::span<const Tensor *const> in, size_t step, size_t seed) {
    if (seed >= in.size())
      return;
    auto word = [&](size_t i) { return uint64_t(int64_t(in[i]->data[0])); };
    key = randomKey(word(seed), word(step), uint32_t(op.attrs.getInt("stream")), 0);
    index0 = seed + 1 < in.size() ? word(seed + 1) : 0;
  }
  uint32_t operator()(size_t i) const { return randomBits(key, index0 + i); }

private:
  RandomKey key{};
  uint64_t index0 = 0;
};

/// Type rule for the optional operands of an update from `step` on: step, seed, index0.
bool expectRounding(const Op &op, unsigned step, std::string &error) {
  for (unsigned i = step; i < op.numOperands(); ++i)
    if (!expectScalar(op, i, DType::i64, error))
      return false;
  return true;
}

/// Check rule of an update: weight_decay must be finite and not negative, stream a u32.
std::string checkUpdate(const Op &op) {
  if (double decay = op.attrs.getFloat("weight_decay"); !(std::isfinite(decay) && decay >= 0))
    return fmt::format("weight_decay = {} must be finite and not negative", decay);
  if (int64_t stream = op.attrs.getInt("stream"); stream < 0 || stream > UINT32_MAX)
    return fmt::format("stream = {} must be a u32", stream);
  return "";
}

/// 1 - beta^t; a case of its own for beta = 0, which has no logarithm.
Expr biasCorrection(double beta, const Expr &t) {
  return beta == 0 ? d(1) : d(1) - kir::unary(UnaryOp::exp, t * d(std::log(beta)));
}

std::vector<Expr> lowerAdamW(LowerCtx &c) {
  Adam a(c.op);
  Expr p = c.operand(0), g = c.operand(1), m = c.operand(2), v = c.operand(3);
  Expr lr = c.operand(4), step = c.operand(5), scale = c.operand(6);
  auto narrow = [&](Expr e) { return kir::cast(c.compute(), std::move(e)); };
  Expr t = kir::cast(DType::f64, step + 1), wideLr = kir::cast(DType::f64, lr);
  Expr size = narrow(wideLr / biasCorrection(a.beta1, t));
  Expr spread = narrow(d(1) / kir::unary(UnaryOp::sqrt, biasCorrection(a.beta2, t)));
  Expr keep = narrow(d(1) - wideLr * d(a.decay));

  Expr grad = g * scale;
  Expr m1 = kir::fma(m, c.f(a.beta1), grad * c.f(1 - a.beta1));
  Expr v1 = kir::fma(v, c.f(a.beta2), grad * grad * c.f(1 - a.beta2));
  Expr update = size * m1 / kir::fma(kir::unary(UnaryOp::sqrt, v1), spread, c.f(a.eps));
  Expr p1 = kir::fma(p, keep, -update);
  if (c.compute() == DType::f32 && (roundsStochastically(c.op, 2) || roundsStochastically(c.op, 3))) {
    Expr bits = roundingBits(c, 5, 7);
    if (roundsStochastically(c.op, 2))
      m1 = roundStochastically(m1, kir::binary(BinaryOp::shr, bits, kir::imm(16, DType::u32)));
    if (roundsStochastically(c.op, 3))
      v1 = roundStochastically(v1, kir::binary(BinaryOp::and_, bits, kir::imm(0xffff, DType::u32)));
  }
  Expr skip = kir::lt(scale, c.f(0)), next = kir::select(skip, p, p1);
  std::vector<Expr> results = {next, kir::select(skip, m, m1), kir::select(skip, v, v1)};
  if (lowCopyOf(c.op))
    results.push_back(next);
  return results;
}

std::vector<Tensor> referenceAdamW(const Op &op, std::span<const Tensor *const> in) {
  Adam a(op);
  Tensor p = *in[0], m = *in[2], v = *in[3];
  double lr = in[4]->data[0], t = in[5]->data[0] + 1, scale = in[6]->data[0];
  const RoundingBits random(op, in, 5, 7);
  for (size_t i = 0; i < p.data.size() && scale >= 0; ++i) {
    double g = in[1]->data[i] * scale;
    m.data[i] = a.beta1 * m.data[i] + (1 - a.beta1) * g;
    v.data[i] = a.beta2 * v.data[i] + (1 - a.beta2) * g * g;
    double mhat = m.data[i] / (1 - std::pow(a.beta1, t)), vhat = v.data[i] / (1 - std::pow(a.beta2, t));
    p.data[i] -= lr * a.decay * p.data[i] + lr * mhat / (std::sqrt(vhat) + a.eps);
    if (in.size() > 7) {
      uint32_t bits = random(i);
      if (roundsStochastically(op, 2))
        m.data[i] = roundStochastically(m.data[i], bits >> 16);
      if (roundsStochastically(op, 3))
        v.data[i] = roundStochastically(v.data[i], bits & 0xffff);
    }
  }
  std::vector<Tensor> results = {p, std::move(m), std::move(v)};
  if (std::optional<DType> low = lowCopyOf(op))
    results.push_back(Tensor(p.type.withDType(*low), p.data));
  return results;
}

// ---- SGD ------------------------------------------------------------------------------------------------------------

struct Sgd {
  double momentum, decay;
  bool nesterov, moment;
  explicit Sgd(const Op &op)
      : momentum(op.attrs.getFloat("momentum")), decay(op.attrs.getFloat("weight_decay")),
        nesterov(op.attrs.getBool("nesterov")), moment(op.numOperands() > 4) {}
};

std::vector<Expr> lowerSgd(LowerCtx &c) {
  Sgd a(c.op);
  Expr p = c.operand(0), lr = c.operand(2), scale = c.operand(3);
  Expr grad = c.operand(1) * scale;
  if (a.decay != 0)
    grad = kir::fma(p, c.f(a.decay), grad);
  Expr skip = kir::lt(scale, c.f(0)), direction = grad;
  std::vector<Expr> moments;
  if (a.moment) {
    Expr m = c.operand(4), m1 = kir::fma(m, c.f(a.momentum), grad);
    direction = a.nesterov ? kir::fma(m1, c.f(a.momentum), grad) : m1;
    if (c.compute() == DType::f32 && roundsStochastically(c.op, 4))
      m1 = roundStochastically(m1, kir::binary(BinaryOp::shr, roundingBits(c, 5, 6), kir::imm(16, DType::u32)));
    moments.push_back(kir::select(skip, m, m1));
  }
  Expr next = kir::select(skip, p, kir::fma(direction, -lr, p));
  std::vector<Expr> results = {next};
  results.insert(results.end(), moments.begin(), moments.end());
  if (lowCopyOf(c.op))
    results.push_back(next);
  return results;
}

std::vector<Tensor> referenceSgd(const Op &op, std::span<const Tensor *const> in) {
  Sgd a(op);
  Tensor p = *in[0], m;
  const double lr = in[2]->data[0], scale = in[3]->data[0];
  if (a.moment)
    m = *in[4];
  const RoundingBits random(op, in, 5, 6);
  for (size_t i = 0; i < p.data.size() && scale >= 0; ++i) {
    double g = in[1]->data[i] * scale + a.decay * p.data[i];
    if (a.moment) {
      m.data[i] = a.momentum * m.data[i] + g;
      g = a.nesterov ? g + a.momentum * m.data[i] : m.data[i];
      if (roundsStochastically(op, 4))
        m.data[i] = roundStochastically(m.data[i], random(i) >> 16);
    }
    p.data[i] -= lr * g;
  }
  std::vector<Tensor> results = {p};
  if (a.moment)
    results.push_back(std::move(m));
  if (std::optional<DType> low = lowCopyOf(op))
    results.push_back(Tensor(p.type.withDType(*low), p.data));
  return results;
}

}  // namespace

bool updatesParameter(const Op &op) { return op.isOneOf(OpKind::adamw, OpKind::sgd, OpKind::adafactor); }

bool takesSeed(const Op &update) {
  const auto seed = update.def().operandIndex("seed");
  return seed && *seed < update.numOperands();
}

std::optional<DType> lowCopyOf(const Op &update) { return parseDType(update.attrs.getString("low")); }

bool ops::addLowCopy(const Op &op, std::vector<Type> &types, std::string &error) {
  const std::string low = op.attrs.getString("low");
  if (low.empty())
    return true;
  if (!lowCopyOf(op) || !isArithmetic(*lowCopyOf(op)))
    return fail(error, "low = {:?} is no float dtype", low);
  types.push_back(op.operand(0)->type.withDType(*lowCopyOf(op)));
  return true;
}

OpDef define_lr_schedule() {
  return {
      .kind = OpKind::lr_schedule,
      .name = "lr_schedule",
      .summary = "learning rate of a step: warm-up lr*(step+1)/(warmup+1), then constant, linear or cosine down to "
                 "lr*min_ratio at `steps`, wsd: linear over the last `decay` steps, a fifth if that is -1, or "
                 "inverse_sqrt: with the root of the steps",
      .shapes = "step i64[] -> lr f32[]",
      .operands = {{"step"}},
      .attrs = {{AttrSpec::String, "kind", false, std::string("constant")},
                {AttrSpec::Float, "lr", true, 0.0},
                {AttrSpec::Int, "warmup", false, int64_t(0)},
                {AttrSpec::Int, "steps", false, int64_t(0)},
                {AttrSpec::Float, "min_ratio", false, 0.0},
                {AttrSpec::Int, "decay", false, int64_t(-1)}},
      .results = {"lr"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = ofScalars,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectScalar(op, 0, DType::i64, error))
              return false;
            types = {Type::scalar(DType::f32)};
            return true;
          },
      .check = checkLrSchedule,
      .grad = notDifferentiated,
      .cost = [](const Op &op) { return streamCost(op, 20); },
      .reference = referenceLrSchedule,
      .lower = lowerLrSchedule,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (const char *kind : {"constant", "linear", "cosine", "wsd", "inverse_sqrt"})
          for (int64_t step :
               {int64_t(0), s.between(0, 9), s.between(10, 80), s.between(80, 99), int64_t(100), int64_t(250)})
            samples.push_back({.operandTypes = {Type::scalar(DType::i64)},
                               .attrs = attrs({{"kind", kind},
                                               {"lr", 1e-3},
                                               {"warmup", step % 3 ? int64_t(10) : int64_t(0)},
                                               {"steps", int64_t(100)},
                                               {"min_ratio", 0.1},
                                               {"decay", step % 2 ? int64_t(35) : int64_t(-1)}}),
                               .operandValues = {Tensor::scalar(double(step), DType::i64)}});
        return samples;
      },
  };
}

OpDef define_clip_scale() {
  return {
      .kind = OpKind::clip_scale,
      .name = "clip_scale",
      .summary = "factor that clips gradients of that norm: min(1, max / (norm + 1e-6)), 1 where max <= 0, -1 where "
                 "norm is not finite",
      .shapes = "norm f32[] -> scale f32[]",
      .operands = {{"norm"}},
      .attrs = {{AttrSpec::Float, "max", true, 1.0}},
      .results = {"scale"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = ofScalars,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectScalar(op, 0, DType::f32, error))
              return false;
            types = {Type::scalar(DType::f32)};
            return true;
          },
      .check = [](const Op &op) -> std::string {
        double max = op.attrs.getFloat("max");
        return std::isfinite(max) ? "" : fmt::format("max = {} must be finite", max);
      },
      .grad = notDifferentiated,
      .cost = [](const Op &op) { return streamCost(op, 4); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        double norm = in[0]->data[0], max = op.attrs.getFloat("max");
        double scale = max > 0 ? std::min(1.0, max / (norm + 1e-6)) : 1.0;
        return {Tensor::scalar(std::isfinite(norm) ? scale : -1.0)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr norm = c.operand(0);
        double max = c.op.attrs.getFloat("max");
        Expr scale = max > 0 ? kir::min(c.f(1), c.f(max) / (norm + c.f(1e-6))) : c.f(1);
        // infinity - infinity is NaN, which compares unequal to 0.
        Expr finite = kir::binary(BinaryOp::eq, norm - norm, c.f(0));
        return {kir::select(finite, scale, c.f(-1))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (double norm : {0.0, s.uniform(0, 1), s.uniform(1, 100), double(INFINITY), double(NAN)})
          for (double max : {1.0, 0.0})
            samples.push_back({.operandTypes = {Type::scalar(DType::f32)},
                               .attrs = attrs({{"max", max}}),
                               .operandValues = {Tensor::scalar(norm)}});
        return samples;
      },
  };
}

OpDef define_next_loss_scale() {
  return {
      .kind = OpKind::next_loss_scale,
      .name = "next_loss_scale",
      .summary =
          "halved, to 1 at least, and 0 good steps where norm is not finite; doubled, to 2^24 at most, and 0 at the "
          "2000th good step in a row; else scale and good+1",
      .shapes = "scale f32[], good i64[], norm f32[] -> scale, good",
      .operands = {{"scale"}, {"good"}, {"norm"}},
      .attrs = {},
      .results = {"scale", "good"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = ofScalars,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectScalar(op, 0, DType::f32, error) || !expectScalar(op, 1, DType::i64, error) ||
                !expectScalar(op, 2, DType::f32, error))
              return false;
            types = {Type::scalar(DType::f32), Type::scalar(DType::i64)};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = notDifferentiated,
      .cost = [](const Op &op) { return streamCost(op, 4); },
      .reference = [](const Op &, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        double scale = in[0]->data[0], good = in[1]->data[0] + 1;
        if (!std::isfinite(in[2]->data[0]))
          scale = std::max(scale / 2, leastLossScale), good = 0;
        else if (good >= double(goodSteps))
          scale = std::min(scale * 2, mostLossScale), good = 0;
        return {Tensor::scalar(scale), Tensor::scalar(good, DType::i64)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr scale = c.operand(0), good = c.operand(1) + 1, norm = c.operand(2);
        Expr finite = kir::binary(BinaryOp::eq, norm - norm, c.f(0));
        Expr grows = kir::binary(BinaryOp::ge, good, kir::imm(goodSteps));
        Expr up = kir::select(grows, kir::min(scale * c.f(2), c.f(mostLossScale)), scale);
        Expr next = kir::select(finite, up, kir::max(scale * c.f(0.5), c.f(leastLossScale)));
        Expr keeps = kir::binary(BinaryOp::and_, finite, kir::lt(good, kir::imm(goodSteps)));
        return {next, kir::select(keeps, good, kir::imm(0))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (double norm : {s.uniform(0, 10), double(INFINITY), double(NAN)})
          for (int64_t good : {s.between(0, 1998), goodSteps - 1})
            samples.push_back(
                {.operandTypes = {Type::scalar(DType::f32), Type::scalar(DType::i64), Type::scalar(DType::f32)},
                 .operandValues = {Tensor::scalar(seed % 2   ? 65536.0
                                                  : seed % 4 ? leastLossScale
                                                             : mostLossScale),
                                   Tensor::scalar(double(good), DType::i64), Tensor::scalar(norm)}});
        return samples;
      },
  };
}

OpDef define_adamw() {
  return {
      .kind = OpKind::adamw,
      .name = "adamw",
      .summary =
          "one step of AdamW (Loshchilov & Hutter 2019) with gradient g*scale, t = step+1, decoupled decay; nothing "
          "changes where scale < 0. Moments in bf16 are rounded by the halves of random(seed, step, stream, 0, "
          "index0+i); low names the dtype of a copy of p",
      .shapes = "p, g, m, v of one shape, lr, step, scale[, seed[, index0]] -> p, m, v[, low]",
      .operands = {{"p"}, {"g"}, {"m"}, {"v"}, {"lr"}, {"step"}, {"scale"}, {"seed", true}, {"index0", true}},
      .attrs = {{AttrSpec::Float, "beta1", false, 0.9},
                {AttrSpec::Float, "beta2", false, 0.999},
                {AttrSpec::Float, "eps", false, 1e-8},
                {AttrSpec::Float, "weight_decay", false, 0.0},
                {AttrSpec::Int, "stream", false, int64_t(0)},
                {AttrSpec::String, "low", false, std::string()}},
      .results = {"p", "m", "v", "low"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &p = op.operand(0)->type;
            if (!expectFloat(op, 0, error))
              return false;
            for (unsigned i : {1u, 2u, 3u})
              if (!expectType(op, i, p.withDType(op.operand(i)->type.dtype), "the shape of p", error) ||
                  !expectFloat(op, i, error))
                return false;
            if (!expectScalar(op, 4, DType::f32, error) || !expectScalar(op, 5, DType::i64, error) ||
                !expectScalar(op, 6, DType::f32, error) || !expectRounding(op, 7, error))
              return false;
            types = {p, op.operand(2)->type, op.operand(3)->type};
            return addLowCopy(op, types, error);
          },
      .check = [](const Op &op) -> std::string {
        Adam a(op);
        for (double beta : {a.beta1, a.beta2})
          if (!(beta >= 0 && beta < 1))
            return fmt::format("beta = {} must be at least 0 and below 1", beta);
        if (!(std::isfinite(a.eps) && a.eps >= 0))
          return fmt::format("eps = {} must be finite and not negative", a.eps);
        return checkUpdate(op);
      },
      .grad = notDifferentiated,
      .cost = [](const Op &op) { return streamCost(op, 16); },
      .reference = referenceAdamW,
      .lower = lowerAdamW,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (double scale : {1.0, 0.3, -1.0}) {
          Type p(DType::f32, {s.extent(9), s.maybePadded(s.extent(129))}), scalar = Type::scalar(DType::f32);
          if (scale == 0.3)
            p = scalar;
          samples.push_back(
              {.operandTypes = {p, p, p, p, scalar, Type::scalar(DType::i64), scalar},
               .attrs = attrs({{"beta1", seed % 4 ? 0.9 : 0.0}, {"beta2", 0.99}, {"eps", 1e-8}, {"weight_decay", 0.1}}),
               .operandValues = {s.normals(p), s.normals(p), s.normals(p), s.uniforms(p, 0.1, 2.0),
                                 Tensor::scalar(1e-3), Tensor::scalar(double(s.between(0, 5000)), DType::i64),
                                 Tensor::scalar(scale)}});
        }
        return samples;
      },
  };
}

OpDef define_sgd() {
  return {
      .kind = OpKind::sgd,
      .name = "sgd",
      .summary =
          "one step of torch.optim.SGD with gradient g*scale, to which decay is added; nothing changes where scale < "
          "0. bf16, seed and low as in adamw",
      .shapes = "p, g, lr, scale[, m[, step, seed[, index0]]] -> p[, m][, low]",
      .operands = {{"p"}, {"g"}, {"lr"}, {"scale"}, {"m", true}, {"step", true}, {"seed", true}, {"index0", true}},
      .attrs = {{AttrSpec::Float, "momentum", false, 0.0},
                {AttrSpec::Bool, "nesterov", false, false},
                {AttrSpec::Float, "weight_decay", false, 0.0},
                {AttrSpec::Int, "stream", false, int64_t(0)},
                {AttrSpec::String, "low", false, std::string()}},
      .results = {"p", "m", "low"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &p = op.operand(0)->type;
            if (!expectFloat(op, 0, error))
              return false;
            types = {p};
            for (unsigned i : {1u, 4u})
              if (i < op.numOperands() &&
                  (!expectType(op, i, p.withDType(op.operand(i)->type.dtype), "the shape of p", error) ||
                   !expectFloat(op, i, error)))
                return false;
            if (!expectScalar(op, 2, DType::f32, error) || !expectScalar(op, 3, DType::f32, error))
              return false;
            if (op.numOperands() == 6)
              return fail(error, "a step and no seed");
            if (!expectRounding(op, 5, error))
              return false;
            if (op.numOperands() > 4)
              types.push_back(op.operand(4)->type);
            return addLowCopy(op, types, error);
          },
      .check = [](const Op &op) -> std::string {
        Sgd a(op);
        if (!(a.momentum >= 0 && a.momentum < 1))
          return fmt::format("momentum = {} must be at least 0 and below 1", a.momentum);
        if (!a.moment && (a.momentum != 0 || a.nesterov))
          return "momentum without a moment";
        return checkUpdate(op);
      },
      .grad = notDifferentiated,
      .cost = [](const Op &op) { return streamCost(op, op.numOperands() > 4 ? 6 : 4); },
      .reference = referenceSgd,
      .lower = lowerSgd,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (bool moment : {false, true})
          for (double scale : {1.0, 0.3, -1.0}) {
            Type p(DType::f32, {s.extent(9), s.maybePadded(s.extent(129))}), scalar = Type::scalar(DType::f32);
            OpDef::Sample sample{
                .operandTypes = {p, p, scalar, scalar},
                .attrs = attrs({{"weight_decay", seed % 3 ? 0.1 : 0.0}}),
                .operandValues = {s.normals(p), s.normals(p), Tensor::scalar(1e-2), Tensor::scalar(scale)}};
            if (moment) {
              sample.operandTypes.push_back(p);
              sample.operandValues.push_back(s.normals(p));
              sample.attrs.set("momentum", 0.9);
              sample.attrs.set("nesterov", scale == 0.3);
            }
            samples.push_back(std::move(sample));
          }
        return samples;
      },
  };
}

}  // namespace gptc
