#include "frontends/choice_measures.h"

#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <string>
#include <vector>

namespace gptc {

namespace {

/// What a log-likelihood is divided by.
double sizeOf(ChoiceMeasure measure, const std::string &choice, int64_t tokens) {
  switch (measure) {
  case ChoiceMeasure::acc:
    return 1;
  case ChoiceMeasure::accNorm:
    return double(countCodePoints(choice));
  case ChoiceMeasure::accBytes:
    return double(choice.size());
  case ChoiceMeasure::accToken:
    return double(tokens);
  }
  GPTC_UNREACHABLE("measure {}", int(measure));
}

}  // namespace

const char *inWords(ChoiceMeasure measure) {
  switch (measure) {
  case ChoiceMeasure::acc:
    return "acc";
  case ChoiceMeasure::accNorm:
    return "acc_norm";
  case ChoiceMeasure::accBytes:
    return "acc_bytes";
  case ChoiceMeasure::accToken:
    return "acc_token";
  }
  GPTC_UNREACHABLE("measure {}", int(measure));
}

llvm::ArrayRef<ChoiceMeasure> measuresOf(ChoiceForm form) {
  static constexpr ChoiceMeasure all[] = {ChoiceMeasure::acc, ChoiceMeasure::accNorm, ChoiceMeasure::accBytes,
                                          ChoiceMeasure::accToken};
  const llvm::ArrayRef<ChoiceMeasure> measures(all);
  return form == ChoiceForm::contexts ? measures.take_front(1) : measures;
}

size_t answerBy(ChoiceMeasure measure, const ChoiceItem &item, llvm::ArrayRef<double> logLikelihoods,
                llvm::ArrayRef<int64_t> tokens) {
  GPTC_CHECK(logLikelihoods.size() == item.choices.size() && tokens.size() == item.choices.size(),
             "{} log-likelihoods and {} counts of tokens for {} choices", logLikelihoods.size(), tokens.size(),
             item.choices.size());
  std::vector<double> values;
  for (size_t c = 0; c < item.choices.size(); ++c)
    values.push_back(logLikelihoods[c] / sizeOf(measure, item.choices[c], tokens[c]));
  return size_t(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace gptc
