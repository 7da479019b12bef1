// Byte-pair encoding of one word.
#include "frontends/tokenizer/model.h"
#include "frontends/tokenizer/printable.h"
#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <queue>

namespace gptc {
namespace {

constexpr int32_t kNoRank = INT32_MAX;
constexpr size_t kShortWord = 48;  // symbols: below, looking at all pairs for every merge is faster than a queue

uint64_t pairOf(int32_t left, int32_t right) { return uint64_t(left) << 32 | uint32_t(right); }

}  // namespace

void notInVocabulary(std::string_view text, bool bytes) {
  const CodePoint c = firstCodePoint(text);
  const std::string shown = bytes || !c.valid || c.value < 0x20
                                ? fmt::format("byte {:#04x}", uint8_t(text[0]))
                                : fmt::format("\"{}\" (U+{:04X})", text.substr(0, c.length), c.value);
  throw UserError(ErrorCode::DataInvalid, fmt::format("the tokenizer's vocabulary does not hold {}", shown),
                  "it holds the characters of the text it was made from; prepare the data with this text too, or "
                  "use byte or bpe");
}

bool spaceLeads(std::string_view piece) {
  size_t at = 0;
  while (piece.substr(at, kSpaceMark.size()) == kSpaceMark)
    at += kSpaceMark.size();
  return piece.find(kSpaceMark, at) == std::string_view::npos;
}

std::array<int32_t, 256> byteTokens(const VocabularyIds &ids) {
  std::array<int32_t, 256> of;
  for (int b = 0; b < 256; ++b) {
    const auto it = ids.find(fmt::format("<0x{:02X}>", b));
    of[b] = it == ids.end() ? -1 : it->second;
  }
  return of;
}

void Bpe::add(std::string_view piece, int32_t id) { ids[piece] = id; }

void Bpe::addMerge(int32_t left, int32_t right, int32_t into, int32_t rank) {
  merges.try_emplace(pairOf(left, right), Merge{rank, into});
}

void Bpe::finish(const std::vector<std::string> &pieces) {
  fallback = byteTokens(ids);
  if (options.prefix.empty() && options.suffix.empty())
    for (const auto &entry : ids) {
      const std::string_view p = entry.first();
      if (p.empty())
        continue;
      const CodePoint c = options.bytes ? CodePoint{uint8_t(p[0]), 1, true} : firstCodePoint(p);
      if (p.size() != c.length)
        continue;
      if (symbols.size() <= c.value)
        symbols.resize(c.value + 1, -1);
      symbols[c.value] = entry.second;
    }
  spacesLead = !options.bytes && !options.ignoreMerges && options.prefix.empty() && options.suffix.empty() &&
               ids.count(kSpaceMark);
  for (const auto &[pair, merge] : merges)
    spacesLead = spacesLead && spaceLeads(pieces[merge.into]);
}

int32_t Bpe::symbolOf(std::string_view character, bool first, bool last) const {
  if (options.prefix.empty() && options.suffix.empty()) {
    const uint32_t c = options.bytes ? uint8_t(character[0]) : firstCodePoint(character).value;
    return c < symbols.size() ? symbols[c] : -1;
  }
  std::string text = first ? "" : options.prefix;
  text += character;
  if (last)
    text += options.suffix;
  const auto it = ids.find(text);
  return it == ids.end() ? -1 : it->second;
}

void Bpe::symbolsOf(std::string_view word, std::vector<int32_t> &out) const {
  bool pending = false;  // an unknown character that neighbours may join
  for (size_t at = 0; at < word.size();) {
    const size_t length = options.bytes ? 1 : firstCodePoint(word.substr(at)).length;
    const std::string_view character = word.substr(at, length);
    const bool first = at == 0;
    at += length;
    const int32_t id = symbolOf(character, first, at == word.size());
    if (id >= 0) {
      if (pending)
        out.push_back(options.unknown);
      pending = false;
      out.push_back(id);
      continue;
    }
    if (options.byteFallback) {
      // Of the text that was looked for, with prefix and suffix, and in `tokenizers`' own characters for bytes.
      std::string text = first ? "" : options.prefix;
      text += options.bytes ? printableBytes(character) : std::string(character);
      if (at == word.size())
        text += options.suffix;
      if (llvm::all_of(text, [&](char c) { return fallback[uint8_t(c)] >= 0; })) {
        for (char c : text)
          out.push_back(fallback[uint8_t(c)]);
        continue;  // a pending unknown comes behind, as in `tokenizers`
      }
    }
    if (options.unknown < 0)
      notInVocabulary(character, options.bytes);
    if (pending && !options.fuseUnknown)
      out.push_back(options.unknown);
    pending = true;
  }
  if (pending)
    out.push_back(options.unknown);
}

const Bpe::Merge *Bpe::mergeOf(int32_t left, int32_t right) const {
  const auto it = merges.find(pairOf(left, right));
  return it == merges.end() ? nullptr : &it->second;
}

void Bpe::mergeShort(std::vector<int32_t> &ids) const {
  Merge found[kShortWord];  // found[i]: of ids[i] and ids[i + 1]
  size_t n = ids.size();
  auto look = [&](size_t i) {
    const Merge *m = mergeOf(ids[i], ids[i + 1]);
    found[i] = m ? *m : Merge{kNoRank, -1};
  };
  for (size_t i = 0; i + 1 < n; ++i)
    look(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (found[i].rank < found[best].rank)
        best = i;
    if (found[best].rank == kNoRank)
      break;
    ids[best] = found[best].into;
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      ids[i] = ids[i + 1];
      if (i + 1 < n)
        found[i] = found[i + 1];
    }
    if (best > 0)
      look(best - 1);
    if (best + 1 < n)
      look(best);
  }
  ids.resize(n);
}

/// On a linked list of symbols: n log n even for one long word.
void Bpe::mergeLong(std::vector<int32_t> &ids) const {
  const int n = int(ids.size());
  std::vector<int> next(n), prev(n);
  struct Candidate {
    int32_t rank;
    int at;
    bool operator>(const Candidate &o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  auto consider = [&](int at) {
    if (at >= 0 && next[at] < n)
      if (const Merge *m = mergeOf(ids[at], ids[next[at]]))
        queue.push({m->rank, at});
  };
  for (int i = 0; i < n; ++i) {
    next[i] = i + 1;
    prev[i] = i - 1;
  }
  for (int i = 0; i < n; ++i)
    consider(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    // Outdated: one of the two has been merged.
    if (ids[c.at] < 0 || next[c.at] >= n)
      continue;
    const Merge *m = mergeOf(ids[c.at], ids[next[c.at]]);
    if (!m || m->rank != c.rank)
      continue;
    const int gone = next[c.at];
    ids[c.at] = m->into;
    ids[gone] = -1;
    next[c.at] = next[gone];
    if (next[gone] < n)
      prev[next[gone]] = c.at;
    consider(prev[c.at]);
    consider(c.at);
  }
  size_t to = 0;
  for (int i = 0; i < n; i = next[i])
    ids[to++] = ids[i];
  ids.resize(to);
}

void Bpe::encode(std::string_view word, std::vector<int32_t> &out) const {
  if (options.ignoreMerges)
    if (const auto it = ids.find(word); it != ids.end()) {
      out.push_back(it->second);
      return;
    }
  if (merges.empty())
    return symbolsOf(word, out);
  std::vector<int32_t> symbols;
  symbolsOf(word, symbols);
  if (symbols.size() < kShortWord)
    mergeShort(symbols);
  else
    mergeLong(symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace gptc
