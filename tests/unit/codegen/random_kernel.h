// Random kernels whose meaning is exact: every operator is correctly rounded, every index in bounds, every element
// stored before it is read. So the emitted code must give the interpreter's bits.
#pragma once

#include "ir/kernel/kernel.h"

#include <cstdlib>
#include <functional>
#include <random>

namespace gptc::test {

using namespace kir;

/// How many random kernels a test tries: GPTC_FUZZ_KERNELS, or `otherwise`.
inline unsigned kernelsToTry(unsigned otherwise) {
  const char *value = std::getenv("GPTC_FUZZ_KERNELS");
  return value ? unsigned(std::strtoul(value, nullptr, 10)) : otherwise;
}

/// The kernel for CUDA, each phase in one thread: tasks of a random one may touch the same elements.
inline void inOneThread(Kernel &k) {
  for (Stmt &s : k.body) {
    if (s->kind == StmtKind::For && s->loop == LoopKind::parallel)
      s = loop(LoopKind::serial, s->var, s->extent, s->body);
    s = loop(LoopKind::grid, makeVar("b"), imm(1), {loop(LoopKind::block_thread, makeVar("t"), imm(1), {s})});
  }
}

class RandomKernel {
public:
  static constexpr int64_t size = 96;  // elements of each parameter

  RandomKernel(unsigned seed, DType f) : rng(seed), f(f) {
    x = makeBuffer("x", f, Storage::global, size);
    h = makeBuffer("h", f == DType::f64 ? f : DType::bf16, Storage::global, size);
    n = makeBuffer("n", DType::i32, Storage::global, size);  // values in [0, size)
    y = makeBuffer("y", f, Storage::global, size, true);
    g = makeBuffer("g", f == DType::f64 ? f : DType::bf16, Storage::global, size, true);
    m = makeBuffer("m", DType::u32, Storage::global, size, true);
  }

  Kernel build() {
    Kernel k{"random", {x, h, n, y, g, m}, {}};
    for (int phases = pick(1, 2); phases > 0; --phases) {
      if (chance(50)) {
        Var t = makeVar("t");
        int64_t extent = pick(1, 3);
        scopes.push_back({t, 0, extent - 1, false});
        k.body.push_back(loop(LoopKind::parallel, t, imm(extent), body(3)));
        scopes.pop_back();
      } else {
        k.body.push_back(block(body(3)));
      }
    }
    return k;
  }

  std::vector<std::vector<double>> inputs() {
    std::vector<std::vector<double>> b(6, std::vector<double>(size));
    for (int64_t i = 0; i < size; ++i) {
      b[0][i] = value();
      b[1][i] = std::ldexp(pick(-255, 255), pick(-8, 0));  // a bf16
      b[2][i] = pick(0, size - 1);
      b[3][i] = value();
      b[4][i] = std::ldexp(pick(-255, 255), pick(-8, 0));
      b[5][i] = uint32_t(rng());
    }
    return b;
  }

private:
  struct Scope {
    Var v;
    int64_t low, high;
    bool varying;
  };
  std::mt19937 rng;
  const DType f;
  Buffer x, h, n, y, g, m;
  std::vector<Scope> scopes;                  // i64 variables and their ranges
  std::vector<Var> floats;                    // let-bound floats in scope
  std::vector<Buffer> locals;                 // stack buffers, all elements stored to
  std::vector<std::pair<Buffer, int>> lanes;  // reg buffers of one group of so many lanes
  int width = 0;                              // of the vector loop we stand in

  int64_t pick(int64_t low, int64_t high) { return low + int64_t(rng() % uint32_t(high - low + 1)); }
  bool chance(int percent) { return pick(0, 99) < percent; }
  double value() {
    switch (pick(0, 9)) {
    case 0:
      return 0;
    case 1:
      return -0.0;
    case 2:
      return double(float(std::ldexp(pick(1, 999), -148)));  // denormal as f32
    default:
      return double(float(std::ldexp(double(pick(-1000000, 1000000)), -16)));
    }
  }

  // ---- indices -----------------------------------------------------------------------------------------------------

  struct Range {
    Expr e;
    int64_t low, high;
  };

