// What gradients compressed to factors need beside products (passes/compress_gradients.cpp): an orthonormal basis, and
// contents to fall back on. A factor is stored as the few rows of a matrix, each as long as a side of the gradient.
#include "ir/gradient_rank.h"
#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gptc {
using namespace ops;
using kir::BinaryOp;
using kir::Expr;

namespace {

/// A row is taken for a sum of those before it if projecting them out leaves at most this part of its sum of squares:
/// what is left then is mostly rounding error in f32, and not orthogonal to them.
constexpr double leastLeft = 1e-8;

}  // namespace

// Modified Gram-Schmidt: of each row the projections on all rows before it are taken away one by one.
//
// A kernel computes every row within each row of its domain, as rows of a domain run concurrently and cannot wait for
// each other: little work, as there are few rows.
OpDef define_orthogonalize() {
  return {
      .kind = OpKind::orthogonalize,
      .name = "orthogonalize",
      .summary =
          "orthonormal rows by modified Gram-Schmidt, from the first row to the last; zeros where a row is a sum of "
          "those before it, up to 1e-4 of its length; not finite if x is not",
      .shapes = fmt::format("x [R,C], at most {} rows -> y, of the type of x", kMostGradientRank),
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
            const Type &x = op.operand(0)->type;
            if (!expectFloat(op, 0, error))
              return false;
            if (x.rank() != 2 || x.dim(0) > kMostGradientRank)
              return fail(error, "{} must have two dimensions and at most {} rows", x.str(), kMostGradientRank);
            types = {x};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = placedLate,
      .cost = [](const Op &op) { return streamCost(op, 2 * double(op.operand(0)->type.dim(0)) + 3); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        const int64_t rows = y.type.dim(0), columns = y.type.dim(1);
        y.data = in[0]->data;
        auto product = [&](int64_t a, int64_t b) {
          double sum = 0;
          for (int64_t c = 0; c < columns; ++c)
            sum += y.data[a * columns + c] * y.data[b * columns + c];
          return sum;
        };
        for (int64_t r = 0; r < rows; ++r) {
          const double whole = product(r, r);
          for (int64_t before = 0; before < r; ++before) {
            const double along = product(before, r);
            for (int64_t c = 0; c < columns; ++c)
              y.data[r * columns + c] -= along * y.data[before * columns + c];
          }
          const double left = product(r, r), factor = left <= leastLeft * whole ? 0 * whole : 1 / std::sqrt(left);
          for (int64_t c = 0; c < columns; ++c)
            y.data[r * columns + c] *= factor;
        }
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const std::vector<Expr> at = c.index();
        std::vector<Expr> rows;
        for (int64_t r = 0; r < c.op.operand(0)->type.dim(0); ++r) {
          Expr x = c.operandAt(0, {kir::imm(r), at[1]});
          const Expr whole = c.rowSum(x * x);
          for (const Expr &before : rows)
            x = x - c.rowSum(before * x) * before;
          const Expr left = rows.empty() ? whole : c.rowSum(x * x);
          const Expr isSum = kir::binary(BinaryOp::le, left, c.f(leastLeft) * whole);
          // 0 * whole is not finite if the row is not.
          const Expr length = kir::unary(kir::UnaryOp::sqrt, left);
          rows.push_back(x * kir::select(isSum, c.f(0) * whole, c.f(1) / length));
        }
        Expr y = rows[0];
        for (size_t r = 1; r < rows.size(); ++r)
          y = kir::select(kir::binary(BinaryOp::eq, at[0], kir::imm(int64_t(r))), rows[r], y);
        return {y};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        const int64_t few = s.between(1, 4);
        const Type x(DType::f32, {few, s.maybePadded(few + s.extent(129))});
        // Of these rows the second is twice the first.
        Tensor dependent = s.normals(Type(DType::f32, {4, 16 + s.extent(17)}));
        const int64_t columns = dependent.type.dim(1);
        for (int64_t c = 0; c < columns; ++c)
          dependent.data[columns + c] = 2 * dependent.data[c];
        return {{.operandTypes = {x}}, {.operandTypes = {dependent.type}, .operandValues = {dependent}}};
      },
  };
}

OpDef define_usable_rows() {
  return {
      .kind = OpKind::usable_rows,
      .name = "usable_rows",
      .summary =
          "the rows of x; where the squares of one have no finite sum, or with `nonzero` the sum 0, the row of y",
      .shapes = "x [..,C], y, of the type of x -> z, of the type of x",
      .operands = {{"x"}, {"y"}},
      .attrs = {{AttrSpec::Bool, "nonzero", false, false}},
      .results = {"z"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error) || !expectRank(op, 0, 1, error) ||
                !expectSame(op.operand(0)->type, op.operand(1)->type, "x and y", error))
              return false;
            types = {op.operand(0)->type};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = placedLate,
      .cost = [](const Op &op) { return streamCost(op, 3); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor z(op.result()->type);
        z.data = in[0]->data;
        const int64_t columns = z.type.dim(-1);
        for (int64_t r = 0; r < z.type.rows(); ++r) {
          double sum = 0;
          for (int64_t c = 0; c < columns; ++c)
            sum += z.data[r * columns + c] * z.data[r * columns + c];
          if (!std::isfinite(sum) || (sum == 0 && op.attrs.getBool("nonzero")))
            std::copy_n(&in[1]->data[r * columns], columns, &z.data[r * columns]);
        }
        return {std::move(z)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const Expr x = c.operand(0), sum = c.rowSum(x * x);
        Expr usable = kir::lt(sum, c.f(std::numeric_limits<double>::infinity()));
        if (c.op.attrs.getBool("nonzero"))
          usable = kir::binary(BinaryOp::and_, kir::lt(c.f(0), sum), usable);
        return {kir::select(usable, x, c.operand(1))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        const Type x(DType::f32, {s.extent(9), s.maybePadded(s.extent(129))});
        Tensor some = s.normals(Type(DType::f32, {3, 5}));
        std::fill_n(some.data.begin(), 5, 0.0);
        some.data[7] = std::numeric_limits<double>::quiet_NaN();
        const Tensor other = s.normals(some.type);
        return {{.operandTypes = {x, x}},
                {.operandTypes = {some.type, some.type}, .operandValues = {some, other}},
                {.operandTypes = {some.type, some.type},
                 .attrs = attrs({{"nonzero", true}}),
                 .operandValues = {some, other}}};
      },
  };
}

}  // namespace gptc
