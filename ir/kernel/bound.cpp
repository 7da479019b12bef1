#include "ir/kernel/bound.h"

#include "ir/kernel/eval.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace gptc::kir {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Half a unit in the last place of numbers in [1, 2).
double unitOf(DType t) {
  switch (t) {
  case DType::f64:
    return 0x1p-53;
  case DType::bf16:
    return 0x1p-8;
  case DType::f16:
    return 0x1p-11;
  case DType::f8e4m3:
    return 0x1p-4;
  default:
    return 0x1p-24;
  }
}

/// The absolute error of rounding a result below the normal numbers, which are spaced evenly.
double smallestOf(DType t) {
  switch (t) {
  case DType::f64:
    return 0x1p-1074;
  case DType::f16:
    return 0x1p-24;
  case DType::bf16:
    return 0x1p-126;  // denormals become zeros
  case DType::f8e4m3:
    return 0x1p-10;
  default:
    return 0x1p-149;
  }
}

double largestOf(DType t) {
  switch (t) {
  case DType::f64:
    return std::numeric_limits<double>::max();
  case DType::f16:
    return 65504;
  default:
    return 0x1.fep127;
  }
}

struct Value {
  double v = 0, e = 0;             // floats: value; error bound, also of integers but u32
  int64_t i = 0;                   // integers
  bool unsure = false;             // a pred that may differ because of rounding
  double high = 0, highError = 0;  // pairs of bf16: v and e are of the low half
};

Value lowOf(const Value &pair) { return {pair.v, pair.e}; }
Value highOf(const Value &pair) { return {pair.high, pair.highError}; }
Value pairOf(const Value &low, const Value &high) {
  const uint32_t bits = bitsOfBF16(float(low.v)) | uint32_t(bitsOfBF16(float(high.v))) << 16;
  return {.v = low.v, .e = low.e, .i = bits, .high = high.v, .highError = high.e};
}

Value rounded(DType t, Value x, double units = 1) {
  if (t == DType::f8e4m3 && !std::isnan(x.v)) {  // saturates, which widens no error
    x = {std::clamp(x.v, -448.0, 448.0), std::isnan(x.e) ? infinity : x.e};
    return {x.v, x.e + unitOf(t) * std::min(std::fabs(x.v) + x.e, 448.0) + smallestOf(t)};
  }
  if (!std::isfinite(x.v))
    return {x.v, std::isnan(x.e) ? infinity : x.e};
  double magnitude = std::fabs(x.v) + x.e;
  if (!(magnitude < largestOf(t)))
    return {x.v, infinity};
  return {x.v, x.e + units * unitOf(t) * magnitude + smallestOf(t)};
}

Value addValues(Value a, Value b, double sign) { return {a.v + sign * b.v, a.e + b.e}; }
Value mulValues(Value a, Value b) {
  double e = a.e * b.e;
  if (b.e != 0)
    e += std::fabs(a.v) * b.e;
  if (a.e != 0)
    e += std::fabs(b.v) * a.e;
  return {a.v * b.v, e};
}
Value divValues(Value a, Value b) {
  double q = a.v / b.v, least = std::fabs(b.v) - b.e;
  if (a.e == 0 && b.e == 0)
    return {q, 0};
  if (!(least > 0))
    return {q, infinity};
  return {q, (a.e + std::fabs(q) * b.e) / least};
}

/// The error of a function as codegen/math.h states it, plus half a place for rounding, in multiples of `unitOf` (a
/// unit in the last place is at most two of them).
double unitsOf(UnaryOp op) {
  switch (op) {
  case UnaryOp::exp:
  case UnaryOp::exp2:
  case UnaryOp::log:
  case UnaryOp::sin:
  case UnaryOp::cos:
    return 3;
  case UnaryOp::tanh:
    return 5;
  case UnaryOp::rsqrt:
    return 3;  // a square root and a division
  case UnaryOp::exp_approx:
    return 5;
  default:
    return 1;
  }
}

