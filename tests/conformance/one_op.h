// A program of one op, made from a sample of its definition.
#pragma once

#include "ir/opdef.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gptc::conformance {

/// func @f(operands) { return results of the op }, and values for the operands.
struct OneOp {
  std::unique_ptr<Module> module;
  Function *f = nullptr;
  Op *op = nullptr;
  std::vector<Tensor> inputs;
  std::vector<const Tensor *> pointers() const;
  /// The op's reference meaning on `inputs`.
  std::vector<Tensor> reference() const;
};

OneOp makeOneOp(const OpDef &def, const OpDef::Sample &sample, unsigned seed);

/// How many seeds each test tries: GPTC_CONFORMANCE_SEEDS, 6 where that is not set.
unsigned numSeeds();

/// Calls f(one, seed) for each sample of each seed, with a trace that names it. Fails when the op has no samples though
/// it computes.
void forEachSample(const OpDef &def, const std::function<void(OneOp &, unsigned seed)> &f);

/// One test instance per op of ops.def, whether or not somebody remembered to write a test for it.
class EachOp : public ::testing::TestWithParam<OpKind> {
public:
  const OpDef &def() const { return opDef(GetParam()); }
};
const std::vector<OpKind> &allKinds();
std::string kindName(const ::testing::TestParamInfo<OpKind> &info);

/// Standard normal values, a pure function of seed.
Tensor normals(const Type &t, unsigned seed);

}  // namespace gptc::conformance
