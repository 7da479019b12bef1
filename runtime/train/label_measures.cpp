#include "runtime/train/label_measures.h"

#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>

namespace gptc {

/// Whether the `count` logits of a text are largest at the target.
static bool isRight(const float *logits, int64_t count, int32_t target) {
  return std::all_of(logits, logits + count, [](float x) { return std::isfinite(x); }) &&
         std::max_element(logits, logits + count) - logits == target;
}

LabelMeasures::Record LabelMeasures::recordOf(const float *logits, const SequenceRow &text) const {
  switch (problem) {
  case ProblemType::single_label_classification:
    return {isRight(logits, labels, text.y[0]) ? 1.0f : 0.0f};
  case ProblemType::multi_label_classification: {
    Record r{};
    for (int64_t l = 0; l < labels; ++l) {
      const bool is = text.y[l] == 1, said = std::isfinite(logits[l]) ? logits[l] > 0 : !is;  // never correctly
      r[0] += is && said ? 1.0f : 0.0f;
      r[1] += said && !is ? 1.0f : 0.0f;
      r[2] += is && !said ? 1.0f : 0.0f;
    }
    return r;
  }
  case ProblemType::regression:
    return {logits[0], text.number[0]};
  }
  GPTC_UNREACHABLE("problem {}", int(problem));
}

void LabelMeasures::add(const Record &r) {
  ++count;
  switch (problem) {
  case ProblemType::single_label_classification:
    right += double(r[0]);
    return;
  case ProblemType::multi_label_classification:
    hits += double(r[0]);
    falseAlarms += double(r[1]);
    missed += double(r[2]);
    return;
  case ProblemType::regression:
    break;
  }
  // Welford 1962, "Note on a method for calculating corrected sums of squares and products".
  const double x = double(r[0]), y = double(r[1]), dx = x - meanX, dy = y - meanY, n = double(count);
  squares += (x - y) * (x - y);
  meanX += dx / n;
  meanY += dy / n;
  xx += dx * (x - meanX);
  yy += dy * (y - meanY);
  xy += dx * (y - meanY);
}

std::vector<Measure> LabelMeasures::result() const {
  const double n = double(count);
  switch (problem) {
  case ProblemType::single_label_classification:
    return {{"accuracy", right / n}};
  case ProblemType::multi_label_classification: {
    const double wrong = falseAlarms + missed, all = 2 * hits + wrong;
    return {{"micro_f1", all > 0 ? 2 * hits / all : 0}, {"accuracy", 1 - wrong / (n * double(labels))}};
  }
  case ProblemType::regression:
    return {{"mse", squares / n}, {"pearson", xx > 0 && yy > 0 ? xy / std::sqrt(xx) / std::sqrt(yy) : double(NAN)}};
  }
  GPTC_UNREACHABLE("problem {}", int(problem));
}

}  // namespace gptc
