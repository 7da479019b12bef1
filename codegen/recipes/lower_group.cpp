// Dispatch from a fused op to its recipe.
#include "codegen/recipes/recipe.h"

#include "ir/facts.h"
#include "support/diagnostics.h"

#include <set>

namespace gptc {

static const Recipe &recipeFor(RecipeKind kind) {
  switch (kind) {
#define GPTC_RECIPE(name)                                                                                              \
  case RecipeKind::name:                                                                                               \
    return name##Recipe();
#include "codegen/recipes/recipes.def"
#undef GPTC_RECIPE
  }
  GPTC_UNREACHABLE("recipe {}", int(kind));
}

const Recipe &recipeOf(const Op &fused) {
  GPTC_CHECK(fused.is(OpKind::fused), "{} is no fused op", fused.name());
  const std::string problem = groupProblem(fused);
  GPTC_CHECK(problem.empty(), "{}\n{}", problem, print(fused));
  return recipeFor(*kindOf(fused));
}

std::string groupProblem(const Op &fused) {
  const std::optional<RecipeKind> kind = kindOf(fused);
  if (!kind)
    return fmt::format("no recipe is called '{}', as a group '{}' says", fact<&GroupFacts::kind>(fused), fused.loc);
  return recipeFor(*kind).matches(fused)
             ? ""
             : fmt::format("recipe {} does not take the ops of the group '{}'", nameOf(*kind), fused.loc);
}

Schedule defaultSchedule(const Op &fused, const Target &target) {
  const Recipe &recipe = recipeOf(fused);
  Schedule s = recipe.defaultSchedule(fused, target);
  s.recipe = recipe.kind;
  s.library = (target.callsLibrary() && matchCublasLtMatmul(fused)) ||
              (target.callsCudnn() && target.architecture >= 80 && matchCudnnAttention(fused));
  return s;
}

std::vector<Schedule> scheduleSpace(const Op &fused, const Target &target) {
  const Recipe &recipe = recipeOf(fused);
  const Schedule base = defaultSchedule(fused, target);
  std::vector<Schedule> space;
  std::set<std::string> seen = {base.str()};
  for (const Schedule &s : recipe.space(fused, base, target))
    if (seen.insert(s.str()).second)
      space.push_back(s);
  return space;
}

LoweredGroup lowerGroup(const Op &fused, const Schedule &schedule, const Target &target, DType compute) {
  const Recipe &recipe = recipeOf(fused);
  GPTC_CHECK(schedule.recipe == recipe.kind, "schedule '{}' given to {}", schedule.str(), nameOf(recipe.kind));
  GPTC_CHECK((schedule.threads > 0) == target.isCuda(), "schedule '{}' for target {}", schedule.str(), target.name);
  LoweredGroup g = recipe.build(fused, schedule, target, compute);
  if (schedule.library) {
    g.call = matchCublasLtMatmul(fused);
    g.attention = matchCudnnAttention(fused);
    GPTC_CHECK((g.call || g.attention) && target.isCuda() && compute == DType::f32, "no call of a library: {}",
               schedule.str());
    const int64_t bytes = g.call ? libraryWorkspace : g.attention->workspace();
    kir::Buffer w = kir::makeBuffer("library", DType::i32, kir::Storage::global, bytes / 4);
    g.kernel.params.insert(g.kernel.params.end() - streamsOf(fused).size(), w);
    g.workspaceBytes.push_back(bytes);
  }
  return g;
}

}  // namespace gptc
