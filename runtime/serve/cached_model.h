// The functions of a plan that read and write its KV cache (frontends/model_builder.h).
#pragma once

#include "runtime/serve/sample.h"

#include <vector>

namespace gptc {

/// Sequences in a cache, one in each slot. A slot holds tokens at positions 0 to context() - 1. A plan for serving has
/// @step_N and @score and several slots; one for training has @prefill and @decode, and one slot.
class CachedModel {
public:
  /// Compiles these functions, but @score when it is first asked for. Throws UserError(PlanDamaged) if the plan lacks
  /// them.
  explicit CachedModel(Executor &executor);

  int64_t slots() const { return slotCount; }
  int64_t context() const { return limit; }
  int64_t vocabulary() const { return vocab; }
  /// How many tokens a call of read() takes.
  int64_t most() const { return steps.empty() ? piece : steps.back().tokens; }

  /// Whether a sequence has the same logits to the bit however it is cut into calls. Plans for training have other sums
  /// for new tokens than for prompts.
  bool hasOneOrder() const { return !steps.empty(); }

  /// Tokens `begin` to `end` of a sequence, for a slot that holds those before them. There is a result for what follows
  /// each of the last hows.size() of them.
  struct Part {
    int64_t slot;
    llvm::ArrayRef<int32_t> tokens;
    int64_t begin, end;
    llvm::ArrayRef<HowToChoose> hows;
    bool isNew = false;  // one token that was chosen, not read
  };
  /// Reads parts of different slots, together at most most() tokens with slots() results, which are numbered in the
  /// order of the parts.
  void read(llvm::ArrayRef<Part> parts);
  /// Reads some tokens of a sequence from `begin` on. Returns their end. Result i is what follows token begin + i.
  int64_t score(int64_t slot, llvm::ArrayRef<int32_t> tokens, int64_t begin, const HowToChoose &how);
  /// Gives the slot `to` the first `count` tokens that `from` holds.
  void copy(int64_t from, int64_t to, int64_t count);

  /// Results of the last call of read() or score(), valid until the next.
  int32_t chosen(int64_t result) const;
  llvm::ArrayRef<float> logits(int64_t result) const;

private:
  struct Step {
    std::string name;
    int64_t tokens, chosen;
  };
  void runStep(const Step &step, llvm::ArrayRef<Part> parts);
  void runPrefill(const Part &part);
  void run(llvm::StringRef function, std::vector<const void *> args);

  Executor &executor;
  int64_t slotCount = 1, piece, limit, vocab;
  std::vector<Step> steps;                   // by tokens; none if the plan is for training
  std::string ran;                           // the function whose results these are
  mutable const float *ranLogits = nullptr;  // the logits among these, once fetched: a GPU copies them
  std::vector<HowToChoose> hows;             // of the rows of its result
  std::vector<int64_t> resultRows;           // of results; empty if they are the same
};

}  // namespace gptc
