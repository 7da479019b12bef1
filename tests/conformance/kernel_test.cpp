// Every op as the kernel that its recipe builds: in the kernel interpreter and as machine code, in f64 and f32, against
// the op's reference meaning. An op whose group no recipe covers fails here.
#include "kernel_case.h"

namespace gptc::conformance {
namespace {

std::vector<std::unique_ptr<Case>> casesOf(const OpDef &def, DType compute) {
  std::vector<std::unique_ptr<Case>> cases;
  if (!def.samples)
    return cases;
  for (unsigned seed = 0; seed < numSeeds(); ++seed)
    for (const OpDef::Sample &s : def.samples(seed))
      if (auto c = makeCase(def, s, seed, compute))
        cases.push_back(std::move(c));
  return cases;
}

using KernelOf = EachOp;
INSTANTIATE_TEST_SUITE_P(Ops, KernelOf, ::testing::ValuesIn(allKinds()), kindName);

TEST_P(KernelOf, InterpretedEqualsReference) {
  for (const auto &c : casesOf(def(), DType::f64)) {
    checkInterpreted(*c);
    if (HasFatalFailure())
      return;
  }
}

TEST_P(KernelOf, EmittedF64StaysWithinItsBound) { checkEmitted(casesOf(def(), DType::f64)); }
TEST_P(KernelOf, EmittedF32StaysWithinItsBound) { checkEmitted(casesOf(def(), DType::f32)); }

}  // namespace
}  // namespace gptc::conformance
