// What a recipe is: from a fused op to a kernel, by one method for a whole class of groups.
//
// A recipe reads the group's body through GroupEval (group_ctx.h), which gives each output as one symbolic expression
// of the loop indices, chooses loops, and places the expressions in them (place.h). It asks the target for sizes; the
// order of its sums depends only on attributes of the ops and on Schedule::vec, whose default therefore never depends
// on the target.
//
// Sharing memory. mayShare (ir/access.h) says which results may take an operand's buffer. Every recipe keeps to it: an
// element is loaded before the same element is stored to, whichever result it belongs to, and results smaller than the
// domain are stored after the loops that read operands of their size.
#pragma once

#include "codegen/codegen.h"

#include <initializer_list>

namespace gptc {

struct Recipe {
  const char *name;
  /// Whether `build` can handle this group.
  bool (*matches)(const Op &fused);
  /// Sizes that are good without measurement. Never throws on a group that matches. Those for CUDA have `threads`, and
  /// `build` makes grid loops of them.
  Schedule (*defaultSchedule)(const Op &fused, const Target &target);
  /// What else may be fast: variations of `base`, the default. Each builds, of the same sums in the same order, a
  /// kernel that gives the same bits. None where there is nothing to choose.
  std::vector<Schedule> (*space)(const Op &fused, const Schedule &base, const Target &target);
  /// Parameters of the kernel: those of GroupEval::params, one workspace per entry of workspaceBytes. With compute f64
  /// every float buffer holds f64, workspaces included.
  LoweredGroup (*build)(const Op &fused, const Schedule &schedule, const Target &target, DType compute);
};

#define GPTC_RECIPE(name) const Recipe &name##Recipe();
#include "codegen/recipes/recipes.def"
#undef GPTC_RECIPE

/// All combinations of some values for some sizes of a schedule.
class ScheduleGrid {
public:
  explicit ScheduleGrid(const Schedule &base) : all{base} {}
  /// Every schedule so far with each of the values; those that are not positive are left out.
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

/// Null when there is none of that name.
const Recipe *findRecipe(llvm::StringRef name);
/// The recipe of a fused op's `kind`; InternalError when there is none or when it does not match.
const Recipe &recipeOf(const Op &fused);

}  // namespace gptc
