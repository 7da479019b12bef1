#include "support.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

using namespace gptc;
using namespace gptc::kir;
using namespace gptc::test;

namespace {

Buffer input(const char *name, int64_t n, DType t = DType::f32) { return makeBuffer(name, t, Storage::global, n); }
Buffer output(const char *name, int64_t n, DType t = DType::f32) {
  return makeBuffer(name, t, Storage::global, n, true);
}

int count(const std::string &text, const std::string &part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++n;
  return n;
}

CompiledKernel compile(Jit &jit, const Kernel &k) { return jit.compile({&k})[0]; }

/// A register tile of C = A B, A packed by columns of mr and B by rows of nr.
Kernel microKernel(int mr, int nr, int w, int64_t depth) {
  Buffer a = input("a", depth * mr), b = input("b", depth * nr), c = output("c", mr * nr);
  Buffer acc = makeBuffer("acc", DType::f32, Storage::reg, mr * nr);
  Var k = makeVar("k"), t = makeVar("t");
  auto tile = [&](auto statement) {
    Var i = makeVar("i"), j = makeVar("j");
    return loop(LoopKind::unroll, i, imm(mr), {loop(LoopKind::vector, j, imm(nr), {statement(ref(i), ref(j))}, w)});
  };
  Stmt first = tile([&](Expr i, Expr j) { return store(acc, i * nr + j, load(c, i * nr + j)); });
  Stmt step = tile([&](Expr i, Expr j) {
    return store(acc, i * nr + j, fma(load(a, ref(k) * mr + i), load(b, ref(k) * nr + j), load(acc, i * nr + j)));
  });
  Stmt last = tile([&](Expr i, Expr j) { return store(c, i * nr + j, load(acc, i * nr + j)); });
  return {"micro", {a, b, c}, {alloc(acc, {first, loop(LoopKind::serial, k, imm(depth), {step}), last})}};
}

}  // namespace

TEST(Emit, MicroKernelStaysInRegisters) {
  Target t;
  t.cpu = "x86-64-v4";
  t.vectorBytes = 64;
  std::string ir = emitLLVM(microKernel(14, 32, 16, 64), t, true);
  EXPECT_EQ(count(ir, "alloca"), 0) << ir;
  EXPECT_EQ(count(ir, "= call <16 x float> @llvm.fma"), 28);
  EXPECT_EQ(count(ir, "phi <16 x float>"), 28);
  EXPECT_EQ(count(ir, "masked"), 0);
}

TEST(Emit, MicroKernelComputesTheProduct) {
  Kernel k = microKernel(6, 16, 8, 33);
  Jit jit(hostTarget(1), "");
  std::mt19937 rng(1);
  std::vector<std::vector<double>> b{std::vector<double>(33 * 6), std::vector<double>(33 * 16),
                                     std::vector<double>(96)};
  for (auto &v : b)
    for (double &x : v)
      x = float(int(rng() % 2000) - 1000) / 256;
  auto expected = b;
  interpret(k, expected, true);
  runKernel(k, compile(jit, k), b);
  EXPECT_EQ(b[2], expected[2]);
}

TEST(Emit, FlatLoopsBroadcastRowsWithoutGather) {
  // y[i] = x[i] * row[i % 64] + column[i / 64], flat: groups of 16 never cross a row of 64.
  Buffer x = input("x", 640), row = input("row", 64), column = input("column", 10), y = output("y", 640);
  Var i = makeVar("i");
  auto kernel = [&](int64_t cols) {
    Expr v = fma(load(x, ref(i)), load(row, ref(i) % imm(cols)), load(column, ref(i) / imm(cols)));
    return Kernel{"flat", {x, row, column, y}, {loop(LoopKind::vector, i, imm(640), {store(y, ref(i), v)}, 16)}};
  };
  Target t;
  EXPECT_EQ(count(emitLLVM(kernel(64), t, true), "gather"), 0);
  EXPECT_GT(count(emitLLVM(kernel(60), t, true), "gather"), 0);
}

