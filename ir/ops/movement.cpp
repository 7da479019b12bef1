// Views and movement: reshape, transpose, slices, broadcast, cast.
#include "ir/ops/op_support.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {

using namespace ops;

namespace {

/// Whether the row-major positions of all logical elements are the same in both: the dimensions from the first padded
/// one on are equal, and those before have equally many elements.
bool sameLayout(const Type &a, const Type &b) {
  llvm::ArrayRef<Dim> x = a.dims, y = b.dims;
  while (!x.empty() && !y.empty() && x.back() == y.back()) {
    x = x.drop_back();
    y = y.drop_back();
  }
  auto plain = [](const Dim &d) { return d.logical == d.padded; };
  return llvm::all_of(x, plain) && llvm::all_of(y, plain) && Type(a.dtype, x).elements() == Type(b.dtype, y).elements();
}

/// Gets the dimension in attribute `dim`; false, with `error`, unless it may be cut: not padded, not sharded.
bool cutDimension(const Op &op, int64_t &dim, std::string &error) {
  const Type &x = op.operand(0)->type;
  dim = op.attrs.getInt("dim");
  if (dim < 0 || dim >= x.rank())
    return fail(error, "dim {} of {}", dim, x.str());
  if (x.dim(dim) != x.padded(dim))
    return fail(error, "dimension {} of {} is padded", dim, x.str());
  for (const Shard &s : x.sharding)
    if (s.dim == dim)
      return fail(error, "dimension {} of {} is sharded", dim, x.str());
  return true;
}

/// Whether [start, start + size) is within [0, full).
bool inRange(int64_t start, int64_t size, int64_t full) {
  return size > 0 && start >= 0 && size <= full && start <= full - size;
}

std::vector<int64_t> inverse(llvm::ArrayRef<int64_t> perm) {
  std::vector<int64_t> r(perm.size());
  for (size_t i = 0; i < perm.size(); ++i)
    r[size_t(perm[i])] = int64_t(i);
  return r;
}

kir::Expr clampIndex(kir::Expr i, int64_t last) {
  return kir::min(kir::max(std::move(i), kir::imm(0)), kir::imm(last));
}

/// A result gathered from operand 0: from(index, source) computes the source's index for a result element; false if the
/// element has no source and is zero.
template <typename F> std::vector<Tensor> gatherReference(const Op &op, const Tensor &x, F from) {
  Tensor r(op.result()->type);
  std::vector<int64_t> strides = stridesOf(x.type);
  std::vector<int64_t> source;
  forEachIndex(r.type, [&](llvm::ArrayRef<int64_t> index, int64_t position) {
    source.assign(index.begin(), index.end());
    if (!from(index, source))
      return;
    int64_t p = 0;
    for (size_t d = 0; d < strides.size(); ++d)
      p += source[d] * strides[d];
    r.data[position] = x.data[p];
  });
  return {std::move(r)};
}

/// slice and unslice are each other's gradient; `extent` is the other's attribute with the length of the dimension.
std::vector<Value *> gradSlice(GradCtx &c, OpKind other, const char *extent) {
  int64_t dim = c.op.attrs.getInt("dim");
  return {c.b.value(
      other, {c.dresults[0]},
      attrs({{"dim", dim}, {"start", c.op.attrs.getInt("start")}, {extent, c.op.operand(0)->type.dim(dim)}}))};
}

/// Samples of a slice (`extent` "size") or an unslice ("full"), of the last dimension and of the first.
std::vector<OpDef::Sample> samplesSlice(unsigned seed, const std::string &extent) {
  SampleSource s(seed);
  const bool within = extent == "size";
  int64_t a = s.extent(9), b = s.extent(9), c = s.extent();
  int64_t start = s.between(0, within ? c - 1 : 7);
  auto length = [&] { return within ? s.between(1, c - start) : start + c + s.between(0, 7); };
  auto along = [&](int64_t dim) { return attrs({{"dim", dim}, {"start", start}, {extent.c_str(), length()}}); };
  std::vector<OpDef::Sample> samples = {{.operandTypes = {Type(DType::f32, {a, b, c})}, .attrs = along(2)}};
  samples.push_back({.operandTypes = {Type(DType::f32, {c, a})}, .attrs = along(0)});
  return samples;
}

}  // namespace