Value unaryValue(UnaryOp op, DType t, Value a) {
  if (isInt(t)) {
    const bool keeps = op == UnaryOp::neg || op == UnaryOp::abs;
    return {.e = t == DType::u32 || a.e == 0 ? 0
                 : keeps                     ? a.e
                                             : infinity,
            .i = evalUnaryInt(op, t, a.i),
            .unsure = a.unsure};
  }
  if (const std::optional<DType> narrow = roundsTo(op))
    return rounded(*narrow, a);
  double r = evalUnaryFloat<double>(op, a.v);
  double below = a.v - a.e;
  switch (op) {
  case UnaryOp::neg:
  case UnaryOp::abs:
    return {r, a.e};
  case UnaryOp::floor:
    return {r, a.e == 0 ? 0 : a.e + 1};
  case UnaryOp::exp:
    return rounded(t, {r, a.e == 0 ? 0 : r * std::expm1(a.e)}, unitsOf(op));
  case UnaryOp::exp2:
    return rounded(t, {r, a.e == 0 ? 0 : r * std::expm1(a.e * std::log(2.0))}, unitsOf(op));
  case UnaryOp::exp_approx:
    if (!std::isfinite(a.v) || (a.v == 0 && a.e == 0))
      return {r, 0};
    return rounded(t, {r, (r == 0 ? 0 : r * std::expm1(a.e + (std::fabs(a.v) + a.e) * 0x1p-23)) + 0x1p-126},
                   unitsOf(op));
  case UnaryOp::log:
    return rounded(t, {r, a.e == 0 ? 0 : below > 0 ? a.e / below : infinity}, unitsOf(op));
  case UnaryOp::sqrt:
    return rounded(t, {r, a.e == 0 ? 0 : below > 0 ? a.e / (2 * std::sqrt(below)) : std::sqrt(a.v + a.e)});
  case UnaryOp::rsqrt:
    return rounded(t, {r, a.e == 0 ? 0 : below > 0 ? a.e / (2 * below * std::sqrt(below)) : infinity}, unitsOf(op));
  default:
    return rounded(t, {r, a.e}, unitsOf(op));  // tanh, sin, cos: slopes of at most 1
  }
}

/// Integers do not round, but may come from what did. Those of u32 do not: they are pairs, bytes of numbers that are
/// exact, or random.
Value intValue(BinaryOp op, DType t, const Value &a, const Value &b) {
  Value r{.i = evalInt(op, t, a.i, b.i), .unsure = a.unsure || b.unsure};
  if (t == DType::pred && r.unsure) {  // a certain side may decide
    const bool decides = op == BinaryOp::or_;
    r.unsure = (op != BinaryOp::and_ && op != BinaryOp::or_) ||
               ((a.unsure || bool(a.i) != decides) && (b.unsure || bool(b.i) != decides));
  }
  const double e = a.e + b.e;
  if (e == 0 || t == DType::u32)
    return r;
  if (isComparison(op)) {
    r.unsure |= std::fabs(double(a.i) - double(b.i)) <= e;
    return r;
  }
  switch (op) {
  case BinaryOp::add:
  case BinaryOp::sub:
    r.e = e;
    break;
  case BinaryOp::mul:
    r.e = mulValues({double(a.i), a.e}, {double(b.i), b.e}).e;
    break;
  case BinaryOp::div:
    r.e = b.e == 0 ? a.e / std::fabs(double(b.i)) + 1 : infinity;
    break;
  case BinaryOp::min:
  case BinaryOp::max:
    r.e = std::fabs(double(a.i) - double(b.i)) > e ? (r.i == a.i ? a.e : b.e) : std::max(a.e, b.e);
    break;
  default:
    r.e = infinity;
  }
  return r;
}

