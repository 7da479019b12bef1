#include "ir/kernel/bound.h"
#include "ir/kernel/eval.h"
#include "ir/kernel/kernel.h"
#include "support/diagnostics.h"

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
  EXPECT_EQ(cast(DType::bf16, fimm(0x1p-126))->fval, 0x1p-126);
  EXPECT_EQ(cast(DType::bf16, fimm(0x1p-127))->fval, 0);  // denormal
  EXPECT_EQ(cast(DType::f16, fimm(65519))->fval, 65504);
  EXPECT_TRUE(std::isinf(cast(DType::f16, fimm(65520))->fval));
  EXPECT_EQ(cast(DType::f16, fimm(0x1p-25))->fval, 0);
  EXPECT_EQ(cast(DType::f16, fimm(0x1.8p-25))->fval, 0x1p-24);
  EXPECT_EQ(cast(DType::f16, fimm(-1.0009765625 - 0x1p-11))->fval, -1.001953125);
  EXPECT_EQ(cast(DType::f16, fimm(1))->dtype, DType::f32);
  EXPECT_EQ(cast(DType::f8e4m3, fimm(17))->fval, 16);  // tie to even
  EXPECT_EQ(cast(DType::f8e4m3, fimm(19))->fval, 20);
  EXPECT_EQ(cast(DType::f8e4m3, fimm(-1e30))->fval, -448);
  EXPECT_EQ(cast(DType::f8e4m3, fimm(std::numeric_limits<double>::infinity()))->fval, 448);
  EXPECT_EQ(cast(DType::f8e4m3, fimm(0x1p-10))->fval, 0);
  EXPECT_EQ(cast(DType::f8e4m3, fimm(0x1.8p-10))->fval, 0x1p-9);
  EXPECT_EQ(cast(DType::f8e4m3, fimm(1))->dtype, DType::f32);
}

TEST(Kernel, BitsOfStorageTypes) {
  for (uint32_t b = 0; b < 1 << 16; ++b) {
    float f = floatOfF16(uint16_t(b));
    ASSERT_EQ(f != f ? bitsOfF16(f) | 0x200 : bitsOfF16(f), f != f ? b | 0x200 : b);
    ASSERT_TRUE(f != f || roundF16(f) == f) << b;
    ASSERT_EQ(bitsOfBF16(floatOfBF16(uint16_t(b))), b);
  }
  EXPECT_EQ(bitsOfF16(1.5f), 0x3e00);
  EXPECT_EQ(floatOfF16(0x8001), -0x1p-24f);
  EXPECT_EQ(bitsOfBF16(-2.0f), 0xc000);
}

