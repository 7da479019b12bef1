// Registers of two lanes of a warp, and when they are there, for warp_run.cpp.
#pragma once

#include "codegen/cuda/warp_run.h"

#include <array>
#include <map>

namespace gptc {

constexpr int warpLanes = 2;
constexpr int noRegister = 255;  // RZ and URZ
constexpr int noPredicate = 7;   // PT and UPT

/// The content of a register.
template <class T> struct WarpValue {
  std::array<T, warpLanes> bits{};
  bool isKnown = true;
  bool isFromData = false;  // depends on what a load gave
};
using Value = WarpValue<uint32_t>;
using Wide = WarpValue<uint64_t>;  // a pair of registers
using Predicate = WarpValue<bool>;

/// A result whose bits nobody asks for: data, not an index.
template <class T> WarpValue<T> unknownData() {
  WarpValue<T> v;
  v.isKnown = false;
  v.isFromData = true;
  return v;
}

/// How many operands an instruction writes. They come first.
size_t destinationsOf(const SassInstruction &i);
/// Registers that operand `n` consists of, unless it is an address: 2 for f64, for example.
int registersOf(const SassInstruction &i, size_t n);
/// Bytes of a lane that a load or a store moves.
int accessBytes(const SassInstruction &i);

class WarpState {
public:
  explicit WarpState(const WarpLaunch &launch) : launch(launch) {}

  /// `isFloat`: a minus changes the sign of a float.
  Value read(const SassOperand &o, bool isFloat = false) const;
  Wide readWide(const SassOperand &o) const;
  Predicate readPredicate(const SassOperand &o) const;
  double asDouble(const SassOperand &o, size_t lane) const;
  /// S2R: SR_TID.X and the like.
  Value special(const SassOperand &o) const;

  void write(const SassOperand &o, const Value &v, double ready);
  void write(const SassOperand &o, const Predicate &p, double ready);
  void writeWide(const SassOperand &o, const Wide &w, double ready);
  /// When an operand of so many registers is there.
  double readyOf(const SassOperand &o, int registers) const;
  double lastReady() const { return last; }

  /// Where the memory of a parameter begins.
  static uint64_t memoryOf(size_t parameter) { return uint64_t(parameter + 1) << parameterShift; }
  static int parameterAt(uint64_t address) { return int(address >> parameterShift) - 1; }
  /// Bytes from where the memory of its parameter begins.
  static uint64_t placeInMemory(uint64_t address) { return address & ((uint64_t(1) << parameterShift) - 1); }

  static bool isPredicate(const SassOperand &o) {
    return o.kind == SassOperand::Kind::predicate || o.kind == SassOperand::Kind::uniformPredicate;
  }
  static bool isRegister(const SassOperand &o) {
    return o.kind == SassOperand::Kind::reg || o.kind == SassOperand::Kind::uniform;
  }
  /// The register `by` behind that of `o`.
  static SassOperand next(SassOperand o, int by = 1) {
    if (o.number != noRegister)
      o.number += by;
    return o;
  }

private:
  static constexpr int parameterShift = 38;
  template <class T> struct Bank {
    std::array<T, 256> content{};
    std::array<double, 256> ready{};
  };
  const WarpLaunch &launch;
  Bank<Value> regs, uniforms;
  Bank<Predicate> preds, uniformPreds;
  double last = 0;

  Value constantAt(int64_t offset) const;
};

/// Executes an instruction that neither branches nor touches memory.
void computeInWarp(const SassInstruction &i, WarpState &w, double ready);

}  // namespace gptc
