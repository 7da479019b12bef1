// The optimizer: learning rate, clipping, AdamW. All of it runs in the graph; none of it is differentiated.
//
// What depends on the step alone (learning rate, bias corrections) is computed in f64 even in f32 kernels: 1 - beta^t
// loses half of f32's digits at small t. It is uniform, so that it is computed once per kernel task, not per element.
#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gptc {
using namespace ops;
using kir::BinaryOp;
using kir::Expr;
using kir::UnaryOp;

namespace {

constexpr NotApplicable notDifferentiated{"the optimizer runs after the gradients"};

Expr d(double v) { return kir::fimm(v, DType::f64); }

// ---- learning rate --------------------------------------------------------------------------------------------------

/// The schedule of one op. With it = step:
///   it < warmup   lr * (it+1) / (warmup+1), as nanoGPT does
///   constant      lr
///   linear        from lr at `warmup` down to min at `steps`, min beyond
///   cosine        the same along half a cosine (Loshchilov & Hutter 2017)
///   wsd           warm-up, stable, decay: lr, then linear over the last fifth of the steps (Hu et al. 2024)
/// where min = lr * min_ratio.
struct LrSchedule {
  std::string kind;
  double lr, least;
  int64_t warmup, steps, decayFrom;

  explicit LrSchedule(const Op &op)
      : kind(op.attrs.getString("kind", "constant")), lr(op.attrs.getFloat("lr")),
        least(lr * op.attrs.getFloat("min_ratio")), warmup(op.attrs.getInt("warmup")), steps(op.attrs.getInt("steps")),
        decayFrom(kind == "wsd" ? std::max(warmup, steps - steps / 5) : warmup) {}
  /// Steps over which the rate falls.
  double decaySteps() const { return double(std::max<int64_t>(1, steps - decayFrom)); }
};

std::string checkLrSchedule(const Op &op) {
  LrSchedule s(op);
  constexpr int64_t most = int64_t(1) << 40;
  double ratio = op.attrs.getFloat("min_ratio");
  if (s.kind != "constant" && s.kind != "linear" && s.kind != "cosine" && s.kind != "wsd")
    return fmt::format("kind {:?} is none of constant, linear, cosine, wsd", s.kind);
  if (!std::isfinite(s.lr) || s.lr < 0)
    return fmt::format("lr = {} must be finite and not negative", s.lr);
  if (!(ratio >= 0 && ratio <= 1))
    return fmt::format("min_ratio = {} must be between 0 and 1", ratio);
  if (s.warmup < 0 || s.warmup > most || s.steps < 0 || s.steps > most)
    return fmt::format("warmup = {} and steps = {} must be between 0 and 2^40", s.warmup, s.steps);
  return "";
}

std::vector<Tensor> referenceLrSchedule(const Op &op, std::span<const Tensor *const> in) {
  LrSchedule s(op);
  double it = in[0]->data[0], rate = s.lr;
  if (it < double(s.warmup)) {
    rate = s.lr * (it + 1) / double(s.warmup + 1);
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
  if (s.kind != "constant") {
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

/// 1 - beta^t; for beta 0 that is 1.
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
  Expr skip = kir::lt(scale, c.f(0));
  return {kir::select(skip, p, p1), kir::select(skip, m, m1), kir::select(skip, v, v1)};
}

std::vector<Tensor> referenceAdamW(const Op &op, std::span<const Tensor *const> in) {
  Adam a(op);
  Tensor p = *in[0], m = *in[2], v = *in[3];
  double lr = in[4]->data[0], t = in[5]->data[0] + 1, scale = in[6]->data[0];
  for (size_t i = 0; i < p.data.size() && scale >= 0; ++i) {
    double g = in[1]->data[i] * scale;
    m.data[i] = a.beta1 * m.data[i] + (1 - a.beta1) * g;
    v.data[i] = a.beta2 * v.data[i] + (1 - a.beta2) * g * g;
    double mhat = m.data[i] / (1 - std::pow(a.beta1, t)), vhat = v.data[i] / (1 - std::pow(a.beta2, t));
    p.data[i] -= lr * a.decay * p.data[i] + lr * mhat / (std::sqrt(vhat) + a.eps);
  }
  return {std::move(p), std::move(m), std::move(v)};
}

}  // namespace

OpDef define_lr_schedule() {
  return {
      .kind = OpKind::lr_schedule,
      .name = "lr_schedule",
      .summary = "learning rate of a step: warm-up, then constant, linear, cosine or wsd",
      .operands = {{"step"}},
      .attrs = {{AttrSpec::String, "kind", false, std::string("constant")},
                {AttrSpec::Float, "lr", true, 0.0},
                {AttrSpec::Int, "warmup", false, int64_t(0)},
                {AttrSpec::Int, "steps", false, int64_t(0)},
                {AttrSpec::Float, "min_ratio", false, 0.0}},
      .results = {"lr"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
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
        for (const char *kind : {"constant", "linear", "cosine", "wsd"})
          for (int64_t step :
               {int64_t(0), s.between(0, 9), s.between(10, 80), s.between(80, 99), int64_t(100), int64_t(250)})
            samples.push_back({.operandTypes = {Type::scalar(DType::i64)},
                               .attrs = attrs({{"kind", kind},
                                               {"lr", 1e-3},
                                               {"warmup", step % 3 ? int64_t(10) : int64_t(0)},
                                               {"steps", int64_t(100)},
                                               {"min_ratio", 0.1}}),
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
      .operands = {{"norm"}},
      .attrs = {{AttrSpec::Float, "max", true, 1.0}},
      .results = {"scale"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
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
        // Infinity less itself is not a number, and that equals nothing.
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

OpDef define_adamw() {
  return {
      .kind = OpKind::adamw,
      .name = "adamw",
      .summary =
          "one step of AdamW with gradient g * scale (Loshchilov & Hutter 2019); nothing changes where scale < 0",
      .operands = {{"p"}, {"g"}, {"m"}, {"v"}, {"lr"}, {"step"}, {"scale"}},
      .attrs = {{AttrSpec::Float, "beta1", false, 0.9},
                {AttrSpec::Float, "beta2", false, 0.999},
                {AttrSpec::Float, "eps", false, 1e-8},
                {AttrSpec::Float, "weight_decay", false, 0.0}},
      .results = {"p", "m", "v"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
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
                !expectScalar(op, 6, DType::f32, error))
              return false;
            types = {p, op.operand(2)->type, op.operand(3)->type};
            return true;
          },
      .check = [](const Op &op) -> std::string {
        Adam a(op);
        for (double beta : {a.beta1, a.beta2})
          if (!(beta >= 0 && beta < 1))
            return fmt::format("beta = {} must be at least 0 and below 1", beta);
        if (!(std::isfinite(a.eps) && a.eps >= 0))
          return fmt::format("eps = {} must be finite and not negative", a.eps);
        if (!(std::isfinite(a.decay) && a.decay >= 0))
          return fmt::format("weight_decay = {} must be finite and not negative", a.decay);
        return "";
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

}  // namespace gptc
