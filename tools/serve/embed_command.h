// `gptrun embed`: vectors of texts.
#pragma once

#include "frontends/tokenizer/tokenizer.h"
#include "runtime/serve/embedder.h"
#include "tools/commands/command_line.h"
#include "tools/serve/text_batches.h"

#include <algorithm>
#include <string>
#include <vector>

namespace gptc {

/// How vectors are made: by options, and by what a model's files say.
struct VectorChoice {
  std::string pooling;  // "": what the files say, else mean
  bool normalize = false, keepLength = false;

  Pooling how = Pooling::mean;  // both, and `most`, are set by settle()
  bool normalized = false;
  int64_t most = 0;           // tokens of a text, to which longer ones are cut; 0: those of the model
  std::string prompt;         // stands before each text
  bool parseSpecial = false;  // control tokens in a text become their tokens

  /// The longest text in tokens, of a model with this context.
  int64_t longest(int64_t context) const { return most ? std::min(most, context) : context; }
  /// Reads the folder (frontends/hf_pooling.h) or GGUF file; `model`: "" for a plan. Says what it found on standard
  /// error. Throws what readHfPooling and ggufPooling throw.
  void settle(const std::string &model);
};
/// Adds --pooling, --normalize and --keep-length, and returns them.
std::vector<Option> addVectorOptions(Command command, VectorChoice &choice);

/// "[0.5,-1]": a JSON array of the shortest numbers that are these floats.
std::string numbersOf(const std::vector<float> &vector);

struct EmbedCommand {
  TextInput input;
  std::string out;    // a file of NumPy's; "": JSON lines on standard output
  bool time = false;  // say at the end how long it took, but for the first batch, which compiles
  VectorChoice vectors;
};

void addEmbedOptions(Command embed, EmbedCommand &command);
/// The tokens of a text behind the choice's prompt, with those that the tokenizer puts around them. Throws what
/// Tokenizer::encode throws.
std::vector<int32_t> tokensToEmbed(const Tokenizer &tokenizer, const std::string &text, const VectorChoice &choice);

/// Writes the vectors of all texts in order, to standard output as JSON lines {"text", "tokens", "vector"}, or as one
/// array f32[texts, width] in NumPy's format 1.0, which appears whole or not at all. Throws what TextBatches::run
/// throws.
void embedTexts(Executor &executor, const Tokenizer &tokenizer, const EmbedCommand &command);

}  // namespace gptc
