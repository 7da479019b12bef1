// What SASS instructions compute.
#include "codegen/cuda/warp_state.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/bit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace gptc {

using llvm::StringRef;
using Kind = SassOperand::Kind;

namespace {

float asFloat(uint32_t bits) { return llvm::bit_cast<float>(bits); }
uint32_t asBits(float f) { return llvm::bit_cast<uint32_t>(f); }

bool compare(StringRef how, double x, double y) {
  const bool unordered = std::isnan(x) || std::isnan(y);
  if (how == "NAN" || how == "NUM")
    return unordered == (how == "NAN");
  if (unordered)
    return how.size() == 3 && how.ends_with("U");  // GTU: or unordered
  return llvm::StringSwitch<bool>(how.take_front(2))
      .Case("LT", x < y)
      .Case("LE", x <= y)
      .Case("GT", x > y)
      .Case("GE", x >= y)
      .Case("EQ", x == y)
      .Case("NE", x != y)
      .Default(false);
}

/// One instruction on its operands. The functions by kind say whether they know it.
class Op {
public:
  Op(const SassInstruction &i, WarpState &w, double ready)
      : i(i), op(i.opcode), w(w), ready(ready), firstSource(destinationsOf(i)) {}

  void run() {
    if (firstSource == 0 || moves() || sums() || products() || bits() || minima() || predicates() || floats() ||
        doubles() || conversions())
      return;
    for (size_t k = 0; k < firstSource; ++k) {
      w.write(i.operands[k], unknownData<bool>(), ready);
      for (int r = 0; r < registersOf(i, k); ++r)
        if (WarpState::isRegister(i.operands[k]))
          w.write(WarpState::next(i.operands[k], r), unknownData<uint32_t>(), ready);
    }
  }

private:
  const SassInstruction &i;
  const StringRef op;
  WarpState &w;
  const double ready;
  const size_t firstSource;

  bool is(llvm::ArrayRef<const char *> names) const {
    return std::any_of(names.begin(), names.end(), [&](const char *n) { return op == n; });
  }
  const SassOperand &source(size_t k) const {
    static const SassOperand absent;
    return firstSource + k < i.operands.size() ? i.operands[firstSource + k] : absent;
  }
  /// The first and the last modifier, "" if there is none.
  StringRef first() const { return i.modifiers.empty() ? StringRef() : StringRef(i.modifiers.front()); }
  StringRef last() const { return i.modifiers.empty() ? StringRef() : StringRef(i.modifiers.back()); }
  size_t sources() const { return i.operands.size() - firstSource; }
  const SassOperand &result() const { return i.operands[0]; }

  /// Writes f(lane, values of the sources...) as the result.
  template <class F> bool set(llvm::ArrayRef<Value> from, const F &f) {
    Value v;
    for (const Value &x : from)
      v.isKnown &= x.isKnown, v.isFromData |= x.isFromData;
    for (size_t l = 0; l < warpLanes; ++l)
      v.bits[l] = f(l);
    w.write(result(), v, ready);
    return true;
  }

  /// Writes a condition, with the last operand by AND, OR or XOR, and its opposite into the second predicate.
  template <class F> bool setPredicate(bool isKnown, const SassOperand &with, const F &f) {
    const Predicate other = w.readPredicate(with);
    Predicate p, opposite;
    for (size_t l = 0; l < warpLanes; ++l) {
      auto combined = [&](bool b) {
        return i.has("OR") ? b || other.bits[l] : i.has("XOR") ? b != other.bits[l] : b && other.bits[l];
      };
      const bool b = f(l);
      p.bits[l] = combined(b);
      opposite.bits[l] = combined(!b);
    }
    // False for certain, or true, if the other operand alone decides.
    const bool decided = other.isKnown && !i.has("XOR") && other.bits[0] == i.has("OR");
    p.isKnown = opposite.isKnown = decided || (isKnown && other.isKnown);
    w.write(i.operands[0], p, ready);
    if (firstSource > 1)
      w.write(i.operands[1], opposite, ready);
    return true;
  }

