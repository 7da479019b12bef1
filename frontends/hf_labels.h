// The labels of a classifier of Hugging Face's: what config.json says of BertForSequenceClassification and
// ModernBertForSequenceClassification.
#pragma once

#include "ir/choices.h"

#include <string>
#include <vector>

namespace gptc {

/// How scores are made of logits.
enum class LabelScores {
  softmax,   // one label is right: the probability of each
  sigmoid,   // each is right or not: the probability that it is
  identity,  // the logits are the scores
};

/// Those that training makes, by what is learned of labels.
LabelScores trainedScores(ProblemType problem);

struct HfLabels {
  std::vector<std::string> names;  // by their numbers
  LabelScores scores = LabelScores::softmax;
  /// Of a regression no label is chosen: each score is a number of its own.
  ProblemType problem = ProblemType::single_label_classification;
  ClassifierPooling pooling = ClassifierPooling::cls;
};

/// The families of models of which a classifier of texts is built: "bert", "modernbert".
std::vector<std::string> familiesWithClassifier();

/// Whether config.json in the folder describes a classifier of texts, of whatever family.
bool describesClassifier(const std::string &dir);

/// Names are those of id2label, or where it is missing LABEL_0, LABEL_1, ... as transformers has it, as many as
/// num_labels says or two. problem_type decides on the scores; where it is missing, one label means a regression. The
/// scores of a regression are its logits, or what the activation function of a CrossEncoder of sentence-transformers
/// makes of them, if the folder names one. Throws UserError: Contradiction if the folder's model is no classifier of
/// texts, for one label that is always right and for two activation functions; NotBuiltYet for families other than
/// bert and modernbert, for other problems and for other functions than Sigmoid and Identity; CheckpointDamaged for
/// names that are not one for each number.
HfLabels readHfLabels(const std::string &dir);

/// The key classifier_pooling of the folder, whatever the model is: that of weights which are to learn labels. Throws
/// UserError(NotBuiltYet) for one that is unknown.
ClassifierPooling readClassifierPooling(const std::string &dir);

}  // namespace gptc
