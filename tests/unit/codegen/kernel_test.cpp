// The emitter against the interpreter, bit for bit, on random kernels.
#include "random_kernel.h"
#include "support.h"

#include <gtest/gtest.h>

using namespace gptc;
using namespace gptc::test;

namespace {

/// GPTC_FUZZ_KERNELS asks for a longer run.
void compare(const Target &target, DType f, unsigned firstSeed, unsigned count) {
  count = kernelsToTry(count);
  ASSERT_GT(count, 0u);
  std::vector<kir::Kernel> kernels;
  std::vector<std::vector<std::vector<double>>> inputs;
  for (unsigned i = 0; i < count; ++i) {
    RandomKernel r(firstSeed + i, f);
    kernels.push_back(r.build());
    inputs.push_back(r.inputs());
    std::vector<std::string> errors = kir::verify(kernels.back());
    ASSERT_TRUE(errors.empty()) << "seed " << firstSeed + i << ": " << errors[0] << "\n" << print(kernels.back());
  }
  std::vector<const kir::Kernel *> pointers;
  for (const kir::Kernel &k : kernels)
    pointers.push_back(&k);
  Jit jit(target, "");
  std::vector<CompiledKernel> compiled = jit.compile(pointers);
  for (unsigned i = 0; i < count; ++i) {
    SCOPED_TRACE("seed " + std::to_string(firstSeed + i));
    auto expected = inputs[i], got = inputs[i];
    kir::interpret(kernels[i], expected, true);
    runKernel(kernels[i], compiled[i], got);
    for (size_t p = 0; p < got.size(); ++p)
      for (size_t j = 0; j < got[p].size(); ++j)
        ASSERT_TRUE(sameNumber(expected[p][j], got[p][j]))
            << kernels[i].params[p]->name << "[" << j << "] is " << got[p][j] << ", the interpreter says "
            << expected[p][j] << "\n"
            << print(kernels[i]);
  }
}

}  // namespace

TEST(RandomKernels, F32) { compare(hostTarget(1), DType::f32, 1, 100); }
TEST(RandomKernels, F64) { compare(hostTarget(1), DType::f64, 10001, 80); }
TEST(RandomKernels, F32WithoutAVX512) { compare(maskedTarget("-avx512f"), DType::f32, 20001, 80); }
TEST(RandomKernels, F64WithoutAVX512) { compare(maskedTarget("-avx512f"), DType::f64, 30001, 40); }
TEST(RandomKernels, F32WithoutBF16) { compare(maskedTarget("-avx512bf16"), DType::f32, 50001, 30); }
TEST(RandomKernels, F32WithoutAVX) { compare(maskedTarget("-avx"), DType::f32, 40001, 30); }