  bool moves() {
    if (is({"MOV", "UMOV", "R2UR"}) || (op == "IMAD" && i.has("MOV"))) {
      const Value v = w.read(i.operands.back());
      return set(v, [&](size_t l) { return v.bits[l]; });
    }
    if (is({"LDC", "ULDC", "LDCU"})) {
      if (i.has("64"))
        w.writeWide(result(), w.readWide(source(0)), ready);
      else
        w.write(result(), w.read(source(0)), ready);
      return true;
    }
    if (is({"S2R", "S2UR", "CS2R"})) {
      w.write(result(), w.special(source(0)), ready);
      if (op == "CS2R" && !i.has("32"))
        w.write(WarpState::next(result()), Value{}, ready);
      return true;
    }
    if (is({"SEL", "USEL", "FSEL"})) {
      const Value a = w.read(source(0), op == "FSEL"), b = w.read(source(1), op == "FSEL");
      const Predicate p = w.readPredicate(source(2));
      Value v;
      for (size_t l = 0; l < warpLanes; ++l)
        v.bits[l] = p.bits[l] ? a.bits[l] : b.bits[l];
      v.isKnown = p.isKnown && (p.bits[0] ? a : b).isKnown;
      v.isFromData = a.isFromData || b.isFromData;
      w.write(result(), v, ready);
      return true;
    }
    if (op == "SHFL") {
      Predicate valid;
      valid.bits.fill(true);
      w.write(i.operands[0], valid, ready);
      if (firstSource > 1)
        w.write(i.operands[1], w.read(source(0)), ready);
      return true;
    }
    return false;
  }

  bool sums() {
    if (is({"IADD3", "UIADD3", "VIADD", "IADD"})) {
      llvm::SmallVector<Value, 3> terms;
      llvm::SmallVector<bool, 3> negative;
      llvm::SmallVector<Predicate, 2> carries;
      for (size_t k = 0; k < sources(); ++k)
        if (WarpState::isPredicate(source(k))) {
          carries.push_back(w.readPredicate(source(k)));
        } else {
          terms.push_back(w.read(source(k)));
          negative.push_back(source(k).minus);
        }
      std::array<uint64_t, warpLanes> sum{};
      bool isKnown = true;
      for (const Value &t : terms)
        isKnown &= t.isKnown;
      for (const Predicate &c : carries)
        isKnown &= c.isKnown;
      for (size_t l = 0; l < warpLanes; ++l) {
        for (size_t k = 0; k < terms.size(); ++k)
          // Minus nothing carries, as a complement plus one does.
          sum[l] += negative[k] && terms[k].bits[l] == 0 ? uint64_t(1) << 32 : terms[k].bits[l];
        for (const Predicate &c : carries)
          sum[l] += c.bits[l];
      }
      return carrying(terms, sum, isKnown);
    }
    if (is({"LEA", "ULEA"}))
      return scaledSum();
    return false;
  }

  /// Writes the low half as the result, and one or two carries into predicates behind it.
  bool carrying(llvm::ArrayRef<Value> from, const std::array<uint64_t, warpLanes> &sum, bool isKnown) {
    for (size_t k = 1; k < firstSource; ++k) {
      Predicate carry;
      carry.isKnown = isKnown;
      for (size_t l = 0; l < warpLanes; ++l)
        carry.bits[l] = sum[l] >> 32 >= k;
      w.write(i.operands[k], carry, ready);
    }
    Value v;
    v.isKnown = isKnown;
    for (const Value &x : from)
      v.isFromData |= x.isFromData;
    for (size_t l = 0; l < warpLanes; ++l)
      v.bits[l] = uint32_t(sum[l]);
    w.write(result(), v, ready);
    return true;
  }

  // LEA d, a, b, s: (a << s) + b. LEA.HI d, a, b, c, s: the high half of c:a << s, + b. SX32: c is the sign of a.
  bool scaledSum() {
    const bool isHigh = i.has("HI"), isSigned = i.has("SX32");
    size_t n = 0;
    const Value a = w.read(source(n++)), b = w.read(source(n++));
    const Value c = isHigh && !isSigned ? w.read(source(n++)) : Value{};
    const Value shift = w.read(source(n++));
    Predicate carry;
    if (i.has("X"))
      carry = w.readPredicate(source(n));
    std::array<uint64_t, warpLanes> sum{};
    for (size_t l = 0; l < warpLanes; ++l) {
      uint64_t scaled = uint64_t(c.bits[l]) << 32 | a.bits[l];
      if (isSigned)
        scaled = uint64_t(int64_t(int32_t(a.bits[l])));
      scaled <<= shift.bits[l] & 63;
      sum[l] = (isHigh ? scaled >> 32 : uint64_t(uint32_t(scaled))) + b.bits[l] + carry.bits[l];
    }
    return carrying({a, b, c}, sum, a.isKnown && b.isKnown && c.isKnown && carry.isKnown);
  }