OpDef define_reshape() {
  return OpDef{
      .kind = OpKind::reshape,
      .name = "reshape",
      .summary = "the same elements in row-major order under another shape; a view",
      .shapes = "x -> y, of the type given",
      .operands = {{"x"}},
      .attrs = {{AttrSpec::Ints, "at", false, std::vector<int64_t>()}},
      .results = {"y"},
      .fusion = FusionKind::view,
      .autocast = AutocastClass::high,
      .tokens = anyDimension,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = NotApplicable{"the shape is what one asks for: it is given"},
      .check = [](const Op &op) -> std::string {
        const Type &x = op.operand(0)->type;
        const Type &y = op.result()->type;
        if (x.dtype != y.dtype || !sameLayout(x, y))
          return fmt::format("{} is no view of {}", y.str(), x.str());
        return "";
      },
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        return {c.b.op(OpKind::reshape, {c.dresults[0]}, {c.op.operand(0)->type})->result()};
      },
      .cost = [](const Op &) { return Cost(); },
      .reference = [](const Op &op, std::span<const Tensor *const> x) -> std::vector<Tensor> {
        return {Tensor(op.result()->type, x[0]->data)};
      },
      .lower = NotApplicable{"a view runs no code"},
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        int64_t a = s.extent(9), b = s.extent(9), c = s.extent(17);
        return {
            {.operandTypes = {Type(DType::f32, {a, b, c})}, .resultTypes = {Type(DType::f32, {a * b, c})}},
            {.operandTypes = {Type(DType::f32, {a, b * c})}, .resultTypes = {Type(DType::f32, {a, b, c})}},
        };
      },
  };
}

OpDef define_transpose() {
  return OpDef{
      .kind = OpKind::transpose,
      .name = "transpose",
      .summary = "dimension i of the result is dimension perm[i] of x",
      .shapes = "x -> y",
      .operands = {{"x"}},
      .attrs = {{AttrSpec::Ints, "perm", true, std::vector<int64_t>()}},
      .results = {"y"},
      .fusion = FusionKind::gather,
      .autocast = AutocastClass::high,
      .tokens = anyDimension,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &x = op.operand(0)->type;
            std::vector<int64_t> perm = op.attrs.getInts("perm");
            std::vector<int64_t> sorted = perm;
            llvm::sort(sorted);
            bool good = perm.size() == x.rank();
            for (size_t i = 0; good && i < sorted.size(); ++i)
              good = sorted[i] == int64_t(i);
            if (!good)
              return fail(error, "perm is no permutation of the dimensions of {}", x.str());
            Type y(x.dtype);
            for (size_t i = 0; i < perm.size(); ++i) {
              y.dims.push_back(x.dims[perm[i]]);
              for (const Shard &s : x.sharding)
                if (s.dim == perm[i])
                  y.sharding.push_back({unsigned(i), s.axis});
            }
            types = {std::move(y)};
            return true;
          },
      .check = NotApplicable{"infer says it all"},
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        return {c.b.value(OpKind::transpose, {c.dresults[0]}, attrs({{"perm", inverse(c.op.attrs.getInts("perm"))}}))};
      },
      .cost = [](const Op &op) { return streamCost(op, 0); },
      .reference =
          [](const Op &op, std::span<const Tensor *const> x) {
            std::vector<int64_t> perm = op.attrs.getInts("perm");
            return gatherReference(op, *x[0], [&](llvm::ArrayRef<int64_t> index, std::vector<int64_t> &source) {
              for (size_t i = 0; i < perm.size(); ++i)
                source[perm[i]] = index[i];
              return true;
            });
          },
      .lower = [](LowerCtx &c) -> std::vector<kir::Expr> {
        std::vector<int64_t> perm = c.op.attrs.getInts("perm");
        std::vector<kir::Expr> index = c.index();
        std::vector<kir::Expr> source(perm.size());
        for (size_t i = 0; i < perm.size(); ++i)
          source[perm[i]] = index[i];
        return {c.operandAt(0, source)};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        int64_t a = s.extent(9), b = s.extent(17), c = s.extent(9), d = s.extent(17);
        using V = std::vector<int64_t>;
        return {
            {.operandTypes = {Type(DType::f32, {b, d})}, .attrs = attrs({{"perm", V{1, 0}}})},
            {.operandTypes = {Type(DType::f32, {a, b, c, d})}, .attrs = attrs({{"perm", V{0, 2, 1, 3}}})},
            {.operandTypes = {Type(DType::f32, {a, b, c})}, .attrs = attrs({{"perm", V{2, 0, 1}}})},
            {.operandTypes = {Type(DType::i32, {b, c})}, .attrs = attrs({{"perm", V{1, 0}}})},
        };
      },
  };
}

