// Fused groups whose CUDA text runs on the host, and what is asked of each: no race and no access out of bounds,
// whatever order threads and blocks run in; results within the error bound of the kernel's own operations; and the same
// bits as the interpreter and, where sums have its order, as the machine code of the CPU, else within both bounds.
#pragma once

#include "simt.h"

#include "codegen/codegen.h"
#include "codegen/cuda/emit.h"
#include "tests/support/recipe_harness.h"
#include "tests/unit/codegen/support.h"

#include <optional>

namespace gptc::test {

struct Case {
  Group g;
  std::vector<Tensor> operands;
  kir::Kernel gpu, cpu;                                // cpu: empty for recipes that only GPUs have
  std::vector<std::vector<double>> content;            // of the parameters before
  std::vector<std::pair<unsigned, unsigned>> inPlace;  // (result, operand)
  bool sameOrder = true;                               // sums have the order of the CPU's kernel
};

/// With the default schedule for that GPU, unless one is given.
Case makeCase(Group g, std::vector<Tensor> operands, std::optional<Schedule> schedule = {},
              const char *gpu = "cuda:sm_90a");
/// Those whose kernel is a template's, with the loop trees that take its place (codegen/cuda/plain_kernel.h).
std::vector<Case> withLoopTrees(std::vector<Case> cases);
/// With `perturbed`, instructions that approximate give other results within what CUDA promises: bounds hold, bits do
/// not.
void check(const std::vector<Case> &cases, bool perturbed = false);
/// A case's parameters in memory, before and after a kernel runs.
class CaseMemory {
public:
  /// With `inPlace`, results lie where operands lie whose memory they may take.
  CaseMemory(const Case &c, bool inPlace);
  const std::vector<simt::Param> &params() const { return all; }
  std::vector<std::vector<double>> content() const;

private:
  const Case &c;
  const bool inPlace;
  std::vector<DeviceBuffer> memory;
  std::vector<simt::Param> all;
};
/// Runs all phases of a text; empty when nothing was found. `content` becomes what is in memory afterwards.
std::string runOnShim(const Case &c, const simt::HostModule &module, const CudaKernel &text, bool backwards,
                      bool inPlace, std::vector<std::vector<double>> &content);

/// Whether the machinery finds something in a text, in either order of threads, or memory differs from the right
/// content afterwards.
bool isNoticed(const Case &c, const simt::HostModule &module, const CudaKernel &text,
               const std::vector<std::vector<double>> &right, bool inPlace = false);

}  // namespace gptc::test
