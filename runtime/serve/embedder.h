// Vectors of texts, by the functions @embed_N of a plan (frontends/model_builder.h).
#pragma once

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

class Executor;

/// How the vectors of a text's tokens become one: their mean, that of the first token ([CLS]), or that of the last.
enum class Pooling { mean, cls, last };
/// The words "mean", "cls", "last"; nullopt for any other.
std::optional<Pooling> poolingOf(const std::string &word);
const char *nameOf(Pooling pooling);

/// Texts go through the model together, one behind the other, without padding between them (an effective batch, as in
/// FasterTransformer): a text sees nothing of its neighbours, and on CPUs its vector has the same bits alone and
/// among any others.
class Embedder {
public:
  /// Throws UserError(PlanDamaged) if the plan has no @embed_N.
  explicit Embedder(Executor &executor);
  /// Compiles for texts of any length. Else a call does so that is the first of its length.
  void prepare();

  /// Elements of a vector, and the longest text in tokens.
  int64_t width() const { return columns; }
  int64_t context() const { return limit; }

  /// A vector of width() elements for each text, which has 1 to context() tokens; `normalized` to length 1. `types`: of
  /// the tokens of each text, if not all are 0. Throws UserErrors TokenOutOfRange, also for a type that the model has
  /// not, and NonFinite for a vector that is not finite.
  std::vector<std::vector<float>> embed(llvm::ArrayRef<std::vector<int32_t>> texts, Pooling pooling, bool normalized,
                                        llvm::ArrayRef<std::vector<int32_t>> types = {});
  /// The vectors of single tokens of each text, those at `places`, one behind the other: width() elements each, as the
  /// model's last norm gives them. Throws embed's errors but NonFinite.
  std::vector<std::vector<float>> tokensAt(llvm::ArrayRef<std::vector<int64_t>> places,
                                           llvm::ArrayRef<std::vector<int32_t>> texts,
                                           llvm::ArrayRef<std::vector<int32_t>> types = {});

private:
  struct Call {
    std::vector<size_t> texts;  // in their order
    int64_t tokens = 0;         // the end of the last one
  };
  std::vector<Call> callsFor(llvm::ArrayRef<std::vector<int32_t>> texts) const;
  void requireKnownTypes(llvm::ArrayRef<std::vector<int32_t>> texts, llvm::ArrayRef<std::vector<int32_t>> types) const;
  /// The vectors of all tokens of the call, in memory that is valid until the next.
  const float *run(const Call &call, llvm::ArrayRef<std::vector<int32_t>> texts,
                   llvm::ArrayRef<std::vector<int32_t>> types);
  /// Takes the number of a text and the vectors of its tokens, `stride` apart, which are valid during the call.
  using Take = llvm::function_ref<void(size_t text, const float *rows)>;
  void runAll(llvm::ArrayRef<std::vector<int32_t>> texts, llvm::ArrayRef<std::vector<int32_t>> types, Take take);

  Executor &executor;
  int64_t columns = 0, stride = 0, limit;
  int64_t typesTaken = 1;      // by the functions: types are less; 1: they have no such argument
  std::vector<int64_t> sizes;  // N, ascending
};

}  // namespace gptc
