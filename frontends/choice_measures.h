// Which choice of a question each measure takes for the answer.
#pragma once

#include "frontends/choice_task.h"

#include "llvm/ADT/ArrayRef.h"

#include <cstddef>
#include <cstdint>

namespace gptc {

/// The greatest log-likelihood wins: as it is, or divided by the choice's size. The first three are
/// lm-evaluation-harness's, the last CORE's.
enum class ChoiceMeasure {
  acc,
  accNorm,   // per character
  accBytes,  // per byte of UTF-8
  accToken,  // per token
};
/// "acc_norm".
const char *inWords(ChoiceMeasure measure);

/// The measures of a form. That of contexts has acc alone: there each context goes on with the same text, and a
/// division by its characters or bytes changes no order. Nor do its tokens as CORE counts them, those that all texts
/// end with; where a tokenizer joins it with the end of a context, counts differ by the tokenizer, not by the text.
/// lm-evaluation-harness divides by the contexts' lengths, which says nothing of what was scored.
llvm::ArrayRef<ChoiceMeasure> measuresOf(ChoiceForm form);

/// The choice with the greatest value, of equal ones the first. For each choice of the item `logLikelihoods` has the
/// natural logarithm of its probability, which is no NaN, and `tokens` the number of its tokens, at least 1.
size_t answerBy(ChoiceMeasure measure, const ChoiceItem &item, llvm::ArrayRef<double> logLikelihoods,
                llvm::ArrayRef<int64_t> tokens);

}  // namespace gptc
