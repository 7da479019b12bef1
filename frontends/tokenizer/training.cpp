// Trains byte-level BPE. Words are counted once; then each merge touches only the words that contain the pair.
#include "frontends/tokenizer/training.h"

#include "frontends/tokenizer/pipeline.h"
#include "frontends/tokenizer/printable.h"
#include "frontends/tokenizer/utf8.h"
#include "frontends/tokenizer/words.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <queue>

namespace gptc {

void WordCounts::add(std::string_view text) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, firstWord(text));
    text.remove_prefix(word.size());
    ++counts[word];
  }
}

void WordCounts::add(const WordCounts &others) {
  for (const auto &entry : others.counts)
    counts[entry.first()] += entry.second;
}

void CharacterSet::add(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = firstCodePoint(text);
    used[c.value] = true;
    text.remove_prefix(c.length);
  }
}

void CharacterSet::add(const CharacterSet &others) {
  for (size_t c = 0; c < used.size(); ++c)
    used[c] = used[c] || others.used[c];
}

namespace {

struct Word {
  std::vector<int32_t> ids;
  int64_t count;
};

struct PairUse {
  int64_t count = 0;
  std::vector<int32_t> words;  // that contained the pair when it was counted
};

struct Candidate {
  int64_t count;
  uint64_t pair;  // left << 32 | right: compares like the ids in order
  bool operator<(const Candidate &o) const { return count != o.count ? count < o.count : pair > o.pair; }
};

uint64_t pairAt(const std::vector<int32_t> &ids, size_t i) { return uint64_t(ids[i]) << 32 | uint32_t(ids[i + 1]); }

/// Words and the pairs in them.
class Merger {
public:
  explicit Merger(const WordCounts &counts) {
    int32_t tokenOfByte[256];
    for (int i = 0; i < 256; ++i)
      tokenOfByte[byteOfToken(i)] = i;
    // In an order of their own: nothing depends on a hash function.
    std::vector<const llvm::StringMapEntry<int64_t> *> entries;
    for (const auto &entry : counts.words())
      entries.push_back(&entry);
    std::sort(entries.begin(), entries.end(), [](auto *a, auto *b) { return a->first() < b->first(); });
    for (const auto *entry : entries) {
      words.push_back({{}, entry->second});
      for (char c : entry->first())
        words.back().ids.push_back(tokenOfByte[uint8_t(c)]);
    }
    for (size_t w = 0; w < words.size(); ++w)
      count(w, 1);
    for (auto &[pair, use] : pairs)
      queue.push({use.count, pair});
  }

  /// The most frequent pair that occurs at least twice; false if there is none.
  bool next(uint64_t &pair) {
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      const auto it = pairs.find(best.pair);
      if (it == pairs.end())
        continue;
      if (it->second.count != best.count) {  // its count has dropped since it was queued
        if (it->second.count > 1)
          queue.push({it->second.count, best.pair});
        continue;
      }
      pair = best.pair;
      return best.count >= 2;
    }
    return false;
  }

  /// Makes one token of a pair, wherever it stands.
  void merge(uint64_t pair, int32_t into) {
    std::vector<int32_t> touched = std::move(pairs[pair].words);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    std::vector<uint64_t> grown;
    for (int32_t w : touched) {
      std::vector<int32_t> &ids = words[size_t(w)].ids;
      bool holds = false;
      for (size_t i = 0; i + 1 < ids.size() && !holds; ++i)
        holds = pairAt(ids, i) == pair;
      if (!holds)
        continue;
      count(size_t(w), -1);
      size_t to = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool here = i + 1 < ids.size() && pairAt(ids, i) == pair;
        ids[to++] = here ? into : ids[i];
        i += here;
      }
      ids.resize(to);
      count(size_t(w), 1);
      for (size_t i = 0; i + 1 < ids.size(); ++i)
        if (ids[i] == into || ids[i + 1] == into)
          grown.push_back(pairAt(ids, i));
    }
    pairs.erase(pair);
    std::sort(grown.begin(), grown.end());
    grown.erase(std::unique(grown.begin(), grown.end()), grown.end());
    for (uint64_t p : grown)
      queue.push({pairs[p].count, p});
  }

private:
  void count(size_t w, int64_t sign) {
    const Word &word = words[w];
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      PairUse &use = pairs[pairAt(word.ids, i)];
      use.count += sign * word.count;
      if (sign > 0 && (use.words.empty() || use.words.back() != int32_t(w)))
        use.words.push_back(int32_t(w));
    }
  }

  std::vector<Word> words;
  llvm::DenseMap<uint64_t, PairUse> pairs;
  std::priority_queue<Candidate> queue;
};

}  // namespace

Tokenizer Tokenizer::train(const WordCounts &words, int64_t vocab) {
  GPTC_CHECK(vocab >= 257, "vocab = {}", vocab);
  auto p = std::make_unique<Pipeline>();
  addByteAlphabet(*p, true);
  Merger merger(words);
  BpeParts bpe;
  for (uint64_t pair; int64_t(p->pieces.size()) < vocab - 1 && merger.next(pair);) {
    const int32_t left = int32_t(pair >> 32), right = int32_t(pair & 0xffffffff);
    const int32_t into = int32_t(p->pieces.size());
    p->pieces.push_back(p->pieces[size_t(left)] + p->pieces[size_t(right)]);
    bpe.merges.emplace_back(left, right);
    bpe.into.push_back(into);
    merger.merge(pair, into);
  }
  addControl(*p, bpe, kEndOfText);
  return finishByteLevel(std::move(p), bpe, "");
}

}  // namespace gptc