// The numbers of OFP8's table, and for any float the nearest of them: of two as near, the one with an even code.
TEST(Kernel, EightBits) {
  EXPECT_EQ(floatOfE4M3(0x7e), 448);
  EXPECT_EQ(floatOfE4M3(0x08), 0x1p-6f);
  EXPECT_EQ(floatOfE4M3(0x01), 0x1p-9f);
  EXPECT_EQ(floatOfE4M3(0xc5), -3.25f);
  EXPECT_TRUE(std::signbit(floatOfE4M3(0x80)) && floatOfE4M3(0x80) == 0);
  EXPECT_TRUE(std::isnan(floatOfE4M3(0x7f)) && std::isnan(floatOfE4M3(0xff)));
  for (unsigned code = 0; code < 256; ++code) {
    const float f = floatOfE4M3(uint8_t(code));
    ASSERT_EQ(bitsOfE4M3(f), code);
    ASSERT_TRUE(f != f || roundE4M3(f) == f) << code;
    if ((code & 0x7f) >= 0x7e)
      continue;
    const float next = floatOfE4M3(uint8_t(code + 1)), middle = (f + next) / 2, beyond = std::nextafter(middle, next);
    ASSERT_EQ(roundE4M3(middle), code % 2 ? next : f) << code;
    ASSERT_EQ(roundE4M3(beyond), next) << code;
    ASSERT_EQ(roundE4M3(std::nextafter(middle, 0.0f)), f) << code;
  }
  EXPECT_TRUE(std::isnan(roundE4M3(std::numeric_limits<float>::quiet_NaN())));
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

TEST(Kernel, VerifierKnowsBlocksAndThreads) {
  Buffer y = makeBuffer("y", DType::f32, Storage::global, 64, true);
  Buffer part = makeBuffer("part", DType::f32, Storage::shared, 64),
         acc = makeBuffer("acc", DType::f32, Storage::reg, 1);
  Buffer large = makeBuffer("large", DType::f64, Storage::shared, 227 * 128 + 1);
  Var b = makeVar("b"), t = makeVar("t"), u = makeVar("u"), s = makeVar("s", DType::f32);
  auto check = [&](std::vector<Stmt> body) { return firstError({"k", {y}, std::move(body)}); };
  auto grid = [&](std::vector<Stmt> body) { return loop(LoopKind::grid, b, imm(4), std::move(body)); };
  auto threads = [&](const Var &v, int64_t n, std::vector<Stmt> body) {
    return loop(LoopKind::block_thread, v, imm(n), std::move(body));
  };
  Stmt put = store(y, ref(t), fimm(1)), fill = threads(t, 64, {store(part, ref(t), fimm(1))});

  EXPECT_EQ(check({grid({alloc(
                part, {fill, let(s, hreduce(part, BinaryOp::add), {threads(u, 1, {store(y, ref(b), ref(s))})})})})}),
            "");
  EXPECT_EQ(check({loop(LoopKind::serial, u, imm(4), {grid({threads(t, 64, {put})})})}),
            "loop b: a grid loop below the top level");
  EXPECT_EQ(check({loop(LoopKind::grid, b, load(makeBuffer("n", DType::i64, Storage::global, 1), imm(0)), {})}),
            "loop b: buffer n is not in scope");
  EXPECT_EQ(check({threads(t, 64, {put})}), "loop t: a block_thread loop outside of a grid loop, or inside another");
  EXPECT_EQ(check({grid({threads(u, 8, {threads(t, 8, {put})})})}),
            "loop t: a block_thread loop outside of a grid loop, or inside another");
  EXPECT_EQ(check({grid({threads(t, 1025, {put})})}), "loop t: 1025 threads from 0");
  EXPECT_EQ(check({grid({store(y, ref(b), fimm(1))})}), "store to y: every thread of a block stores");
  EXPECT_EQ(check({alloc(part, {store(part, imm(0), fimm(1))})}), "alloc part: no place for a buffer of that storage");
  EXPECT_EQ(check({grid({threads(t, 64, {alloc(part, {put})})})}), "alloc part: no place for a buffer of that storage");
  EXPECT_EQ(check({grid({alloc(acc, {threads(t, 64, {put})})})}), "alloc acc: no place for a buffer of that storage");
  EXPECT_EQ(check({grid({alloc(large, {threads(t, 64, {put})})})}),
            "alloc large: more than 232448 bytes of shared buffers");
  EXPECT_EQ(check({grid({alloc(part, {threads(t, 64, {store(y, ref(t), hreduce(part, BinaryOp::add))})})})}),
            "store to y: hreduce of part, which is not reg here");
  EXPECT_EQ(check({grid({loop(LoopKind::vector, u, imm(4), {}, 4)})}),
            "loop u: a vector loop around the threads of a block");
}

// ---- interpreter ----------------------------------------------------------------------------------------------------

TEST(KernelInterpreter, RunsVectorLoopsInLockStep) {
  // x[i] = x[i + 1] within a group of four: all lanes load before one stores.
  Buffer x = makeBuffer("x", DType::f64, Storage::global, 8, true);
  Var i = makeVar("i");
  Kernel k{"shift", {x}, {loop(LoopKind::vector, i, imm(7), {store(x, ref(i), load(x, ref(i) + 1))}, 4)}};
  std::vector<std::vector<double>> b{{0, 1, 2, 3, 4, 5, 6, 7}};
  interpret(k, b);
  EXPECT_EQ(b[0], (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 7}));
}

