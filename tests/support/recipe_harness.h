// Runs one fused group in three ways and compares: OpDef::reference in float64, the kernel in the kernel interpreter,
// and the compiled kernel. Padding of inputs is NaN and must not reach any result. Padding of results, but
// for what the row recipe zeroes on GPUs, and the bytes around every buffer must stay unchanged.
#pragma once

#include "codegen/codegen.h"
#include "ir/opdef.h"

#include <optional>

namespace gptc::test {

/// A module with one function that contains one fused op.
struct Group {
  std::unique_ptr<Module> module;
  Op *fused = nullptr;
};

/// `args` and `body` are in text form: group("row", "%x: f32[3,5]", "%y = softmax %x : f32[3,5]\nyield %y").
Group group(const std::string &kind, const std::string &args, const std::string &body);
/// A group of one op.
Group groupOf(OpKind op, llvm::ArrayRef<Type> operands, const AttrMap &attrs, llvm::ArrayRef<Type> results);

/// Which places of a result's memory are zeroed on a GPU: behind the rows of full results by the row recipe, and below
/// those of f8e4m3 by the pointwise recipe.
std::vector<bool> zeroedOnGpu(const Op &fused, unsigned result);
/// Logical elements at their padded places, with `fill` in the padding.
std::vector<double> spread(const Tensor &t, double fill);

/// Whether only CPUs have a kernel for a sample: caches of 8 bits.
bool isForCpus(const OpDef &def, const OpDef::Sample &s);

struct Options {
  DType compute = DType::f32;
  std::optional<Schedule> schedule;                    // default: the recipe's
  std::optional<Target> target;                        // default: this machine
  std::vector<std::pair<unsigned, unsigned>> inPlace;  // pairs (result, operand) that share memory
  bool compiled = true;                                // false: interpreted
};

/// Results of the kernel on these operands. Violations of the kernel IR's rules and changed bytes around buffers or in
/// padding are test failures.
std::vector<Tensor> run(const Group &g, const std::vector<Tensor> &operands, const Options &o = {});
/// Error bounds of the kernel's results relative to float64, from its own operations (ir/kernel/bound.h).
std::vector<Tensor> errorBounds(const Group &g, const std::vector<Tensor> &operands, const Options &o = {});
/// Expects the kernel's results within these bounds of the reference. At most one element in a hundred may lack a
/// finite bound.
void expectWithinBound(const Group &g, const std::vector<Tensor> &operands, const Options &o, const std::string &what);
/// Random operands: standard normal, rounded to their dtype (at most f32); integers in [0, below).
std::vector<Tensor> randomOperands(const Group &g, unsigned seed, int64_t below = 4);

/// Expects equal bits.
void expectSame(const std::vector<Tensor> &a, const std::vector<Tensor> &b, const std::string &what);
/// Checks the default schedule in f64 and f32, interpreted and compiled.
void check(const Group &g, const std::vector<Tensor> &operands);

}  // namespace gptc::test
