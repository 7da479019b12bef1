// Which choice each measure takes, with figures that are worked out by hand.
#include "frontends/choice_measures.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

using namespace gptc;

namespace {

ChoiceItem itemOf(const std::vector<std::string> &choices) {
  ChoiceItem item;
  item.contexts = {"q"};
  item.choices = choices;
  return item;
}

TEST(ChoiceMeasures, CharactersBytesAndTokensChooseDifferently) {
  const ChoiceItem item = itemOf({"ja", "\u65e5\u672c\u8a9e", "abcdefgh", "\u00e9\u00e0\u00fc"});
  //                       characters    bytes      tokens
  //   0 "ja"      -2.0  / 2 = -1.00  2 = -1.00  1 = -2.0   the greatest as it is
  //   1 3 of CJK  -4.5  / 3 = -1.50  9 = -0.50  3 = -1.5   the greatest per byte
  //   2 "abc..h"  -6.0  / 8 = -0.75  8 = -0.75  2 = -3.0   the greatest per character
  //   3 "éàü"     -5.4  / 3 = -1.80  6 = -0.90  6 = -0.9   the greatest per token
  const std::vector<double> sums = {-2.0, -4.5, -6.0, -5.4};
  const std::vector<int64_t> tokens = {1, 3, 2, 6};
  EXPECT_EQ(answerBy(ChoiceMeasure::acc, item, sums, tokens), 0u);
  EXPECT_EQ(answerBy(ChoiceMeasure::accNorm, item, sums, tokens), 2u);
  EXPECT_EQ(answerBy(ChoiceMeasure::accBytes, item, sums, tokens), 1u);
  EXPECT_EQ(answerBy(ChoiceMeasure::accToken, item, sums, tokens), 3u);
}

TEST(ChoiceMeasures, TheFirstOfEqualOnesIsTaken) {
  const std::vector<int64_t> one = {1, 1, 1};
  for (const ChoiceMeasure measure : measuresOf(ChoiceForm::choices)) {
    EXPECT_EQ(answerBy(measure, itemOf({"a", "b", "c"}), {-2.0, -1.0, -1.0}, one), 1u) << inWords(measure);
    EXPECT_EQ(answerBy(measure, itemOf({"a", "b", "c"}), {-1.0, -1.0, -1.0}, one), 0u) << inWords(measure);
  }
  // -1 per character, byte and token of both, in either order.
  for (const ChoiceMeasure measure : {ChoiceMeasure::accNorm, ChoiceMeasure::accBytes, ChoiceMeasure::accToken}) {
    EXPECT_EQ(answerBy(measure, itemOf({"ab", "abcd"}), {-2.0, -4.0}, {2, 4}), 0u) << inWords(measure);
    EXPECT_EQ(answerBy(measure, itemOf({"abcd", "ab"}), {-4.0, -2.0}, {4, 2}), 0u) << inWords(measure);
  }
  const double never = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(answerBy(ChoiceMeasure::acc, itemOf({"a", "b"}), {never, -1e9}, {1, 1}), 1u);
  EXPECT_EQ(answerBy(ChoiceMeasure::acc, itemOf({"a", "b"}), {never, never}, {1, 1}), 0u);
}

TEST(ChoiceMeasures, OneTextBehindManyContextsHasNoSizeToDivideBy) {
  auto wordsOf = [](ChoiceForm form) {
    std::vector<std::string> words;
    for (const ChoiceMeasure measure : measuresOf(form))
      words.emplace_back(inWords(measure));
    return words;
  };
  for (const ChoiceForm form : {ChoiceForm::hellaswag, ChoiceForm::arc, ChoiceForm::choices})
    EXPECT_EQ(wordsOf(form), (std::vector<std::string>{"acc", "acc_norm", "acc_bytes", "acc_token"}));
  EXPECT_EQ(wordsOf(ChoiceForm::contexts), std::vector<std::string>{"acc"});
}

}  // namespace
