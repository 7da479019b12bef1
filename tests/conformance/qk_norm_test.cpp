// QK norm is rmsnorm of parts of a row: of each head (Qwen3), or of all queries and of all keys (OLMo 2).
#include "one_op.h"

#include <gtest/gtest.h>

namespace gptc::conformance {
namespace {

constexpr int64_t batch = 2, rows = 3, heads = 4, keyHeads = 2, size = 6, all = heads + 2 * keyHeads;

std::vector<Tensor> evaluate(OpKind kind, const std::vector<Tensor> &operands, const AttrMap &attributes) {
  OpDef::Sample s{.attrs = attributes, .operandValues = operands};
  for (const Tensor &t : operands)
    s.operandTypes.push_back(t.type);
  return makeOneOp(opDef(kind), s, 1).reference();
}

/// Elements [from, from + count) of each token of packed rows, in rows of `each` elements.
Tensor part(const std::vector<double> &packed, int64_t from, int64_t count, int64_t each) {
  Tensor t(Type(DType::f32, {batch * rows, count / each, each}));
  for (int64_t r = 0; r < batch * rows; ++r)
    std::copy_n(&packed[r * all * size + from], count, &t.data[r * count]);
  return t;
}

void compare(bool whole, bool plusOne) {
  SCOPED_TRACE(fmt::format("whole {} plus_one {}", whole, plusOne));
  const int64_t queries = heads * size, keys = keyHeads * size;
  const Type packed = whole ? Type(DType::f32, {batch, rows, all * size}) : Type(DType::f32, {batch, rows, all, size});
  const Tensor qkv = normals(packed, 1), wq = normals(Type(DType::f32, {whole ? queries : size}), 2),
               wk = normals(Type(DType::f32, {whole ? keys : size}), 3);
  AttrMap at = attrs({{"n_head", heads}, {"n_kv_head", keyHeads}, {"eps", 1e-3}, {"whole", whole}}),
          norm = attrs({{"eps", 1e-3}});
  if (plusOne)
    at.set("plus_one", true), norm.set("plus_one", true);
  const std::vector<double> y = evaluate(OpKind::qk_norm, {qkv, wq, wk}, at)[0].data;
  const std::vector<double>
      q = evaluate(OpKind::rmsnorm, {part(qkv.data, 0, queries, whole ? queries : size), wq}, norm)[0].data,
      k = evaluate(OpKind::rmsnorm, {part(qkv.data, queries, keys, whole ? keys : size), wk}, norm)[0].data;
  for (int64_t r = 0; r < batch * rows; ++r)
    for (int64_t x = 0; x < all * size; ++x) {
      const int64_t i = r * all * size + x;
      const double want = x < queries          ? q[r * queries + x]
                          : x < queries + keys ? k[r * keys + x - queries]
                                               : qkv.data[i];
      EXPECT_NEAR(y[i], want, x < queries + keys ? 1e-14 : 0) << r << " " << x;
    }
}

TEST(QkNorm, IsRmsnormOfParts) {
  for (bool whole : {false, true})
    for (bool plusOne : {false, true})
      compare(whole, plusOne);
}

TEST(QkNorm, WrongShapesAreNamed) {
  auto errorOf = [](const Type &qkv, int64_t weight, const AttrMap &at) {
    Module m;
    Function *f = m.addFunction("f");
    Op *op = f->body.insert(OpKind::qk_norm);
    op->attrs = at;
    for (const Type &t : {qkv, Type(DType::f32, {weight}), Type(DType::f32, {weight})})
      op->addOperand(f->body.addArg(t));
    std::vector<Type> types;
    std::string error;
    return op->def().infer(*op, types, error) ? "" : error;
  };
  const Type packed(DType::f32, {2, 3, 48}), byHeads(DType::f32, {2, 3, 8, 6});
  const AttrMap four = attrs({{"n_head", 4}, {"n_kv_head", 2}});
  AttrMap whole = four;
  whole.set("whole", true);
  EXPECT_EQ(errorOf(byHeads, 6, four), "");
  EXPECT_EQ(errorOf(packed, 6, four), "qkv must be a float tensor [B,T,H+2Hkv,D], not f32[2,3,48]");
  EXPECT_EQ(errorOf(byHeads, 6, whole), "qkv must be a float tensor [B,T,(H+2Hkv)D], not f32[2,3,8,6]");
  EXPECT_EQ(errorOf(byHeads, 6, attrs({{"n_head", 4}})), "8 of f32[2,3,8,6] do not hold 12 heads");
  EXPECT_NE(errorOf(packed, 24, whole).find("one element per column of keys"), std::string::npos);
}

}  // namespace
}  // namespace gptc::conformance
