// Sums over leading dimensions (tokens), in the order of attribute `fold`, and sums of squares of all elements, of each
// row, of each column.
#include "ir/ops/op_support.h"

namespace gptc {
using namespace ops;
using kir::Expr;

namespace {

bool inferReduceSum(const Op &op, std::vector<Type> &types, std::string &error) {
  if (!expectFloat(op, 0, error) || !expectRank(op, 0, 1, error))
    return false;
  const Type &x = op.operand(0)->type;
  int64_t lead = op.attrs.getInt("lead");
  if (lead < 1 || lead > int64_t(x.rank()))
    return fail(error, "lead = {} must be between 1 and the {} dimensions of x", lead, x.rank());
  if (op.attrs.getInt("fold") < 0)
    return fail(error, "fold must not be negative");
  Type y = x.slice(unsigned(lead), x.rank()).withDType(statDType(x.dtype));
  if (op.numOperands() > 1 && !expectType(op, 1, y, "the type of the result", error))
    return false;
  types = {y};
  return true;
}

std::vector<Tensor> referenceReduceSum(const Op &op, std::span<const Tensor *const> in) {
  Tensor y(op.result()->type);
  if (in.size() > 1)
    y.data = in[1]->data;
  for (size_t i = 0; i < in[0]->data.size(); ++i)
    y.data[i % y.data.size()] += in[0]->data[i];
  return {std::move(y)};
}

}  // namespace

OpDef define_reduce_sum() {
  return {
      .kind = OpKind::reduce_sum,
      .name = "reduce_sum",
      .summary =
          "sum over the first `lead` dimensions, in blocks of `fold` rows (0: one block), optionally continuing an "
          "earlier sum",
      .shapes = "x [lead dims, dims][, init [dims]] -> y [dims]",
      .operands = {{"x"}, {"init", true}},
      .attrs = {{AttrSpec::Int, "lead", true, int64_t(1)}, {AttrSpec::Int, "fold", false, int64_t(0)}},
      .results = {"y"},
      .fusion = FusionKind::fold,
      .autocast = AutocastClass::high,
      .tokens = {Tokens::rows, {0}, [](const Op &op) { return op.result()->type.isScalar(); }},
      .tokenSum = [](const Op &op) { return unsigned(op.attrs.getInt("lead")); },
      .indices = noIndices,
      .infer = inferReduceSum,
      .check = NotApplicable{"types and attributes are checked when the result type is inferred"},
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        Value *dy = c.dresults[0];
        const Type &x = c.op.operand(0)->type;
        Value *dx = dy;
        if (x.dtype != dy->type.dtype)
          dx = c.b.value(OpKind::cast, {dx}, attrs({{"dtype", nameOf(x.dtype).str()}}));
        dx = c.b.op(OpKind::broadcast, {dx}, {x})->result();
        if (c.op.numOperands() > 1)
          return {dx, dy};
        return {dx};
      },
      .cost = [](const Op &op) { return streamCost(op, 1); },
      .reference = referenceReduceSum,
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr init = c.op.numOperands() > 1 ? c.operand(1) : nullptr;
        return {c.foldSum(c.operand(0), c.op.attrs.getInt("fold"), init)};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        Type x(DType::f32, {s.extent(9), s.extent(17), s.maybePadded(s.extent(129))});
        auto at = [](int64_t lead, int64_t fold) { return attrs({{"lead", lead}, {"fold", fold}}); };
        return {{.operandTypes = {x}, .attrs = at(1, 0)},
                {.operandTypes = {x}, .attrs = at(2, s.extent(17))},
                {.operandTypes = {x, x.slice(2, 3)}, .attrs = at(2, x.dim(1))},
                {.operandTypes = {x, x.slice(1, 3)}, .attrs = at(1, 1)},
                {.operandTypes = {x, Type::scalar(DType::f32)}, .attrs = at(3, s.extent(9))},
                {.operandTypes = {x.slice(1, 2)}, .attrs = at(1, 4)}};
      },
  };
}

OpDef define_sum_squares() {
  return {
      .kind = OpKind::sum_squares,
      .name = "sum_squares",
      .summary = "sum of the squares of all elements: of blocks of `block` elements, then of these in order",
      .shapes = "x -> y, a scalar",
      .operands = {{"x"}},
      .attrs = {{AttrSpec::Int, "block", false, int64_t(4096)}},
      .results = {"y"},
      .fusion = FusionKind::reduce_all,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error))
              return false;
            types = {Type::scalar(statDType(op.operand(0)->type.dtype))};
            return true;
          },
      .check = [](const Op &op) -> std::string {
        int64_t block = op.attrs.getInt("block", 4096);
        return block >= 1 ? "" : fmt::format("block = {} must be at least 1", block);
      },
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        Value *x = c.op.operand(0), *dy = c.dresults[0];
        if (x->type.dtype != dy->type.dtype)
          dy = c.b.value(OpKind::cast, {dy}, attrs({{"dtype", nameOf(x->type.dtype).str()}}));
        return {c.b.value(OpKind::mul, {x, c.b.value(OpKind::add, {dy, dy})})};
      },
      .cost = [](const Op &op) { return streamCost(op, 2); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        for (double v : in[0]->data)
          y.data[0] += v * v;
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr x = c.operand(0);
        return {c.allSum(x * x, c.op.attrs.getInt("block", 4096))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        Type x(DType::f32, {s.extent(9), s.maybePadded(s.extent(129))});
        Type row(DType::f32, {s.extent(129)});
        return {{.operandTypes = {x}},
                {.operandTypes = {x}, .attrs = attrs({{"block", s.extent(129)}})},
                {.operandTypes = {row}, .attrs = attrs({{"block", int64_t(1)}})},
                {.operandTypes = {Type::scalar(DType::f32)}}};
      },
  };
}

