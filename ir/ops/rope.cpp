// Rotary position embedding (Su et al. 2021, "RoFormer"): queries and keys are rotated by an angle proportional to
// their position, so that their products depend only on distances.
//
// Element j of the first half of a head and element j of the second form a plane (the layout of Hugging Face's Llama).
// Row t rotates it by t * theta^(-2j/D):
//   y_j = x_j cos - x_(j+D/2) sin,   y_(j+D/2) = x_(j+D/2) cos + x_j sin
// With `rotary`, D is replaced by that number: only the first elements of a head turn (the layout of GPT-NeoX and Phi).
// The cosines and sines of all rows are in a table, which one op computes for all layers.
//
// `scaling` changes the frequencies f_j = theta^(-2j/D) of a model that was trained on `original` positions, so that it
// serves `factor` times as many, as transformers computes them (modeling_rope_utils.py):
//   linear   f_j / factor (Chen et al. 2023)
//   llama3   f_j (s + (1-s) / factor) with s = (original f_j / 2 pi - low) / (high - low), cut to 0..1: a frequency
//            stays if it turns more than `high` times over the original positions, and is divided below `low` turns
//   yarn     f_j ((1-r) + r / factor) with r = (j - first) / (last - first), cut to 0..1, where first and last are the
//            (fractional) planes that turn beta_fast and beta_slow times, with `truncate` rounded outwards; cosines and
//            sines are multiplied by `magnitude` (Peng et al. 2023)
#include "ir/ops/heads.h"
#include "ir/ops/op_support.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gptc {
using namespace ops;
using kir::Expr;
using kir::UnaryOp;

namespace {

double thetaOf(const Op &op) { return op.attrs.getFloat("theta", 10000.0); }

enum class Scaling { none, linear, llama3, yarn };
constexpr const char *scalingNames[] = {"none", "linear", "llama3", "yarn"};
std::optional<Scaling> scalingOf(const Op &op) {
  const std::string name = op.attrs.getString("scaling", "none");
  for (Scaling s : {Scaling::none, Scaling::linear, Scaling::llama3, Scaling::yarn})
    if (name == scalingNames[int(s)])
      return s;
  return std::nullopt;
}

/// The planes of yarn between which frequencies go over from those of short distances to those of long ones.
std::pair<double, double> yarnRange(const Op &op) {
  const double size = double(op.attrs.getInt("size")), original = double(op.attrs.getInt("original"));
  auto plane = [&](double turns) {
    return size * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(thetaOf(op)));
  };
  double first = plane(op.attrs.getFloat("beta_fast", 32)), last = plane(op.attrs.getFloat("beta_slow", 1));
  if (op.attrs.getBool("truncate", true))
    first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, size - 1);
  return {first, first == last ? last + 0.001 : last};
}

/// What yarn multiplies cosines and sines by.
double magnitudeOf(const Op &op) {
  if (scalingOf(op) != Scaling::yarn)
    return 1;
  const double given = op.attrs.getFloat("magnitude");
  return given != 0 ? given : 0.1 * std::log(op.attrs.getFloat("factor")) + 1;
}