TEST(Emit, InPlaceParametersMayBeTheSame) {
  Buffer x = input("x", 40), y = output("y", 40);
  Var i = makeVar("i");
  Kernel k{"inplace", {x, y}, {loop(LoopKind::vector, i, imm(40), {store(y, ref(i), load(x, ref(i)) + fimm(1))}, 16)}};
  Jit jit(hostTarget(1), "");
  CompiledKernel c = compile(jit, k);
  std::vector<float> v(40, 2);
  void *params[] = {v.data(), v.data()};
  c.phases[0].run(params, 0, 1);
  EXPECT_EQ(v, std::vector<float>(40, 3));
  // What was stored is what a later load of the other parameter sees.
  Kernel again{"twice", {x, y}, {store(y, imm(0), load(x, imm(0)) + fimm(1)), store(y, imm(1), load(x, imm(0)))}};
  Kernel oneTask{"twice", {x, y}, {block(again.body)}};
  compile(jit, oneTask).phases[0].run(params, 0, 1);
  EXPECT_EQ(v[0], 4);
  EXPECT_EQ(v[1], 4);
}

TEST(Emit, RoundsToNarrowTypes) {
  const int64_t n = 1 << 16;
  Buffer x = input("x", n, DType::u32), bf = output("bf", n, DType::bf16), r = output("r", n), h = output("h", n),
         e8 = output("e8", n, DType::f8e4m3), q = output("q", n);
  Var i = makeVar("i");
  Expr v = bitcast(DType::f32, load(x, ref(i)));
  Kernel k{"round",
           {x, bf, r, h, e8, q},
           {loop(LoopKind::vector, i, imm(n),
                 {store(bf, ref(i), v), store(r, ref(i), cast(DType::bf16, v)), store(h, ref(i), cast(DType::f16, v)),
                  store(e8, ref(i), v), store(q, ref(i), cast(DType::f8e4m3, v))},
                 16)}};
  // By the CPU's conversions, and without them.
  for (const char *mask : {"", "-avx512bf16", "-avx512f", "-avx"}) {
    Jit jit(maskedTarget(mask), "");
    CompiledKernel c = compile(jit, k);
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x1000u}) {
      std::vector<std::vector<double>> b(6, std::vector<double>(n));
      for (int64_t j = 0; j < n; ++j)
        b[0][j] = uint32_t(j) << 16 | low;
      runKernel(k, c, b);
      for (int64_t j = 0; j < n; ++j) {
        float f = std::bit_cast<float>(uint32_t(b[0][j]));
        ASSERT_TRUE(sameNumber(b[1][j], roundBF16(f))) << mask << f;
        ASSERT_TRUE(sameNumber(b[2][j], roundBF16(f))) << mask << f;
        ASSERT_TRUE(sameNumber(b[3][j], roundF16(f))) << mask << f << " gave " << b[3][j];
        ASSERT_TRUE(sameNumber(b[4][j], roundE4M3(f))) << mask << f << " gave " << b[4][j];
        ASSERT_TRUE(sameNumber(b[5][j], roundE4M3(f))) << mask << f << " gave " << b[5][j];
      }
    }
  }
}

TEST(Emit, LoadsEightBits) {
  Buffer x = input("x", 256, DType::f8e4m3), y = output("y", 256);
  Var i = makeVar("i");
  for (int width : {1, 16}) {
    Kernel k{"load",
             {x, y},
             {loop(width > 1 ? LoopKind::vector : LoopKind::serial, i, imm(256),
                   {store(y, ref(i), load(x, ref(i)) * fimm(2))}, width)}};
    Jit jit(hostTarget(1), "");
    const CompiledKernel c = compile(jit, k);
    uint8_t codes[256];
    float out[256];
    for (int j = 0; j < 256; ++j)
      codes[j] = uint8_t(j);
    void *params[] = {codes, out};
    c.phases[0].run(params, 0, c.phases[0].tasks);
    for (int j = 0; j < 256; ++j)
      ASSERT_TRUE(sameNumber(out[j], 2 * floatOfE4M3(uint8_t(j)))) << j;
  }
}