TEST(KernelInterpreter, FoldsByHalves) {
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 4), y = makeBuffer("y", DType::f32, Storage::global, 1, true);
  Buffer acc = makeBuffer("acc", DType::f32, Storage::reg, 4);
  Var i = makeVar("i");
  Kernel k{"sum",
           {x, y},
           {alloc(acc, {loop(LoopKind::vector, i, imm(4), {store(acc, lane(), load(x, ref(i)))}, 4),
                        store(y, imm(0), hreduce(acc, BinaryOp::add))})}};
  // (1e8 + -1e8) + (1 + 1) = 2; in order, in f32, it would be 1.
  std::vector<std::vector<double>> b{{1e8, 1, -1e8, 1}, {0}};
  interpret(k, b, true);
  EXPECT_EQ(b[1][0], 2);
}

TEST(KernelInterpreter, RunsBlocksOfThreads) {
  // Each block sums a row of eight through a shared buffer, which no block inherits from another.
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 16),
         y = makeBuffer("y", DType::f32, Storage::global, 2, true);
  Buffer part = makeBuffer("part", DType::f32, Storage::shared, 4);
  Var b = makeVar("b"), t = makeVar("t"), u = makeVar("u"), s = makeVar("s", DType::f32);
  auto kernel = [&](int64_t threads) -> Kernel {
    Expr at = ref(b) * 8 + ref(t);
    Stmt fill = loop(LoopKind::block_thread, t, imm(threads), {store(part, ref(t), load(x, at) + load(x, at + 4))});
    Stmt put = loop(LoopKind::block_thread, u, imm(1), {store(y, ref(b), ref(s))});
    return {"rows",
            {x, y},
            {loop(LoopKind::grid, b, imm(2), {alloc(part, {fill, let(s, hreduce(part, BinaryOp::add), {put})})})}};
  };
  std::vector<std::vector<double>> m{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, {0, 0}};
  EXPECT_EQ(verify(kernel(4)), std::vector<std::string>());
  interpret(kernel(4), m);
  EXPECT_EQ(m[1], (std::vector<double>{36, 100}));
  EXPECT_THROW(interpret(kernel(3), m), InternalError);
}

TEST(KernelInterpreter, MasksLanesAndBranches) {
  Buffer x = makeBuffer("x", DType::i32, Storage::global, 6), y = makeBuffer("y", DType::i32, Storage::global, 6, true);
  Var i = makeVar("i");
  Expr odd = binary(BinaryOp::eq, load(x, ref(i)) % imm(2, DType::i32), imm(1, DType::i32));
  Kernel k{"branch",
           {x, y},
           {loop(LoopKind::vector, i, imm(6),
                 {ifThen(odd, {store(y, ref(i), load(x, ref(i)) * imm(10, DType::i32))},
                         {store(y, ref(i), imm(-1, DType::i32))})},
                 4)}};
  std::vector<std::vector<double>> b{{1, 2, 3, 4, 5, 6}, {0, 0, 0, 0, 0, 0}};
  interpret(k, b);
  EXPECT_EQ(b[1], (std::vector<double>{10, -1, 30, -1, 50, -1}));
}

TEST(KernelInterpreter, RoundsOnRequest) {
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 2),
         y = makeBuffer("y", DType::bf16, Storage::global, 2, true);
  Kernel k{"round",
           {x, y},
           {store(y, imm(0), load(x, imm(0)) + load(x, imm(1))),
            store(y, imm(1), fma(load(x, imm(0)), load(x, imm(0)), -(load(x, imm(0)) * load(x, imm(0)))))}};
  std::vector<std::vector<double>> b{{1 + 0x1p-23, 0x1p-30}, {0, 0}};
  interpret(k, b);
  EXPECT_EQ(b[1][0], 1 + 0x1p-23 + 0x1p-30);
  EXPECT_EQ(b[1][1], 0);
  interpret(k, b, true);
  EXPECT_EQ(b[1][0], 1);
  EXPECT_EQ(b[1][1], 0x1p-46);  // what the product's rounding to f32 lost
}

