// Matrix products, batched or not.
#include "ir/ops/op_support.h"

namespace gptc {
using namespace ops;

namespace {

/// A matmul as `batch` products [M,K] times [K,N], with strides by the order of its operands.
struct Product {
  int64_t batch = 1, m = 1, n = 1, k = 1;
  // Element (i, x) of a is at i * aM + x * aK, of b at x * bK + j * bN, in logical row-major order, batches apart.
  int64_t aM, aK, bK, bN;

  explicit Product(const Op &op) {
    const Type &a = op.operand(0)->type, &b = op.operand(1)->type;
    unsigned nb = unsigned(op.attrs.getInt("batch"));
    bool ta = op.attrs.getBool("ta"), tb = op.attrs.getBool("tb");
    batch = a.slice(0, nb).elements();
    int64_t aRows = a.slice(nb, a.rank() - 1).elements(), aLast = a.dim(-1);
    int64_t bRows = b.slice(nb, b.rank() - 1).elements(), bLast = b.dim(-1);
    m = ta ? aLast : aRows, k = ta ? aRows : aLast, n = tb ? bRows : bLast;
    aM = ta ? 1 : aLast, aK = ta ? aLast : 1;
    bK = tb ? 1 : bLast, bN = tb ? bLast : 1;
  }
};

/// Of the dimensions that are merged into one, only the first may be padded: else rows would not be evenly spaced.
bool needEvenRows(const Op &op, unsigned i, unsigned batch, std::string &error) {
  const Type &t = op.operand(i)->type;
  for (unsigned d = batch + 1; d + 1 < t.rank(); ++d)
    if (t.dims[d].logical != t.dims[d].padded)
      return fail(error, "dimension {} of {} is merged into rows and may not be padded", d, t.str());
  return true;
}

/// The dtype of the result: attribute `out`, by default that of the operands. Sums have this dtype, or f32 if it is
/// narrower.
std::optional<DType> outDType(const Op &op) {
  std::string name = op.attrs.getString("out");
  return name.empty() ? op.operand(0)->type.dtype : parseDType(name);
}

bool inferMatmul(const Op &op, std::vector<Type> &types, std::string &error) {
  const Type &a = op.operand(0)->type, &b = op.operand(1)->type;
  int64_t batch = op.attrs.getInt("batch");
  if (batch < 0 || batch > int64_t(a.rank()))
    return fail(error, "batch = {} does not fit {}", batch, a.str());
  unsigned nb = unsigned(batch);
  for (unsigned i : {0u, 1u})
    if ((op.operand(i)->type.dtype != DType::f8e4m3 && !expectFloat(op, i, error)) || !expectRank(op, i, nb + 2, error))
      return false;
  if (a.dtype != b.dtype)
    return fail(error, "{} and {} differ in dtype", a.str(), b.str());
  if (llvm::ArrayRef<Dim>(a.dims).take_front(nb) != llvm::ArrayRef<Dim>(b.dims).take_front(nb))
    return fail(error, "{} and {} differ in the first {} dimensions, which batch = {} says they share", a.str(),
                b.str(), nb, nb);
  if (!needEvenRows(op, 0, nb, error) || !needEvenRows(op, 1, nb, error))
    return false;
  bool ta = op.attrs.getBool("ta"), tb = op.attrs.getBool("tb");
  if (tb && b.rank() != nb + 2)
    return fail(error, "{} must have {} dimensions, as tb is set", b.str(), nb + 2);
  Product p(op);
  int64_t bRows = b.slice(nb, b.rank() - 1).elements();
  int64_t bK = tb ? b.dim(-1) : bRows;
  if (p.k != bK)
    return fail(error, "{} and {} do not fit: the sum runs over {} elements of the one and {} of the other", a.str(),
                b.str(), p.k, bK);
  if (op.attrs.getInt("fold") < 0)
    return fail(error, "fold must not be negative");

  std::optional<DType> out = outDType(op);
  if (!out || !isArithmetic(*out))
    return fail(error, "out = {:?} is no float dtype to compute with",
                out ? nameOf(*out).str() : op.attrs.getString("out"));

  Type y = (ta ? a.slice(0, nb) : a.slice(0, a.rank() - 1)).withDType(*out);
  if (ta)
    y.dims.push_back(a.dims.back());
  y.dims.push_back(tb ? b.dims[nb] : b.dims.back());
  if (std::string why = y.invalid(); !why.empty())
    return fail(error, "the result would have {}", why);
  if (op.numOperands() > 2 && !expectType(op, 2, y, "the type of the result", error))
    return false;
  types = {y};
  return true;
}

/// With `tf32` a kernel may round operands of f32 to 10 bits of mantissa, as NVIDIA's tensor cores take them; the
/// reference rounds nothing.
std::vector<Tensor> referenceMatmul(const Op &op, std::span<const Tensor *const> in) {
  Product p(op);
  const double *a = in[0]->data.data(), *b = in[1]->data.data();
  Tensor y(op.result()->type);
  for (int64_t s = 0; s < p.batch; ++s)
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < p.k; ++x)
          sum += a[s * p.m * p.k + i * p.aM + x * p.aK] * b[s * p.k * p.n + x * p.bK + j * p.bN];
        int64_t at = (s * p.m + i) * p.n + j;
        y.data[at] = (in.size() > 2 ? in[2]->data[at] : 0.0) + sum;
      }
  return {std::move(y)};
}