// The instruction and what stands in for it: sums of any size, denormals, infinities, every width.
TEST(Emit, DotsOfPairs) {
  const int64_t n = 4096 + 5;
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  auto bf16 = [&] {
    if (rng() % 16 == 0)  // any at all: denormals, infinities, NaN
      return uint32_t(rng() & 0xffff);
    return uint32_t(bitsOfBF16(roundBF16(std::ldexp(normal(rng), rng() % 16 ? int(rng() % 16) - 8 : -60))));
  };
  std::vector<std::vector<double>> in(4, std::vector<double>(n));
  for (int64_t i = 0; i < n; ++i) {
    in[0][i] = rng() % 16 ? std::ldexp(normal(rng), int(rng() % 16) - 8) : std::ldexp(normal(rng), -125);
    in[1][i] = bf16() | bf16() << 16;
    in[2][i] = bf16() | bf16() << 16;
  }
  for (const char *mask : {"", "-avx512bf16", "-avx512f"}) {
    Target target = maskedTarget(mask);
    target.bf16Dot = true;  // as for schedules of another machine: an instruction that is not there stays out
    Jit jit(target, "");
    for (int width : {1, 2, 4, 8, 16, 32, 64}) {
      Buffer acc = input("acc", n), a = input("a", n, DType::u32), b = input("b", n, DType::u32), y = output("y", n);
      Var i = makeVar("i");
      Kernel k{"dot",
               {acc, a, b, y},
               {loop(width == 1 ? LoopKind::serial : LoopKind::vector, i, imm(n),
                     {store(y, ref(i), dot(load(acc, ref(i)), load(a, ref(i)), load(b, ref(i))))}, width)}};
      std::vector<std::vector<double>> got = in;
      runKernel(k, compile(jit, k), got);
      for (int64_t j = 0; j < n; ++j)
        ASSERT_TRUE(sameNumber(got[3][j], evalDot(float(in[0][j]), uint32_t(in[1][j]), uint32_t(in[2][j]))))
            << mask << " width " << width << ": " << in[0][j] << " " << std::hex << uint32_t(in[1][j]) << " "
            << uint32_t(in[2][j]);
    }
  }
}

// The instruction and what stands in for it: sums that wrap, the largest products, every width.
TEST(Emit, DotsOfBytes) {
  const int64_t n = 2048 + 5;
  std::mt19937 rng(8);
  auto word = [&] { return rng() % 8 ? uint32_t(rng()) : rng() % 2 ? 0xff80ff80u : 0x7f7fffffu; };
  std::vector<std::vector<double>> in(4, std::vector<double>(n));
  for (int64_t i = 0; i < n; ++i) {
    in[0][i] = rng() % 8 ? double(int32_t(rng() % 100000) - 50000) : double(int32_t(0x7fffff00));
    in[1][i] = word();
    in[2][i] = word();
  }
  for (const char *mask : {"", "-avx512vnni", "-avx512f", "-avx"}) {
    Jit jit(maskedTarget(mask), "");
    for (int width : {1, 2, 4, 8, 16, 32}) {
      Buffer acc = input("acc", n, DType::i32), a = input("a", n, DType::u32), b = input("b", n, DType::u32),
             y = output("y", n, DType::i32);
      Var i = makeVar("i");
      Kernel k{"dot4",
               {acc, a, b, y},
               {loop(width == 1 ? LoopKind::serial : LoopKind::vector, i, imm(n),
                     {store(y, ref(i), dot4(load(acc, ref(i)), load(a, ref(i)), load(b, ref(i))))}, width)}};
      std::vector<std::vector<double>> got = in, interpreted = in;
      runKernel(k, compile(jit, k), got);
      interpret(k, interpreted);
      EXPECT_EQ(got[3], interpreted[3]) << mask << " width " << width;
      for (int64_t j = 0; j < n; ++j)
        ASSERT_EQ(got[3][j], evalDot4(int32_t(in[0][j]), uint32_t(in[1][j]), uint32_t(in[2][j])))
            << mask << " width " << width << ": " << in[0][j] << " " << std::hex << uint32_t(in[1][j]) << " "
            << uint32_t(in[2][j]);
    }
  }
}

