// Products with weights of 8 or 4 bits (ir/quantized.h). The other operand is rounded to 8 bits by rows, 32 elements at
// a time, so that blocks multiply as integers, exactly.
#include "ir/ops/op_support.h"
#include "ir/quantized.h"

#include <iterator>
#include <numeric>

namespace gptc {

using namespace ops;

std::optional<QuantizedType> quantizedType(const Type &b, int64_t cols, bool tb, QuantFormat format) {
  if (b.rank() != 2 || !isFloat(b.dtype) || cols < 1 || cols > maxPanelColumns)
    return std::nullopt;
  const int64_t n = b.dim(tb ? 0 : 1), k = b.dim(tb ? 1 : 0), panels = (n + cols - 1) / cols;
  if (k % elementsOf(format) || b.padded(tb ? 1 : 0) != k)
    return std::nullopt;
  auto of = [&](DType dtype, int64_t rows) { return Type(dtype, {Dim(panels), Dim(rows), Dim(cols)}); };
  const Type numbers = of(DType::u32, k * bitsOf(format) / 32);
  if (format == QuantFormat::q4_k)
    return QuantizedType{numbers, of(DType::u32, k / (2 * quantBlock)), of(DType::f16, k / superBlock * 2)};
  return QuantizedType{numbers, of(DType::f16, k / quantBlock), std::nullopt};
}

QuantFormat quantFormatOf(const Op &product) {
  return product.numOperands() > 3              ? QuantFormat::q4_k
         : product.attrs.getInt("bits", 8) == 4 ? QuantFormat::q4_0
                                                : QuantFormat::q8_0;
}

namespace {

/// Whether `is` has the shape that a weight's scales or supers must have, and can be multiplied with.
bool scalesAre(const Type &is, const Type &want) { return want.sameShape(is) && isArithmetic(is.dtype); }

std::string checkTypes(const Op &op) {
  const Type &a = op.operand(0)->type, &numbers = op.operand(1)->type, &scales = op.operand(2)->type,
             &y = op.result()->type;
  if (!isArithmetic(a.dtype) || a.rank() < 2 || y.rank() != a.rank() || !isArithmetic(y.dtype))
    return fmt::format("{} is no product of {}", y.str(), a.str());
  for (unsigned d = 0; d + 1 < a.rank(); ++d)
    if (a.dims[d] != y.dims[d] || (d > 0 && a.dims[d].logical != a.dims[d].padded))
      return fmt::format("{} and {} have other rows", a.str(), y.str());
  const QuantFormat format = quantFormatOf(op);
  if (op.attrs.getInt("bits", 8) != bitsOf(format))
    return fmt::format("bits = {} must be 8 or 4, and 4 with supers", op.attrs.getInt("bits", 8));
  const int64_t k = a.dim(-1), cols = numbers.rank() == 3 ? numbers.dim(2) : 0;
  const auto want = quantizedType(Type(DType::f32, {Dim(k), Dim(y.dim(-1))}), cols, false, format);
  const bool scaled = want && (want->supers ? scales == want->scales && scalesAre(op.operand(3)->type, *want->supers)
                                            : scalesAre(scales, want->scales));
  if (!scaled || a.padded(-1) != k || numbers != want->numbers)
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
  const QuantFormat format = quantFormatOf(op);
  const int64_t k = a.type.dim(-1), n = y.type.dim(-1), rows = y.type.elements() / n, blocks = k / quantBlock,
                cols = numbers.type.dim(2), mask = (1 << bitsOf(format)) - 1;
  std::vector<float> x(quantBlock);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = 0; i < quantBlock; ++i)
        x[i] = float(a.data[row * k + block * quantBlock + i]);
      const RoundedBlock r = roundBlock(x.data());
      const int64_t sum = std::accumulate(std::begin(r.q), std::end(r.q), int64_t(0));
      for (int64_t column = 0; column < n; ++column) {
        double &to = y.data[row * n + column];
        int64_t dot = 0;
        QuantizedPlace p{};
        for (int64_t i = 0; i < quantBlock; ++i) {
          p = quantizedPlace(block * quantBlock + i, column, k, cols, format);
          dot += r.q[i] * (int64_t(uint32_t(numbers.data[p.word]) >> p.shift & mask) - quantOffset(format));
        }
        if (format != QuantFormat::q4_k) {
          to += double(dot) * (r.scale * scales.data[p.scale]);
          continue;
        }
        const uint32_t six = uint32_t(scales.data[p.scale]) >> p.scaleShift;
        to += double(dot) * (r.scale * (in[3]->data[p.d] * double(six & 63)));
        to += double(sum) * (r.scale * -(in[3]->data[p.dmin] * double(six >> 8 & 63)));
      }
    }
  return {std::move(y)};
}

/// Operands for m rows.
OpDef::Sample sampleOf(SampleSource &s, int64_t m, QuantFormat format, bool ofTokens) {
  const int64_t k = elementsOf(format) * s.between(1, format == QuantFormat::q4_k ? 2 : 5), n = s.extent(70),
                cols = s.between(0, 1) ? 32 : 16;
  const QuantizedType w = *quantizedType(Type(DType::f32, {Dim(k), Dim(n)}), cols, false, format);
  Tensor numbers(w.numbers);
  for (double &v : numbers.data)
    v = double(uint32_t(s.bits()));
  // Of one sequence of tokens, and of rows.
  std::vector<Dim> rows(ofTokens ? 2 : 1, 1);
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
  OpDef::Sample sample{.operandTypes = {a, w.numbers, w.scales},
                       .attrs = attrs({{"bits", bitsOf(format)}}),
                       .resultTypes = {withRows(s.maybePadded(n))},
                       .operandValues = {std::move(x), std::move(numbers)}};
  if (!w.supers) {
    sample.operandValues.push_back(s.uniforms(w.scales, 0, 0.02));
    return sample;
  }
  Tensor scales(w.scales);
  for (double &v : scales.data)
    v = double(uint32_t(s.bits()) & 0x3f3f3f3f);
  sample.operandValues.push_back(std::move(scales));
  sample.operandTypes.push_back(*w.supers);
  sample.operandValues.push_back(s.uniforms(*w.supers, 0, 0.001));
  return sample;
}

std::vector<OpDef::Sample> samples(unsigned seed) {
  SampleSource s(seed);
  std::vector<OpDef::Sample> all;
  for (const auto &[m, format] : {std::pair(1 + s.extent(9), QuantFormat::q8_0),
                                  {1, QuantFormat::q4_0},
                                  {1, QuantFormat::q8_0},
                                  {s.extent(40), QuantFormat::q4_0},
                                  {s.extent(40), QuantFormat::q8_0},
                                  {1, QuantFormat::q4_k},
                                  {s.extent(20), QuantFormat::q4_k}})
    all.push_back(sampleOf(s, m, format, all.empty()));
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
          "weight). With supers the weight is Q4_K: scales have two blocks to a word, and the chain adds minima, too",
      .shapes = "a [M.., K], numbers u32 [P, K bits/32, cols], scales [P, K/32, cols] (u32 [P, K/64, cols] with supers "
                "[P, K/128, cols]) -> y [M.., N], of the type given",
      .operands = {{"a"}, {"numbers"}, {"scales"}, {"supers", true, false}},
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