/// The factor of the frequency `f` of plane `j`, for numbers and for expressions.
double scaleOf(const Op &op, double j, double f) {
  const double factor = op.attrs.getFloat("factor");
  auto cut = [](double x) { return std::clamp(x, 0.0, 1.0); };
  switch (*scalingOf(op)) {
  case Scaling::none:
    return 1;
  case Scaling::linear:
    return 1 / factor;
  case Scaling::llama3: {
    const double low = op.attrs.getFloat("low"), high = op.attrs.getFloat("high");
    const double s = cut((double(op.attrs.getInt("original")) * f / (2 * std::numbers::pi) - low) / (high - low));
    return s + (1 - s) / factor;
  }
  case Scaling::yarn: {
    const auto [first, last] = yarnRange(op);
    const double r = cut((j - first) / (last - first));
    return 1 - r + r / factor;
  }
  }
  GPTC_UNREACHABLE("scaling {}", op.attrs.getString("scaling"));
}
Expr scaleOf(const Op &op, const Expr &j, const Expr &f) {
  const double factor = op.attrs.getFloat("factor");
  auto d = [](double v) { return kir::fimm(v, DType::f64); };
  // x from 0 to 1, where the factor of the frequency goes from `from` to `to`.
  auto between = [&](const Expr &x, double from, double to) {
    return kir::fma(kir::min(d(1), kir::max(d(0), x)), d(to - from), d(from));
  };
  switch (*scalingOf(op)) {
  case Scaling::none:
    return d(1);
  case Scaling::linear:
    return d(1 / factor);
  case Scaling::llama3: {
    const double low = op.attrs.getFloat("low"), high = op.attrs.getFloat("high");
    const double turns = double(op.attrs.getInt("original")) / (2 * std::numbers::pi);
    return between(kir::fma(f, d(turns / (high - low)), d(-low / (high - low))), 1 / factor, 1);
  }
  case Scaling::yarn: {
    const auto [first, last] = yarnRange(op);
    return between((kir::cast(DType::f64, j) - d(first)) * d(1 / (last - first)), 1, 1 / factor);
  }
  }
  GPTC_UNREACHABLE("scaling {}", op.attrs.getString("scaling"));
}

std::string checkTable(const Op &op) {
  const double theta = thetaOf(op);
  if (!(theta >= 1 && theta <= 1e12))
    return fmt::format("theta = {} must be between 1 and 10^12", theta);
  const std::optional<Scaling> scaling = scalingOf(op);
  const std::string name = op.attrs.getString("scaling", "none");
  if (!scaling)
    return fmt::format("scaling = {:?} must be none, linear, llama3 or yarn", name);
  auto is = [&](std::initializer_list<Scaling> all) { return llvm::is_contained(all, *scaling); };
  struct Parameter {
    const char *name;
    bool applies, required;
  };
  const bool yarn = is({Scaling::yarn}), llama3 = is({Scaling::llama3});
  for (const Parameter &p : {Parameter{"factor", *scaling != Scaling::none, true},
                             {"original", yarn || llama3, true},
                             {"low", llama3, true},
                             {"high", llama3, true},
                             {"beta_fast", yarn, false},
                             {"beta_slow", yarn, false},
                             {"truncate", yarn, false},
                             {"magnitude", yarn, false}}) {
    if (op.attrs.has(p.name) && !p.applies)
      return fmt::format("{} has no meaning with scaling = {}", p.name, name);
    if (p.applies && p.required && !op.attrs.has(p.name))
      return fmt::format("scaling = {} needs {}", name, p.name);
  }
  if (*scaling == Scaling::none)
    return "";
  constexpr double most = 1e6;
  if (const double factor = op.attrs.getFloat("factor"); !(factor >= 1 && factor <= most))
    return fmt::format("factor = {} must be between 1 and {}", factor, most);
  if (const int64_t original = op.attrs.getInt("original");
      is({Scaling::llama3, Scaling::yarn}) && (original < 1 || original > 1 << 30))
    return fmt::format("original = {} must be between 1 and {}", original, 1 << 30);
  if (const double low = op.attrs.getFloat("low"), high = op.attrs.getFloat("high");
      llama3 && !(low > 0 && high > low && high <= most))
    return fmt::format("low = {} and high = {} must be above 0, and high the greater, up to {}", low, high, most);
  if (const double fast = op.attrs.getFloat("beta_fast", 32), slow = op.attrs.getFloat("beta_slow", 1);
      yarn && !(slow >= 1e-6 && fast >= slow && fast <= most))
    return fmt::format("beta_fast = {} must be at least beta_slow = {}, both from 1e-06 to {}", fast, slow, most);
  if (const double m = op.attrs.getFloat("magnitude"); m != 0 && !(m >= 1e-3 && m <= 1e3))
    return fmt::format("magnitude = {} must be 0 or between 0.001 and 1000", m);
  if (yarn && theta < 1.001)
    return fmt::format("theta = {} is too near to 1 for yarn", theta);
  if (const auto [first, last] = yarn ? yarnRange(op) : std::pair(0.0, 1.0); !(first < last))
    return fmt::format("yarn finds no planes between beta_fast and beta_slow turns over original = {} positions",
                       op.attrs.getInt("original"));
  return "";
}