TEST(KernelVerify, StackBuffersWhoseBytesOverflow) {
  for (int64_t size : {int64_t(1) << 62, int64_t(1) << 61, int64_t(1) << 18}) {
    Buffer c = makeBuffer("c", DType::f32, Storage::stack, size), d = makeBuffer("d", DType::f32, Storage::stack, size);
    std::vector<std::string> errors = verify({"k", {}, {alloc(c, {alloc(d, {})})}});
    ASSERT_FALSE(errors.empty()) << size;
    EXPECT_NE(errors[0].find("stack buffers"), std::string::npos) << errors[0];
  }
}

TEST(KernelInterpreter, NamesTheStatementAtFault) {
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 4), y = makeBuffer("y", DType::f32, Storage::global, 4, true);
  Buffer acc = makeBuffer("acc", DType::f32, Storage::stack, 4);
  Var i = makeVar("i");
  auto fault = [&](std::vector<Stmt> body) -> std::string {
    std::vector<std::vector<double>> b{{0, 0, 0, 0}, {0, 0, 0, 0}};
    try {
      interpret({"k", {x, y}, std::move(body)}, b);
    } catch (const InternalError &e) {
      return e.what();
    }
    return "none";
  };
  auto in = [](const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; };
  std::string e = fault({loop(LoopKind::serial, i, imm(5), {store(y, imm(0), load(x, ref(i)))})});
  EXPECT_TRUE(in(e, "store y[0]") && in(e, "element 4 of x, which has 4")) << e;
  e = fault({alloc(acc, {store(acc, imm(0), fimm(1)), store(y, imm(1), load(acc, imm(2)))})});
  EXPECT_TRUE(in(e, "store y[1]") && in(e, "element 2 of acc is read before it is stored to")) << e;
  e = fault({loop(LoopKind::vector, i, imm(4), {store(y, ref(i) / imm(2), cast(DType::f32, ref(i)))}, 4)});
  EXPECT_TRUE(in(e, "two lanes store to element 0 of y")) << e;
  // A new entry of the scope forgets what the last one stored.
  e = fault({loop(LoopKind::serial, i, imm(2),
                  {alloc(acc, {ifThen(binary(BinaryOp::eq, ref(i), imm(0)), {store(acc, imm(0), fimm(1))}),
                               store(y, ref(i), load(acc, imm(0)))})})});
  EXPECT_TRUE(in(e, "store y[i]") && in(e, "element 0 of acc is read before")) << e;
}

TEST(Kernel, NothingIsSaidOfWhatABranchStoresThatRoundingMayTurn) {
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 1), y = makeBuffer("y", DType::f32, Storage::global, 3, true);
  const Expr v = load(x, imm(0));
  const Kernel k{"branch",
                 {x, y},
                 {store(y, imm(0), v), store(y, imm(1), v), store(y, imm(2), v),
                  ifThen(lt(v, fimm(1)), {store(y, imm(0), fimm(7))}, {store(y, imm(1), fimm(8))})}};
  for (auto [value, error, unsure] : {std::tuple(0.5, 0.25, false), {0.5, 1.0, true}, {1.5, 1.0, true}}) {
    std::vector<std::vector<Bounded>> memory = {{{value, error}}, {{}, {}, {}}};
    boundErrors(k, memory);
    const bool taken = value < 1;
    EXPECT_EQ(memory[1][0].value, taken ? 7 : value);
    EXPECT_EQ(memory[1][1].value, taken ? value : 8);
    EXPECT_EQ(std::isinf(memory[1][0].error), unsure);
    EXPECT_EQ(std::isinf(memory[1][1].error), unsure);
    EXPECT_EQ(memory[1][2].error, error);
  }
}
