#include "runtime/serve/scored_loss.h"

#include "ir/facts.h"
#include "runtime/data/training_data.h"
#include "runtime/device/executor.h"
#include "runtime/serve/cached_model.h"
#include "runtime/serve/token_scores.h"

#include <vector>

namespace gptc {

double scoredLoss(Executor &executor, const TrainingData &data, int64_t windows) {
  CachedModel model(executor);
  const int64_t T = model.context(), every = data.evalWindows();
  if (windows <= 0 || windows > every)
    windows = every;
  std::vector<int32_t> x(size_t(T), 0), y(size_t(T), 0);
  std::vector<double> losses;
  double sum = 0;
  int64_t targets = 0;
  for (int64_t w = 0; w < windows; ++w) {
    targets += data.evalRow(data.spreadWindow(w, windows), {x.data(), y.data(), nullptr, nullptr});
    for (int64_t begin = 0, end = 0; begin < T && y[size_t(begin)] >= 0; begin = end) {
      end = model.score(0, x, begin, {});
      losses.assign(size_t(end - begin), 0);
      (void)model.logits(0);  // fetched before threads ask for it
      executor.threads().each(end - begin, [&](int64_t i) {
        if (const int32_t target = y[size_t(begin + i)]; target >= 0)
          losses[size_t(i)] = -double(scoresOf(model.logits(i), target, 0).logProbability);
      });
      for (const double loss : losses)
        sum += loss;
    }
  }
  return sum / double(targets);
}

}  // namespace gptc