std::vector<Tensor> referenceTable(const Op &op, std::span<const Tensor *const> in) {
  Tensor y(op.result()->type);
  const int64_t size = y.type.dim(1), half = size / 2;
  auto position = [&](int64_t row) {
    return in.empty() ? double(row) : in[0]->type.rank() ? in[0]->data[row] : in[0]->data[0] + double(row);
  };
  const double slope = -std::log(thetaOf(op)) / double(half);
  const double magnitude = magnitudeOf(op);
  for (int64_t i = 0; i < y.type.elements(); ++i) {
    const int64_t row = i / size, column = i % size;
    const double j = double(column % half), frequency = std::exp(slope * j);
    const double angle = position(row) * (frequency * scaleOf(op, j, frequency));
    y.data[i] = (column < half ? std::cos(angle) : std::sin(angle)) * magnitude;
  }
  return {std::move(y)};
}

/// The columns of queries and keys, the first ones of a row. Values, behind them, are not rotated.
int64_t turnedColumns(const Heads &h) { return (h.queries + h.keyValues) * h.size; }

/// The elements of each head that turn.
int64_t rotaryOf(const Op &op, const Heads &h) {
  const int64_t given = op.attrs.getInt("rotary");
  return given ? given : h.size;
}

bool inferRope(const Op &op, std::vector<Type> &types, std::string &error) {
  const Type &qkv = op.operand(0)->type;
  Heads h;
  if (!Heads::from(op, qkv, h, error))
    return false;
  const int64_t rotary = rotaryOf(op, h);
  if (!op.attrs.getInt("rotary") && h.size % 2)
    return fail(error, "heads of an odd size, {}, have no halves", h.size);
  if (rotary < 2 || rotary > h.size || rotary % 2)
    return fail(error, "rotary = {} must be 0 or even, between 2 and the {} elements of a head", rotary, h.size);
  if (!expectType(op, 1, Type(statDType(qkv.dtype), {h.rows, rotary}), "one row of cosines and sines per token", error))
    return false;
  types = {qkv};
  return true;
}

std::vector<Tensor> referenceRope(const Op &op, std::span<const Tensor *const> in) {
  Heads h(op, op.operand(0)->type);
  Tensor y = *in[0];
  const std::vector<double> &x = in[0]->data, &table = in[1]->data;
  const int64_t rotary = rotaryOf(op, h), half = rotary / 2;
  const double sign = op.attrs.getBool("inverse") ? -1 : 1;
  for (int64_t row = 0; row < h.batch * h.rows; ++row)
    for (int64_t head = 0; head < h.queries + h.keyValues; ++head)
      for (int64_t j = 0; j < half; ++j) {
        const int64_t low = row * h.width() + head * h.size + j, high = low + half, at = row % h.rows * rotary + j;
        const double cosine = table[at], sine = sign * table[at + half];
        y.data[low] = x[low] * cosine - x[high] * sine;
        y.data[high] = x[high] * cosine + x[low] * sine;
      }
  return {std::move(y)};
}

