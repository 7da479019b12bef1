// The names of the labels that a classifier of texts gives, in the order of their numbers, and what it learns of them.
// `gptc data prepare` writes them as labels.json; `data.labels` of a model file and --labels of commands name it. Of
// labels one of which is right the file is a list of names, else it says so:
//
//   ["bad", "good"]
//   {"problem_type": "multi_label_classification", "names": ["toxic", "insult"]}
//   {"problem_type": "regression", "names": ["score"]}
#pragma once

#include "ir/choices.h"
#include "support/diagnostics.h"
#include "support/labelled_file.h"

#include <string>
#include <vector>

namespace gptc {

constexpr size_t kMostLabels = size_t(LabelledHeader::kMostLabels);

struct LabelNames {
  std::vector<std::string> names;
  ProblemType problem = ProblemType::single_label_classification;
};

/// Why nothing is learned of such labels, "" if it is: names are different, of UTF-8 and not empty. One right label
/// needs 2 to kMostLabels of them, several right ones 1 to kMostLabels, and a regression has one.
std::string problemOfLabels(const LabelNames &labels);

/// Those in a labels.json, or of the classifier in a folder of Hugging Face's (readHfLabels). Throws UserErrors
/// FileMissing, DataInvalid for a file of anything else, those of readHfLabels, and NotBuiltYet for the head of a
/// CrossEncoder, whose logits go through a function that training leaves out.
LabelNames readLabelNames(const std::string &path);
/// The text of a labels.json.
std::string textOfLabels(const LabelNames &labels);

/// LABEL_0, LABEL_1, ..., as transformers calls labels without names.
std::vector<std::string> numberedLabels(size_t count);

/// Compares the labels of a model with those of the classifier in the folder of the weights that it begins with, if its
/// config.json describes one. Returns an error if there are more or fewer, if it learned something else of them or from
/// another vector, or if it cannot be trained; else, in `note`, names in another order or other names, which are
/// replaced.
std::vector<Diagnostic> compareLabels(const std::string &weights, const LabelNames &labels, ClassifierPooling pooling,
                                      std::string &note);

}  // namespace gptc