Value binaryValue(BinaryOp op, DType t, Value a, Value b) {
  if (isInt(t)) {
    Value r = intValue(op, t, a, b);
    if (op == BinaryOp::and_ && t == DType::u32) {  // halves of a pair, if it is one
      if ((b.i & 0xffff) == 0xffff)
        r.v = a.v, r.e = a.e;
      if ((b.i >> 16 & 0xffff) == 0xffff)
        r.high = a.high, r.highError = a.highError;
    }
    if (op == BinaryOp::shl && t == DType::u32 && b.i == 16)  // the low half as an f32
      r.high = a.v, r.highError = a.e;
    return r;
  }
  if (isComparison(op))
    return {.i = compareFloat(op, a.v, b.v), .unsure = std::fabs(a.v - b.v) <= a.e + b.e && a.e + b.e > 0};
  auto isZero = [](const Value &x) { return x.v == 0 && x.e == 0; };
  switch (op) {
  case BinaryOp::add:
    if (isZero(a) || isZero(b))
      return addValues(a, b, 1);
    return rounded(t, addValues(a, b, 1));
  case BinaryOp::sub:
    return rounded(t, addValues(a, b, -1));
  case BinaryOp::mul:
    return isZero(a) || isZero(b) ? mulValues(a, b) : rounded(t, mulValues(a, b));
  case BinaryOp::div:
    return rounded(t, divValues(a, b));
  default: {  // min, max
    double r = evalFloat<double>(op, a.v, b.v);
    bool apart = std::fabs(a.v - b.v) > a.e + b.e;  // then rounding cannot change the choice
    return {r, apart ? (r == a.v ? a.e : b.e) : std::max(a.e, b.e)};
  }
  }
}

/// An operand or result of Dot: a denormal may become zero.
Value flushed(Value x) {
  if ((x.v != 0 || x.e != 0) && std::fabs(x.v) - x.e < 0x1p-126)
    x.e += 0x1p-126;
  return x;
}
Value dotValue(Value acc, const Value &a, const Value &b) {
  auto step = [](Value x, Value y, Value sum) {
    return flushed(rounded(DType::f32, addValues(mulValues(flushed(x), flushed(y)), sum, 1)));
  };
  return step(lowOf(a), lowOf(b), step(highOf(a), highOf(b), flushed(acc)));
}
/// Rounds to bf16, unless `x` is an exact bf16.
Value halfOfPair(Value x) { return x.e == 0 && roundBF16(float(x.v)) == x.v ? x : rounded(DType::bf16, x); }

Value selectValue(DType t, Value c, Value a, Value b) {
  Value r = c.i ? a : b, other = c.i ? b : a;
  if (c.unsure && t == DType::pred)
    r.unsure |= a.i != b.i || other.unsure;
  else if (c.unsure)
    r.e = std::max(r.e, std::fabs(isFloat(t) ? a.v - b.v : double(a.i) - double(b.i)) + other.e);
  return r;
}

Value castValue(DType to, DType from, Value a) {
  if (isFloat(from) && isFloat(to))
    return sizeOf(to) >= sizeOf(from) || (a.e == 0 && double(float(a.v)) == a.v) ? a : rounded(to, a);
  if (isFloat(from))
    return {.e = a.e == 0 ? 0 : a.e + 1, .i = floatToInt(to, a.v)};
  if (isFloat(to)) {
    const double v = double(a.i), kept = to == DType::f32 ? double(float(v)) : v;
    const bool isExact = a.e == 0 && std::fabs(kept) < 0x1p53 && int64_t(kept) == a.i;
    return isExact ? Value{v} : rounded(to, {v, a.e});
  }
  if (to == DType::pred)
    return {.i = a.i != 0, .unsure = a.unsure || (a.e > 0 && std::fabs(double(a.i)) <= a.e)};
  return {.e = from == DType::pred && a.unsure ? 1 : from == DType::u32 ? 0 : a.e, .i = wrapInt(to, a.i)};
}

