// Products with weights of 8 or 4 bits (ir/quantized.h). The other operand is rounded to 8 bits by rows, 32 elements at
// a time, so that blocks multiply as integers, exactly.
#include "ir/ops/op_support.h"
#include "ir/quantized.h"

namespace gptc {

using namespace ops;

std::optional<QuantizedType> quantizedType(const Type &b, int64_t cols, bool tb, int64_t bits) {
  if (b.rank() != 2 || !isFloat(b.dtype) || cols < 1 || cols > maxPanelColumns || (bits != 8 && bits != 4))
    return std::nullopt;
  const int64_t n = b.dim(tb ? 0 : 1), k = b.dim(tb ? 1 : 0), panels = (n + cols - 1) / cols;
  if (k % quantBlock || b.padded(tb ? 1 : 0) != k)
    return std::nullopt;
  return QuantizedType{Type(DType::u32, {Dim(panels), Dim(k * bits / 32), Dim(cols)}),
                       Type(DType::f16, {Dim(panels), Dim(k / quantBlock), Dim(cols)})};
}

namespace {

std::string checkTypes(const Op &op) {
  const Type &a = op.operand(0)->type, &numbers = op.operand(1)->type, &scales = op.operand(2)->type,
             &y = op.result()->type;
  if (!isArithmetic(a.dtype) || a.rank() < 2 || y.rank() != a.rank() || !isArithmetic(y.dtype))
    return fmt::format("{} is no product of {}", y.str(), a.str());
  for (unsigned d = 0; d + 1 < a.rank(); ++d)
    if (a.dims[d] != y.dims[d] || (d > 0 && a.dims[d].logical != a.dims[d].padded))
      return fmt::format("{} and {} have other rows", a.str(), y.str());
  const int64_t k = a.dim(-1), cols = numbers.rank() == 3 ? numbers.dim(2) : 0;
  const auto want = quantizedType(Type(DType::f32, {Dim(k), Dim(y.dim(-1))}), cols, false, op.attrs.getInt("bits", 8));
  if (!want || a.padded(-1) != k || numbers != want->numbers || !want->scales.sameShape(scales) ||
      !isArithmetic(scales.dtype))
    return fmt::format("{} and {} are no weights for {} columns of {}", numbers.str(), scales.str(), y.dim(-1),
                       a.str());
  return "";
}

Cost costOf(const Op &op) {
  Cost c = streamCost(op, 0);
  c.flops = 2.0 * double(op.result()->type.elements()) * double(op.operand(0)->type.dim(-1));
  return c;
}

std::vector<Tensor> reference(const Op &op, std::span<const Tensor *const> in) {
  const Tensor &a = *in[0], &numbers = *in[1], &scales = *in[2];
  Tensor y(op.result()->type);
  const int64_t k = a.type.dim(-1), n = y.type.dim(-1), rows = y.type.elements() / n, blocks = k / quantBlock,
                cols = numbers.type.dim(2), bits = op.attrs.getInt("bits", 8), mask = (1 << bits) - 1;
  std::vector<float> x(quantBlock);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = 0; i < quantBlock; ++i)
        x[i] = float(a.data[row * k + block * quantBlock + i]);
      const RoundedBlock r = roundBlock(x.data());
      for (int64_t column = 0; column < n; ++column) {
        int64_t sum = 0, scale = 0;
        for (int64_t i = 0; i < quantBlock; ++i) {
          const QuantizedPlace p = quantizedPlace(block * quantBlock + i, column, k, cols, bits);
          sum += r.q[i] * (int64_t(uint32_t(numbers.data[p.word]) >> p.shift & mask) - quantOffset(bits));
          scale = p.scale;
        }
        y.data[row * n + column] += double(sum) * (double(r.scale) * scales.data[scale]);
      }
    }
  return {std::move(y)};
}

std::vector<OpDef::Sample> samples(unsigned seed) {
  SampleSource s(seed);
  std::vector<OpDef::Sample> all;
  for (const auto &[m, bits] :
       {std::pair(1 + s.extent(9), int64_t(8)), {1, 4}, {1, 8}, {s.extent(40), 4}, {s.extent(40), 8}}) {
    const int64_t k = quantBlock * s.between(1, 5), n = s.extent(70), cols = s.between(0, 1) ? 32 : 16;
    const QuantizedType w = *quantizedType(Type(DType::f32, {Dim(k), Dim(n)}), cols, false, bits);
    Tensor numbers(w.numbers);
    for (double &v : numbers.data)
      v = double(uint32_t(s.bits()));
    // Of one sequence of tokens, and of rows.
    std::vector<Dim> rows(all.empty() ? 2 : 1, 1);
    rows.back() = Dim(m);
    auto withRows = [&](Dim last) {
      std::vector<Dim> dims = rows;
      dims.push_back(last);
      return Type(DType::f32, dims);
    };
    const Type a = withRows(Dim(k));
    Tensor x = s.normals(a);
    for (double &v : x.data)  // a few zeros, and large and small values beside each other
      v = s.between(0, 9) ? float(v * (s.between(0, 20) ? 1 : 1000)) : 0;
    all.push_back({.operandTypes = {a, w.numbers, w.scales},
                   .attrs = attrs({{"bits", bits}}),
                   .resultTypes = {withRows(s.maybePadded(n))},
                   .operandValues = {std::move(x), std::move(numbers), s.uniforms(w.scales, 0, 0.02)}});
  }
  return all;
}

}  // namespace

OpDef define_quantized_matmul() {
  return {
      .kind = OpKind::quantized_matmul,
      .name = "quantized_matmul",
      .summary =
          "product with a weight of 8 or 4 bits in panels (ir/quantized.h). Each row of a is rounded to 8 bits in "
          "blocks of 32; a block's sum is exact, and one chain over blocks adds sum * (scale of a * scale of the "
          "weight)",
      .shapes = "a [M.., K], numbers u32 [P, K bits/32, cols], scales [P, K/32, cols] -> y [M.., N], of the type given",
      .operands = {{"a"}, {"numbers"}, {"scales"}},
      .attrs = {{AttrSpec::Int, "bits", false, int64_t(8)}},
      .results = {"y"},
      .fusion = FusionKind::matmul,
      .autocast = NotApplicable{"it is placed after precisions have been chosen"},
      .tokens = {Tokens::rows, {0}},
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = NotApplicable{"panels do not say how many columns the last one has: the type is given"},
      .check = checkTypes,
      .grad = NotApplicable{"stands only where nothing is trained"},
      .cost = costOf,
      .reference = reference,
      .lower = NotApplicable{"the matmul recipe builds the loops around it"},
      .samples = samples,
  };
}

}  // namespace gptc
