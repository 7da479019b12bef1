// One op as the kernel that its recipe builds, and the checks of that kernel.
#pragma once

#include "one_op.h"

#include "codegen/codegen.h"

namespace gptc::conformance {

/// One sample made into a kernel, with what it must yield.
struct Case {
  OneOp one;
  std::vector<Tensor> expected;  // of the fused op, by the op's reference
  LoweredGroup group;
  std::vector<std::vector<double>> memory;  // initial content of the parameters
  std::vector<Type> outputs;
  size_t firstOutput = 0;  // parameter that is the first result
  std::string name;
};

/// Null for an op that runs no code. A group that no recipe covers is an InternalError, which fails the test.
std::unique_ptr<Case> makeCase(const OpDef &def, const OpDef::Sample &sample, unsigned seed, DType compute);

/// The kernel in the float64 interpreter against the reference, to 1e-12.
void checkInterpreted(const Case &c);

/// The kernels as machine code: against the reference, within the bound of each kernel's own operations
/// (ir/kernel/bound.h); against the rounding interpreter, bit for bit, where no approximation of a function stands
/// between; tasks in another order, bit for bit; red zones around all buffers.
void checkEmitted(llvm::ArrayRef<std::unique_ptr<Case>> cases);

}  // namespace gptc::conformance