OpDef define_slice() {
  return OpDef{
      .kind = OpKind::slice,
      .name = "slice",
      .summary = "positions start .. start+size of dimension dim",
      .shapes = "x -> y",
      .operands = {{"x"}},
      .attrs = {{AttrSpec::Int, "dim", true}, {AttrSpec::Int, "start", true}, {AttrSpec::Int, "size", true}},
      .results = {"y"},
      .fusion = FusionKind::gather,
      .autocast = AutocastClass::high,
      .tokens = anyDimension,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            int64_t dim;
            if (!cutDimension(op, dim, error))
              return false;
            Type y = op.operand(0)->type;
            int64_t start = op.attrs.getInt("start"), size = op.attrs.getInt("size");
            if (!inRange(start, size, y.dim(dim)))
              return fail(error, "{} positions from {} do not lie within dimension {} of {}", size, start, dim,
                          y.str());
            y.dims[dim] = Dim(size);
            types = {std::move(y)};
            return true;
          },
      .check = NotApplicable{"infer says it all"},
      .grad = [](GradCtx &c) { return gradSlice(c, OpKind::unslice, "full"); },
      .cost =
          [](const Op &op) {
            Cost c = streamCost(op, 0);
            c.bytesRead = c.bytesWritten;
            return c;
          },
      .reference =
          [](const Op &op, std::span<const Tensor *const> x) {
            int64_t dim = op.attrs.getInt("dim"), start = op.attrs.getInt("start");
            return gatherReference(op, *x[0], [&](llvm::ArrayRef<int64_t>, std::vector<int64_t> &source) {
              source[dim] += start;
              return true;
            });
          },
      .lower = [](LowerCtx &c) -> std::vector<kir::Expr> {
        std::vector<kir::Expr> index = c.index();
        kir::Expr &i = index[c.op.attrs.getInt("dim")];
        i = i + c.op.attrs.getInt("start");
        return {c.operandAt(0, index)};
      },
      .samples = [](unsigned seed) { return samplesSlice(seed, "size"); },
  };
}

OpDef define_unslice() {
  return OpDef{
      .kind = OpKind::unslice,
      .name = "unslice",
      .summary = "x at positions start .. of a dimension dim of extent full, zeros elsewhere; the gradient of slice",
      .shapes = "x -> y",
      .operands = {{"x"}},
      .attrs = {{AttrSpec::Int, "dim", true}, {AttrSpec::Int, "start", true}, {AttrSpec::Int, "full", true}},
      .results = {"y"},
      .fusion = FusionKind::gather,
      .autocast = AutocastClass::high,
      .tokens = anyDimension,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            int64_t dim;
            if (!cutDimension(op, dim, error))
              return false;
            Type y = op.operand(0)->type;
            int64_t start = op.attrs.getInt("start"), full = op.attrs.getInt("full");
            if (full > maxElements || !inRange(start, y.dim(dim), full))
              return fail(error, "dimension {} of {} does not fit at {} into {}", dim, y.str(), start, full);
            y.dims[dim] = Dim(full);
            if (std::string why = y.invalid(); !why.empty())
              return fail(error, "the result would have {}", why);
            types = {std::move(y)};
            return true;
          },
      .check = NotApplicable{"infer says it all"},
      .grad = [](GradCtx &c) { return gradSlice(c, OpKind::slice, "size"); },
      .cost = [](const Op &op) { return streamCost(op, 0); },
      .reference =
          [](const Op &op, std::span<const Tensor *const> x) {
            int64_t dim = op.attrs.getInt("dim"), start = op.attrs.getInt("start"), size = x[0]->type.dim(dim);
            return gatherReference(op, *x[0], [&](llvm::ArrayRef<int64_t> index, std::vector<int64_t> &source) {
              source[dim] = index[dim] - start;
              return source[dim] >= 0 && source[dim] < size;
            });
          },
      .lower = [](LowerCtx &c) -> std::vector<kir::Expr> {
        const Type &x = c.op.operand(0)->type;
        int64_t dim = c.op.attrs.getInt("dim"), size = x.dim(dim);
        std::vector<kir::Expr> index = c.index();
        kir::Expr i = index[dim] - kir::imm(c.op.attrs.getInt("start"));
        // The load is clamped instead of guarded, so that every lane can do it.
        index[dim] = clampIndex(i, size - 1);
        kir::Expr inside = kir::binary(kir::BinaryOp::eq, index[dim], i);
        kir::Expr element = c.operandAt(0, index);
        return {kir::select(inside, element, kir::immLike(0, element))};
      },
      .samples = [](unsigned seed) { return samplesSlice(seed, "full"); },
  };
}

