// Dispatch from a fused op to its recipe.
#include "codegen/recipes/recipe.h"

#include "ir/diagnostics.h"

namespace gptc {

const Recipe *findRecipe(llvm::StringRef name) {
#define GPTC_RECIPE(n)                                                                                                 \
  if (name == #n)                                                                                                      \
    return &n##Recipe();
#include "codegen/recipes/recipes.def"
#undef GPTC_RECIPE
  return nullptr;
}

const Recipe &recipeOf(const Op &fused) {
  GPTC_CHECK(fused.is(OpKind::fused), "{} is no fused op", fused.name());
  std::string kind = fused.attrs.getString("kind");
  const Recipe *recipe = findRecipe(kind);
  GPTC_CHECK(recipe, "no recipe is called '{}'", kind);
  GPTC_CHECK(recipe->matches(fused), "recipe {} cannot build:\n{}", kind, print(fused));
  return *recipe;
}

Schedule defaultSchedule(const Op &fused, const Target &target) {
  const Recipe &recipe = recipeOf(fused);
  Schedule s = recipe.defaultSchedule(fused, target);
  s.recipe = recipe.name;
  return s;
}

LoweredGroup lowerGroup(const Op &fused, const Schedule &schedule, const Target &target, DType compute) {
  const Recipe &recipe = recipeOf(fused);
  GPTC_CHECK(schedule.recipe == recipe.name, "a schedule for {} given to {}", schedule.recipe, recipe.name);
  return recipe.build(fused, schedule, target, compute);
}

}  // namespace gptc
