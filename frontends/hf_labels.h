// The labels of a classifier of Hugging Face's: what config.json says of BertForSequenceClassification.
#pragma once

#include <string>
#include <vector>

namespace gptc {

/// Names of the labels by their numbers: id2label, or where it is missing LABEL_0 and LABEL_1, as transformers has it.
/// Throws UserError: Contradiction if the folder's model is no classifier of texts, NotBuiltYet for families other than
/// bert, for regression and for several labels at once, CheckpointDamaged for names that are not one for each number.
std::vector<std::string> readHfLabels(const std::string &dir);

}  // namespace gptc
