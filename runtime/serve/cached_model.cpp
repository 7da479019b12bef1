#include "runtime/serve/cached_model.h"

#include "ir/facts.h"
#include "runtime/device/executor.h"
#include "runtime/plan/plan.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gptc {

CachedModel::CachedModel(Executor &executor)
    : executor(executor), piece(fact<&BatchFacts::prefill>(executor.planned())),
      limit(fact<&ModelFacts::blockSize>(executor.planned())), vocab(fact<&ModelFacts::vocabSize>(executor.planned())) {
  for (const auto &f : executor.planned().functions)
    if (llvm::StringRef(f->name).starts_with("step_"))
      steps.push_back({f->name, f->body.args[0]->type.dim(1), f->results()[1].dim(0)});
  if (!steps.empty()) {
    llvm::sort(steps, [](const Step &a, const Step &b) { return a.tokens < b.tokens; });
    for (const auto &s : executor.planned().states)
      if (kindOf(*s) == StateKind::cache && s->type.rank() == 4)
        slotCount = s->type.dim(0);
    std::vector<llvm::StringRef> all;
    for (const Step &step : steps)
      all.push_back(step.name);
    executor.prepare(all);
    return;
  }
  if (!executor.has("prefill") || !executor.has("decode"))
    throw UserError(ErrorCode::PlanDamaged, "the plan cannot sample: it has no @prefill and @decode",
                    "compile it again with `gptc compile`");
  executor.prepare({"prefill", "decode"});
  piece = executor.argType("prefill", 0).dim(1);
}

void CachedModel::read(llvm::ArrayRef<Part> parts) {
  int64_t tokens = 0, results = 0;
  for (const Part &p : parts) {
    GPTC_CHECK(p.slot >= 0 && p.slot < slotCount && p.begin >= 0 && p.begin < p.end &&
                   p.end <= int64_t(p.tokens.size()) && p.end <= limit && int64_t(p.hows.size()) <= p.end - p.begin,
               "tokens {} to {} of {} in slot {}", p.begin, p.end, p.tokens.size(), p.slot);
    tokens += p.end - p.begin;
    results += int64_t(p.hows.size());
  }
  GPTC_CHECK(!parts.empty() && tokens <= most() && results <= slotCount, "{} tokens, {} results", tokens, results);
  hows.clear();
  resultRows.clear();
  if (!steps.empty())
    return runStep(*llvm::find_if(steps, [&](const Step &s) { return s.tokens >= tokens; }), parts);
  const Part &part = parts[0];
  GPTC_CHECK(parts.size() == 1, "{} parts", parts.size());
  hows = {part.hows.empty() ? HowToChoose{} : part.hows[0]};
  if (part.isNew)
    run("decode", {&part.tokens[size_t(part.begin)], &part.begin});
  else
    runPrefill(part);
}

void CachedModel::runStep(const Step &step, llvm::ArrayRef<Part> parts) {
  const size_t n = size_t(step.tokens);
  const bool all = step.chosen == step.tokens;
  std::vector<int32_t> tokens(n, 0);
  std::vector<int64_t> places(2 * n, -1);  // what is left over has no place
  hows.assign(size_t(step.chosen), HowToChoose{});
  std::vector<int64_t> rows;
  size_t at = 0;
  for (const Part &p : parts) {
    for (int64_t i = p.begin; i < p.end; ++i, ++at) {
      tokens[at] = p.tokens[size_t(i)];
      places[2 * at] = p.slot;
      places[2 * at + 1] = i;
    }
    for (size_t i = 0; i < p.hows.size(); ++i) {
      const size_t row = at - p.hows.size() + i;
      hows[all ? row : rows.size()] = p.hows[i];
      rows.push_back(int64_t(row));
    }
  }
  std::vector<const void *> args = {tokens.data(), places.data()};
  if (all) {
    resultRows = std::move(rows);
  } else {
    rows.resize(size_t(step.chosen), 0);
    args.push_back(rows.data());
  }
  run(step.name, std::move(args));
}

/// The last piece of a prompt is moved back to end with it: writing a token to the cache twice leaves the same values.
void CachedModel::runPrefill(const Part &p) {
  const int64_t start = std::min(p.begin, std::max<int64_t>(0, p.end - piece)), last = p.end - start - 1;
  std::vector<int32_t> tokens(size_t(piece), 0);
  std::copy(p.tokens.begin() + start, p.tokens.begin() + p.end, tokens.begin());
  // A one-token prefill has no operand for the last position.
  std::vector<const void *> args = {tokens.data(), &start};
  if (piece > 1)
    args.push_back(&last);
  run("prefill", std::move(args));
}

int64_t CachedModel::score(int64_t slot, llvm::ArrayRef<int32_t> tokens, int64_t begin, const HowToChoose &how) {
  if (steps.empty()) {
    read({{.slot = slot, .tokens = tokens, .begin = begin, .end = begin + 1, .hows = how, .isNew = true}});
    return begin + 1;
  }
  const int64_t end = std::min(begin + piece, int64_t(tokens.size()));
  GPTC_CHECK(begin >= 0 && begin < end && end <= limit, "tokens {} to {}", begin, end);
  std::vector<int32_t> part(size_t(piece), 0);
  std::vector<int64_t> places(2 * size_t(piece), -1);
  for (int64_t i = begin; i < end; ++i) {
    const size_t at = size_t(i - begin);
    part[at] = tokens[size_t(i)];
    places[2 * at] = slot;
    places[2 * at + 1] = i;
  }
  hows.assign(size_t(piece), how);
  resultRows.clear();
  ran = "score";
  ranLogits = nullptr;
  executor.run(ran, {part.data(), places.data()});
  return end;
}

void CachedModel::copy(int64_t from, int64_t to, int64_t count) {
  GPTC_CHECK(from >= 0 && from < slotCount && to >= 0 && to < slotCount && from != to && count <= limit,
             "{} tokens from slot {} to {}", count, from, to);
  for (const auto &state : executor.planned().states) {
    const Type &t = state->type;
    if (kindOf(*state) != StateKind::cache || t.rank() != 4)
      continue;
    const StateView view = executor.view(*state, StateAccess::readAndWrite);
    const int64_t row = t.padded(3) * int64_t(sizeOf(t.dtype)), sequence = t.padded(2) * row;
    for (int64_t h = 0; h < t.dim(1); ++h)
      std::memcpy(view.as<char>() + (to * t.padded(1) + h) * sequence,
                  view.as<char>() + (from * t.padded(1) + h) * sequence, size_t(count * row));
  }
}

void CachedModel::run(llvm::StringRef function, std::vector<const void *> args) {
  if (choosesTokens(*executor.planned().function(function)))
    args.push_back(hows.data());
  ran = function.str();
  ranLogits = nullptr;
  executor.run(function, args);
}

int32_t CachedModel::chosen(int64_t result) const {
  const int64_t row = resultRows.empty() ? result : resultRows[size_t(result)];
  if (choosesTokens(*executor.planned().function(ran)))
    return static_cast<const int32_t *>(executor.result(ran, 1))[row];
  return chooseToken(logits(result), hows[size_t(row)]);
}

llvm::ArrayRef<float> CachedModel::logits(int64_t result) const {
  const int64_t row = resultRows.empty() ? result : resultRows[size_t(result)];
  const int64_t padded = executor.planned().function(ran)->results()[0].padded(1);
  if (!ranLogits)
    ranLogits = static_cast<const float *>(executor.result(ran, 0));
  return {ranLogits + row * padded, size_t(vocab)};
}

}  // namespace gptc