OpDef define_dynamic_slice() {
  return OpDef{
      .kind = OpKind::dynamic_slice,
      .name = "dynamic_slice",
      .summary = "rows pos .. pos+size of dimension 0; pos is clamped so that they exist",
      .shapes = "x [n,..], pos i32[] or i64[] -> y [size,..]",
      .operands = {{"x"}, {"pos"}},
      .attrs = {{AttrSpec::Int, "size", true}},
      .results = {"y"},
      .fusion = FusionKind::gather,
      .autocast = AutocastClass::high,
      .tokens = anyDimension,
      .tokenSum = noTokenSum,
      .indices = {1, [](const Op &op) { return op.operand(0)->type.dim(0); }},
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &x = op.operand(0)->type;
            const Type &pos = op.operand(1)->type;
            if (!pos.isScalar() || (pos.dtype != DType::i32 && pos.dtype != DType::i64))
              return fail(error, "pos must be i32[] or i64[], not {}", pos.str());
            int64_t size = op.attrs.getInt("size");
            if (!expectRank(op, 0, 1, error))
              return false;
            if (x.dim(0) != x.padded(0) || !inRange(0, size, x.dim(0)))
              return fail(error, "{} rows do not lie within {}", size, x.str());
            Type y = x;
            y.dims[0] = Dim(size);
            types = {std::move(y)};
            return true;
          },
      .check = NotApplicable{"infer says it all"},
      .grad =
          NotApplicable{"reads tables at a run-time position in @prefill and @decode, which are not differentiated"},
      .cost =
          [](const Op &op) {
            Cost c = streamCost(op, 0);
            c.bytesRead = c.bytesWritten;
            return c;
          },
      .reference =
          [](const Op &op, std::span<const Tensor *const> x) {
            int64_t last = x[0]->type.dim(0) - op.attrs.getInt("size");
            int64_t pos = int64_t(std::min(std::max(x[1]->data[0], 0.0), double(last)));
            return gatherReference(op, *x[0], [&](llvm::ArrayRef<int64_t>, std::vector<int64_t> &source) {
              source[0] += pos;
              return true;
            });
          },
      .lower = [](LowerCtx &c) -> std::vector<kir::Expr> {
        int64_t last = c.op.operand(0)->type.dim(0) - c.op.attrs.getInt("size");
        std::vector<kir::Expr> index = c.index();
        index[0] = index[0] + clampIndex(kir::cast(DType::i64, c.operand(1)), last);
        return {c.operandAt(0, index)};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        int64_t n = s.extent(), c = s.extent();
        std::vector<OpDef::Sample> samples;
        // Within, and beyond either end.
        for (int64_t pos : {s.between(0, n - 1), int64_t(-3), n + 5}) {
          DType t = pos < 0 ? DType::i32 : DType::i64;
          samples.push_back({.operandTypes = {Type(DType::f32, {n, c}), Type::scalar(t)},
                             .attrs = attrs({{"size", s.between(1, n)}}),
                             .operandValues = {Tensor(), Tensor::scalar(double(pos), t)}});
        }
        return samples;
      },
  };
}

