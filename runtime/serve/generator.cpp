#include "runtime/serve/generator.h"

#include "ir/random.h"
#include "runtime/device/executor.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <utility>

namespace gptc {
namespace {

constexpr uint32_t kSampleStream = 0xDA7A0003;

/// Tokens of a prefix from which on it is copied from another slot.
constexpr int64_t leastCopied = 16;
/// How many of the last tokens guesses go by.
constexpr int64_t longestMatch = 4, shortestMatch = 2;

int64_t commonPrefix(llvm::ArrayRef<int32_t> a, llvm::ArrayRef<int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

/// A slot's part in a call.
struct Generator::Work {
  size_t slot;
  std::vector<int32_t> tokens;  // of the slot, then guesses
  int64_t begin, end;
  std::vector<HowToChoose> hows;
  bool isNew;
};

Generator::Generator(Executor &executor, const GeneratorOptions &options)
    : options(options), cached(executor), planned(executor.planned()), slots(size_t(cached.slots())) {}

void Generator::add(Generation generation) {
  GPTC_CHECK(!generation.prompt.empty(), "sampling needs a token to start from");
  GPTC_CHECK((!generation.onPrompt && generation.slides) || int64_t(generation.prompt.size()) <= cached.context(),
             "{} tokens", generation.prompt.size());
  requireKnownPrompt(generation.prompt, planned);
  waiting.push_back(std::move(generation));
}

int64_t Generator::unfinished() const {
  return int64_t(waiting.size()) + std::count_if(slots.begin(), slots.end(), [](auto &s) { return s.generation; });
}

bool Generator::step() {
  endUnwanted();
  admit();
  scoreOne();
  const std::vector<Work> work = workOf();
  if (work.empty())
    return unfinished() > 0;
  std::vector<CachedModel::Part> parts;
  for (const Work &w : work)
    parts.push_back({int64_t(w.slot), w.tokens, w.begin, w.end, w.hows, w.isNew});
  cached.read(parts);
  int64_t result = 0;
  for (const Work &w : work) {
    finish(w, result);
    result += int64_t(w.hows.size());
  }
  return unfinished() > 0;
}

void Generator::endUnwanted() {
  for (Slot &slot : slots)
    if (slot.generation && slot.generation->isWanted && !slot.generation->isWanted())
      end(slot);
  for (size_t i = 0; i < waiting.size();) {
    if (!waiting[i].isWanted || waiting[i].isWanted()) {
      ++i;
      continue;
    }
    const Generation g = std::move(waiting[i]);
    waiting.erase(waiting.begin() + ptrdiff_t(i));
    if (g.onEnd)
      g.onEnd();
  }
}

/// Gives free slots to those who wait.
void Generator::admit() {
  for (size_t i = 0; i < slots.size(); ++i)
    while (!slots[i].generation && !waiting.empty() && !awaitsPrefix(waiting.front())) {
      Generation next = std::move(waiting.front());
      waiting.pop_front();
      begin(i, std::move(next));
    }
}

/// Whether a prompt is being read that begins as the next one does, which can copy it soon.
bool Generator::awaitsPrefix(const Generation &next) const {
  return options.copiesPrefixes && !next.onPrompt && llvm::any_of(slots, [&](const Slot &s) {
           return s.generation && s.phase == Phase::reading &&
                  commonPrefix(next.prompt, s.tokens) >= s.done + leastCopied;
         });
}

void Generator::begin(size_t index, Generation generation) {
  Slot &slot = slots[index];
  const std::vector<int32_t> before = std::move(slot.tokens);
  const int64_t kept = held(slot);
  slot = Slot();
  slot.generation = std::move(generation);
  slot.admitted = admissions++;
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
  else if (g.options.maxTokens < 1)
    end(slot);
  else
    takePrefix(index, before, kept);
}

/// What the slot or another one holds of the prompt is not read again. The last token is, for what follows it.
void Generator::takePrefix(size_t index, llvm::ArrayRef<int32_t> before, int64_t kept) {
  Slot &slot = slots[index];
  const llvm::ArrayRef<int32_t> prompt = llvm::ArrayRef(slot.tokens).drop_back();
  slot.done = commonPrefix(prompt, before.take_front(size_t(kept)));
  size_t from = index;
  int64_t most = slot.done + leastCopied - 1;
  for (size_t i = 0; options.copiesPrefixes && i < slots.size(); ++i)
    if (const Slot &other = slots[i]; i != index)
      if (const int64_t n = commonPrefix(prompt, llvm::ArrayRef(other.tokens).take_front(size_t(held(other))));
          n > most) {
        most = n;
        from = i;
      }
  if (from != index) {
    cached.copy(int64_t(from), int64_t(index), most);
    slot.done = most;
  }
  slot.read = slot.done;
}

/// The slots with generations in a phase, those that were admitted first in front.
std::vector<size_t> Generator::inPhase(Phase phase) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots[i].generation && slots[i].phase == phase)
      found.push_back(i);
  llvm::sort(found, [&](size_t a, size_t b) { return slots[a].admitted < slots[b].admitted; });
  return found;
}

/// Scores a piece of a prompt, if one is to be scored.
void Generator::scoreOne() {
  const std::vector<size_t> all = inPhase(Phase::scoring);
  if (all.empty())
    return;
  Slot &slot = slots[all[0]];
  const Generation &g = *slot.generation;
  const int64_t n = slot.tokens.size(), begin = slot.done;
  slot.done = cached.score(int64_t(all[0]), slot.tokens, begin, howOf(slot));
  for (int64_t i = begin; i < slot.done && i + 1 < n; ++i)
    slot.promptScores.push_back(scoresOf(cached.logits(i - begin), slot.tokens[size_t(i) + 1], g.scores.value_or(0)));
  if (slot.done < n)
    return;
  g.onPrompt(std::move(slot.promptScores));
  if (g.options.maxTokens < 1)
    end(slot);
  else
    deliver(slot, n - 1 - begin);
}

/// A token of every sequence whose prompt is read, with guesses; then pieces of prompts in the room that is left.
std::vector<Generator::Work> Generator::workOf() {
  std::vector<Work> work;
  int64_t room = cached.most(), free = cached.slots();
  for (const Slot &slot : slots)
    free -= slot.generation ? 1 : 0;
  for (size_t i = 0; i < slots.size(); ++i)
    if (const Slot &slot = slots[i]; slot.generation && slot.phase == Phase::decoding && room > 0) {
      Work w{i, slot.tokens, slot.done, 0, {}, true};
      guess(slot, w.tokens, std::min({options.guesses, free, room - 1}));
      w.end = int64_t(w.tokens.size());
      for (int64_t j = w.begin; j < w.end; ++j)
        w.hows.push_back(howOf(slot, j - w.begin));
      room -= w.end - w.begin;
      free -= w.end - w.begin - 1;
      work.push_back(std::move(w));
    }
  for (const size_t i : inPhase(Phase::reading))
    if (const Slot &slot = slots[i]; room > 0) {
      Work w{i, slot.tokens, slot.done, std::min(int64_t(slot.tokens.size()), slot.done + room), {}, false};
      if (w.end == int64_t(w.tokens.size()))
        w.hows = {howOf(slot)};
      room -= w.end - w.begin;
      work.push_back(std::move(w));
    }
  return work;
}

/// Appends at most `most` tokens that may follow: those that followed the last ones where these stood before.
void Generator::guess(const Slot &slot, std::vector<int32_t> &tokens, int64_t most) const {
  const Generation &g = *slot.generation;
  const int64_t n = slot.tokens.size();
  most = std::min({most, cached.context() - n, g.options.maxTokens - slot.made - 1});
  for (int64_t length = longestMatch; length >= shortestMatch && most > 0; --length)
    for (int64_t at = n - length - 1; at >= 0; --at)
      if (std::equal(slot.tokens.end() - length, slot.tokens.end(), slot.tokens.begin() + at)) {
        const int64_t first = at + length, count = std::min(most, n - first);
        tokens.insert(tokens.end(), slot.tokens.begin() + first, slot.tokens.begin() + first + count);
        return;
      }
}

/// Takes the results of a part, from number `result` on: one, or as many as guesses were right.
void Generator::finish(const Work &work, int64_t result) {
  Slot &slot = slots[work.slot];
  if (!work.isNew) {
    slot.done = work.end;
    slot.read = slot.done;
    if (!work.hows.empty())
      deliver(slot, result);
    return;
  }
  for (int64_t at = work.begin + 1;; ++at) {
    slot.done = at;
    if (!deliver(slot, result++) || at == work.end || slot.tokens.back() != work.tokens[size_t(at)])
      return;
  }
}

/// Hands out the token that follows by result `result`, and sees to what comes next. Returns whether that is one more
/// token of the same cache.
bool Generator::deliver(Slot &slot, int64_t result) {
  const Generation &g = *slot.generation;
  const int32_t token = choosesOnHost(g.options)
                            ? chooseOnHost(cached.logits(result), howOf(slot), g.options, slot.seen)
                            : cached.chosen(result);
  std::optional<TokenScores> scores;
  if (g.scores)
    scores = scoresOf(cached.logits(result), token, *g.scores);
  ++slot.made;
  digest.add(token);
  const bool goesOn = g.onToken(token, scores ? &*scores : nullptr);
  // The token itself needs no place: only what follows it would.
  const bool isFull = !g.slides && int64_t(slot.tokens.size()) >= cached.context();
  if (!goesOn || isFull || slot.made >= g.options.maxTokens) {
    end(slot);
    return false;
  }
  if (!slot.seen.empty())
    slot.seen.set(unsigned(token));
  slot.phase = Phase::decoding;
  slot.tokens.push_back(token);
  if (int64_t(slot.tokens.size()) <= cached.context())
    return true;
  keepLast(slot, std::max<int64_t>(1, cached.context() / 2));
  slot.phase = Phase::reading;
  slot.done = slot.read = 0;
  return false;
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

/// How the next token is chosen, or one further on.
HowToChoose Generator::howOf(const Slot &slot, int64_t further) const {
  const Generation &g = *slot.generation;
  return howToChoose(g.options,
                     randomUniform(randomKey(g.options.seed, g.sample, kSampleStream, 0), slot.made + further));
}

}  // namespace gptc
