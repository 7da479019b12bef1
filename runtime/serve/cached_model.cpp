#include "runtime/serve/cached_model.h"

#include "ir/facts.h"
#include "runtime/device/executor.h"
#include "runtime/plan/plan.h"
#include "support/diagnostics.h"

#include <algorithm>

namespace gptc {

CachedModel::CachedModel(Executor &executor)
    : executor(executor), limit(fact<&ModelFacts::blockSize>(executor.planned())),
      vocab(fact<&ModelFacts::vocabSize>(executor.planned())) {
  if (!executor.has("prefill") || !executor.has("decode"))
    throw UserError(ErrorCode::PlanDamaged, "the plan cannot sample: it has no @prefill and @decode",
                    "compile it again with `gptc compile`");
  executor.prepare({"prefill", "decode"});
  piece = executor.argType("prefill", 0).dim(1);
}

int64_t CachedModel::prefill(int64_t slot, llvm::ArrayRef<int32_t> tokens, int64_t done, const HowToChoose &how) {
  const int64_t n = tokens.size();
  GPTC_CHECK(slot == 0 && done < n && n <= limit, "{} of {} tokens in slot {}", done, n, slot);
  // The last piece is moved back to end at n: writing a token to the cache twice leaves the same values.
  const int64_t start = std::min(done, std::max<int64_t>(0, n - piece)), count = std::min(piece, n - start),
                last = count - 1;
  std::vector<int32_t> part(piece, 0);
  std::copy_n(tokens.begin() + start, count, part.begin());
  hows = {how};
  // A one-token prefill has no operand for the last position.
  std::vector<const void *> args = {part.data(), &start};
  if (piece > 1)
    args.push_back(&last);
  run("prefill", std::move(args));
  return start + count;
}

void CachedModel::decode(llvm::ArrayRef<Row> rows) {
  GPTC_CHECK(rows.size() == 1 && rows[0].slot == 0, "{} rows", rows.size());
  hows = {rows[0].how};
  run("decode", {&rows[0].token, &rows[0].position});
}

void CachedModel::run(llvm::StringRef function, std::vector<const void *> args) {
  if (choosesTokens(*executor.planned().function(function)))
    args.push_back(hows.data());
  ran = function.str();
  executor.run(function, args);
}

int32_t CachedModel::chosen(int64_t row) const {
  if (choosesTokens(*executor.planned().function(ran)))
    return static_cast<const int32_t *>(executor.result(ran, 1))[row];
  return chooseToken(logits(row), hows[row]);
}

llvm::ArrayRef<float> CachedModel::logits(int64_t row) const {
  const int64_t padded = executor.planned().function(ran)->results()[0].padded(1);
  return {static_cast<const float *>(executor.result(ran, 0)) + row * padded, size_t(vocab)};
}

}  // namespace gptc
