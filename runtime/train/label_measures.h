// What an evaluation of a model with labels says beside its loss: how well the labels of texts are told.
#pragma once

#include "ir/choices.h"
#include "runtime/data/training_data.h"

#include <array>
#include <string>
#include <vector>

namespace gptc {

struct Measure {
  std::string name;  // "accuracy"
  double value = 0;
};

/// Texts count one after the other, in an order that is the same on any ranks and with any micro-batch, and so are the
/// bits of what comes out.
class LabelMeasures {
public:
  /// What counts of a text. Ranks gather them.
  using Record = std::array<float, 3>;

  LabelMeasures(ProblemType problem, int64_t labels) : problem(problem), labels(labels) {}

  /// Of the logits [labels] of a text and its target.
  Record recordOf(const float *logits, const SequenceRow &text) const;
  void add(const Record &record);

  int64_t texts() const { return count; }
  /// Of one right label: `accuracy`, the part of texts whose label has the largest logit, of equal ones the first; none
  /// with a logit that is not finite. Where several may be right: `micro_f1`, 2 tp / (2 tp + fp + fn) over all labels
  /// of all texts, where a positive logit says that one is right, 0 if none is nor is said to be; and `accuracy`, the
  /// part of labels of which it says so correctly. Of a regression: `mse`, and `pearson`, the correlation with the
  /// targets, NaN if those or the logits are all equal.
  std::vector<Measure> result() const;

private:
  const ProblemType problem;
  const int64_t labels;
  int64_t count = 0;                             // of texts
  double right = 0;                              // texts whose label is told
  double hits = 0, falseAlarms = 0, missed = 0;  // labels
  // Of logits x and targets y: sums of squared differences, of x - mean and y - mean, and of products of these.
  double squares = 0, meanX = 0, meanY = 0, xx = 0, yy = 0, xy = 0;
};

}  // namespace gptc