  bool products() {
    if (!is({"IMAD", "UIMAD"}))
      return false;
    const Value a = w.read(source(0)), b = w.read(source(1));
    const bool isUnsigned = i.has("U32");
    auto product = [&](size_t l) {
      return isUnsigned ? uint64_t(a.bits[l]) * b.bits[l] : uint64_t(int64_t(int32_t(a.bits[l])) * int32_t(b.bits[l]));
    };
    if (i.has("WIDE")) {
      Wide r = w.readWide(source(2));
      for (size_t l = 0; l < warpLanes; ++l)
        r.bits[l] += product(l);
      r.isKnown &= a.isKnown && b.isKnown;
      r.isFromData |= a.isFromData || b.isFromData;
      w.writeWide(result(), r, ready);
      return true;
    }
    const Value c = w.read(source(2));
    Predicate carry;
    if (i.has("X"))
      carry = w.readPredicate(source(3));
    std::array<uint64_t, warpLanes> sum{};
    for (size_t l = 0; l < warpLanes; ++l)
      sum[l] = uint64_t(uint32_t(i.has("HI") ? product(l) >> 32 : product(l))) + c.bits[l] + carry.bits[l];
    return carrying({a, b, c}, sum, a.isKnown && b.isKnown && c.isKnown && carry.isKnown);
  }

  bool bits() {
    if (is({"LOP3", "ULOP3"})) {
      const Value a = w.read(source(0)), b = w.read(source(1)), c = w.read(source(2));
      const auto table = uint32_t(source(3).value);
      Value v;
      v.isKnown = a.isKnown && b.isKnown && c.isKnown;
      v.isFromData = a.isFromData || b.isFromData || c.isFromData;
      for (size_t l = 0; l < warpLanes; ++l)
        for (uint32_t k = 0; k < 8; ++k)
          if (table >> k & 1)
            v.bits[l] |=
                (k & 4 ? a.bits[l] : ~a.bits[l]) & (k & 2 ? b.bits[l] : ~b.bits[l]) & (k & 1 ? c.bits[l] : ~c.bits[l]);
      if (firstSource == 2) {
        Predicate p;
        p.isKnown = v.isKnown;
        for (size_t l = 0; l < warpLanes; ++l)
          p.bits[l] = v.bits[l] != 0;
        w.write(i.operands[0], p, ready);
      }
      w.write(i.operands[firstSource - 1], v, ready);
      return true;
    }
    if (is({"SHF", "USHF"})) {
      const Value low = w.read(source(0)), by = w.read(source(1)), high = w.read(source(2));
      const bool isHigh = i.has("HI"), isSigned = i.has("S32") || i.has("S64");
      return set({low, by, high}, [&](size_t l) {
        const uint64_t both = uint64_t(high.bits[l]) << 32 | low.bits[l];
        const uint32_t s = std::min(by.bits[l], 63u);
        const uint64_t moved = i.has("L") ? both << s : isSigned ? uint64_t(int64_t(both) >> s) : both >> s;
        return uint32_t(isHigh ? moved >> 32 : moved);
      });
    }
    if (op == "PRMT") {
      const Value a = w.read(source(0)), how = w.read(source(1)), b = w.read(source(2));
      return set({a, how, b}, [&](size_t l) {
        const uint64_t both = uint64_t(b.bits[l]) << 32 | a.bits[l];
        uint32_t r = 0;
        for (uint32_t k = 0; k < 4; ++k)
          r |= uint32_t(both >> 8 * (how.bits[l] >> 4 * k & 7) & 0xff) << 8 * k;
        return r;
      });
    }
    return false;
  }

