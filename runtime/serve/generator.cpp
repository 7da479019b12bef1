#include "runtime/serve/generator.h"

#include "ir/random.h"
#include "runtime/device/executor.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <utility>

namespace gptc {
namespace {

constexpr uint32_t kSampleStream = 0xDA7A0003;

int64_t commonPrefix(llvm::ArrayRef<int32_t> a, llvm::ArrayRef<int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

Generator::Generator(Executor &executor) : cached(executor), planned(executor.planned()), slots(cached.slots()) {}

void Generator::add(Generation generation) {
  GPTC_CHECK(!generation.prompt.empty(), "sampling needs a token to start from");
  GPTC_CHECK((generation.slides && !generation.onPrompt) || int64_t(generation.prompt.size()) <= cached.context(),
             "{} tokens", generation.prompt.size());
  requireKnownPrompt(generation.prompt, planned);
  waiting.push_back(std::move(generation));
}

int64_t Generator::unfinished() const {
  return int64_t(waiting.size()) + std::count_if(slots.begin(), slots.end(), [](auto &s) { return s.generation; });
}

bool Generator::step() {
  for (Slot &slot : slots)
    while (!slot.generation && !waiting.empty()) {
      Generation next = std::move(waiting.front());
      waiting.pop_front();
      begin(slot, std::move(next));
    }
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots[i].generation && slots[i].phase == Phase::reading) {
      readPiece(int64_t(i));
      break;
    }
  readTokens();
  return unfinished() > 0;
}

void Generator::begin(Slot &slot, Generation generation) {
  const std::vector<int32_t> before = std::move(slot.tokens);
  const int64_t read = slot.read;
  slot = Slot();
  slot.generation = std::move(generation);
  const Generation &g = *slot.generation;
  slot.tokens = g.prompt;
  if (g.options.repetitionPenalty != 1) {
    slot.seen.resize(unsigned(cached.vocabulary()));
    for (int32_t token : slot.tokens)
      slot.seen.set(unsigned(token));
  }
  keepLast(slot, cached.context());
  if (g.onPrompt)
    slot.phase = Phase::scoring;
  else  // what prefill left in the slot is not read again; the last token is, for what follows it
    slot.done = slot.read =
        std::min(commonPrefix(slot.tokens, llvm::ArrayRef(before).take_front(read)), int64_t(slot.tokens.size()) - 1);
  if (g.options.maxTokens < 1 && !g.onPrompt)
    end(slot);
}

void Generator::readPiece(int64_t index) {
  Slot &slot = slots[index];
  slot.done = slot.read = cached.prefill(index, slot.tokens, slot.done, howOf(slot));
  if (slot.done == int64_t(slot.tokens.size()))
    deliver(slot, 0);
}

void Generator::readTokens() {
  std::vector<CachedModel::Row> rows;
  for (size_t i = 0; i < slots.size(); ++i)
    if (Slot &slot = slots[i]; slot.generation && slot.phase != Phase::reading)
      rows.push_back({int64_t(i), slot.tokens[slot.done], slot.done, howOf(slot)});
  if (rows.empty())
    return;
  cached.decode(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    Slot &slot = slots[rows[i].slot];
    ++slot.done;
    slot.phase == Phase::scoring ? scored(slot, int64_t(i)) : deliver(slot, int64_t(i));
  }
}

void Generator::scored(Slot &slot, int64_t row) {
  const Generation &g = *slot.generation;
  if (slot.done < int64_t(slot.tokens.size())) {
    slot.promptScores.push_back(scoresOf(cached.logits(row), slot.tokens[slot.done], g.scores.value_or(0)));
    return;
  }
  g.onPrompt(std::move(slot.promptScores));
  if (g.options.maxTokens < 1)
    return end(slot);
  deliver(slot, row);
}

/// Hands out the token that row `row` chose, and sees to what comes next.
void Generator::deliver(Slot &slot, int64_t row) {
  const Generation &g = *slot.generation;
  const int32_t token = choosesOnHost(g.options) ? chooseOnHost(cached.logits(row), howOf(slot), g.options, slot.seen)
                                                 : cached.chosen(row);
  std::optional<TokenScores> scores;
  if (g.scores)
    scores = scoresOf(cached.logits(row), token, *g.scores);
  ++slot.made;
  const bool goesOn = g.onToken(token, scores ? &*scores : nullptr);
  if (!goesOn || slot.made >= g.options.maxTokens)
    return end(slot);
  if (!slot.seen.empty())
    slot.seen.set(unsigned(token));
  slot.phase = Phase::decoding;
  slot.tokens.push_back(token);
  if (int64_t(slot.tokens.size()) <= cached.context())
    return;
  if (!g.slides)
    return end(slot);
  keepLast(slot, std::max<int64_t>(1, cached.context() / 2));
  slot.phase = Phase::reading;
  slot.done = slot.read = 0;
}

void Generator::end(Slot &slot) {
  const Generation g = *std::exchange(slot.generation, std::nullopt);
  if (g.onEnd)
    g.onEnd();
}

void Generator::keepLast(Slot &slot, int64_t count) {
  if (int64_t(slot.tokens.size()) > count)
    slot.tokens.erase(slot.tokens.begin(), slot.tokens.end() - count);
}

HowToChoose Generator::howOf(const Slot &slot) const {
  const Generation &g = *slot.generation;
  return howToChoose(g.options, randomUniform(randomKey(g.options.seed, g.sample, kSampleStream, 0), slot.made));
}

}  // namespace gptc
