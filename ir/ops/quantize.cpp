// What products in f8e4m3 need beside casts and largest magnitudes (row_abs_max): the memory of a largest magnitude
// over steps, and a factor that brings it to the end of the type's range (Micikevicius et al. 2022, "FP8 formats for
// deep learning").
//
// Factors are powers of two, so that multiplying by one rounds nothing.
#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gptc {
using namespace ops;
using kir::BinaryOp;
using kir::Expr;

namespace {

/// The power of two s with 224 < amax * s <= 448, at least 2^-100 and at most 2^100; 1 if amax is 0 or not finite.
double scaleFor(float amax) {
  if (!(amax > 0) || std::isinf(amax))
    return 1;
  constexpr float least = std::numeric_limits<float>::min();  // denormals have more than 2^100
  int exponent;
  const float fraction = 2 * std::frexp(std::max(amax, least), &exponent);
  return std::ldexp(1.0, std::clamp(8 - (exponent - 1) - (fraction > 1.75f), -100, 100));
}

}  // namespace

OpDef define_decayed_max() {
  return {
      .kind = OpKind::decayed_max,
      .name = "decayed_max",
      .summary = "the larger of x and old * decay, of x and 0 if old is not finite",
      .shapes = "x f32[], old f32[] -> y",
      .operands = {{"x"}, {"old"}},
      .attrs = {{AttrSpec::Float, "decay", false, 1.0}},
      .results = {"y"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = ofScalars,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectScalar(op, 0, DType::f32, error) || !expectScalar(op, 1, DType::f32, error))
              return false;
            types = {Type::scalar(DType::f32)};
            return true;
          },
      .check = [](const Op &op) -> std::string {
        const double decay = op.attrs.getFloat("decay", 1);
        return decay >= 0 && decay <= 1 ? "" : fmt::format("decay = {} must be between 0 and 1", decay);
      },
      .grad = placedLate,
      .cost = [](const Op &op) { return streamCost(op, 2); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        const double old = in[1]->data[0];
        return {Tensor::scalar(std::max(in[0]->data[0], std::isfinite(old) ? old * op.attrs.getFloat("decay", 1) : 0))};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const Expr old = c.operand(1), magnitude = kir::unary(kir::UnaryOp::abs, old);
        const Expr finite = kir::lt(magnitude, c.f(std::numeric_limits<double>::infinity()));
        const Expr decayed = old * c.f(c.op.attrs.getFloat("decay", 1));
        return {kir::max(c.operand(0), kir::select(finite, decayed, c.f(0)))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        const Type scalar = Type::scalar(DType::f32);
        return {{.operandTypes = {scalar, scalar}},
                {.operandTypes = {scalar, scalar},
                 .attrs = attrs({{"decay", 0.875}}),
                 .operandValues = {Tensor::scalar(s.uniform(0, 1)), Tensor::scalar(s.uniform(1, 2))}},
                {.operandTypes = {scalar, scalar}, .operandValues = {Tensor::scalar(0.5), Tensor::scalar(NAN)}},
                {.operandTypes = {scalar, scalar}, .operandValues = {Tensor::scalar(0.5), Tensor::scalar(INFINITY)}}};
      },
  };
}

OpDef define_quantize_scale() {
  return {
      .kind = OpKind::quantize_scale,
      .name = "quantize_scale",
      .summary = "scale: the power of two with 224 < amax * scale <= 448, which is f8e4m3's largest number; at least "
                 "2^-100, at "
                 "most 2^100, and 1 if amax is 0 or not finite. inverse: 1/scale",
      .shapes = "amax f32[] -> scale, inverse",
      .operands = {{"amax"}},
      .attrs = {},
      .results = {"scale", "inverse"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = ofScalars,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectScalar(op, 0, DType::f32, error))
              return false;
            types = {Type::scalar(DType::f32), Type::scalar(DType::f32)};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = placedLate,
      .cost = [](const Op &op) { return streamCost(op, 8); },
      .reference = [](const Op &, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        const double scale = scaleFor(float(in[0]->data[0]));
        return {Tensor::scalar(scale), Tensor::scalar(1 / scale)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        // By the exponent's bits: amax is f 2^(e-127) with f in [1, 2), the scale 2^(8-(e-127)), or half of it if
        // f > 1.75.
        auto i = [](int64_t v) { return kir::imm(v, DType::i32); };
        const Expr amax = kir::cast(DType::f32, c.operand(0)), bits = kir::bitcast(DType::i32, amax);
        const Expr exponent = kir::binary(BinaryOp::shr, bits, i(23));
        const Expr large = kir::lt(i(0x600000), kir::binary(BinaryOp::and_, bits, i(0x7fffff)));
        const Expr fits = i(2 * 127 + 8) - exponent - kir::select(large, i(1), i(0));
        const Expr field = kir::min(kir::max(fits, i(27)), i(227));
        const Expr valid = kir::binary(BinaryOp::and_, kir::lt(kir::fimm(0), amax),
                                       kir::lt(amax, kir::fimm(std::numeric_limits<double>::infinity())));
        auto power = [&](const Expr &e) {
          const Expr p = kir::bitcast(DType::f32, kir::binary(BinaryOp::shl, e, i(23)));
          return kir::cast(c.compute(), kir::select(valid, p, kir::fimm(1)));
        };
        return {power(field), power(i(2 * 127) - field)};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (double amax : {s.uniform(0, 1), s.uniform(0, 1e4), 1.75, 1.7500002384185791, 448.0, 0.0, -1.0, 1e-42, 3e38,
                            double(INFINITY), double(NAN)})
          samples.push_back(
              {.operandTypes = {Type::scalar(DType::f32)}, .operandValues = {Tensor::scalar(float(amax))}});
        return samples;
      },
  };
}

}  // namespace gptc
