#include "ir/diagnostics.h"
#include "ir/kernel.h"

#include <gtest/gtest.h>

#include <cmath>

using namespace gptc;
using namespace gptc::kir;

namespace {

Kernel scaleKernel(const std::string &name, const std::string &var) {
  Buffer x = makeBuffer("x" + name, DType::f32, Storage::global, 40);
  Buffer y = makeBuffer("y" + name, DType::f32, Storage::global, 40, true);
  Var i = makeVar(var);
  return {name, {x, y}, {loop(LoopKind::vector, i, imm(40), {store(y, ref(i), load(x, ref(i)) * fimm(2))}, 16)}};
}

std::string firstError(const Kernel &k) {
  auto e = verify(k);
  return e.empty() ? "" : e[0];
}

}  // namespace

TEST(Kernel, FoldsImmediates) {
  int64_t v;
  EXPECT_TRUE(isImm(imm(3) + imm(4), &v) && v == 7);
  EXPECT_TRUE(isImm(imm(-1, DType::u32), &v) && v == 4294967295);
  EXPECT_TRUE(isImm(imm(0x7fffffff, DType::i32) + imm(1, DType::i32), &v) && v == -2147483648LL);
  EXPECT_TRUE(isImm(binary(BinaryOp::shr, imm(-1, DType::i32), imm(28, DType::i32)), &v) && v == 15);
  EXPECT_TRUE(isImm(imm(-7) / imm(2), &v) && v == -3);
  EXPECT_TRUE(isImm(imm(-7) % imm(2), &v) && v == -1);
  Var i = makeVar("i");
  Expr e = ref(i);
  EXPECT_EQ(e + 0, e);
  EXPECT_EQ(e * 1, e);
  EXPECT_TRUE(isImm(e * 0, &v) && v == 0);
  EXPECT_EQ(print((e + 3) + 4), "(i + 7)");
  EXPECT_EQ(print(imm(3) + e), "(i + 3)");
  // f32 folds in f32.
  EXPECT_EQ((fimm(16777216) + fimm(1))->fval, 16777216);
  EXPECT_EQ((fimm(16777216, DType::f64) + fimm(1, DType::f64))->fval, 16777217);
  // Float identities are not folded: x + 0 turns -0 into +0.
  Expr f = cast(DType::f32, e);
  EXPECT_NE(f + fimm(0), f);
}

TEST(Kernel, RoundsStorageTypes) {
  EXPECT_EQ(cast(DType::bf16, fimm(1.00390625))->fval, 1.0);       // tie to even
  EXPECT_EQ(cast(DType::bf16, fimm(1.01171875))->fval, 1.015625);  // tie to even, up
  EXPECT_EQ(cast(DType::f16, fimm(65519))->fval, 65504);
  EXPECT_TRUE(std::isinf(cast(DType::f16, fimm(65520))->fval));
  EXPECT_EQ(cast(DType::f16, fimm(0x1p-25))->fval, 0);
  EXPECT_EQ(cast(DType::f16, fimm(0x1.8p-25))->fval, 0x1p-24);
  EXPECT_EQ(cast(DType::f16, fimm(-1.0009765625 - 0x1p-11))->fval, -1.001953125);
  EXPECT_EQ(cast(DType::f16, fimm(1))->dtype, DType::f32);
}

TEST(Kernel, RejectsMixedTypes) {
  Expr i = ref(makeVar("i"));
  EXPECT_THROW(i + imm(1, DType::i32), InternalError);
  EXPECT_THROW(fma(fimm(1), cast(DType::f32, i), fimm(1, DType::f64)), InternalError);
  EXPECT_THROW(unary(UnaryOp::exp, i), InternalError);
  EXPECT_THROW(select(i, i, i), InternalError);
}

TEST(Kernel, EqualKernelsPrintEqualText) {
  Kernel a = scaleKernel("a", "i"), b = scaleKernel("b", "j");
  EXPECT_EQ(print(a), print(b));
  EXPECT_EQ(print(a), "kernel(b0: f32[40], b1: f32[40] written) {\n"
                      "  vector(16) v0 = 0 count 40 {\n"
                      "    b1[v0] = (b0[v0] * 2.0)\n"
                      "  }\n"
                      "}\n");
}

TEST(Kernel, SharedNodesPrintOnce) {
  Expr x = load(makeBuffer("x", DType::f32, Storage::global, 4), imm(1));
  Expr y = x * x;
  for (int i = 0; i < 40; ++i)  // 2^40 nodes as a tree
    y = y * y;
  EXPECT_LT(print(y).size(), 2000u);
  EXPECT_EQ(print(x * x), "%0 = x[1]; (%0 * %0)");
}

