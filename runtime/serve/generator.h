// Continues many sequences with one model.
#pragma once

#include "runtime/serve/cached_model.h"
#include "runtime/serve/token_digest.h"
#include "runtime/serve/token_scores.h"

#include <deque>
#include <optional>

namespace gptc {

/// A sequence to be continued.
struct Generation {
  std::vector<int32_t> prompt;  // not empty
  SampleOptions options;        // maxTokens may be 0: the prompt's scores alone
  uint64_t sample = 0;          // samples of one prompt and one seed differ by this number
  /// Whether a prompt that is longer than the context keeps its end, and a full context goes on with its last half,
  /// read again from position 0. Else the sequence ends with a full context, which the prompt must fit.
  bool slides = true;
  /// How many of the likeliest tokens are scored beside each new one; none: no scores.
  std::optional<int64_t> scores;
  /// The scores of the prompt's tokens from the second on, before the first new token; the prompt must fit. Needs
  /// `scores`.
  std::function<void(std::vector<TokenScores>)> onPrompt;
  /// A new token; `scores` is null if they are not asked for. Returns whether to go on.
  std::function<bool(int32_t token, const TokenScores *scores)> onToken;
  /// Nothing follows.
  std::function<void()> onEnd;
  /// Asked before each step: false ends the sequence, with onEnd. Null: always wanted.
  std::function<bool()> isWanted;
};

struct GeneratorOptions {
  /// Up to so many tokens are guessed for a sequence in a call, by what followed its last tokens where they stood
  /// before (prompt lookup decoding, Saxena 2023), and kept as far as they are what the model chooses. On CPUs no token
  /// differs for it. Only slots that are free otherwise are used.
  int64_t guesses = 0;
  /// Whether a prompt begins with what another slot holds of it, if that is long. Fast where the cache is in host
  /// memory.
  bool copiesPrefixes = true;
};

/// Runs generations in the order in which they were added, as many at once as the model has slots. On CPUs the
/// tokens of each are a pure function of the model's state and of the generation, whatever runs beside it; on GPUs
/// steps of few tokens sum in an order of their own. One thread at a time.
class Generator {
public:
  explicit Generator(Executor &executor, const GeneratorOptions &options = {});
  /// Throws UserError(TokenOutOfRange) if the model lacks a token of the prompt.
  void add(Generation generation);
  /// Reads a token of every sequence whose prompt is read, and pieces of prompts, and scores a piece of a prompt. Calls
  /// onToken and onEnd, from which add() may be called. Returns false if nothing is left to do.
  bool step();
  /// Generations that have not ended.
  int64_t unfinished() const;
  const CachedModel &model() const { return cached; }
  /// The digest of all tokens that were handed out.
  uint64_t taken() const { return digest.value(); }

private:
  enum class Phase {
    reading,   // prefill, a piece at a time
    scoring,   // the prompt, for the logits after each token
    decoding,  // the last of `tokens` is new
  };
  /// A slot of the cache, and the generation that has it.
  struct Slot {
    std::optional<Generation> generation;
    int64_t admitted = 0;  // those that were admitted before it have smaller numbers
    Phase phase = Phase::reading;
    std::vector<int32_t> tokens;  // in the cache or to be read
    int64_t done = 0;             // how many of them the cache holds
    int64_t read = 0;             // how many of them prefill wrote: a later prompt may go on from there
    int64_t made = 0;             // new tokens so far
    llvm::BitVector seen;         // tokens that occurred, if there is a penalty
    std::vector<TokenScores> promptScores;
  };
  struct Work;
  void endUnwanted();
  void admit();
  bool awaitsPrefix(const Generation &next) const;
  void begin(size_t index, Generation generation);
  void takePrefix(size_t index, llvm::ArrayRef<int32_t> before, int64_t kept);
  int64_t held(const Slot &slot) const { return cached.hasOneOrder() ? slot.done : slot.read; }
  void scoreOne();
  std::vector<Work> workOf();
  std::vector<size_t> inPhase(Phase phase) const;
  void guess(const Slot &slot, std::vector<int32_t> &tokens, int64_t most) const;
  void finish(const Work &work, int64_t result);
  bool deliver(Slot &slot, int64_t result);
  void end(Slot &slot);
  void keepLast(Slot &slot, int64_t count);
  HowToChoose howOf(const Slot &slot, int64_t further = 0) const;

  const GeneratorOptions options;
  CachedModel cached;
  const Module &planned;
  std::vector<Slot> slots;
  std::deque<Generation> waiting;
  int64_t admissions = 0;
  TokenDigest digest;
};

}  // namespace gptc