TEST(Emit, LoadsBF16AndPredicates) {
  Buffer x = input("x", 20, DType::bf16), p = input("p", 20, DType::pred), y = output("y", 20),
         q = output("q", 20, DType::pred);
  Var i = makeVar("i");
  Kernel k{"load",
           {x, p, y, q},
           {loop(LoopKind::vector, i, imm(20),
                 {store(y, ref(i), select(load(p, ref(i)), load(x, ref(i)), fimm(-1))),
                  store(q, ref(i), unary(UnaryOp::not_, load(p, ref(i))))},
                 16)}};
  Jit jit(hostTarget(1), "");
  std::vector<std::vector<double>> b(4, std::vector<double>(20)), expected;
  for (int j = 0; j < 20; ++j) {
    b[0][j] = j * 0.5;
    b[1][j] = j % 3 == 0;
  }
  expected = b;
  interpret(k, expected, true);
  runKernel(k, compile(jit, k), b);
  EXPECT_EQ(b, expected);
}

TEST(Emit, F64UsesLibm) {
  const int64_t n = 37;
  constexpr UnaryOp ops[] = {UnaryOp::exp, UnaryOp::exp2, UnaryOp::log,  UnaryOp::tanh,
                             UnaryOp::sin, UnaryOp::cos,  UnaryOp::rsqrt};
  Buffer x = input("x", n, DType::f64);
  Kernel k{"libm", {x}, {}};
  for (UnaryOp op : ops) {
    Buffer y = output("y", n, DType::f64);
    Var i = makeVar("i");
    k.params.push_back(y);
    k.body.push_back(loop(LoopKind::vector, i, imm(n), {store(y, ref(i), unary(op, load(x, ref(i))))}, 8));
  }
  std::vector<std::vector<double>> b(8, std::vector<double>(n)), expected;
  for (int64_t j = 0; j < n; ++j)
    b[0][j] = 0.37 * (j - 5);
  expected = b;
  interpret(k, expected);
  Jit jit(hostTarget(1), "");
  runKernel(k, compile(jit, k), b);
  for (size_t p = 0; p < b.size(); ++p)
    for (int64_t j = 0; j < n; ++j)
      EXPECT_TRUE(sameNumber(b[p][j], expected[p][j])) << p << " " << j;
}

TEST(Emit, RunsRangesOfTasks) {
  Buffer y = output("y", 10, DType::i64);
  Var t = makeVar("t");
  Kernel k{
      "tasks", {y}, {loop(LoopKind::parallel, t, imm(10), {store(y, ref(t), ref(t) + 100)}), store(y, imm(9), imm(7))}};
  Jit jit(hostTarget(1), "");
  CompiledKernel c = compile(jit, k);
  ASSERT_EQ(c.phases.size(), 2u);
  EXPECT_EQ(c.phases[0].tasks, 10);
  EXPECT_EQ(c.phases[1].tasks, 1);
  std::vector<int64_t> v(10, 0);
  void *params[] = {v.data()};
  c.phases[0].run(params, 3, 5);
  EXPECT_EQ(v, (std::vector<int64_t>{0, 0, 0, 103, 104, 0, 0, 0, 0, 0}));
  c.phases[0].run(params, 0, 3);
  c.phases[0].run(params, 5, 10);
  c.phases[1].run(params, 0, 1);
  EXPECT_EQ(v, (std::vector<int64_t>{100, 101, 102, 103, 104, 105, 106, 107, 108, 7}));
}

TEST(Emit, MegabyteStackBuffers) {
  const int64_t n = 1 << 18;
  Buffer x = input("x", n), y = output("y", 1), s = makeBuffer("s", DType::f32, Storage::stack, n);
  Var i = makeVar("i"), j = makeVar("j");
  Kernel k{"stack",
           {x, y},
           {alloc(s, {loop(LoopKind::vector, i, imm(n), {store(s, ref(i), load(x, ref(i)))}, 16),
                      loop(LoopKind::serial, j, imm(n),
                           {store(y, imm(0), load(y, imm(0)) + load(s, imm(n - 1) - ref(j)))})})}};
  std::vector<std::vector<double>> b{std::vector<double>(n, 1), {0}};
  Jit jit(hostTarget(1), "");
  runKernel(k, compile(jit, k), b);
  EXPECT_EQ(b[1][0], n);
}

