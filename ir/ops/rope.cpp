// Rotary position embedding (Su et al. 2021, "RoFormer"): queries and keys are rotated by an angle proportional to
// their position, so that their products depend only on distances.
//
// Element j of the first half of a head and element j of the second form a plane (the layout of Hugging Face's Llama).
// Row t rotates it by t * theta^(-2j/D):
//   y_j = x_j cos - x_(j+D/2) sin,   y_(j+D/2) = x_(j+D/2) cos + x_j sin
// The cosines and sines of all rows are in a table, which one op computes for all layers.
#include "ir/ops/heads.h"
#include "ir/ops/op_support.h"

#include <cmath>
#include <numbers>

namespace gptc {
using namespace ops;
using kir::Expr;
using kir::UnaryOp;

namespace {

double thetaOf(const Op &op) { return op.attrs.getFloat("theta", 10000.0); }

/// The columns of queries and keys, the first ones of a row. Values, behind them, are not rotated.
int64_t turnedColumns(const Heads &h) { return (h.queries + h.keyValues) * h.size; }

bool inferRope(const Op &op, std::vector<Type> &types, std::string &error) {
  const Type &qkv = op.operand(0)->type;
  Heads h;
  if (!Heads::from(op, qkv, h, error))
    return false;
  if (h.size % 2)
    return fail(error, "heads of an odd size, {}, have no halves", h.size);
  if (!expectType(op, 1, Type(statDType(qkv.dtype), {h.rows, h.size}), "one row of cosines and sines per token", error))
    return false;
  types = {qkv};
  return true;
}

std::vector<Tensor> referenceRope(const Op &op, std::span<const Tensor *const> in) {
  Heads h(op, op.operand(0)->type);
  Tensor y = *in[0];
  const std::vector<double> &x = in[0]->data, &table = in[1]->data;
  const int64_t half = h.size / 2;
  const double sign = op.attrs.getBool("inverse") ? -1 : 1;
  for (int64_t row = 0; row < h.batch * h.rows; ++row)
    for (int64_t head = 0; head < h.queries + h.keyValues; ++head)
      for (int64_t j = 0; j < half; ++j) {
        const int64_t low = row * h.width() + head * h.size + j, high = low + half, at = row % h.rows * h.size + j;
        const double cosine = table[at], sine = sign * table[at + half];
        y.data[low] = x[low] * cosine - x[high] * sine;
        y.data[high] = x[high] * cosine + x[low] * sine;
      }
  return {std::move(y)};
}

std::vector<Expr> lowerRope(LowerCtx &c) {
  Heads h(c.op, c.op.operand(0)->type);
  const int64_t half = h.size / 2;
  std::vector<Expr> at = c.index();
  const Expr column = at[2], inHalf = column % kir::imm(half);
  const Expr second = column / kir::imm(half) % kir::imm(2);  // 0 or 1: which half of its head
  // Written like this, the partner's column has stride 1 in vectors within a half.
  Expr partner[] = {at[0], at[1], column + (kir::imm(half) - second * h.size)};
  Expr cosine[] = {at[1], inHalf}, sine[] = {at[1], inHalf + half};
  Expr turn = c.operandAt(1, sine);
  const bool inverse = c.op.attrs.getBool("inverse");
  turn = kir::select(kir::binary(kir::BinaryOp::eq, second, kir::imm(inverse ? 1 : 0)), -turn, turn);
  Expr x = c.operandAt(0, at), other = c.operandAt(0, partner);
  return {
      kir::select(kir::lt(column, kir::imm(turnedColumns(h))), kir::fma(other, turn, x * c.operandAt(1, cosine)), x)};
}

}  // namespace

OpDef define_rope_table() {
  return {
      .kind = OpKind::rope_table,
      .name = "rope_table",
      .summary = "row t: the cosines, then the sines, of (pos+t) theta^(-2j/size) for j < size/2",
      .shapes = "[pos i64[]] -> table f32[rows,size]",
      .operands = {{"pos", true}},
      .attrs = {{AttrSpec::Int, "rows", true, int64_t(1)},
                {AttrSpec::Int, "size", true, int64_t(2)},
                {AttrSpec::Float, "theta", false, 10000.0}},
      .results = {"table"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = Tokens::sequences,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            int64_t rows = op.attrs.getInt("rows"), size = op.attrs.getInt("size");
            if (op.numOperands() && !expectScalar(op, 0, DType::i64, error))
              return false;
            if (rows < 1 || rows > int64_t(1) << 24 || size < 2 || size > int64_t(1) << 16 || size % 2)
              return fail(error, "rows = {} and size = {}: at most 2^24 rows of an even size up to 2^16", rows, size);
            types = {Type(DType::f32, {rows, size})};
            return true;
          },
      .check = [](const Op &op) -> std::string {
        double theta = thetaOf(op);
        return theta >= 1 && theta <= 1e12 ? "" : fmt::format("theta = {} must be between 1 and 10^12", theta);
      },
      .grad = [](GradCtx &c) -> std::vector<Value *> { return std::vector<Value *>(c.op.numOperands(), nullptr); },
      .cost = [](const Op &op) { return streamCost(op, 60); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        const int64_t size = y.type.dim(1), half = size / 2;
        const double pos = in.empty() ? 0 : in[0]->data[0], slope = -std::log(thetaOf(op)) / double(half);
        for (int64_t i = 0; i < y.type.elements(); ++i) {
          const int64_t row = i / size, column = i % size;
          const double angle = (pos + double(row)) * std::exp(slope * double(column % half));
          y.data[i] = column < half ? std::cos(angle) : std::sin(angle);
        }
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const int64_t half = c.op.result()->type.dim(1) / 2;
        auto wide = [](Expr e) { return kir::cast(DType::f64, std::move(e)); };
        std::vector<Expr> at = c.index();
        Expr position = c.op.numOperands() ? c.operand(0) + at[0] : at[0];
        // The angle in f64, so that it is rounded once; a cosine is a sine a quarter further.
        Expr exponent = wide(at[1] % kir::imm(half)) * kir::fimm(-std::log(thetaOf(c.op)) / double(half), DType::f64);
        Expr angle = wide(position) * kir::unary(UnaryOp::exp, exponent);
        Expr quarter = kir::select(kir::lt(at[1], kir::imm(half)), kir::fimm(std::numbers::pi / 2, DType::f64),
                                   kir::fimm(0, DType::f64));
        return {kir::unary(UnaryOp::sin, kir::cast(c.compute(), angle + quarter))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        return {{.attrs = attrs({{"rows", s.extent(33)}, {"size", 2 * s.extent(33)}})},
                {.operandTypes = {Type::scalar(DType::i64)},
                 .attrs = attrs({{"rows", s.extent(9)}, {"size", int64_t(64)}, {"theta", 500000.0}}),
                 .operandValues = {Tensor::scalar(double(s.between(0, 5000)), DType::i64)}}};
      },
  };
}

OpDef define_rope() {
  return {
      .kind = OpKind::rope,
      .name = "rope",
      .summary =
          "turns queries and keys by the angles of the table, back with inverse (Su et al. 2021): the halves of a "
          "head are the axes of the planes; values stay",
      .shapes = "qkv [B,T,(H+2Hkv)D], table [T,D] -> y [B,T,(H+2Hkv)D]",
      .operands = {{"qkv"}, {"table"}},
      .attrs = {{AttrSpec::Int, "n_head", true, int64_t(1)},
                {AttrSpec::Int, "n_kv_head", false, int64_t(0)},
                {AttrSpec::Bool, "inverse", false, false}},
      .results = {"y"},
      .fusion = FusionKind::gather,
      .autocast = AutocastClass::high,
      .tokens = Tokens::sequences,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferRope,
      .check = NotApplicable{"types and attributes are checked when the result type is inferred"},
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        // A rotation is orthogonal: its transpose is its inverse.
        AttrMap at = c.op.attrs;
        at.set("inverse", !at.getBool("inverse"));
        return {c.b.value(OpKind::rope, {c.dresults[0], c.op.operand(1)}, std::move(at)), nullptr};
      },
      .cost = [](const Op &op) { return streamCost(op, 3); },
      .reference = referenceRope,
      .lower = lowerRope,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (auto [heads, keyHeads] : {std::pair<int64_t, int64_t>{2, 2}, {4, 1}, {3, 3}})
          for (bool inverse : {false, true}) {
            // Half a head of whole vectors, or of any size.
            int64_t rows = s.extent(9), size = keyHeads == 1 ? 64 : 2 * s.extent(17);
            samples.push_back(
                {.operandTypes = {Type(DType::f32, {s.between(1, 3), rows, (heads + 2 * keyHeads) * size}),
                                  Type(DType::f32, {rows, size})},
                 .attrs = attrs({{"n_head", heads}, {"n_kv_head", keyHeads}, {"inverse", inverse}})});
          }
        return samples;
      },
  };
}

}  // namespace gptc
