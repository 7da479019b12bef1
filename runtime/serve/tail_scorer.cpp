#include "runtime/serve/tail_scorer.h"

#include "runtime/device/executor.h"
#include "runtime/serve/token_scores.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>

namespace gptc {

std::vector<float> TailScorer::score(llvm::ArrayRef<int32_t> tokens, int64_t count) {
  const auto n = int64_t(tokens.size());
  GPTC_CHECK(count >= 1 && count < n && n <= most(), "{} of {} tokens", count, n);
  // The last token is predicted and never read. Results are needed from `first` on.
  const llvm::ArrayRef<int32_t> input = tokens.drop_back();
  const int64_t first = n - 1 - count;
  const int64_t shared = std::mismatch(held.begin(), held.end(), input.begin(), input.end()).first - held.begin();
  int64_t done = std::min(shared, first);
  held.clear();  // until all is read
  while (done < first) {
    const int64_t end = std::min(first, done + model.most());
    model.read({{.slot = 0, .tokens = input, .begin = done, .end = end, .hows = {}}});
    done = end;
  }
  std::vector<float> scores(size_t(count), 0);
  for (int64_t begin = first, end = 0; begin < n - 1; begin = end) {
    end = model.score(0, input, begin, {});
    (void)model.logits(0);  // fetched before threads ask for it
    executor.threads().each(end - begin, [&](int64_t i) {
      const int32_t next = tokens[size_t(begin + i) + 1];
      // Where no logit is finite there is no likelihood; where one is not, it is none of these weights.
      const llvm::ArrayRef<float> logits = model.logits(i);
      scores[size_t(begin + i - first)] = llvm::all_of(logits, [](float x) { return std::isfinite(x); })
                                              ? scoresOf(logits, next, 0).logProbability
                                              : NAN;
    });
  }
  if (llvm::any_of(scores, [](float x) { return std::isnan(x); }))
    throw UserError(ErrorCode::NonFinite, "the logits of a text are not finite",
                    "compute in a wider precision (--precision fp32); where that is fp32, the weights are damaged");
  // Where new tokens are summed otherwise than prompts, a later sequence reads again what was scored.
  const llvm::ArrayRef<int32_t> kept = model.hasOneOrder() ? input : input.take_front(size_t(first));
  held.assign(kept.begin(), kept.end());
  return scores;
}

}  // namespace gptc
