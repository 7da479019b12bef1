// Encoding and decoding. Training is in tokenizer_train.cpp, files are in tokenizer_json.cpp.
#include "frontends/tokenizer.h"

#include "frontends/utf8.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <array>
#include <queue>

namespace gptc {

// ---- words ----------------------------------------------------------------------------------------------------------

namespace {

enum class Class { letter, number, space, other, end };

Class classAt(std::string_view text, size_t at, unsigned &length) {
  length = 0;
  if (at >= text.size())
    return Class::end;
  CodePoint c = firstCodePoint(text.substr(at));
  length = c.length;
  return isLetter(c.value)   ? Class::letter
         : isNumber(c.value) ? Class::number
         : isSpace(c.value)  ? Class::space
                             : Class::other;
}

}  // namespace

size_t firstWord(std::string_view text) {
  if (text[0] == '\'')
    for (std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.substr(0, ending.size()) == ending)
        return ending.size();

  // An optional space, then a run of one class other than space.
  unsigned length;
  size_t at = text[0] == ' ';
  const Class kind = classAt(text, at, length);
  if (kind != Class::space && kind != Class::end) {
    do
      at += length;
    while (classAt(text, at, length) == kind);
    return at;
  }

  // White space: all of it at the end of the text, else all but the last character, which may belong to the next word.
  size_t end = 0, last = 0;
  while (classAt(text, end, length) == Class::space) {
    last = end;
    end += length;
  }
  return end == text.size() || last == 0 ? end : last;
}

// ---- bytes as characters --------------------------------------------------------------------------------------------

namespace {

struct PrintableTable {
  std::array<uint32_t, 256> character;
  std::array<int, 512> byte;
  std::vector<int> order;  // bytes in GPT-2's token order: those that print as themselves first

  PrintableTable() {
    byte.fill(-1);
    auto printsAsItself = [](int b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad); };
    uint32_t next = 256;
    for (int b = 0; b < 256; ++b)
      character[b] = printsAsItself(b) ? b : next++;
    for (bool first : {true, false})
      for (int b = 0; b < 256; ++b)
        if (printsAsItself(b) == first)
          order.push_back(b);
    for (int b = 0; b < 256; ++b)
      byte[character[b]] = b;
  }
};

const PrintableTable &printable() {
  static const PrintableTable table;
  return table;
}

}  // namespace

std::string printableBytes(std::string_view bytes) {
  std::string out;
  for (char c : bytes)
    appendUtf8(out, printable().character[uint8_t(c)]);
  return out;
}

bool bytesOfPrintable(std::string_view text, std::string &bytes) {
  bytes.clear();
  while (!text.empty()) {
    CodePoint c = firstCodePoint(text);
    if (c.value >= printable().byte.size() || printable().byte[c.value] < 0)
      return false;
    bytes += char(printable().byte[c.value]);
    text.remove_prefix(c.length);
  }
  return true;
}

// ---- construction ---------------------------------------------------------------------------------------------------

void Tokenizer::addByteAlphabet(bool gpt2Order) {
  for (int i = 0; i < 256; ++i)
    pieces.push_back(std::string(1, char(gpt2Order ? printable().order[i] : i)));
}

void Tokenizer::addMerge(int32_t left, int32_t right, int32_t into) {
  ranks.emplace(uint64_t(left) << 32 | uint32_t(right), int32_t(merges.size()));
  merges.push_back({left, right});
  mergedInto.push_back(into);
}

void Tokenizer::addEndOfText() {
  eot = int32_t(pieces.size());
  pieces.push_back("<|endoftext|>");
}

void Tokenizer::indexAlphabet() {
  symbols.clear();
  for (size_t id = 0; id < pieces.size(); ++id) {
    const std::string &p = pieces[id];
    if (p.empty())
      continue;
    CodePoint c = byteLevel ? CodePoint{uint8_t(p[0]), 1, true} : firstCodePoint(p);
    if (p.size() != c.length)
      continue;
    if (symbols.size() <= c.value)
      symbols.resize(c.value + 1, -1);
    symbols[c.value] = int32_t(id);
  }
}

Tokenizer Tokenizer::bytes() {
  Tokenizer t;
  t.addByteAlphabet(false);
  t.indexAlphabet();
  return t;
}

Tokenizer Tokenizer::characters(const std::vector<std::string_view> &texts) {
  std::vector<bool> used(0x110000);
  for (std::string_view text : texts)
    while (!text.empty()) {
      CodePoint c = firstCodePoint(text);
      used[c.value] = true;
      text.remove_prefix(c.length);
    }
  Tokenizer t;
  t.byteLevel = t.splitWords = false;
  for (uint32_t c = 0; c < used.size(); ++c)
    if (used[c]) {
      t.pieces.emplace_back();
      appendUtf8(t.pieces.back(), c);
    }
  t.indexAlphabet();
  return t;
}

