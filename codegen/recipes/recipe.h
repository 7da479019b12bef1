// A recipe makes kernels of fused ops, by one method for a whole class of groups.
//
// A recipe reads the group's body through GroupEval (group_ctx.h), which gives each output as one symbolic expression
// of the loop indices, chooses loops, and places the expressions in them (place.h). It asks the target for sizes. The
// order of its sums depends only on attributes of the ops and on Schedule::vec, so the default of Schedule::vec never
// depends on the target. Schedule::pairs, mma and library are the exceptions (ir/kernel/schedule.h).
//
// Sharing memory. mayShare (ir/access.h) says which results may take an operand's buffer. Every recipe must respect it:
// it loads an element before it stores the same element of any result, and it stores results smaller than the domain
// after the loops that read operands of their size.
#pragma once

#include "codegen/codegen.h"

#include <initializer_list>

namespace gptc {

struct Recipe {
  RecipeKind kind;
  /// Whether `build` can handle this group.
  bool (*matches)(const Op &fused);
  /// Sizes that are good without measurement, for a group that matches. For CUDA targets `threads` is set, and `build`
  /// then makes grid loops. UserError(NotBuiltYet) for a matmul of packed weights on CUDA.
  Schedule (*defaultSchedule)(const Op &fused, const Target &target);
  /// Other schedules that may be fast: variations of `base`, the default. Each builds a kernel with the same order of
  /// sums, which so gives the same bits. Empty if there is nothing to choose.
  std::vector<Schedule> (*space)(const Op &fused, const Schedule &base, const Target &target);
  /// Builds the kernel. Its parameters are GroupEval::params with one workspace per entry of workspaceBytes. With
  /// compute f64 every float buffer holds f64, workspaces included.
  LoweredGroup (*build)(const Op &fused, const Schedule &schedule, const Target &target, DType compute);
};

#define GPTC_RECIPE(name) const Recipe &name##Recipe();
#include "codegen/recipes/recipes.def"
#undef GPTC_RECIPE

/// Builds all combinations of given values for several sizes of a schedule.
class ScheduleGrid {
public:
  explicit ScheduleGrid(const Schedule &base) : all{base} {}
  /// Combines every schedule so far with each of the values, without values below 1. The bool overload adds both
  /// choices.
  ScheduleGrid &over(int Schedule::*size, std::initializer_list<int64_t> values) { return with(size, values); }
  ScheduleGrid &over(int64_t Schedule::*size, std::initializer_list<int64_t> values) { return with(size, values); }
  ScheduleGrid &over(bool Schedule::*choice) {
    const size_t n = all.size();
    for (size_t i = 0; i < n; ++i)
      all.emplace_back(all[i]).*choice = !(all[i].*choice);
    return *this;
  }
  std::vector<Schedule> take() { return std::move(all); }

private:
  template <typename T> ScheduleGrid &with(T Schedule::*size, std::initializer_list<int64_t> values) {
    std::vector<Schedule> next;
    for (const Schedule &s : all)
      for (int64_t v : values)
        if (v > 0)
          next.emplace_back(s).*size = T(v);
    all = std::move(next);
    return *this;
  }
  std::vector<Schedule> all;
};

/// The recipe of a fused op's `kind`. InternalError if there is none or it does not match.
const Recipe &recipeOf(const Op &fused);

}  // namespace gptc