  Range term() {
    if (scopes.empty() || chance(10)) {
      int64_t c = pick(0, 7);
      return {imm(c), c, c};
    }
    Scope s = scopes[pick(0, scopes.size() - 1)];
    Expr v = ref(s.v);
    switch (pick(0, 9)) {
    case 0: {
      int64_t c = pick(2, 3);
      return {v * c, s.low * c, s.high * c};
    }
    case 1: {
      int64_t c = int64_t(1) << pick(0, 5);
      return {v / imm(c), s.low / c, s.high / c};
    }
    case 2: {
      int64_t c = chance(70) ? int64_t(1) << pick(1, 5) : pick(1, 12);
      return {v % imm(c), 0, c - 1};
    }
    case 3:
      return {kir::min(v, imm(5)), 0, std::min<int64_t>(5, s.high)};
    case 4:
      return {imm(s.high) - v, 0, s.high - s.low};
    default:
      return {v, s.low, s.high};
    }
  }

  /// An index into a buffer of `limit` elements.
  Expr index(int64_t limit) {
    if (chance(12))  // gather
      return cast(DType::i64, load(n, index(size))) % imm(limit);
    Range r = term();
    if (chance(40)) {
      Range s = term();
      r = {r.e + s.e, r.low + s.low, r.high + s.high};
    }
    if (r.high >= limit)
      return chance(50) ? r.e % imm(limit) : kir::min(r.e, imm(limit - 1));
    return r.e + pick(0, limit - 1 - r.high);
  }

  /// An index at which no two lanes meet.
  Expr target(int64_t limit) {
    for (const Scope &s : scopes)
      if (width && s.varying) {
        int64_t step = s.high * 2 < limit && chance(20) ? 2 : 1;
        if (s.high * step < limit) {
          Expr e = ref(s.v) * step + pick(0, limit - 1 - s.high * step);
          return e;
        }
      }
    return width ? lane() : index(limit);
  }

  // ---- values ------------------------------------------------------------------------------------------------------

  Expr leaf() {
    switch (pick(0, 9)) {
    case 0:
      return fimm(value(), f);
    case 1:
      return scopes.empty() ? fimm(2, f) : cast(f, ref(scopes[pick(0, scopes.size() - 1)].v));
    case 2:
      return load(h, index(size));
    case 3:
      return load(y, index(size));
    case 4:
      if (!floats.empty())
        return ref(floats[pick(0, floats.size() - 1)]);
      return load(x, index(size));
    case 5:
      if (!locals.empty()) {
        Buffer b = locals[pick(0, locals.size() - 1)];
        return load(b, index(b->size));
      }
      return load(x, index(size));
    case 6:
      return cast(f, integer(2));
    case 7:
      if (!lanes.empty()) {
        auto [b, w] = lanes[pick(0, lanes.size() - 1)];
        if (width == w && chance(50))
          return load(b, chance(70) ? lane() : binary(BinaryOp::xor_, lane(), imm(pick(0, w - 1))));
        return chance(50) ? hreduce(b, chance(50) ? BinaryOp::add : BinaryOp::max) : load(b, imm(pick(0, w - 1)));
      }
      return load(x, index(size));
    default:
      return load(x, index(size));
    }
  }

  Expr real(int levels) {
    if (levels == 0 || chance(20))
      return leaf();
    Expr a = real(levels - 1);
    switch (pick(0, f == DType::f32 ? 15 : 14)) {
    case 15:
      return dot(a, pairs(levels - 1), pairs(levels - 1));
    case 0:
      return a + real(levels - 1);
    case 1:
      return a - real(levels - 1);
    case 2:
      return a * real(levels - 1);
    case 3:
      return a / real(levels - 1);
    case 4:
      return kir::min(a, real(levels - 1));
    case 5:
      return kir::max(a, real(levels - 1));
    case 6:
      return fma(a, real(levels - 1), real(levels - 1));
    case 7:
      return select(condition(levels - 1), a, real(levels - 1));
    case 8:
      return -a;
    case 9:
      return unary(UnaryOp::abs, a);
    case 10:
      return unary(chance(50) ? UnaryOp::sqrt : UnaryOp::rsqrt, unary(UnaryOp::abs, a));
    case 11:
      return unary(UnaryOp::floor, a);
    case 12:
      return f == DType::f64 ? unary(UnaryOp::tanh, a) : cast(chance(50) ? DType::bf16 : DType::f16, a);
    case 13:
      return a + a * a;  // shared
    default:
      return cast(f, cast(f == DType::f64 ? DType::f32 : DType::f64, a));
    }
  }

