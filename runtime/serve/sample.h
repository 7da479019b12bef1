// The choice of the next token, and samples of one sequence.
#pragma once

#include "ir/choose_token.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/BitVector.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace gptc {

class Executor;
class Module;

struct SampleOptions {
  int64_t maxTokens = 256;
  double temperature = 0.8;  // 0: greedy (always the most likely token)
  int64_t topK = 0;          // choose among the k most likely; 0: all
  double topP = 1;  // nucleus sampling (Holtzman et al. 2020): choose among the most likely tokens whose probabilities
                    // reach this sum
  uint64_t seed = 1337;
  int64_t tokens = 0;  // choose only ids below this: the tokenizer's; 0: all of the model's
  double minP = 0;     // leave out tokens with less than this part of the likeliest's probability (Nguyen et al. 2024),
                       // before top-k and top-p
  double repetitionPenalty = 1;  // logits of tokens that occurred are divided by it, negative ones multiplied (CTRL,
                                 // Keskar et al. 2019), before the temperature
};

/// Throws UserError(Contradiction) for an encoder, which fills gaps and cannot continue a text.
void requireGenerator(const Module &planned);

/// Throws UserError(TokenOutOfRange) if the prompt has a token outside the model's vocabulary.
void requireKnownPrompt(llvm::ArrayRef<int32_t> prompt, const Module &planned);

/// A note for the user if the model has more tokens than the tokenizer's `tokens`, else "". SampleOptions::tokens
/// excludes the surplus tokens, which have no text.
std::string tokensWithoutText(const Module &planned, int64_t tokens);

/// What @decode and @prefill take to choose a token (ir/choose_token.h).
using HowToChoose = std::array<float, choose_token::columns>;
/// `u`, uniform in [0, 1), is a position in the cumulative probabilities.
HowToChoose howToChoose(const SampleOptions &options, double u);

/// The meaning of the op choose_token, for plans whose functions only yield logits.
int32_t chooseToken(llvm::ArrayRef<float> logits, llvm::ArrayRef<float> how);

/// Whether the options ask for what the op choose_token does not know: then the host chooses, by the function below.
bool choosesOnHost(const SampleOptions &options);
/// chooseToken after minP and repetitionPenalty. `seen`: the tokens that occurred; may be empty without a penalty.
int32_t chooseOnHost(llvm::ArrayRef<float> logits, const HowToChoose &how, const SampleOptions &options,
                     const llvm::BitVector &seen);

/// Continues `prompt` (not empty) until maxTokens or until `emit` returns false. The prompt goes through @prefill in
/// pieces, each new token through @decode. When the context is full, its last half is read again from position 0. The
/// tokens are a pure function of state, prompt and options.
void sampleTokens(Executor &executor, llvm::ArrayRef<int32_t> prompt, const SampleOptions &options,
                  const std::function<bool(int32_t)> &emit);

}  // namespace gptc