std::vector<Expr> lowerRope(LowerCtx &c) {
  Heads h(c.op, c.op.operand(0)->type);
  const int64_t rotary = rotaryOf(c.op, h), half = rotary / 2;
  std::vector<Expr> at = c.index();
  const Expr column = at[2];
  // All of a head turns, or its first elements; `second` is 0 or 1: the half. Of elements that stay it is 1, so that
  // their partner is an element of the head too.
  const Expr inHead = rotary == h.size ? column : column % kir::imm(h.size), inHalf = inHead % kir::imm(half);
  const Expr second =
      rotary == h.size ? column / kir::imm(half) % kir::imm(2) : kir::min(inHead / kir::imm(half), kir::imm(1));
  // Written like this, the partner's column has stride 1 in vectors within a half.
  Expr partner[] = {at[0], at[1], column + (kir::imm(half) - second * rotary)};
  Expr cosine[] = {at[1], inHalf}, sine[] = {at[1], inHalf + half};
  Expr turn = c.operandAt(1, sine);
  const bool inverse = c.op.attrs.getBool("inverse");
  turn = kir::select(kir::binary(kir::BinaryOp::eq, second, kir::imm(inverse ? 1 : 0)), -turn, turn);
  Expr x = c.operandAt(0, at), other = c.operandAt(0, partner);
  Expr turns = kir::lt(column, kir::imm(turnedColumns(h)));
  if (rotary != h.size)
    turns = kir::binary(kir::BinaryOp::and_, turns, kir::lt(inHead, kir::imm(rotary)));
  return {kir::select(turns, kir::fma(other, turn, x * c.operandAt(1, cosine)), x)};
}

}  // namespace

OpDef define_rope_table() {
  return {
      .kind = OpKind::rope_table,
      .name = "rope_table",
      .summary = "row t: the cosines, then the sines, of (pos+t) theta^(-2j/size) for j < size/2; `scaling` linear, "
                 "llama3 or yarn divides frequencies by up to `factor`, with their parameters as transformers has them",
      .shapes = "[pos i64[], or i64[rows] for a position of each row] -> table f32[rows,size]",
      .operands = {{"pos", true}},
      .attrs = {{AttrSpec::Int, "rows", true, int64_t(1)},
                {AttrSpec::Int, "size", true, int64_t(2)},
                {AttrSpec::Float, "theta", false, 10000.0},
                {AttrSpec::String, "scaling", false, std::string("none")},
                {AttrSpec::Float, "factor", false, 1.0},
                {AttrSpec::Int, "original", false, int64_t(0)},
                {AttrSpec::Float, "low", false, 0.0},
                {AttrSpec::Float, "high", false, 0.0},
                {AttrSpec::Float, "beta_fast", false, 32.0},
                {AttrSpec::Float, "beta_slow", false, 1.0},
                {AttrSpec::Bool, "truncate", false, true},
                {AttrSpec::Float, "magnitude", false, 0.0}},
      .results = {"table"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = Tokens::sequences,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            int64_t rows = op.attrs.getInt("rows"), size = op.attrs.getInt("size");
            if (op.numOperands() && op.operand(0)->type.rank() == 0 && !expectScalar(op, 0, DType::i64, error))
              return false;
            if (op.numOperands() && op.operand(0)->type.rank() &&
                !expectType(op, 0, Type(DType::i64, {rows}), "a position for each row", error))
              return false;
            if (rows < 1 || rows > int64_t(1) << 24 || size < 2 || size > int64_t(1) << 16 || size % 2)
              return fail(error, "rows = {} and size = {}: at most 2^24 rows of an even size up to 2^16", rows, size);
            types = {Type(DType::f32, {rows, size})};
            return true;
          },
      .check = checkTable,
      .grad = [](GradCtx &c) -> std::vector<Value *> { return std::vector<Value *>(c.op.numOperands(), nullptr); },
      .cost = [](const Op &op) { return streamCost(op, 60); },
      .reference = referenceTable,
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const int64_t half = c.op.result()->type.dim(1) / 2;
        auto wide = [](Expr e) { return kir::cast(DType::f64, std::move(e)); };
        std::vector<Expr> at = c.index();
        Expr position = at[0];
        if (c.op.numOperands())
          position = c.op.operand(0)->type.rank() ? c.operandAt(0, {at[0]}) : c.operand(0) + at[0];
        // The angle in f64, so that it is rounded once; a cosine is a sine a quarter further.
        Expr exponent = wide(at[1] % kir::imm(half)) * kir::fimm(-std::log(thetaOf(c.op)) / double(half), DType::f64);
        Expr frequency = kir::unary(UnaryOp::exp, exponent);
        if (scalingOf(c.op) != Scaling::none)
          frequency = frequency * scaleOf(c.op, at[1] % kir::imm(half), frequency);
        Expr angle = wide(position) * frequency;
        Expr quarter = kir::select(kir::lt(at[1], kir::imm(half)), kir::fimm(std::numbers::pi / 2, DType::f64),
                                   kir::fimm(0, DType::f64));
        Expr y = kir::unary(UnaryOp::sin, kir::cast(c.compute(), angle + quarter));
        return {magnitudeOf(c.op) == 1 ? y : y * c.f(magnitudeOf(c.op))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples = {
            {.attrs = attrs({{"rows", s.extent(33)}, {"size", 2 * s.extent(33)}})},
            {.operandTypes = {Type::scalar(DType::i64)},
             .attrs = attrs({{"rows", s.extent(9)}, {"size", int64_t(64)}, {"theta", 500000.0}}),
             .operandValues = {Tensor::scalar(double(s.between(0, 5000)), DType::i64)}}};
        const Type positions(DType::i64, {s.extent(9)});
        samples.push_back({.operandTypes = {positions},
                           .attrs = attrs({{"rows", positions.dim(0)}, {"size", 2 * s.extent(33)}}),
                           .operandValues = {s.integers(positions, 0, 5000)}});
        auto add = [&](const char *scaling, AttrMap more) {
          more.set("rows", s.extent(9));
          more.set("size", 2 * s.extent(33));
          more.set("scaling", std::string(scaling));
          more.set("factor", s.uniform(1, 9));
          samples.push_back({.operandTypes = {Type::scalar(DType::i64)},
                             .attrs = std::move(more),
                             .operandValues = {Tensor::scalar(double(s.between(0, 5000)), DType::i64)}});
        };
        add("linear", {});
        add("llama3", attrs({{"original", int64_t(512)}, {"low", 1.0}, {"high", 4.0}}));
        add("yarn", attrs({{"original", int64_t(2048)}}));
        add("yarn", attrs({{"original", int64_t(512)},
                           {"beta_fast", 16.0},
                           {"beta_slow", 2.0},
                           {"truncate", false},
                           {"magnitude", 1.25}}));
        return samples;
      },
  };
}