  bool minima() {
    if (op == "IABS") {
      const Value a = w.read(source(0));
      return set(a, [&](size_t l) { return int32_t(a.bits[l]) < 0 ? 0u - a.bits[l] : a.bits[l]; });
    }
    if (!is({"VIMNMX", "IMNMX", "UIMNMX", "VIADDMNMX"}))
      return false;
    const bool adds = op == "VIADDMNMX";
    const Value a = w.read(source(0)), b = w.read(source(1)), c = adds ? w.read(source(2)) : Value{};
    const Predicate least = w.readPredicate(source(adds ? 3 : 2));
    return set({a, b, c}, [&](size_t l) {
      const uint32_t x = adds ? a.bits[l] + b.bits[l] : a.bits[l], y = adds ? c.bits[l] : b.bits[l];
      const bool less = i.has("U32") ? x < y : int32_t(x) < int32_t(y);
      const uint32_t r = less == least.bits[l] ? x : y;
      return i.has("RELU") && int32_t(r) < 0 ? 0 : r;
    });
  }

  bool predicates() {
    if (is({"ISETP", "UISETP"})) {
      const Value a = w.read(source(0)), b = w.read(source(1));
      const bool isHigh = i.has("EX");  // of a comparison of pairs, whose low halves are compared in a predicate
      const Predicate low = isHigh ? w.readPredicate(source(3)) : Predicate{};
      return setPredicate(a.isKnown && b.isKnown && low.isKnown, source(2), [&](size_t l) {
        const double x = i.has("U32") ? double(a.bits[l]) : double(int32_t(a.bits[l])),
                     y = i.has("U32") ? double(b.bits[l]) : double(int32_t(b.bits[l]));
        if (!isHigh || x != y)
          return compare(first(), x, y);
        return bool(low.bits[l]);
      });
    }
    if (is({"FSETP", "DSETP"})) {
      const bool isDouble = op == "DSETP";
      const bool isKnown = isDouble ? w.readWide(source(0)).isKnown && w.readWide(source(1)).isKnown
                                    : w.read(source(0)).isKnown && w.read(source(1)).isKnown;
      auto number = [&](size_t k, size_t l) {
        return isDouble ? w.asDouble(source(k), l) : double(asFloat(w.read(source(k), true).bits[l]));
      };
      return setPredicate(isKnown, source(2), [&](size_t l) { return compare(first(), number(0, l), number(1, l)); });
    }
    if (is({"PLOP3", "UPLOP3"})) {
      const Predicate a = w.readPredicate(source(0)), b = w.readPredicate(source(1)), c = w.readPredicate(source(2));
      Predicate p;
      p.isKnown = a.isKnown && b.isKnown && c.isKnown;
      for (size_t l = 0; l < warpLanes; ++l)
        p.bits[l] = source(3).value >> (4 * a.bits[l] + 2 * b.bits[l] + c.bits[l]) & 1;
      w.write(i.operands[0], p, ready);
      return true;
    }
    if (op == "FCHK") {  // whether a division needs the slow path
      w.write(result(), Predicate{}, ready);
      return true;
    }
    return false;
  }

  bool floats() {
    if (is({"FADD", "FMUL", "FFMA", "FMNMX", "MUFU"})) {
      const bool isHighHalf = op == "MUFU" && first().ends_with("H");  // RCP64H: of an f64
      llvm::SmallVector<Value, 3> x;
      for (size_t k = 0; k < sources() && x.size() < 3; ++k)
        if (!WarpState::isPredicate(source(k)))
          x.push_back(w.read(source(k), true));
      const Predicate least = op == "FMNMX" ? w.readPredicate(source(2)) : Predicate{};
      return set(x, [&](size_t l) {
        const float a = x.empty() ? 0 : asFloat(x[0].bits[l]), b = x.size() > 1 ? asFloat(x[1].bits[l]) : 0,
                    c = x.size() > 2 ? asFloat(x[2].bits[l]) : 0;
        if (op == "FADD")
          return asBits(a + b);
        if (op == "FMUL")
          return asBits(a * b);
        if (op == "FFMA")
          return asBits(std::fma(a, b, c));
        if (op == "FMNMX")
          return asBits(least.bits[l] ? std::fmin(a, b) : std::fmax(a, b));
        if (isHighHalf) {
          const double d = llvm::bit_cast<double>(uint64_t(asBits(a)) << 32);
          return uint32_t(llvm::bit_cast<uint64_t>(first() == "RCP64H" ? 1 / d : 1 / std::sqrt(d)) >> 32);
        }
        return asBits(llvm::StringSwitch<float>(first())
                          .Case("RCP", 1 / a)
                          .Case("RSQ", 1 / std::sqrt(a))
                          .Case("SQRT", std::sqrt(a))
                          .Case("EX2", std::exp2(a))
                          .Case("LG2", std::log2(a))
                          .Case("TANH", std::tanh(a))
                          .Case("SIN", std::sin(a))
                          .Case("COS", std::cos(a))
                          .Default(a));
      });
    }
    if (op == "HFMA2" && sources() >= 4 && source(1).number == noRegister) {  // a constant of two halves
      Value v;
      v.bits.fill(uint32_t(half(source(2).floating)) << 16 | half(source(3).floating));
      w.write(result(), v, ready);
      return true;
    }
    return false;
  }