TEST(Kernel, RewriteFoldsAndShares) {
  Var i = makeVar("i"), j = makeVar("j");
  Expr keep = ref(j) * 5;
  Expr e = (ref(i) * 3) + keep;
  Expr r =
      rewrite(e, [&](const Expr &n) -> Expr { return n->kind == ExprKind::Var && n->var == i ? imm(2) : nullptr; });
  EXPECT_EQ(print(r), "((j * 5) + 6)");
  EXPECT_EQ(r->args[0], keep);
  EXPECT_EQ(rewrite(e, [](const Expr &n) { return n; }), e);
}

TEST(Kernel, VerifierNamesEachViolation) {
  EXPECT_EQ(firstError(scaleKernel("k", "i")), "");
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 64);
  Buffer y = makeBuffer("y", DType::f32, Storage::global, 64, true);
  Buffer acc = makeBuffer("acc", DType::f32, Storage::reg, 16);
  Var i = makeVar("i"), j = makeVar("j");
  auto check = [&](std::vector<Stmt> body) { return firstError({"k", {x, y}, std::move(body)}); };
  auto copy = [&](const Var &v) { return store(y, ref(v), load(x, ref(v))); };

  EXPECT_EQ(check({store(x, imm(0), fimm(1))}), "store to x: the parameter is not marked as written");
  EXPECT_EQ(check({store(y, imm(64), fimm(1))}), "store to y: element 64 of 64");
  EXPECT_EQ(check({copy(i)}), "store to y: variable i is not in scope");
  EXPECT_EQ(check({store(acc, imm(0), fimm(1))}), "store to acc: buffer acc is not in scope");
  EXPECT_EQ(check({store(y, lane(), fimm(1))}), "store to y: lane outside a vector loop");
  EXPECT_EQ(check({loop(LoopKind::vector, i, imm(64), {store(y, imm(0), load(x, ref(i)))}, 16)}),
            "store to y: all lanes store to element 0");
  EXPECT_EQ(check({loop(LoopKind::vector, i, imm(64), {loop(LoopKind::vector, j, imm(4), {copy(j)}, 4)}, 16)}),
            "loop j: a vector loop inside another");
  EXPECT_EQ(check({loop(LoopKind::vector, i, imm(64), {loop(LoopKind::serial, j, ref(i), {copy(j)})}, 16)}),
            "loop j: bounds differ between lanes");
  EXPECT_EQ(check({loop(LoopKind::serial, i, imm(4), {loop(LoopKind::parallel, j, imm(4), {copy(j)})})}),
            "loop j: a parallel loop below the top level");
  EXPECT_EQ(check({loop(LoopKind::serial, i, imm(4), {loop(LoopKind::unroll, j, ref(i), {copy(j)})})}),
            "loop j: an unroll loop without constant extent");
  EXPECT_EQ(check({loop(LoopKind::vector, i, imm(64), {copy(i)}, 12)}), "loop i: 12 lanes");
  EXPECT_EQ(check({alloc(acc, {loop(LoopKind::serial, i, imm(16), {store(acc, ref(i), fimm(0))})})}),
            "store to acc: index i into reg acc is no constant plus the lane");
  EXPECT_EQ(check({alloc(acc, {loop(LoopKind::vector, i, imm(8), {store(acc, ref(i) * 2, fimm(0))}, 8)})}),
            "store to acc: index (i * 2) into reg acc is no constant plus the lane");
  EXPECT_EQ(check({alloc(acc, {alloc(acc, {copy(i)})})}), "alloc acc: the buffer is in scope already");
  EXPECT_EQ(check({store(y, imm(0), reduce(BinaryOp::add, ReduceAxis::row, load(x, imm(0))))}),
            "store to y: symbolic reduce left in a kernel");
  // Legal: constants after unrolling, through Let, and the vector variable.
  Var k = makeVar("k"), l = makeVar("l");
  EXPECT_EQ(
      check({alloc(acc, {loop(LoopKind::unroll, k, imm(2),
                              {let(l, ref(k) * 8,
                                   {loop(LoopKind::vector, i, imm(8), {store(acc, ref(l) + ref(i), fimm(0))}, 8)})}),
                         store(y, imm(0), hreduce(acc, BinaryOp::add, imm(8), 8))})}),
      "");
}
