#include "codegen/cuda/warp_state.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/bit.h"

#include <algorithm>
#include <cmath>

namespace gptc {

using llvm::StringRef;
using Kind = SassOperand::Kind;

size_t destinationsOf(const SassInstruction &i) {
  const StringRef op = i.opcode;
  if (i.operands.empty() || op.starts_with("ST") || op.starts_with("BR") || op.starts_with("BS"))
    return 0;
  if (llvm::StringSwitch<bool>(op)
          .Cases("EXIT", "RET", "CALL", "NOP", "BAR", "WARPSYNC", "RED", "LDGSTS", "MEMBAR", "DEPBAR", true)
          .Default(false))
    return 0;
  if (op.contains("SETP") || op.ends_with("PLOP3") || op == "SHFL" ||
      (op.ends_with("LOP3") && WarpState::isPredicate(i.operands[0])))
    return std::min<size_t>(2, i.operands.size());
  // IADD3 R6, P0, R2, 0x1, RZ: carries.
  size_t n = 1;
  if (llvm::StringSwitch<bool>(op).Cases("IADD3", "UIADD3", "LEA", "ULEA", "IMAD", "UIMAD", true).Default(false))
    while (n < i.operands.size() && WarpState::isPredicate(i.operands[n]) && !i.operands[n].isNot)
      ++n;
  return n;
}

int accessBytes(const SassInstruction &i) {
  for (const std::string &m : i.modifiers)
    if (const int bytes = llvm::StringSwitch<int>(m)
                              .Cases("U8", "S8", 1)
                              .Cases("U16", "S16", 2)
                              .Case("64", 8)
                              .Case("128", 16)
                              .Case("256", 32)
                              .Default(0))
      return bytes;
  return 4;
}

int registersOf(const SassInstruction &i, size_t n) {
  const StringRef op = i.opcode;
  const bool isResult = n < destinationsOf(i);
  if (op.starts_with("ST") || op.starts_with("LD"))
    return std::max(1, accessBytes(i) / 4);
  if (op.ends_with("MMA") && op != "HFMA2")
    return 4;
  if (i.has("WIDE"))  // a product of words, and a sum of pairs
    return isResult || n + 1 == i.operands.size() ? 2 : 1;
  if (op == "F2F" || op == "I2F" || op == "F2I")  // to, from
    return i.has("F64") && (i.modifiers[0] == "F64") == isResult ? 2 : i.has("S64") && !isResult ? 2 : 1;
  return op.starts_with("D") ? 2 : 1;
}

Value WarpState::read(const SassOperand &o, bool isFloat) const {
  Value v;
  switch (o.kind) {
  case Kind::reg:
  case Kind::uniform:
    if (o.number != noRegister)
      v = (o.kind == Kind::reg ? regs : uniforms).content[size_t(o.number)];
    break;
  case Kind::integer:
    v.bits.fill(uint32_t(o.value));
    return v;
  case Kind::floating:
    v.bits.fill(llvm::bit_cast<uint32_t>(float(o.floating)));
    return v;
  case Kind::constant:
    v = constantAt(o.value);
    break;
  default:
    return unknownData<uint32_t>();
  }
  for (uint32_t &b : v.bits) {
    if (isFloat && o.magnitude)
      b &= 0x7fffffffu;
    if (o.minus)
      b = isFloat ? b ^ 0x80000000u : 0u - b;
    if (o.isNot)
      b = ~b;
  }
  return v;
}

Wide WarpState::readWide(const SassOperand &o) const {
  const Value low = read(o);
  Value high;
  if (isRegister(o))
    high = read(next(o));
  else if (o.kind == Kind::constant)
    high = constantAt(o.value + 4);
  Wide w;
  w.isKnown = low.isKnown && high.isKnown;
  w.isFromData = low.isFromData || high.isFromData;
  for (size_t l = 0; l < warpLanes; ++l)
    w.bits[l] = uint64_t(high.bits[l]) << 32 | low.bits[l];
  return w;
}

double WarpState::asDouble(const SassOperand &o, size_t lane) const {
  if (o.kind == Kind::floating)
    return o.floating;
  SassOperand plain = o;
  plain.minus = plain.magnitude = false;
  double d = llvm::bit_cast<double>(readWide(plain).bits[lane]);
  if (o.magnitude)
    d = std::abs(d);
  return o.minus ? -d : d;
}

Value WarpState::special(const SassOperand &o) const {
  Value v;
  for (uint32_t l = 0; l < warpLanes; ++l)
    v.bits[l] = llvm::StringSwitch<uint32_t>(o.text)
                    .Case("SR_TID.X", uint32_t(32 * launch.warp) + l)
                    .Case("SR_LANEID", l)
                    .Case("SR_CTAID.X", uint32_t(launch.block))
                    .Default(0);
  return v;
}

// Bank 0 holds the sizes of block and grid, and the parameters behind them.
Value WarpState::constantAt(int64_t offset) const {
  const int64_t first = launch.sm >= 100  ? 0x380
                        : launch.sm >= 90 ? 0x210
                                          : 0x160,
                threads = launch.sm >= 100 ? 0x360 : 0;
  const int64_t at = offset - first;
  Value v;
  if (at >= 0 && at / 8 < int64_t(launch.parameters.size()))
    v.bits.fill(uint32_t(memoryOf(size_t(at / 8)) >> (at % 8 ? 32 : 0)));
  else if (offset == threads)
    v.bits.fill(uint32_t(launch.threads));
  return v;
}

Predicate WarpState::readPredicate(const SassOperand &o) const {
  Predicate p;
  p.bits.fill(true);
  if (o.number != noPredicate)
    p = (o.kind == Kind::uniformPredicate ? uniformPreds : preds).content[size_t(o.number)];
  if (o.isNot)
    for (bool &b : p.bits)
      b = !b;
  return p;
}

void WarpState::write(const SassOperand &o, const Value &v, double ready) {
  if (o.number == noRegister || !isRegister(o))
    return;
  Bank<Value> &bank = o.kind == Kind::reg ? regs : uniforms;
  bank.content[size_t(o.number)] = v;
  bank.ready[size_t(o.number)] = ready;
  last = std::max(last, ready);
}

void WarpState::write(const SassOperand &o, const Predicate &p, double ready) {
  if (o.number == noPredicate || !isPredicate(o))
    return;
  Bank<Predicate> &bank = o.kind == Kind::predicate ? preds : uniformPreds;
  bank.content[size_t(o.number)] = p;
  bank.ready[size_t(o.number)] = ready;
}

void WarpState::writeWide(const SassOperand &o, const Wide &w, double ready) {
  Value low, high;
  low.isKnown = high.isKnown = w.isKnown;
  low.isFromData = high.isFromData = w.isFromData;
  for (size_t l = 0; l < warpLanes; ++l) {
    low.bits[l] = uint32_t(w.bits[l]);
    high.bits[l] = uint32_t(w.bits[l] >> 32);
  }
  write(o, low, ready);
  write(next(o), high, ready);
}

double WarpState::readyOf(const SassOperand &o, int registers) const {
  if (isPredicate(o))
    return o.number == noPredicate ? 0 : (o.kind == Kind::predicate ? preds : uniformPreds).ready[size_t(o.number)];
  double t = 0;
  auto wait = [&](const Bank<Value> &bank, int number, int count) {
    for (int n = number; n >= 0 && n < std::min(number + count, noRegister); ++n)
      t = std::max(t, bank.ready[size_t(n)]);
  };
  if (o.kind == Kind::address) {
    wait(regs, o.number, o.isPair ? 2 : 1);
    wait(uniforms, o.plusUniform, 1);
  } else if (isRegister(o)) {
    wait(o.kind == Kind::reg ? regs : uniforms, o.number, registers);
  }
  return t;
}

}  // namespace gptc