  static uint16_t half(double d) {
    if (d == 0)
      return std::signbit(d) ? 0x8000 : 0;
    int e = 0;
    const double m = std::frexp(std::abs(d), &e);  // m in [0.5, 1)
    const auto sign = uint16_t(d < 0 ? 0x8000 : 0);
    if (e + 14 <= 0)
      return uint16_t(sign | uint16_t(std::ldexp(std::abs(d), 24)));
    return uint16_t(sign | (e + 14) << 10 | uint16_t(std::ldexp(m, 11)) % 1024);
  }

  bool doubles() {
    if (!is({"DADD", "DMUL", "DFMA"}))
      return false;
    Wide r;
    for (size_t k = 0; k < sources(); ++k)
      r.isKnown &= w.readWide(source(k)).isKnown;
    r.isFromData = true;
    for (size_t l = 0; l < warpLanes; ++l) {
      const double a = w.asDouble(source(0), l), b = w.asDouble(source(1), l);
      r.bits[l] = llvm::bit_cast<uint64_t>(op == "DADD"   ? a + b
                                           : op == "DMUL" ? a * b
                                                          : std::fma(a, b, w.asDouble(source(2), l)));
    }
    w.writeWide(result(), r, ready);
    return true;
  }

  // F2F.F64.F32 and I2F.F64.S64: to, from.
  bool conversions() {
    if (op == "F2FP" && i.has("BF16") && i.has("PACK_AB")) {
      const Value a = w.read(source(0), true), b = w.read(source(1), true);
      return set({a, b}, [&](size_t l) { return (a.bits[l] & 0xffff0000u) | b.bits[l] >> 16; });
    }
    if (!is({"F2F", "I2F", "I2FP", "F2I"}) || i.has("F16") || i.has("BF16"))
      return false;
    const bool fromDouble = op != "I2F" && op != "I2FP" && last() == "F64", toDouble = first() == "F64";
    const bool isKnown =
        fromDouble || i.has("S64") || i.has("U64") ? w.readWide(source(0)).isKnown : w.read(source(0)).isKnown;
    auto number = [&](size_t l) {
      if (fromDouble)
        return w.asDouble(source(0), l);
      if (op == "F2I" || op == "F2F")
        return double(asFloat(w.read(source(0), true).bits[l]));
      if (i.has("S64"))
        return double(int64_t(w.readWide(source(0)).bits[l]));
      return i.has("U32") ? double(w.read(source(0)).bits[l]) : double(int32_t(w.read(source(0)).bits[l]));
    };
    if (toDouble) {
      Wide r;
      r.isKnown = isKnown, r.isFromData = true;
      for (size_t l = 0; l < warpLanes; ++l)
        r.bits[l] = llvm::bit_cast<uint64_t>(number(l));
      w.writeWide(result(), r, ready);
      return true;
    }
    Value v;
    v.isKnown = isKnown, v.isFromData = true;
    for (size_t l = 0; l < warpLanes; ++l) {
      const double d = number(l);
      const bool fits = std::abs(d) < 2e9;
      v.bits[l] = op == "F2I" ? uint32_t(fits ? int32_t(d) : 0) : asBits(float(d));
    }
    w.write(result(), v, ready);
    return true;
  }
};

}  // namespace

void computeInWarp(const SassInstruction &i, WarpState &w, double ready) { Op(i, w, ready).run(); }

}  // namespace gptc