OpDef define_row_squares() {
  return {
      .kind = OpKind::row_squares,
      .name = "row_squares",
      .summary = "sum of the squares of each row",
      .shapes = "x [..,C] -> y [..]",
      .operands = {{"x"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error) || !expectRank(op, 0, 1, error))
              return false;
            types = {rowsOf(op.operand(0)->type).withDType(statDType(op.operand(0)->type.dtype))};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = NotApplicable{"for gradients and parameters, which the optimizer measures"},
      .cost = [](const Op &op) { return streamCost(op, 2); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        const size_t n = in[0]->type.dim(-1);
        for (size_t i = 0; i < in[0]->data.size(); ++i)
          y.data[i / n] += in[0]->data[i] * in[0]->data[i];
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> { return {c.rowSum(c.operand(0) * c.operand(0))}; },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        Type x(DType::f32, {s.maybePadded(s.extent(9)), s.maybePadded(s.extent(129))});
        return {{.operandTypes = {x}}, {.operandTypes = {Type(DType::f32, {s.extent(129)})}}};
      },
  };
}

OpDef define_column_squares() {
  return {
      .kind = OpKind::column_squares,
      .name = "column_squares",
      .summary =
          "sum of the squares over dimension 0, of `rows` rows from `start` on (0: all, padding included), in blocks "
          "of `fold` rows",
      .shapes = "x [R,..] -> y [..]",
      .operands = {{"x"}},
      .attrs = {{AttrSpec::Int, "fold", false, int64_t(0)},
                {AttrSpec::Int, "start", false, int64_t(0)},
                {AttrSpec::Int, "rows", false, int64_t(0)}},
      .results = {"y"},
      .fusion = FusionKind::fold,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error) || !expectRank(op, 0, 2, error))
              return false;
            const Type &x = op.operand(0)->type;
            types = {x.slice(1, x.rank()).withDType(statDType(x.dtype))};
            return true;
          },
      .check = [](const Op &op) -> std::string {
        const int64_t start = op.attrs.getInt("start"), rows = op.attrs.getInt("rows");
        const int64_t all = op.operand(0)->type.padded(0);
        if (op.attrs.getInt("fold") < 0)
          return "fold must not be negative";
        if (start < 0 || start > all || rows < 0 || rows > all - start || (start && !rows))
          return fmt::format("{} rows from {} on, of {}", rows, start, all);
        return "";
      },
      .grad = NotApplicable{"for gradients, which the optimizer measures"},
      .cost = [](const Op &op) { return streamCost(op, 2); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        const int64_t columns = y.data.size(), start = op.attrs.getInt("start"), rows = op.attrs.getInt("rows");
        for (int64_t i = 0; i < int64_t(in[0]->data.size()); ++i)
          if (const int64_t row = i / columns; rows == 0 || (row >= start && row < start + rows))
            y.data[i % columns] += in[0]->data[i] * in[0]->data[i];
        return {std::move(y)};
      },
      // Several parts of x are one group that reads x once: each part adds zeros for the rows of the others.
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const int64_t start = c.op.attrs.getInt("start"), rows = c.op.attrs.getInt("rows");
        Expr x = c.operand(0), square = x * x;
        if (rows) {
          Expr row = c.index()[0];
          Expr inside = kir::binary(kir::BinaryOp::and_, kir::binary(kir::BinaryOp::ge, row, kir::imm(start)),
                                    kir::lt(row, kir::imm(start + rows)));
          square = kir::select(inside, square, c.f(0));
        }
        return {c.foldSum(square, c.op.attrs.getInt("fold"))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        Type x(DType::f32, {s.maybePadded(4 * s.extent(9)), s.maybePadded(s.extent(129))});
        const int64_t part = x.padded(0) / 4;
        return {{.operandTypes = {x}},
                {.operandTypes = {x}, .attrs = attrs({{"fold", s.extent(9)}})},
                {.operandTypes = {x}, .attrs = attrs({{"start", part}, {"rows", part}, {"fold", part}})}};
      },
  };
}

}  // namespace gptc
