// Rows of packed queries, keys and values: H query heads, then Hkv key heads, then Hkv value heads, each of D elements.
#pragma once

#include "ir/ops/op_support.h"

#include <cmath>

namespace gptc::ops {

/// Sizes of an op on packed queries, keys and values, from the type of qkv and the attributes n_head, n_kv_head and
/// of_heads.
struct Heads {
  int64_t batch, rows, queries, keyValues, size;
  int64_t ofHeads;    // heads of the model, of which the queries' are a part
  double factor = 0;  // of q . k, if it is given; 0: 1/sqrt(size)

  static bool from(const Op &op, const Type &qkv, Heads &h, std::string &error) {
    h.queries = op.attrs.getInt("n_head");
    h.keyValues = op.attrs.getInt("n_kv_head", h.queries);
    if (!isArithmetic(qkv.dtype) || qkv.rank() != 3)
      return fail(error, "qkv must be a float tensor of three dimensions, not {}", qkv.str());
    h.factor = op.attrs.getFloat("scale");
    h.ofHeads = op.attrs.getInt("of_heads", 0) ? op.attrs.getInt("of_heads") : h.queries;
    int64_t width = qkv.dim(2);
    if (h.queries < 1 || h.queries > width || h.keyValues < 1 || h.queries % h.keyValues != 0)
      return fail(error,
                  "n_head = {} and n_kv_head = {}: the first must be a positive multiple of the second, within {}",
                  h.queries, h.keyValues, qkv.str());
    int64_t all = h.queries + 2 * h.keyValues;
    if (width % all != 0)
      return fail(error, "the {} elements of a row of qkv do not split into {} heads", width, all);
    for (const Dim &d : qkv.dims)
      if (d.logical != d.padded)
        return fail(error, "qkv may not be padded: {}", qkv.str());
    h.batch = qkv.dim(0), h.rows = qkv.dim(1), h.size = width / all;
    return true;
  }
  /// For an op that passed its checks; InternalError otherwise.
  Heads(const Op &op, const Type &qkv) {
    std::string error;
    GPTC_CHECK(from(op, qkv, *this, error), "{}", error);
  }
  Heads() = default;

  int64_t width() const { return (queries + 2 * keyValues) * size; }
  int64_t keyHead(int64_t h) const { return h / (queries / keyValues); }
  // Offsets, in elements, of head h of row t of sequence b in qkv (q, k, v), o and lse.
  int64_t q(int64_t b, int64_t t, int64_t h) const { return (b * rows + t) * width() + h * size; }
  int64_t k(int64_t b, int64_t t, int64_t h) const { return q(b, t, queries + keyHead(h)); }
  int64_t v(int64_t b, int64_t t, int64_t h) const { return q(b, t, queries + keyValues + keyHead(h)); }
  int64_t o(int64_t b, int64_t t, int64_t h) const { return ((b * rows + t) * queries + h) * size; }
  int64_t lse(int64_t b, int64_t t, int64_t h) const { return (b * queries + h) * rows + t; }
  double scale() const { return factor != 0 ? factor : 1.0 / std::sqrt(double(size)); }

  Type outType(const Type &qkv) const { return Type(qkv.dtype, {qkv.dims[0], qkv.dims[1], Dim(queries * size)}); }
  Type lseType(const Type &qkv) const { return Type(statDType(qkv.dtype), {qkv.dims[0], Dim(queries), qkv.dims[1]}); }
};

/// The number of the operand `documents` of attention or its gradient with that attribute: the last but head0.
inline unsigned documentsOperand(const Op &op) { return op.numOperands() - 1 - (op.attrs.getInt("of_heads") != 0); }

}  // namespace gptc::ops
