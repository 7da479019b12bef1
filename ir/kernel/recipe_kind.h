// The recipes, as groups, schedules and the table codegen/recipes/recipes.def name them.
#pragma once

#include "support/enum_words.h"

namespace gptc {

/// The recipes of codegen/recipes, one of which makes the kernel of a group.
enum class RecipeKind {
  pointwise,
  row,
  fold,
  reduce_all,
  matmul,
  pack,
  attention,
  attention_grad,
  attention_cached,
  scatter,
  collective,
  row_fold,
  row_matmul,
  attention_split,
  choice,
};
template <>
inline constexpr auto wordsOf<RecipeKind> =
    std::to_array({"pointwise", "row", "fold", "reduce_all", "matmul", "pack", "attention", "attention_grad",
                   "attention_cached", "scatter", "collective", "row_fold", "row_matmul", "attention_split", "choice"});

}  // namespace gptc
