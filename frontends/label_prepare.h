// Converts texts with labels to files of them (support/labelled_file.h): `gptc data prepare --labels`.
#pragma once

#include "frontends/data_prepare.h"
#include "frontends/label_names.h"

namespace gptc {

struct LabelledSplit {
  int64_t texts = 0, tokens = 0;
  int64_t cut = 0;              // texts that were longer than the context
  std::vector<int64_t> counts;  // texts of each label; of a regression all
};

struct LabelResult {
  std::string tokenizer;  // as Tokenizer::describe
  LabelNames labels;
  LabelledSplit train, val;
  int64_t context = 0;             // tokens of the longest text there may be
  std::vector<std::string> notes;  // what is missing: texts of a label, and texts to validate on
};

/// Writes train.bin, val.bin (if there are texts to validate on), labels.json and the tokenizer's file into outDir,
/// each completely or not at all, and none if one of them fails.
///
/// Files are JSON lines (*.jsonl, *.ndjson, standard input), objects with the members `text`, `label` and, of a pair,
/// `text_pair`; or *.csv (RFC 4180) and *.tsv (without quotes), whose first line names columns so; .gz and .zst are
/// read, too. options.key, pairKey and labelKey call them otherwise, and other members and columns are passed over. A
/// label is a name, or else its number if no name is one. options.labels names them in the order of their numbers:
/// "auto", those of the training texts, in the order of their bytes, or if all are numbers LABEL_0, LABEL_1, ...,
/// unless they do not begin at 0 or most of them have no text: then they are names, in the order of their values;
/// "a,b"; a labels.json; or a folder with a classifier. The last two say what is learned of labels, too, else
/// options.problemType does: with several right labels a text has a list of them, in tables with commas between them,
/// which may be empty; with a regression it has a finite number, whose name "auto" makes LABEL_0. Without valFiles each
/// text is validated on with probability valFraction, whatever the others are.
///
/// Texts become the tokens that transformers' tokenizer gives them with truncation=True (frontends/hf_text_form.h).
/// Throws UserErrors: Usage for options that say nothing of texts with labels, FileMissing, Unwritable, DiskFull;
/// DataInvalid with file and line for a line that is no such object or row, for an empty text, and for a label that is
/// none of the names, there twice or no number; Contradiction for another problemType than `labels` has; and those of
/// readLabelNames and typedText.
LabelResult prepareLabels(const PrepareOptions &options);

}  // namespace gptc
