// The best segmentation by dynamic programming (Viterbi 1967), WordPiece and whole words.
#include "frontends/tokenizer/byte_trie.h"
#include "frontends/tokenizer/model.h"
#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"

#include <algorithm>

namespace gptc {

struct Unigram::Impl {
  Options options;
  ByteTrie trie;
  std::vector<double> scores;
  std::vector<bool> userDefined;
  std::array<int32_t, 256> fallback;
  double unknownScore, highest;
};

Unigram::Unigram(const std::vector<UnigramPiece> &pieces, Options options) : impl(std::make_unique<Impl>()) {
  constexpr double unknownPenalty = 10;
  impl->options = options;
  double lowest = 0, highest = 0;
  bool any = false;
  VocabularyIds ids;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const UnigramPiece &p = pieces[id];
    impl->scores.push_back(p.score);
    impl->userDefined.push_back(p.kind == UnigramPiece::userDefined);
    ids[p.text] = int32_t(id);
    if (p.kind == UnigramPiece::hidden)
      continue;
    impl->trie.add(p.text, int32_t(id));
    if (p.kind == UnigramPiece::normal) {
      lowest = any ? std::min(lowest, p.score) : p.score;
      highest = any ? std::max(highest, p.score) : p.score;
      any = true;
    }
  }
  impl->fallback = byteTokens(ids);
  impl->highest = highest;
  impl->unknownScore =
      options.singlePrecision ? double(float(lowest) - float(unknownPenalty)) : lowest - unknownPenalty;
}

Unigram::~Unigram() = default;

void Unigram::encode(std::string_view word, std::vector<int32_t> &out) const {
  struct Best {
    double score = 0;
    int32_t id = -1;
    int64_t from = -1;  // where its last piece begins; -1: not reached yet
  };
  const Impl &m = *impl;
  const size_t size = word.size();
  std::vector<Best> ends(size + 1);  // ends[i]: of the first i bytes
  auto reach = [&](size_t from, size_t length, int32_t id, double score) {
    Best &end = ends[from + length];
    if (m.options.singlePrecision)
      score = double(float(score));
    if (end.from < 0 || score > end.score)
      end = {score, id, int64_t(from)};
  };
  for (size_t at = 0; at < size;) {
    const double here = ends[at].score;
    const size_t character = std::min<size_t>(firstCodePoint(word.substr(at)).length, size - at);
    bool single = false;
    m.trie.prefixes(word.substr(at), [&](size_t length, int32_t id) {
      // What users defined is always taken.
      const double score = m.userDefined[id] ? double(float(length) * float(m.highest)) - 0.1 : m.scores[id];
      reach(at, length, id, score + here);
      single = single || length == character;
    });
    if (!single)
      reach(at, character, m.options.unknown, m.unknownScore + here);
    at += character;
  }
  const size_t start = out.size();
  bool unknownBefore = false;
  size_t unknownEnd = 0;
  // Backwards, so the bytes of unknown text too.
  auto flush = [&](size_t from) {
    if (!unknownBefore)
      return;
    unknownBefore = false;
    const std::string_view text = word.substr(from, unknownEnd - from);
    if (m.options.byteFallback &&
        std::all_of(text.begin(), text.end(), [&](char c) { return m.fallback[uint8_t(c)] >= 0; })) {
      for (size_t i = text.size(); i-- > 0;)
        out.push_back(m.fallback[uint8_t(text[i])]);
      return;
    }
    if (m.options.unknown < 0)
      notInVocabulary(text, false);
    out.push_back(m.options.unknown);
  };
  for (size_t end = size; end > 0;) {
    const Best &best = ends[end];
    if (best.id == m.options.unknown) {
      if (!unknownBefore)
        unknownEnd = end;
      unknownBefore = true;
    } else {
      flush(end);
      out.push_back(best.id);
    }
    end = size_t(best.from);
  }
  flush(0);
  std::reverse(out.begin() + int64_t(start), out.end());
}

void WordPiece::encode(std::string_view word, std::vector<int32_t> &out) const {
  const size_t before = out.size();
  bool known = countCodePoints(word) <= longest;
  std::string text;
  for (size_t at = 0; known && at < word.size();) {
    size_t end = word.size();
    int32_t id = -1;
    for (; end > at; --end) {
      if (end < word.size() && (uint8_t(word[end]) & 0xc0) == 0x80)
        continue;  // within a character
      text = at ? prefix : std::string();
      text += word.substr(at, end - at);
      if (const auto it = ids.find(text); it != ids.end()) {
        id = it->second;
        break;
      }
    }
    known = id >= 0;
    out.push_back(id);
    at = end;
  }
  if (!known) {
    out.resize(before);
    out.push_back(unknown);
  }
}

void WholeWords::encode(std::string_view word, std::vector<int32_t> &out) const {
  const auto it = ids.find(word);
  if (it == ids.end() && unknown < 0)
    notInVocabulary(word, false);
  out.push_back(it == ids.end() ? unknown : it->second);
}

}  // namespace gptc