/// The bits of a number that has no error; a word whose low half is zero as the bf16 in its high half.
Value bitcastValue(DType to, DType from, const Value &a) {
  uint64_t bits = isInt(from)          ? uint64_t(a.i)
                  : from == DType::f32 ? std::bit_cast<uint32_t>(float(a.v))
                                       : std::bit_cast<uint64_t>(a.v);
  const double e = a.e == 0 ? 0 : infinity;
  if (isInt(to))
    return {.e = e, .i = wrapInt(to, int64_t(bits))};
  return {to == DType::f32 ? double(std::bit_cast<float>(uint32_t(bits))) : std::bit_cast<double>(bits),
          from == DType::u32 ? e + a.highError : e};
}

class Machine {
public:
  llvm::DenseMap<const BufferNode *, std::vector<Value>> memory;

  void run(const std::vector<Stmt> &stmts) { run(stmts, {0}); }

private:
  // Lanes of a vector loop run in lock step, statement by statement, because a load from registers may read what
  // another lane stored. Outside of vector loops there is only lane 0.
  using Lanes = std::vector<int64_t>;
  std::vector<llvm::DenseMap<const VarNode *, Value>> vars{1};  // by lane
  int64_t laneIndex = 0;
  bool onlyDoubts = false;

  Value &element(const Buffer &b, int64_t at) {
    auto it = memory.find(b.get());
    GPTC_CHECK(it != memory.end(), "buffer {} is not in scope", b->name);
    GPTC_CHECK(at >= 0 && at < int64_t(it->second.size()), "element {} of {}", at, b->name);
    return it->second[at];
  }

  void run(const std::vector<Stmt> &body, const Lanes &lanes) {
    for (const Stmt &s : body)
      run(*s, lanes);
  }

  Value evalIn(int64_t lane, const Expr &e) {
    laneIndex = lane;
    return eval(e);
  }
  /// An index, or how often a loop runs.
  int64_t placeIn(int64_t lane, const Expr &e) {
    const Value v = evalIn(lane, e);
    GPTC_CHECK(v.e == 0 || onlyDoubts, "a place or a loop depends on rounding: {}", print(e));
    return v.i;
  }

  void run(const StmtNode &s, const Lanes &lanes) {
    if (lanes.empty())
      return;
    switch (s.kind) {
    case StmtKind::For: {
      const int64_t begin = placeIn(lanes[0], s.begin), extent = placeIn(lanes[0], s.extent);
      if (s.loop == LoopKind::vector) {
        vars.resize(s.width, vars[0]);
        for (int64_t first = 0; first < extent; first += s.width) {
          Lanes active;
          for (int64_t lane = 0; lane < std::min<int64_t>(s.width, extent - first); ++lane) {
            vars[lane][s.var.get()] = {.i = begin + first + lane};
            active.push_back(lane);
          }
          run(s.body, active);
        }
        vars.resize(1);
        return;
      }
      for (int64_t i = 0; i < extent; ++i) {
        for (int64_t lane : lanes)
          vars[lane][s.var.get()] = {.i = begin + i};
        run(s.body, lanes);
      }
      return;
    }
    case StmtKind::Store: {
      std::vector<std::pair<int64_t, Value>> stores;
      for (int64_t lane : lanes) {
        Value v = evalIn(lane, s.value);
        DType t = s.buffer->dtype;
        if (isNarrow(t))
          v = rounded(t, v);
        stores.emplace_back(placeIn(lane, s.index), v);
      }
      for (auto &[at, v] : stores) {
        Value &to = element(s.buffer, at);
        if (!onlyDoubts)
          to = v;
        else
          to.e = to.highError = infinity;
      }
      return;
    }
    case StmtKind::Prefetch:
      return;
    case StmtKind::Matmul:
      return matmul(s);
    case StmtKind::Let:
      for (int64_t lane : lanes)
        vars[lane][s.var.get()] = evalIn(lane, s.value);
      return run(s.body, lanes);
    case StmtKind::If: {
      Lanes yes, no, either;
      for (int64_t lane : lanes) {
        Value c = evalIn(lane, s.value);
        (c.i ? yes : no).push_back(lane);
        if (c.unsure)
          either.push_back(lane);
      }
      run(s.body, yes);
      run(s.orelse, no);
      if (either.empty())
        return;
      const bool outer = std::exchange(onlyDoubts, true);  // nothing is known of the elements that they store to
      run(s.body, either);
      run(s.orelse, either);
      onlyDoubts = outer;
      return;
    }
    case StmtKind::Alloc:
      memory[s.buffer.get()].assign(s.buffer->size, {0, infinity});
      return run(s.body, lanes);
    case StmtKind::Block:
    case StmtKind::Attention:
      return run(s.body, lanes);
    }
  }

