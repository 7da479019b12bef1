// The functions of a plan that read and write its KV cache.
#pragma once

#include "runtime/serve/sample.h"

#include <vector>

namespace gptc {

/// Sequences in a cache, one in each slot. A slot holds tokens at positions 0 to context() - 1.
class CachedModel {
public:
  /// Compiles @prefill and @decode. Throws UserError(PlanDamaged) if the plan lacks one.
  explicit CachedModel(Executor &executor);

  int64_t slots() const { return 1; }
  int64_t context() const { return limit; }
  int64_t vocabulary() const { return vocab; }

  /// Reads a piece of `tokens`, of which the slot holds the first `done`. Returns how many it holds then; once it
  /// holds all, row 0 of the results is what follows the last of them.
  int64_t prefill(int64_t slot, llvm::ArrayRef<int32_t> tokens, int64_t done, const HowToChoose &how);

  struct Row {
    int64_t slot;
    int32_t token;
    int64_t position;
    HowToChoose how;
  };
  /// Reads one token for each of at most slots() sequences. Row i of the results is what follows the token of row i.
  void decode(llvm::ArrayRef<Row> rows);

  /// Results of the last call, valid until the next.
  int32_t chosen(int64_t row) const;
  llvm::ArrayRef<float> logits(int64_t row) const;

private:
  void run(llvm::StringRef function, std::vector<const void *> args);

  Executor &executor;
  int64_t piece, limit, vocab;
  std::string ran;                // the function whose results these are
  std::vector<HowToChoose> hows;  // of its rows
};

}  // namespace gptc
