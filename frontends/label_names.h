// The names of the labels that a classifier of texts gives, in the order of their numbers. `gptc data prepare` writes
// them as labels.json, a list of texts; `data.labels` of a model file and --labels of commands name it.
#pragma once

#include "support/diagnostics.h"
#include "support/labelled_file.h"

#include <string>
#include <vector>

namespace gptc {

constexpr size_t kMostLabels = size_t(LabelledHeader::kMostLabels);

/// Why these are no names of labels, "" if they are: 2 to kMostLabels different ones of UTF-8, none of which is empty.
std::string problemOfLabels(const std::vector<std::string> &names);

/// The names in a labels.json, or those of the classifier in a folder of Hugging Face's (readHfLabels). Throws
/// UserErrors FileMissing, DataInvalid for a file of anything else, those of readHfLabels, and NotBuiltYet for a folder
/// whose head has not one right label.
std::vector<std::string> readLabelNames(const std::string &path);
/// The text of a labels.json.
std::string textOfLabels(const std::vector<std::string> &names);

/// LABEL_0, LABEL_1, ..., as transformers calls labels without names.
std::vector<std::string> numberedLabels(size_t count);

/// Compares the labels of a model with those of the classifier in the folder of the weights that it begins with, if its
/// config.json describes one. Returns an error if there are more or fewer, or if its problem is another than that one
/// label is right; else, in `note`, names in another order or other names, which are replaced.
std::vector<Diagnostic> compareLabels(const std::string &weights, const std::vector<std::string> &names,
                                      std::string &note);

}  // namespace gptc
