// Trains byte-level BPE. Words are counted once; then each merge touches only the words that contain the pair.
#include "frontends/tokenizer.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <queue>

namespace gptc {

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

}  // namespace

Tokenizer Tokenizer::train(const std::vector<std::string_view> &texts, int64_t vocab) {
  GPTC_CHECK(vocab >= 257, "vocab = {}", vocab);
  Tokenizer t;
  t.addByteAlphabet(true);
  t.indexAlphabet();

  // 1. Count words, in order of appearance, so that nothing depends on a hash function.
  std::vector<Word> words;
  {
    std::unordered_map<std::string_view, size_t> index;
    for (std::string_view text : texts)
      while (!text.empty()) {
        std::string_view word = text.substr(0, firstWord(text));
        text.remove_prefix(word.size());
        auto [it, fresh] = index.emplace(word, words.size());
        if (fresh) {
          words.push_back({{}, 0});
          t.symbolsOf(word, words.back().ids);
        }
        ++words[it->second].count;
      }
  }

  // 2. Find the pairs and the words that contain them.
  std::unordered_map<uint64_t, PairUse> pairs;
  auto pairAt = [](const std::vector<int32_t> &ids, size_t i) { return uint64_t(ids[i]) << 32 | uint32_t(ids[i + 1]); };
  auto count = [&](size_t w, int64_t sign) {
    const Word &word = words[w];
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      PairUse &use = pairs[pairAt(word.ids, i)];
      use.count += sign * word.count;
      if (sign > 0 && (use.words.empty() || use.words.back() != int32_t(w)))
        use.words.push_back(int32_t(w));
    }
  };
  for (size_t w = 0; w < words.size(); ++w)
    count(w, 1);
  std::priority_queue<Candidate> queue;
  for (auto &[pair, use] : pairs)
    queue.push({use.count, pair});

  // 3. Turn the most frequent pair into a token until there are enough.
  while (int64_t(t.pieces.size()) < vocab - 1 && !queue.empty()) {
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
    if (best.count < 2)
      break;
    const int32_t left = int32_t(best.pair >> 32), right = int32_t(best.pair & 0xffffffff);
    const int32_t into = int32_t(t.pieces.size());
    t.pieces.push_back(t.pieces[left] + t.pieces[right]);
    t.addMerge(left, right, into);

    std::vector<int32_t> touched = std::move(it->second.words);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    std::vector<uint64_t> grown;
    for (int32_t w : touched) {
      std::vector<int32_t> &ids = words[w].ids;
      bool holds = false;
      for (size_t i = 0; i + 1 < ids.size() && !holds; ++i)
        holds = pairAt(ids, i) == best.pair;
      if (!holds)
        continue;
      count(w, -1);
      size_t to = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        bool merge = i + 1 < ids.size() && pairAt(ids, i) == best.pair;
        ids[to++] = merge ? into : ids[i];
        i += merge;
      }
      ids.resize(to);
      count(w, 1);
      for (size_t i = 0; i + 1 < ids.size(); ++i)
        if (ids[i] == into || ids[i + 1] == into)
          grown.push_back(pairAt(ids, i));
    }
    pairs.erase(best.pair);
    std::sort(grown.begin(), grown.end());
    grown.erase(std::unique(grown.begin(), grown.end()), grown.end());
    for (uint64_t pair : grown)
      queue.push({pairs[pair].count, pair});
  }
  t.addEndOfText();
  return t;
}

}  // namespace gptc
