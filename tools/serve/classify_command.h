// `gptrun classify`: labels of texts.
#pragma once

#include "frontends/tokenizer/tokenizer.h"
#include "tools/commands/command_line.h"
#include "tools/serve/text_batches.h"

#include <string>
#include <vector>

namespace gptc {

class Executor;

struct ClassifyCommand {
  TextInput input;
  int64_t top = 0;      // labels with their scores, best first; 0: all, in the model's order
  bool logits = false;  // what the scores are made of, too
};

void addClassifyOptions(Command classify, ClassifyCommand &command);

/// Writes a JSON line {"text", "tokens", "label", "score", "scores"} for each text, in order: `label` is the likeliest,
/// `score` its probability, `scores` the probabilities by the names of the labels, `labels` by their numbers. Throws
/// what TextBatches::run and Classifier throw.
void classifyTexts(Executor &executor, const Tokenizer &tokenizer, const std::vector<std::string> &labels,
                   const ClassifyCommand &command);

}  // namespace gptc