TEST(Emit, KeepsDenormals) {
  Buffer x = input("x", 16), y = output("y", 16);
  Var i = makeVar("i");
  Kernel k{
      "denormal", {x, y}, {loop(LoopKind::vector, i, imm(16), {store(y, ref(i), load(x, ref(i)) * fimm(0.5))}, 16)}};
  std::vector<std::vector<double>> b{std::vector<double>(16, 0x1p-140), std::vector<double>(16)};
  Jit jit(hostTarget(1), "");
  runKernel(k, compile(jit, k), b);
  EXPECT_EQ(b[1][3], 0x1p-141);
}

TEST(Emit, NothingContracts) {
  // a*b + c in two roundings gives 0 where the FMA gives what the product lost.
  Buffer x = input("x", 16), y = output("y", 16), z = output("z", 16);
  Var i = makeVar("i");
  Expr a = load(x, ref(i));
  Expr product = a * a;
  Kernel k{"contract",
           {x, y, z},
           {loop(LoopKind::vector, i, imm(16),
                 {store(y, ref(i), a * a - product), store(z, ref(i), fma(a, a, -product))}, 16)}};
  std::vector<std::vector<double>> b{std::vector<double>(16, 1 + 0x1p-23), std::vector<double>(16),
                                     std::vector<double>(16)};
  Jit jit(hostTarget(1), "");
  runKernel(k, compile(jit, k), b);
  EXPECT_EQ(b[1][0], 0);
  EXPECT_EQ(b[2][0], 0x1p-46);
}

TEST(Emit, BrokenKernelsAreOurBug) {
  Buffer x = input("x", 16);
  Kernel k{"bad", {x}, {store(x, imm(0), fimm(1))}};
  Jit jit(hostTarget(1), "");
  EXPECT_THROW(compile(jit, k), InternalError);
}

TEST(Emit, StreamedStoresGoPastTheCachesWhereAligned) {
  const int64_t n = 1000;  // with a tail
  Var i = makeVar("i"), t = makeVar("t");
  auto kernel = [&](bool streamed) {
    Buffer x = input("x", 2 * n), y = output("y", 2 * n), z = output("z", 2 * n, DType::bf16);
    y->streamed = z->streamed = streamed;
    Expr at = ref(t) * n + ref(i), v = load(x, at) * fimm(3);
    return Kernel{"streamed",
                  {x, y, z},
                  {loop(LoopKind::parallel, t, imm(2),
                        {loop(LoopKind::vector, i, imm(n), {store(y, at, v), store(z, at, v)}, 32)})}};
  };
  const Kernel plain = kernel(false), streamed = kernel(true);
  EXPECT_NE(print(plain), print(streamed));
  Target target = hostTarget(1);
  const std::string ir = emitLLVM(streamed, target, true);
  EXPECT_EQ(count(ir, "!nontemporal"), 2) << ir;
  EXPECT_EQ(count(ir, "call void @llvm.x86.sse.sfence"), 1) << ir;
  EXPECT_EQ(count(emitLLVM(plain, target, true), "nontemporal"), 0);
  Jit jit(target, "");
  // Memory that begins anywhere: an aligned store elsewhere than at a vector would trap.
  for (int64_t shift : {0, 1, 4, 15, 16, 31}) {
    std::vector<float> from(2 * n + 64), to(2 * n + 64, -1);
    std::vector<uint16_t> low(2 * n + 128, 7);
    for (size_t k = 0; k < from.size(); ++k)
      from[k] = float(k);
    auto at = [&](auto &v) {  // `shift` elements behind a multiple of 64 bytes
      return reinterpret_cast<decltype(v.data())>((uintptr_t(v.data()) + 63) & ~uintptr_t(63)) + shift;
    };
    float *x = from.data(), *y = at(to);
    uint16_t *z = at(low);
    void *params[] = {x, y, z};
    compile(jit, streamed).phases[0].run(params, 0, 2);
    for (int64_t k = 0; k < 2 * n; ++k) {
      ASSERT_EQ(y[k], 3 * float(k)) << shift;
      ASSERT_EQ(z[k], bitsOfBF16(roundBF16(3 * float(k)))) << shift;
    }
    EXPECT_TRUE(y + 2 * n == to.data() + to.size() || y[2 * n] == -1);
    EXPECT_EQ(z[2 * n], 7);
  }
}
