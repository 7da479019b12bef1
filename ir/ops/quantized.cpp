// Weights of 8 or 4 bits (ir/quantized.h): products with them, and look-ups of their columns. The other operand of a
// product is rounded to 8 bits by rows, 32 elements at a time, so that blocks multiply as integers, exactly.
#include "ir/quantized.h"
#include "ir/element.h"
#include "ir/ops/op_support.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace gptc {

using namespace ops;
using kir::Expr;

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

QuantFormat quantFormatOf(const Op &op) {
  return op.numOperands() > 3              ? QuantFormat::q4_k
         : op.attrs.getInt("bits", 8) == 4 ? QuantFormat::q4_0
                                           : QuantFormat::q8_0;
}

namespace {

/// Whether `is` has the shape that a weight's scales or supers must have, and can be multiplied with.
bool scalesAre(const Type &is, const Type &want) { return want.sameShape(is) && isArithmetic(is.dtype); }

/// The error in `bits`; "" if there is none.
std::string checkBits(const Op &op) {
  const int64_t bits = op.attrs.getInt("bits", 8);
  return bits == bitsOf(quantFormatOf(op)) ? "" : fmt::format("bits = {} must be 8 or 4, and 4 with supers", bits);
}

/// Whether operands 1 to 3 are the numbers, the scales and the supers of a weight [K,N] in the op's format.
bool hasWeight(const Op &op, int64_t k, int64_t n) {
  const Type &numbers = op.operand(1)->type, &scales = op.operand(2)->type;
  const int64_t cols = numbers.rank() == 3 ? numbers.dim(2) : 0;
  const auto want = quantizedType(Type(DType::f32, {Dim(k), Dim(n)}), cols, false, quantFormatOf(op));
  const bool scaled = want && (want->supers ? scales == want->scales && scalesAre(op.operand(3)->type, *want->supers)
                                            : scalesAre(scales, want->scales));
  return scaled && numbers == want->numbers;
}

std::string checkTypes(const Op &op) {
  const Type &a = op.operand(0)->type, &y = op.result()->type;
  if (!isArithmetic(a.dtype) || a.rank() < 2 || y.rank() != a.rank() || !isArithmetic(y.dtype))
    return fmt::format("{} is no product of {}", y.str(), a.str());
  for (unsigned d = 0; d + 1 < a.rank(); ++d)
    if (a.dims[d] != y.dims[d] || (d > 0 && a.dims[d].logical != a.dims[d].padded))
      return fmt::format("{} and {} have other rows", a.str(), y.str());
  if (std::string problem = checkBits(op); !problem.empty())
    return problem;
  const int64_t k = a.dim(-1);
  if (a.padded(-1) != k || !hasWeight(op, k, y.dim(-1)))
    return fmt::format("{} and {} are no weights for {} columns of {}", op.operand(1)->type.str(),
                       op.operand(2)->type.str(), y.dim(-1), a.str());
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

/// Adds the types and values of numbers, scales and, in Q4_K, supers, of which `scale` is the largest.
void addWeight(SampleSource &s, const QuantizedType &w, double scale, OpDef::Sample &to) {
  auto add = [&](const Type &type, Tensor values) {
    to.operandTypes.push_back(type);
    to.operandValues.push_back(std::move(values));
  };
  auto words = [&](const Type &type, uint32_t mask) {
    Tensor t(type);
    for (double &v : t.data)
      v = double(uint32_t(s.bits()) & mask);
    return t;
  };
  auto factors = [&](const Type &type, double most) {
    Tensor t = s.uniforms(type, 0, most);
    for (double &v : t.data)
      v = roundTo(type.dtype, v);
    return t;
  };
  add(w.numbers, words(w.numbers, ~0u));
  if (!w.supers)
    return add(w.scales, factors(w.scales, scale));
  add(w.scales, words(w.scales, 0x3f3f3f3f));
  add(*w.supers, factors(*w.supers, scale / 20));
}

/// Operands for m rows.
OpDef::Sample sampleOf(SampleSource &s, int64_t m, QuantFormat format, bool ofTokens) {
  const int64_t k = elementsOf(format) * s.between(1, format == QuantFormat::q4_k ? 2 : 5), n = s.extent(70),
                cols = s.between(0, 1) ? 32 : 16;
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
  OpDef::Sample sample{.operandTypes = {a},
                       .attrs = attrs({{"bits", bitsOf(format)}}),
                       .resultTypes = {withRows(s.maybePadded(n))},
                       .operandValues = {std::move(x)}};
  addWeight(s, *quantizedType(Type(DType::f32, {Dim(k), Dim(n)}), cols, false, format), 0.02, sample);
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

// ---- look-ups -------------------------------------------------------------------------------------------------------

int64_t vocabOf(const Op &op) { return op.attrs.getInt("vocab"); }

std::string checkLookUp(const Op &op) {
  const Type &ids = op.operand(0)->type, &numbers = op.operand(1)->type, &y = op.result()->type;
  std::string error;
  if (!expectIndices(op, 0, error))
    return error;
  Type rows = y;
  if (y.rank() > 0)
    rows.dims.pop_back();
  if (!isArithmetic(y.dtype) || y.rank() != ids.rank() + 1 || rows.withDType(ids.dtype) != ids)
    return fmt::format("{} has no row for each of {}", y.str(), ids.str());
  if (std::string problem = checkBits(op); !problem.empty())
    return problem;
  // Panels have as many columns as there may be: larger numbers are not computed with.
  const int64_t k = y.dim(-1), most = numbers.rank() == 3 ? numbers.dim(0) * numbers.dim(2) : 0;
  if (vocabOf(op) < 1 || vocabOf(op) > most || y.padded(-1) != k || !hasWeight(op, k, vocabOf(op)))
    return fmt::format("{} and {} are no table of {} rows of {}", numbers.str(), op.operand(2)->type.str(), vocabOf(op),
                       k);
  return "";
}

Cost costOfLookUp(const Op &op) {
  Cost c = streamCost(op, 0);
  c.flops = 2.0 * double(op.result()->type.elements());
  const double ids = double(op.operand(0)->type.bytes()), rows = double(op.operand(0)->type.elements());
  c.bytesRead = ids + (c.bytesRead - ids) * std::min(1.0, rows / double(vocabOf(op)));
  return c;
}

std::vector<Tensor> lookUpReference(const Op &op, std::span<const Tensor *const> in) {
  Tensor y(op.result()->type);
  const Tensor &ids = *in[0], &numbers = *in[1], &scales = *in[2];
  const QuantFormat format = quantFormatOf(op);
  const int64_t k = y.type.dim(-1), cols = numbers.type.dim(2), mask = (1 << bitsOf(format)) - 1;
  for (int64_t row = 0; row < int64_t(ids.data.size()); ++row) {
    const auto id = int64_t(std::clamp(ids.data[row], 0.0, double(vocabOf(op) - 1)));
    for (int64_t i = 0; i < k; ++i) {
      const QuantizedPlace p = quantizedPlace(i, id, k, cols, format);
      const auto number = double(int64_t(uint32_t(numbers.data[p.word]) >> p.shift & mask) - quantOffset(format));
      double &to = y.data[row * k + i];
      if (format != QuantFormat::q4_k) {
        to = number * scales.data[p.scale];
        continue;
      }
      const uint32_t six = uint32_t(scales.data[p.scale]) >> p.scaleShift;
      to = in[3]->data[p.d] * double(six & 63) * number - in[3]->data[p.dmin] * double(six >> 8 & 63);
    }
  }
  return {std::move(y)};
}

/// The `bits` bits of a word from bit `shift` on, as an i32.
Expr bitsAt(const Expr &word, const Expr &shift, int64_t bits) {
  const Expr moved = kir::binary(kir::BinaryOp::shr, word, kir::cast(DType::u32, shift));
  const Expr mask = kir::imm((int64_t(1) << bits) - 1, DType::u32);
  return kir::cast(DType::i32, kir::binary(kir::BinaryOp::and_, moved, mask));
}

/// As quantizedPlace says, with indices of three dimensions.
std::vector<Expr> lookUp(LowerCtx &c) {
  using kir::imm;
  const QuantFormat format = quantFormatOf(c.op);
  const int64_t bits = bitsOf(format), words = quantBlock * bits / 32, cols = c.op.operand(1)->type.dim(2);
  const Expr id = kir::min(kir::max(kir::cast(DType::i64, c.rowOperand(0)), imm(0)), imm(vocabOf(c.op) - 1));
  const Expr panel = id / imm(cols), column = id % imm(cols), k = c.index().back();
  const Expr block = k / imm(quantBlock), eighth = k % imm(8), byte = k % imm(quantBlock) / imm(8);
  auto at = [&](unsigned operand, const Expr &row) { return c.operandAt(operand, {panel, row, column}); };
  auto floating = [&](const Expr &integer) { return kir::cast(c.compute(), integer); };
  const bool halves = words < 8;  // two numbers to a byte
  const Expr word = at(1, block * words + (halves ? eighth % imm(words) : eighth)),
             number = bitsAt(word, halves ? byte * 8 + eighth / imm(words) * 4 : byte * 8, bits);
  if (format != QuantFormat::q4_k)
    return {floating(number - imm(quantOffset(format), DType::i32)) * at(2, block)};
  const Expr six = at(2, block / imm(2)), shift = block % imm(2) * 16, super = k / imm(superBlock) * 2;
  const Expr scale = at(3, super) * floating(bitsAt(six, shift, 6)),
             minimum = at(3, super + 1) * floating(bitsAt(six, shift + 8, 6));
  return {scale * floating(number) - minimum};
}

OpDef::Sample lookUpOf(SampleSource &s, unsigned rank, QuantFormat format) {
  const int64_t k = elementsOf(format) * s.between(1, format == QuantFormat::q4_k ? 2 : 4), vocab = s.extent(70),
                cols = s.between(0, 1) ? 32 : 16;
  Type ids(rank == 2 ? DType::i32 : DType::i64);
  for (unsigned d = 0; d < rank; ++d)
    ids.dims.push_back(s.extent(9));
  Type y = ids.withDType(DType::f32);
  y.dims.push_back(Dim(k));
  OpDef::Sample sample{.operandTypes = {ids},
                       .attrs = attrs({{"bits", bitsOf(format)}, {"vocab", vocab}}),
                       .resultTypes = {y},
                       .operandValues = {s.integers(ids, -2, vocab + 1)}};
  sample.operandValues[0].data.back() = double(s.between(0, vocab - 1));  // at least one id is in the table
  addWeight(s, *quantizedType(Type(DType::f32, {Dim(k), Dim(vocab)}), cols, false, format), 0.5, sample);
  return sample;
}

std::vector<OpDef::Sample> lookUps(unsigned seed) {
  SampleSource s(seed);
  std::vector<OpDef::Sample> all;
  for (const QuantFormat format : quantFormats)
    all.push_back(lookUpOf(s, 2, format));
  all.push_back(lookUpOf(s, 1, quantFormats[seed % 3]));
  all.push_back(lookUpOf(s, 0, quantFormats[(seed + 1) % 3]));
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

OpDef define_quantized_embedding() {
  return {
      .kind = OpKind::quantized_embedding,
      .name = "quantized_embedding",
      .summary =
          "row ids[..] of a table of `vocab` rows in the panels that quantized_matmul multiplies with, transposed "
          "(ir/quantized.h); ids are clamped to it. With supers the table is Q4_K",
      .shapes = "ids [B,T], numbers u32 [P, C bits/32, cols], scales [P, C/32, cols] (u32 [P, C/64, cols] with supers "
                "[P, C/128, cols]) -> y [B,T,C], of the type given",
      .operands = {{"ids"}, {"numbers"}, {"scales"}, {"supers", true, false}},
      .attrs = {{AttrSpec::Int, "bits", false, int64_t(8)}, {AttrSpec::Int, "vocab", true, int64_t(1)}},
      .results = {"y"},
      .fusion = FusionKind::gather,
      .autocast = NotApplicable{"it is placed after precisions have been chosen"},
      .tokens = {Tokens::rows, {0}},
      .tokenSum = noTokenSum,
      .indices = {0, vocabOf},
      .infer = NotApplicable{"its precision is that of the table in whose place it stands: the type is given"},
      .check = checkLookUp,
      .grad = NotApplicable{"stands only where nothing is trained"},
      .cost = costOfLookUp,
      .reference = lookUpReference,
      .lower = lookUp,
      .samples = lookUps,
  };
}

}  // namespace gptc
