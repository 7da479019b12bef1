// Runs one fused group three ways and compares: OpDef::reference in float64, the kernel in the kernel interpreter, and
// the kernel compiled. Padding of inputs is NaN and must never reach a result; padding of results and the bytes around
// every buffer must stay as they were.
#pragma once

#include "codegen/codegen.h"
#include "ir/opdef.h"

#include <optional>

namespace gptc::test {

/// A module with one function that holds one fused op.
struct Group {
  std::unique_ptr<Module> module;
  Op *fused = nullptr;
};

/// `args` and `body` as in the text form: group("row", "%x: f32[3,5]", "%y = softmax %x : f32[3,5]\nyield %y").
Group group(const std::string &kind, const std::string &args, const std::string &body);
/// One op by itself.
Group groupOf(OpKind op, llvm::ArrayRef<Type> operands, const AttrMap &attrs, llvm::ArrayRef<Type> results);

/// Logical elements at their padded places, `fill` between.
std::vector<double> spread(const Tensor &t, double fill);

struct Options {
  DType compute = DType::f32;
  std::optional<Schedule> schedule;                    // default: the recipe's
  std::optional<Target> target;                        // default: this machine
  std::vector<std::pair<unsigned, unsigned>> inPlace;  // (result, operand) that share memory
  bool compiled = true;                                // else interpreted
};

/// Results of the kernel on these operands. A broken rule of the kernel IR, a changed byte around a buffer or in
/// padding is a test failure.
std::vector<Tensor> run(const Group &g, const std::vector<Tensor> &operands, const Options &o = {});
/// How far results of that kernel may be from those in float64, by its own operations (ir/kernel/bound.h).
std::vector<Tensor> errorBounds(const Group &g, const std::vector<Tensor> &operands, const Options &o = {});
/// Expects the kernel's results within these bounds of the reference; at most one in a hundred without a finite one.
void expectWithinBound(const Group &g, const std::vector<Tensor> &operands, const Options &o, const std::string &what);
/// Random operands: standard normal, rounded to their dtype (f32 at most); integers in [0, below).
std::vector<Tensor> randomOperands(const Group &g, unsigned seed, int64_t below = 4);

/// Expects equal bits.
void expectSame(const std::vector<Tensor> &a, const std::vector<Tensor> &b, const std::string &what);
/// Expects the same of the default schedule in f64 and f32, interpreted and compiled.
void check(const Group &g, const std::vector<Tensor> &operands);

}  // namespace gptc::test
