#include "ir/ops/rules.h"

#include "ir/random.h"

#include <cmath>

namespace gptc::ops {

bool fail(std::string &error, std::string message) {
  error = std::move(message);
  return false;
}

bool broadcastsTo(const Type &t, const Type &full) {
  return t.rank() <= full.rank() && llvm::ArrayRef<Dim>(full.dims).take_back(t.rank()).equals(t.dims);
}

DType statDType(DType t) { return t == DType::bf16 || t == DType::f16 ? DType::f32 : t; }

Type rowStats(const Type &x) { return x.slice(0, x.rank() - 1).withDType(statDType(x.dtype)); }

std::string operandName(const Op &op, unsigned i) {
  const auto &specs = op.def().operands;
  return fmt::format("{} ({})", i < specs.size() ? specs[i].name : "operand", op.operand(i)->type.str());
}

bool needFloat(const Op &op, unsigned i, unsigned minRank, std::string &error) {
  const Type &t = op.operand(i)->type;
  if (!isFloat(t.dtype))
    return fail(error, fmt::format("{} must hold floats", operandName(op, i)));
  if (t.rank() < minRank)
    return fail(error, fmt::format("{} must have at least {} dimensions", operandName(op, i), minRank));
  return true;
}

bool needSame(const Op &op, unsigned i, unsigned j, std::string &error) {
  const Type &a = op.operand(i)->type, &b = op.operand(j)->type;
  if (a.dtype != b.dtype || !a.sameShape(b))
    return fail(error, fmt::format("{} must have the type of {}", operandName(op, i), operandName(op, j)));
  return true;
}

bool needDims(const Op &op, unsigned i, llvm::ArrayRef<Dim> dims, const char *what, std::string &error) {
  if (!llvm::ArrayRef<Dim>(op.operand(i)->type.dims).equals(dims))
    return fail(error, fmt::format("{} must have {}", operandName(op, i), what));
  return true;
}

bool needScalar(const Op &op, unsigned i, DType dtype, std::string &error) {
  const Type &t = op.operand(i)->type;
  if (!t.isScalar() || t.dtype != dtype)
    return fail(error, fmt::format("{} must be a scalar of type {}", operandName(op, i), nameOf(dtype).str()));
  return true;
}

bool needIndices(const Op &op, unsigned i, std::string &error) {
  DType t = op.operand(i)->type.dtype;
  if (t != DType::i32 && t != DType::i64)
    return fail(error, fmt::format("{} must hold i32 or i64", operandName(op, i)));
  return true;
}

void noGradientOf(const GradCtx &ctx, unsigned result) {
  if (ctx.dresults[result])
    throw UserError(ErrorCode::GirInvalid, fmt::format("result '{}' of {}{} cannot be differentiated",
                                                       ctx.op.def().results[result], ctx.op.name().str(),
                                                       ctx.op.loc.empty() ? "" : " (" + ctx.op.loc + ")"));
}

Value *sumToShape(Builder &b, Value *g, const Type &to) {
  unsigned lead = g->type.rank() - to.rank();
  if (lead == 0)
    return g;
  // A row of this sum is what one index of the summed dimensions selects. Where that is a whole sequence (a [T,C] table added to
  // [B,T,C]), each row is its own block, so that the order does not depend on the micro-batch; where it is a token, autodiff
  // sets the block size of the plan.
  int64_t fold = to.rank() > 1 ? 1 : 0;
  return b.value(OpKind::reduce_sum, {g}, attrs({{"lead", int64_t(lead)}, {"fold", fold}}));
}

Cost streamingCost(const Op &op, double flopsPerElement) {
  Cost c;
  for (const Value *v : op.operands())
    c.bytesRead += double(v->type.bytes());
  for (unsigned i = 0; i < op.numResults(); ++i)
    c.bytesWritten += double(op.result(i)->type.bytes());
  const Type &domain = op.numOperands() ? op.operand(0)->type : op.result()->type;
  c.flops = flopsPerElement * double(std::max(domain.elements(), op.result()->type.elements()));
  return c;
}

namespace {
RandomKey sampleKey(unsigned seed) { return randomKey(seed, 0, 0xC0F0, 0); }
}  // namespace

int64_t edgeExtent(unsigned seed, unsigned which) {
  constexpr int64_t extents[] = {1, 2, 3, 7, 8, 16, 31, 32, 33, 61, 64, 65, 127, 128, 129};
  return extents[randomBits(sampleKey(seed), which) % std::size(extents)];
}

int64_t smallExtent(unsigned seed, unsigned which) {
  constexpr int64_t extents[] = {1, 2, 3, 4, 5, 7, 8, 11, 16, 17};
  return extents[randomBits(sampleKey(seed), 100 + which) % std::size(extents)];
}

Type sampleType(unsigned seed, std::initializer_list<int64_t> extents) {
  Type t(DType::f32);
  for (int64_t n : extents)
    t.dims.push_back(n);
  if (seed % 3 == 2 && !t.dims.empty())
    t.dims.back().padded += 1 + int64_t(seed % 5);
  return t;
}

Tensor uniformTensor(const Type &t, double lo, double hi, unsigned seed) {
  Tensor x(t);
  RandomKey key = randomKey(seed, 1, 0xC0F0, 0);
  for (size_t i = 0; i < x.data.size(); ++i)
    x.data[i] = lo + (hi - lo) * randomUniform(key, i);
  return x;
}

Tensor integerTensor(const Type &t, int64_t lo, int64_t hi, unsigned seed) {
  Tensor x = uniformTensor(t, double(lo), double(hi + 1), seed);
  for (double &v : x.data)
    v = std::floor(v);
  return x;
}

}  // namespace gptc::ops