  Expr pairs(int levels) {
    if (chance(40))
      return loadPair(h, index(size - 1));
    return chance(70) ? pair(real(levels), real(levels)) : integer(levels);
  }

  Expr condition(int levels) {
    static constexpr BinaryOp ops[] = {BinaryOp::eq, BinaryOp::ne, BinaryOp::lt,
                                       BinaryOp::le, BinaryOp::gt, BinaryOp::ge};
    BinaryOp op = ops[pick(0, 5)];
    Expr c;
    switch (pick(0, 2)) {
    case 0:
      c = binary(op, real(levels > 0 ? levels - 1 : 0), leaf());
      break;
    case 1:
      c = binary(op, term().e, term().e);
      break;
    default:
      c = binary(op, integer(1), integer(1));
    }
    if (levels > 0 && chance(25))
      c = binary(chance(50) ? BinaryOp::and_ : BinaryOp::or_, c, condition(levels - 1));
    return chance(10) ? unary(UnaryOp::not_, c) : c;
  }

  Expr integer(int levels) {
    if (levels == 0 || chance(20)) {
      if (chance(50))
        return load(m, index(size));
      return cast(DType::u32, chance(50) ? load(n, index(size)) : term().e);
    }
    Expr a = integer(levels - 1);
    Expr s = imm(pick(1, 31), DType::u32);
    switch (pick(0, 9)) {
    case 0:
      return a + integer(levels - 1);
    case 1:
      return a * integer(levels - 1);
    case 2:
      return binary(BinaryOp::xor_, a, integer(levels - 1));
    case 3:
      return binary(BinaryOp::shl, a, s);
    case 4:
      return binary(BinaryOp::shr, a, s);
    case 5:
      return a % binary(BinaryOp::or_, integer(levels - 1), imm(1, DType::u32));
    case 6:
      return cast(DType::u32,
                  binary(BinaryOp::shr, cast(DType::i64, a) * cast(DType::i64, integer(levels - 1)), imm(32)));
    case 7:
      return cast(DType::u32, cast(DType::i32, a) / imm(pick(-9, -2), DType::i32));
    case 8:
      return cast(DType::u32, kir::min(fimm(1000, f), kir::max(real(0), fimm(0, f))));
    default:
      return a - integer(levels - 1);
    }
  }

  // ---- statements --------------------------------------------------------------------------------------------------

  Stmt simple() {
    switch (pick(0, 6)) {
    case 0:
      return store(m, target(size), integer(2));
    case 1:
      return store(g, target(size), real(2));
    case 2:
      for (auto &[b, w] : lanes)
        if (w == width)
          return store(b, lane(), fma(real(1), real(1), load(b, lane())));
      [[fallthrough]];
    default:
      return store(y, target(size), real(3));
    }
  }

  std::vector<Stmt> body(int levels) {
    std::vector<Stmt> r;
    for (int64_t k = pick(1, 2); k > 0; --k)
      r.push_back(statement(levels));
    return r;
  }

  std::vector<Stmt> under(const Scope &s, int levels) {
    scopes.push_back(s);
    std::vector<Stmt> r = body(levels);
    scopes.pop_back();
    return r;
  }

  Stmt vectorLoop(int levels, int w) {
    Var v = makeVar("v");
    int64_t begin = chance(25) ? pick(1, 9) : 0;
    int64_t extent = chance(30) ? w : chance(30) ? 2 * w : pick(1, w + 1);
    extent = std::min<int64_t>(extent, size - begin);
    // A run-time extent is the constant plus an integer that is always zero.
    Expr count = imm(extent);
    if (chance(30))
      count = count + cast(DType::i64, load(n, imm(pick(0, 3)))) / imm(size);
    width = w;
    Stmt s = loop(LoopKind::vector, v, count, under({v, begin, begin + extent - 1, true}, levels), w, imm(begin));
    width = 0;
    return s;
  }
  int anyWidth() { return 1 << pick(0, 5); }

