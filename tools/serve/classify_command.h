// `gptrun classify`: labels of texts.
#pragma once

#include "frontends/hf_labels.h"
#include "tools/commands/command_line.h"
#include "tools/serve/text_batches.h"

#include <cstdint>

namespace gptc {

class Executor;

struct ClassifyCommand {
  TextInput input;
  int64_t top = 0;        // labels with their scores, best first; 0: all, in the model's order
  bool logits = false;    // what the scores are made of, too
  double threshold = -1;  // of scores, above which labels are right where several may be; -1: kUsualThreshold
};

constexpr double kUsualThreshold = 0.5;

void addClassifyOptions(Command classify, ClassifyCommand &command);

/// Writes a JSON line {"text", "tokens", "label", "score", "scores"} for each text or pair, in order: `label` is the
/// likeliest, `score` its probability, `scores` the probabilities by the names of the labels. Where several labels
/// may be right `labels` are those above the threshold, in the model's order. A regression chooses no label, and has a
/// `score` if it gives one number. Where the line of a text names an id, `id` stands for `text`.
/// `form`: how the model's folder has texts read; none is longer than the model's context. Throws what TextBatches::run
/// and Classifier throw, and UserError(Usage) for a threshold where one label is right or none.
void classifyTexts(Executor &executor, const Tokenizer &tokenizer, const HfLabels &labels, TextForm form,
                   const ClassifyCommand &command);

}  // namespace gptc