  void matmul(const StmtNode &s) {
    const MatmulTile &t = *s.matmul;
    const int64_t aBase = evalIn(0, s.begin).i, bBase = evalIn(0, s.extent).i;
    const int64_t row0 = evalIn(0, s.index).i, col0 = evalIn(0, s.value).i;
    const int64_t rows = std::clamp<int64_t>(t.m - row0, 0, t.rows), cols = std::clamp<int64_t>(t.n - col0, 0, t.cols);
    const int64_t block = t.fold ? t.fold : t.k, once = t.mma ? t.stepsAtOnce() : 1;
    const DType type = s.buffer->dtype;
    auto operand = [&](const Buffer &b, int64_t at) {
      Value v = element(b, at);
      return t.mma && b->dtype == DType::f32 ? Value{v.v, v.e + 0x1p-11 * (std::fabs(v.v) + v.e) + 0x1p-137} : v;
    };
    auto step = [&](Value sum, int64_t i, int64_t j, int64_t k, int64_t count) {
      double magnitudes = std::fabs(sum.v) + sum.e;
      for (int64_t x = k; x < k + count; ++x) {
        const Value product = mulValues(operand(t.a, aBase + (t.ta ? x * t.lda + i : i * t.lda + x)),
                                        operand(t.b, bBase + (t.tb ? j * t.ldb + x : x * t.ldb + j)));
        magnitudes += std::fabs(product.v) + product.e;
        sum = addValues(sum, product, 1);
      }
      if (!t.mma)
        return rounded(type, sum);
      const bool fits = magnitudes < largestOf(type);  // false for NaN
      return Value{sum.v, fits ? sum.e + mmaError(magnitudes, int(once)) : infinity};
    };
    std::vector<Value> sums;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        Value sum = t.goesOn ? element(s.buffer, i * t.ldc + j) : Value{};
        for (int64_t k0 = 0; k0 < t.k; k0 += block) {
          const int64_t end = std::min(t.k, k0 + block);
          Value p = t.fold ? Value{} : sum;
          for (int64_t k = k0; k < end; k += once)
            p = step(p, row0 + i, col0 + j, k, std::min(once, end - k));
          sum = t.fold ? rounded(type, addValues(sum, p, 1)) : p;
        }
        sums.push_back(sum);
      }
    memory[s.buffer.get()].assign(s.buffer->size, {0, infinity});
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        element(s.buffer, i * t.ldc + j) = sums[i * cols + j];
  }

  /// Whether both certainly have the same value.
  static bool same(const ExprNode &a, const ExprNode &b) {
    if (&a == &b)
      return true;
    if (a.kind != b.kind)
      return false;
    if (a.kind == ExprKind::Var)
      return a.var == b.var;
    if (a.kind == ExprKind::IntImm)
      return a.ival == b.ival;
    return a.kind == ExprKind::Load && a.buffer == b.buffer && same(*a.args[0], *b.args[0]);
  }

  Value eval(const Expr &e) {
    auto arg = [&](unsigned i) { return eval(e->args[i]); };
    switch (e->kind) {
    case ExprKind::IntImm: {
      Value v = pairOf({lowOfPair(uint32_t(e->ival))}, {highOfPair(uint32_t(e->ival))});  // if it is one
      v.i = e->ival;
      return v;
    }
    case ExprKind::FloatImm:  // a fraction may have been rounded to the dtype, a whole number not
      return e->fval == std::floor(e->fval) ? Value{e->fval} : rounded(e->dtype, {e->fval});
    case ExprKind::Var:
      return vars[laneIndex].lookup(e->var.get());
    case ExprKind::Lane:
      return {.i = laneIndex};
    case ExprKind::Load:
      return element(e->buffer, placeIn(laneIndex, e->args[0]));
    case ExprKind::Unary:
      return unaryValue(e->uop, e->args[0]->dtype, arg(0));
    case ExprKind::Binary:
      if (e->bop == BinaryOp::sub && isFloat(e->dtype) && same(*e->args[0], *e->args[1])) {
        Value x = arg(0);  // exactly 0, or NaN
        return {x.v - x.v, std::isfinite(rounded(e->dtype, x).e) ? 0 : infinity};
      }
      return binaryValue(e->bop, e->args[0]->dtype, arg(0), arg(1));
    case ExprKind::Fma: {
      Value product = mulValues(arg(0), arg(1)), c = arg(2);
      return rounded(e->dtype, addValues(product, c, 1));
    }
    case ExprKind::Pair:
      return pairOf(halfOfPair(arg(0)), halfOfPair(arg(1)));
    case ExprKind::LoadPair: {
      const int64_t at = arg(0).i;
      return pairOf(halfOfPair(element(e->buffer, at)), halfOfPair(element(e->buffer, at + 1)));
    }
    case ExprKind::Dot:
      return dotValue(arg(0), arg(1), arg(2));
    case ExprKind::Dot4: {
      const Value acc = arg(0);
      return {.e = acc.e, .i = evalDot4(int32_t(acc.i), uint32_t(arg(1).i), uint32_t(arg(2).i))};
    }
    case ExprKind::Select:
      return selectValue(e->dtype, arg(0), arg(1), arg(2));
    case ExprKind::Cast:
      return castValue(e->dtype, e->args[0]->dtype, arg(0));
    case ExprKind::Bitcast:
      return bitcastValue(e->dtype, e->args[0]->dtype, arg(0));
    case ExprKind::HReduce: {
      std::vector<Value> v;
      for (int64_t i = 0, at = arg(0).i; i < e->ival; ++i)
        v.push_back(element(e->buffer, at + i));
      for (int64_t n = e->ival / 2; n >= 1; n /= 2)
        for (int64_t i = 0; i < n; ++i)
          v[i] = binaryValue(e->bop, e->dtype, v[i], v[i + n]);
      return v[0];
    }
    default:
      GPTC_UNREACHABLE("no bound for {}", print(e));
    }
  }
};

}  // namespace

void boundErrors(const Kernel &k, std::vector<std::vector<Bounded>> &buffers) {
  Machine machine;
  for (size_t i = 0; i < k.params.size(); ++i) {
    std::vector<Value> &m = machine.memory[k.params[i].get()];
    for (const Bounded &b : buffers[i]) {
      bool integer = isInt(k.params[i]->dtype);
      m.push_back({integer ? 0 : b.value, b.error, integer ? int64_t(b.value) : 0});
    }
  }
  machine.run(k.body);
  for (size_t i = 0; i < k.params.size(); ++i) {
    const std::vector<Value> &m = machine.memory[k.params[i].get()];
    for (size_t j = 0; j < m.size(); ++j)
      buffers[i][j] = {isInt(k.params[i]->dtype) ? double(m[j].i) : m[j].v, m[j].e};
  }
}

bool usesApproximations(const Kernel &k) {
  std::string text = print(k);
  for (const char *f : {"exp(", "exp2(", "log(", "tanh(", "sin(", "cos(", "exp_approx("})
    if (text.find(f) != std::string::npos)
      return true;
  return false;
}

}  // namespace gptc::kir