  Stmt statement(int levels) {
    if (levels == 0)
      return simple();
    switch (pick(0, 9)) {
    case 0: {
      Var v = makeVar("i");
      int64_t extent = pick(0, 4), begin = pick(0, 2);
      std::vector<Stmt> b = under({v, begin, std::max(begin, begin + extent - 1), false}, levels - 1);
      Expr count = imm(extent);
      if (chance(30))
        count = count + cast(DType::i64, load(n, imm(0))) / imm(size);
      return loop(LoopKind::serial, v, count, b, 1, imm(begin));
    }
    case 1: {
      Var v = makeVar("u");
      int64_t extent = pick(1, 3);
      return loop(LoopKind::unroll, v, imm(extent), under({v, 0, extent - 1, false}, levels - 1));
    }
    case 2: {
      Var v = makeVar("a", f);
      Expr e = real(2);
      floats.push_back(v);
      std::vector<Stmt> b = body(levels - 1);
      floats.pop_back();
      return let(v, e, b);
    }
    case 3: {
      Expr c = condition(1);
      std::vector<Stmt> then = body(levels - 1), other;
      if (chance(50))
        other = body(levels - 1);
      return ifThen(c, then, other);
    }
    case 4:
      if (!width) {  // a stack buffer, filled by a vector loop
        Buffer b = makeBuffer("s", f, Storage::stack, pick(1, 40));
        Var v = makeVar("f");
        Stmt fill =
            loop(LoopKind::vector, v, imm(b->size), {store(b, ref(v), load(x, ref(v)) * fimm(0.5, f))}, anyWidth());
        locals.push_back(b);
        std::vector<Stmt> rest = body(levels - 1);
        locals.pop_back();
        rest.insert(rest.begin(), fill);
        return alloc(b, rest);
      }
      return simple();
    case 5:
      if (!width)
        return accumulator(levels);
      return simple();
    case 6:
      if (!width)
        return tile();
      return simple();
    default:
      if (!width)
        return vectorLoop(levels - 1, anyWidth());
      return simple();
    }
  }

  /// Lanes of partial results over a loop with a tail, then a fold.
  Stmt accumulator(int levels) {
    int w = anyWidth();
    Buffer acc = makeBuffer("acc", f, Storage::reg, w);
    Var z = makeVar("z"), v = makeVar("v");
    std::vector<Stmt> b;
    b.push_back(loop(LoopKind::vector, z, imm(w), {store(acc, lane(), fimm(0, f))}, w));
    int64_t extent = pick(1, std::min<int64_t>(3 * w, size));
    Expr count = imm(extent);
    if (chance(30))
      count = count + cast(DType::i64, load(n, imm(1))) / imm(size);
    b.push_back(loop(LoopKind::vector, v, count,
                     {store(acc, lane(), fma(load(x, ref(v)), load(h, ref(v)), load(acc, lane())))}, w));
    lanes.push_back({acc, w});
    if (levels > 1)
      b.push_back(vectorLoop(levels - 2, w));
    lanes.pop_back();
    b.push_back(store(y, index(size), hreduce(acc, BinaryOp::add)));
    return alloc(acc, b);
  }

  /// A register tile of a small matrix product, ragged to the right.
  Stmt tile() {
    int w = anyWidth(), rows = pick(1, 4);
    int64_t cols = pick(1, 2) * w - (chance(50) && w > 1 ? pick(0, w - 1) : 0);
    int64_t ld = (cols + w - 1) / w * w;
    Buffer acc = makeBuffer("c", f, Storage::reg, rows * ld);
    Var k = makeVar("k");
    auto grid = [&](const std::function<Stmt(Expr row, Expr col)> &at) {
      Var r = makeVar("r"), c = makeVar("c");
      return loop(LoopKind::unroll, r, imm(rows), {loop(LoopKind::vector, c, imm(cols), {at(ref(r), ref(c))}, w)});
    };
    Stmt zero = grid([&](Expr r, Expr c) { return store(acc, r * ld + c, fimm(0, f)); });
    Stmt step = grid([&](Expr r, Expr c) {
      return store(acc, r * ld + c,
                   fma(load(x, (ref(k) * 4 + r) % imm(size)), load(h, kir::min(ref(k) * cols + c, imm(size - 1))),
                       load(acc, r * ld + c)));
    });
    Stmt out = grid([&](Expr r, Expr c) { return store(y, (r * cols + c) % imm(size), load(acc, r * ld + c)); });
    if (cols > size)
      return simple();
    return alloc(acc, {zero, loop(LoopKind::serial, k, imm(pick(1, 5)), {step}), out});
  }
};

}  // namespace gptc::test