Value *reshapeTo(Builder &b, Value *v, const Type &t) {
  return v->type.sameShape(t) ? v : b.op(OpKind::reshape, {v}, {t})->result();
}

/// `v` with the dimensions between the batch and the last one merged, so that it can be operand b with tb.
Value *mergeRows(Builder &b, Value *v, unsigned batch) {
  if (v->type.rank() == batch + 2)
    return v;
  Type t = v->type.slice(0, batch);
  Type rows = v->type.slice(batch, v->type.rank() - 1);
  t.dims.push_back(Dim(rows.elements(), rows.paddedElements()));
  t.dims.push_back(v->type.dims.back());
  return reshapeTo(b, v, t);
}

std::vector<Value *> gradMatmul(GradCtx &c) {
  Value *a = c.op.operand(0), *b = c.op.operand(1), *dy = c.dresults[0];
  if (dy->type.dtype != a->type.dtype)
    dy = c.b.value(OpKind::cast, {dy}, attrs({{"dtype", nameOf(a->type.dtype).str()}}));
  int64_t batch = c.op.attrs.getInt("batch");
  bool ta = c.op.attrs.getBool("ta"), tb = c.op.attrs.getBool("tb");
  auto product = [&](Value *x, Value *y, bool tx, bool ty, const Type &type) {
    if (ty)
      y = mergeRows(c.b, y, unsigned(batch));
    AttrMap at;
    if (batch)
      at.set("batch", batch);
    if (tx)
      at.set("ta", true);
    if (ty)
      at.set("tb", true);
    return reshapeTo(c.b, c.b.value(OpKind::matmul, {x, y}, std::move(at)), type);
  };
  // With A = a or its transpose and B likewise: dA = dY B^T, dB = A^T dY, each in the order in which its operand is
  // stored.
  Value *da = ta ? product(b, dy, tb, true, a->type) : product(dy, b, false, !tb, a->type);
  Value *db = tb ? product(dy, a, true, ta, b->type) : product(a, dy, !ta, false, b->type);
  std::vector<Value *> grads = {da, db};
  if (c.op.numOperands() > 2)
    grads.push_back(c.dresults[0]);
  return grads;
}

Cost costMatmul(const Op &op) {
  Product p(op);
  Cost c = streamCost(op, 0);
  c.flops = 2.0 * double(p.batch) * double(p.m) * double(p.n) * double(p.k);
  return c;
}

