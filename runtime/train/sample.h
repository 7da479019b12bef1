// Samples text from a model with a KV cache.
#pragma once

#include "ir/choose_token.h"

#include "llvm/ADT/ArrayRef.h"

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
};

/// Throws UserError(Contradiction) for an encoder, which fills gaps and cannot continue a text.
void requireGenerator(const Module &planned);

/// Throws UserError(TokenOutOfRange) if the prompt has a token outside the model's vocabulary.
void requireKnownPrompt(llvm::ArrayRef<int32_t> prompt, const Module &planned);

/// A note for the user if the model has more tokens than the tokenizer's `tokens`, else "". SampleOptions::tokens
/// excludes the surplus tokens, which have no text.
std::string tokensWithoutText(const Module &planned, int64_t tokens);

/// What @decode and @prefill take to choose a token (ir/choose_token.h). `u`, uniform in [0, 1), is a position in
/// the cumulative probabilities.
std::array<float, choose_token::columns> howToChoose(const SampleOptions &options, double u);

/// The meaning of the op choose_token, for plans whose functions only yield logits.
int32_t chooseToken(llvm::ArrayRef<float> logits, llvm::ArrayRef<float> how);

/// Continues `prompt` (not empty) until maxTokens or until `emit` returns false. The prompt goes through @prefill in
/// pieces, each new token through @decode. When the context is full, its last half is read again from position 0. The
/// tokens are a pure function of state, prompt and options.
void sampleTokens(Executor &executor, llvm::ArrayRef<int32_t> prompt, const SampleOptions &options,
                  const std::function<bool(int32_t)> &emit);

}  // namespace gptc