OpDef define_rope() {
  return {
      .kind = OpKind::rope,
      .name = "rope",
      .summary =
          "turns queries and keys by the angles of the table, back with inverse (Su et al. 2021): the halves of a "
          "head, or of its first `rotary` elements, are the axes of the planes; values and other elements stay",
      .shapes = "qkv [B,T,(H+2Hkv)D], table [T,D or rotary] -> y [B,T,(H+2Hkv)D]",
      .operands = {{"qkv"}, {"table"}},
      .attrs = {{AttrSpec::Int, "n_head", true, int64_t(1)},
                {AttrSpec::Int, "n_kv_head", false, int64_t(0)},
                {AttrSpec::Bool, "inverse", false, false},
                {AttrSpec::Int, "rotary", false, int64_t(0)}},
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
        // Parts of heads: of whole vectors, of any size, and all of a head.
        for (auto [rotary, size] : {std::pair<int64_t, int64_t>{32, 64}, {2 * s.between(1, 8), 17}, {16, 16}})
          samples.push_back({.operandTypes = {Type(DType::f32, {s.between(1, 3), s.extent(9), 5 * size}), Type()},
                             .attrs = attrs({{"n_head", int64_t(3)}, {"n_kv_head", int64_t(1)}, {"rotary", rotary}})});
        for (OpDef::Sample &sample : samples)
          if (const int64_t rotary = sample.attrs.getInt("rotary"))
            sample.operandTypes[1] = Type(DType::f32, {sample.operandTypes[0].dims[1], Dim(rotary)});
        return samples;
      },
  };
}

}  // namespace gptc