std::vector<OpDef::Sample> samplesMatmul(unsigned seed) {
  SampleSource source(seed);
  int64_t sizes[] = {source.extent(129), source.extent(17), source.extent(17)}, b = source.between(1, 3);
  int64_t m = sizes[seed % 3], n = sizes[(seed + 1) % 3], k = sizes[(seed + 2) % 3];  // each is the long one in turn
  Dim pk = source.maybePadded(k), pn = source.maybePadded(n);
  std::vector<OpDef::Sample> samples;
  auto add = [&](const std::vector<std::vector<Dim>> &shapes, AttrMap at) {
    OpDef::Sample s{.attrs = std::move(at)};
    for (const auto &dims : shapes)
      s.operandTypes.push_back(Type(DType::f32, dims));
    samples.push_back(std::move(s));
  };
  add({{m, pk}, {pk, pn}}, {});
  add({{m, pk}, {pn, pk}}, attrs({{"tb", true}}));
  add({{k, m}, {k, pn}}, attrs({{"ta", true}, {"fold", int64_t(2)}}));
  add({{k, m}, {pn, k}}, attrs({{"ta", true}, {"tb", true}}));
  // Weight gradients continuing a sum over tokens; activations with leading dimensions; attention's batches.
  add({{b, k, m}, {b, k, pn}, {m, pn}}, attrs({{"ta", true}, {"fold", k}}));
  add({{b, m, pk}, {pk, pn}, {b, m, pn}}, {});
  add({{b, 2, m, pk}, {b, 2, pn, pk}}, attrs({{"batch", int64_t(2)}, {"tb", true}}));
  add({{b, 2, k, m}, {b, 2, k, n}}, attrs({{"batch", int64_t(2)}, {"ta", true}}));
  // A product of narrow operands with f32 sums, as weight gradients have them.
  add({{k, m}, {k, pn}, {m, pn}}, attrs({{"ta", true}, {"fold", int64_t(4)}, {"out", "f32"}}));
  return samples;
}

bool continues(const Op &op) { return op.numOperands() > 2; }

}  // namespace

OpDef define_matmul() {
  return {
      .kind = OpKind::matmul,
      .name = "matmul",
      .summary =
          "matrix product. The first `batch` dimensions of both are batched; of the rest all but the last are merged. "
          "fold=R sums over k in blocks of R from 0, which are added in order to init or +0; fold=0 is one chain over "
          "k. `out` is the dtype of the result, as which, f32 at least, sums are held",
      .shapes =
          "a [batch.., M.., K] ([batch.., K.., M] with ta), b [batch.., K, N] ([batch.., N, K] with tb)[, init] -> y "
          "[batch.., M.., N]",
      .operands = {{"a"}, {"b"}, {"init", true}},
      .attrs = {{AttrSpec::Bool, "ta", false, false},
                {AttrSpec::Bool, "tb", false, false},
                {AttrSpec::Int, "batch", false, int64_t(0)},
                {AttrSpec::Int, "fold", false, int64_t(0)},
                {AttrSpec::String, "out", false, std::string()},
                {AttrSpec::Bool, "tf32", false, false}},
      .results = {"y"},
      .fusion = FusionKind::matmul,
      .autocast = {AutocastClass::low, {0, 1}},
      .tokens = {Tokens::rows,
                 {0},
                 [](const Op &op) {
                   return !op.attrs.getBool("ta") && op.attrs.getInt("batch") == 0 && !continues(op);
                 }},
      .tokenSum =
          [](const Op &op) { return op.attrs.getBool("ta") && op.attrs.getInt("batch") == 0 ? leadingDims(op) : 0; },
      .indices = noIndices,
      .infer = inferMatmul,
      .check = NotApplicable{"types and attributes are checked when the result type is inferred"},
      .grad = gradMatmul,
      .cost = costMatmul,
      .reference = referenceMatmul,
      .lower = NotApplicable{"the matmul recipe builds the loops around it"},
      .samples = samplesMatmul,
  };
}

}  // namespace gptc
