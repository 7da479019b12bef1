// Every op that a recipe of this folder takes, by itself, on its own samples: tails, single elements, primes, padding.
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

namespace gptc::test {
namespace {

class RecipeOps : public testing::TestWithParam<const OpDef *> {};

TEST_P(RecipeOps, AgreeWithTheReference) {
  const OpDef &def = *GetParam();
  for (unsigned seed = 0; seed < sized(2u, 6u); ++seed)
    for (const OpDef::Sample &s : def.samples(seed)) {
      Group g = groupOf(def.kind, s.operandTypes, s.attrs, s.resultTypes);
      std::vector<Tensor> operands = randomOperands(g, seed);
      for (unsigned i = 0; i < operands.size(); ++i)
        if (i < s.operandValues.size() && !s.operandValues[i].data.empty())
          operands[i] = s.operandValues[i];
      for (Tensor &t : operands)
        if (t.type.dtype == DType::f32)
          for (double &v : t.data)
            v = float(v);
      check(g, operands);
      if (HasFailure())
        return;
    }
}

std::vector<const OpDef *> ops() {
  std::vector<const OpDef *> list;
  for (const OpDef *d : allOpDefs())
    // Matmul and attention have tests of their own; collectives have no kernel.
    if (d->samples && d->fusion != FusionKind::matmul && d->fusion != FusionKind::attention &&
        d->fusion != FusionKind::collective && recipeOf(d->kind))
      list.push_back(d);
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, RecipeOps, testing::ValuesIn(ops()), [](const auto &info) { return info.param->name; });

}  // namespace
}  // namespace gptc::test
