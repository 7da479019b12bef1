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
  if (scoreOne())
    return unfinished() > 0;
  // A token of every sequence whose prompt is read; then, in what room is left, of prompts.
  std::vector<CachedModel::Part> parts;
  int64_t room = cached.most();
  for (const Phase phase : {Phase::decoding, Phase::reading})
    for (size_t i = 0; i < slots.size(); ++i)
      if (Slot &slot = slots[i]; slot.generation && slot.phase == phase && room > 0) {
        const int64_t end = std::min(int64_t(slot.tokens.size()), slot.done + room);
        parts.push_back({int64_t(i), slot.tokens, slot.done, end, howOf(slot), phase == Phase::decoding});
        room -= end - slot.done;
      }
  if (parts.empty())
    return unfinished() > 0;
  cached.read(parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    Slot &slot = slots[size_t(parts[i].slot)];
    slot.done = parts[i].end;
    if (slot.phase == Phase::reading)
      slot.read = slot.done;
    if (slot.done == int64_t(slot.tokens.size()))
      deliver(slot, int64_t(i));
  }
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

/// Reads tokens of a prompt whose scores are asked for, if there is one.
bool Generator::scoreOne() {
  const auto it =
      std::find_if(slots.begin(), slots.end(), [](const Slot &s) { return s.generation && s.phase == Phase::scoring; });
  if (it == slots.end())
    return false;
  Slot &slot = *it;
  const Generation &g = *slot.generation;
  const int64_t n = slot.tokens.size(), begin = slot.done;
  slot.done = cached.score(it - slots.begin(), slot.tokens, begin, howOf(slot));
  for (int64_t i = begin; i < slot.done && i + 1 < n; ++i)
    slot.promptScores.push_back(scoresOf(cached.logits(i - begin), slot.tokens[size_t(i) + 1], g.scores.value_or(0)));
  if (slot.done < n)
    return true;
  g.onPrompt(std::move(slot.promptScores));
  if (g.options.maxTokens < 1)
    end(slot);
  else
    deliver(slot, n - 1 - begin);
  return true;
}

/// Hands out the token that follows by result `result`, and sees to what comes next.
void Generator::deliver(Slot &slot, int64_t result) {
  const Generation &g = *slot.generation;
  const int32_t token = choosesOnHost(g.options)
                            ? chooseOnHost(cached.logits(result), howOf(slot), g.options, slot.seen)
                            : cached.chosen(result);
  std::optional<TokenScores> scores;
  if (g.scores)
    scores = scoresOf(cached.logits(result), token, *g.scores);
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