// ---- encoding -------------------------------------------------------------------------------------------------------

void Tokenizer::symbolsOf(std::string_view word, std::vector<int32_t> &out) const {
  while (!word.empty()) {
    CodePoint c = byteLevel ? CodePoint{uint8_t(word[0]), 1, true} : firstCodePoint(word);
    int32_t id = c.value < symbols.size() ? symbols[c.value] : -1;
    if (id < 0) {
      const std::string shown = byteLevel || !c.valid || c.value < 0x20
                                    ? fmt::format("byte {:#04x}", uint8_t(word[0]))
                                    : fmt::format("\"{}\" (U+{:04X})", word.substr(0, c.length), c.value);
      throw UserError(ErrorCode::DataInvalid, fmt::format("the tokenizer's vocabulary does not hold {}", shown),
                      "it holds the characters of the text it was made from; prepare the data with this text too, or "
                      "use byte or bpe");
    }
    out.push_back(id);
    word.remove_prefix(c.length);
  }
}

/// Applies merges in order of rank, leftmost first, on a linked list of symbols: n log n even for one long word.
void Tokenizer::encodeWord(std::string_view word, std::vector<int32_t> &out) const {
  std::vector<int32_t> ids;
  symbolsOf(word, ids);
  if (merges.empty()) {
    out.insert(out.end(), ids.begin(), ids.end());
    return;
  }
  const int n = int(ids.size());
  std::vector<int> next(n), prev(n);
  struct Candidate {
    int32_t rank;
    int at;
    bool operator>(const Candidate &o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  auto rankOf = [&](int32_t left, int32_t right) {
    auto it = ranks.find(uint64_t(left) << 32 | uint32_t(right));
    return it == ranks.end() ? -1 : it->second;
  };
  auto consider = [&](int at) {
    if (at >= 0 && next[at] < n)
      if (int32_t rank = rankOf(ids[at], ids[next[at]]); rank >= 0)
        queue.push({rank, at});
  };
  for (int i = 0; i < n; ++i) {
    next[i] = i + 1;
    prev[i] = i - 1;
  }
  for (int i = 0; i < n; ++i)
    consider(i);
  while (!queue.empty()) {
    Candidate c = queue.top();
    queue.pop();
    // Outdated: one of the two has been merged.
    if (ids[c.at] < 0 || next[c.at] >= n || rankOf(ids[c.at], ids[next[c.at]]) != c.rank)
      continue;
    const int gone = next[c.at];
    ids[c.at] = mergedInto[c.rank];
    ids[gone] = -1;
    next[c.at] = next[gone];
    if (next[gone] < n)
      prev[next[gone]] = c.at;
    consider(prev[c.at]);
    consider(c.at);
  }
  for (int i = 0; i < n; i = next[i])
    out.push_back(ids[i]);
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t> &out) const {
  if (merges.empty() || !splitWords)
    return encodeWord(text, out);
  // Words repeat; long ones are rare and not worth caching.
  constexpr size_t longest = 64, most = 1 << 20;
  std::string key;
  while (!text.empty()) {
    std::string_view word = text.substr(0, firstWord(text));
    text.remove_prefix(word.size());
    if (word.size() > longest) {
      encodeWord(word, out);
      continue;
    }
    key.assign(word);
    auto it = seen.find(key);
    if (it == seen.end()) {
      std::vector<int32_t> ids;
      encodeWord(word, ids);
      if (seen.size() >= most)
        seen.clear();
      it = seen.emplace(key, std::move(ids)).first;
    }
    out.insert(out.end(), it->second.begin(), it->second.end());
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  encode(text, out);
  return out;
}

const std::string &Tokenizer::text(int32_t token) const {
  static const std::string none;
  return token >= 0 && token < vocabSize() ? pieces[token] : none;
}

std::string Tokenizer::decode(const std::vector<int32_t> &tokens) const {
  std::string out;
  for (int32_t t : tokens)
    out += text(t);
  return out;
}

std::string Tokenizer::describe() const {
  return fmt::format("{}, {} tokens", !merges.empty() ? "bpe" : byteLevel ? "byte" : "char", vocabSize());
}

// ---- streaming ------------------------------------------------------------------------------------------------------

std::string TextStream::push(int32_t token) {
  pending += tokenizer.text(token);
  std::string out;
  size_t at = 0;
  while (at < pending.size()) {
    std::string_view rest = std::string_view(pending).substr(at);
    if (incompleteCodePoint(rest))
      break;
    CodePoint c = firstCodePoint(rest);
    appendUtf8(out, c.value);
    at += c.length;
  }
  pending.erase(0, at);
  return out;
}

std::string TextStream::finish() {
  std::string out;
  if (!pending.empty())
    appendUtf8(out, 0xfffd);
  pending.clear();
  return out;
}

}  // namespace gptc