OpDef define_broadcast() {
  return OpDef{
      .kind = OpKind::broadcast,
      .name = "broadcast",
      .summary = "x repeated over the leading dimensions that it lacks",
      .shapes = "x, a suffix of y or a scalar -> y, of the type given",
      .operands = {{"x"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = Tokens::elements,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = NotApplicable{"the shape is what one asks for: it is given"},
      .check = [](const Op &op) -> std::string {
        const Type &x = op.operand(0)->type;
        const Type &y = op.result()->type;
        if (x.dtype != y.dtype || !isSuffix(x, y))
          return fmt::format("{} is no suffix of {}", x.str(), y.str());
        return "";
      },
      .grad = [](GradCtx &c) -> std::vector<Value *> { return {sumTo(c.b, c.dresults[0], c.op.operand(0)->type)}; },
      .cost = [](const Op &op) { return streamCost(op, 0); },
      .reference = [](const Op &op, std::span<const Tensor *const> x) -> std::vector<Tensor> {
        Tensor r(op.result()->type);
        for (size_t i = 0; i < r.data.size(); ++i)
          r.data[i] = at(*x[0], int64_t(i));
        return {std::move(r)};
      },
      .lower = [](LowerCtx &c) -> std::vector<kir::Expr> { return {c.operand(0)}; },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        int64_t a = s.extent(9), b = s.extent(9), c = s.extent();
        return {
            {.operandTypes = {Type(DType::f32, {c})}, .resultTypes = {Type(DType::f32, {a, b, c})}},
            {.operandTypes = {Type::scalar(DType::f32)}, .resultTypes = {Type(DType::f32, {a, c})}},
        };
      },
  };
}

OpDef define_cast() {
  return OpDef{
      .kind = OpKind::cast,
      .name = "cast",
      .summary = "x converted to `dtype`: floats to integers toward zero, integers wrap, anything but 0 is a true pred",
      .shapes = "x -> y, of the shape of x",
      .operands = {{"x"}},
      .attrs = {{AttrSpec::String, "dtype", true, ""}},
      .results = {"y"},
      .fusion = FusionKind::pointwise,
      .autocast = NotApplicable{"says itself what it makes"},
      .tokens = Tokens::elements,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            std::string name = op.attrs.getString("dtype");
            std::optional<DType> t = parseDType(name);
            if (!t)
              return fail(error, "{:?} is no dtype", name);
            types = {op.operand(0)->type.withDType(*t)};
            return true;
          },
      .check = NotApplicable{"infer says it all"},
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        DType from = c.op.operand(0)->type.dtype;
        if (!isFloat(from) || !isFloat(c.op.result()->type.dtype))
          return {nullptr};
        return {c.b.value(OpKind::cast, {c.dresults[0]}, attrs({{"dtype", nameOf(from).str()}}))};
      },
      .cost = [](const Op &op) { return streamCost(op, 0); },
      .reference = [](const Op &op, std::span<const Tensor *const> x) -> std::vector<Tensor> {
        Tensor r(op.result()->type);
        for (size_t i = 0; i < r.data.size(); ++i)
          r.data[i] = convert(x[0]->data[i], r.type.dtype);
        return {std::move(r)};
      },
      .lower = [](LowerCtx &c) -> std::vector<kir::Expr> {
        DType to = c.op.result()->type.dtype;
        kir::Expr x = c.operand(0);
        if (to == DType::pred)
          return {kir::binary(kir::BinaryOp::ne, x, kir::immLike(0, x))};
        if (isFloat(to))
          to = c.compute();
        if (x->dtype == DType::pred)
          return {isFloat(to) ? kir::select(x, c.f(1), c.f(0)) : kir::select(x, kir::imm(1, to), kir::imm(0, to))};
        return {kir::cast(to, x)};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        int64_t a = s.extent(9), b = s.extent();
        auto ints = [&](DType t, int64_t lo, int64_t hi) { return s.integers(Type(t, {a, b}), lo, hi); };
        auto sample = [&](Tensor x, const char *to) {
          return OpDef::Sample{.operandTypes = {x.type}, .attrs = attrs({{"dtype", to}}), .operandValues = {x}};
        };
        return {
            sample(ints(DType::i32, -100, 100), "f32"),
            sample(s.uniforms(Type(DType::f32, {a, b}), -100, 100), "i32"),
            sample(ints(DType::i64, -100, 100), "i32"),
            sample(s.normals(Type(DType::f32, {b})), "f32"),
        };
      },
  };
}

}  // namespace gptc
