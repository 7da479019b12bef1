// Sampling text from a model with a KV cache.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <functional>
#include <string>

namespace gptc {

class Executor;
class Module;

struct SampleOptions {
  int64_t maxTokens = 256;
  double temperature = 0.8;  // 0: always the most likely token
  int64_t topK = 0;          // only the k most likely; 0: all
  double topP = 1;           // only the most likely that together reach this probability (Holtzman et al. 2020)
  uint64_t seed = 1337;
  int64_t tokens = 0;  // only ids below are chosen: those that the tokenizer has; 0: all of the model's
};

/// Throws UserError(Contradiction) for an encoder: it fills gaps, and cannot continue a text.
void requireGenerator(const Module &planned);

/// Throws UserError(TokenOutOfRange) where the prompt holds a token that the model does not know.
void requireKnownPrompt(llvm::ArrayRef<int32_t> prompt, const Module &planned);

/// What to tell a user whose model has more tokens than the tokenizer, or "": sampling with SampleOptions::tokens never
/// chooses the others, for which there is no text.
std::string tokensWithoutText(const Module &planned, int64_t tokens);

/// Chooses a token: `u` uniform in [0,1) is a place in the sum of their probabilities, in order of ids, or of
/// likelihood where top-k or top-p leave out some. Of equal logits the smaller id counts as likelier.
int32_t chooseToken(llvm::ArrayRef<float> logits, const SampleOptions &options, double u);

/// Continues `prompt` (not empty) token by token until maxTokens or until `emit` returns false. The prompt goes through
/// @prefill in pieces, each new token through @decode. When the context is full the last half of it is read again from
/// position 0, and sampling goes on. The tokens are a pure function of state, prompt and options.
void sampleTokens(Executor &executor, llvm::ArrayRef<int32_t> prompt, const SampleOptions &options,
                  const std::function<bool(int32_t)> &emit);

}  // namespace gptc
