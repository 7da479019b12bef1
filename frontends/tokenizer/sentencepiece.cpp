#include "frontends/tokenizer/sentencepiece.h"

#include "frontends/tokenizer/byte_trie.h"
#include "frontends/tokenizer/pipeline.h"
#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/StringSet.h"

#include <algorithm>
#include <queue>

namespace gptc {
namespace {

using Type = SentencePieceModel::Type;

/// Whether a piece comes out of text.
bool isReserved(Type t) { return t == Type::unknown || t == Type::control || t == Type::byte; }

/// What users defined, found whole and never normalized or merged.
std::shared_ptr<const ByteTrie> userDefined(const SentencePieceModel &model) {
  auto trie = std::make_shared<ByteTrie>();
  for (size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].type == Type::userDefined)
      trie->add(model.pieces[id].text, int32_t(id));
  return trie;
}

size_t longestPrefix(const ByteTrie &trie, std::string_view text) {
  size_t longest = 0;
  if (!trie.empty())
    trie.prefixes(text, [&](size_t n, int32_t) { longest = n; });
  return longest;
}

// ---- normalizer
// ------------------------------------------------------------------------------------------------------

class SentencePieceNormalizer : public Normalizer {
public:
  SentencePieceNormalizer(const SentencePieceModel &m, std::shared_ptr<const ByteTrie> whole, const std::string &file)
      : whole(std::move(whole)), addSpace(m.addSpace), removeExtra(m.removeExtraSpaces), spaceBehind(m.spaceBehind),
        space(m.escapeSpaces ? kSpaceMark : " ") {
    if (!m.charsmap.empty())
      map = Charsmap(m.charsmap, file);
  }

  void run(std::string &text, bool continues, size_t most) const override {
    std::string_view rest = text;
    while (removeExtra && !rest.empty()) {
      const auto [out, n] = first(rest);
      if (out != " ")
        break;
      rest.remove_prefix(n);
    }
    if (rest.empty()) {
      text.clear();
      return;
    }
    std::string to;
    to.reserve(text.size() + text.size() / 4);
    if (addSpace && !spaceBehind && !continues)
      to += space;
    bool afterSpace = removeExtra;
    while (!rest.empty()) {
      auto [out, n] = first(rest);
      while (afterSpace && !out.empty() && out[0] == ' ')
        out.remove_prefix(1);
      for (char c : out)
        if (c == ' ')
          to += space;
        else
          to += c;
      check(to.size(), most);
      if (!out.empty())
        afterSpace = removeExtra && out.back() == ' ';
      rest.remove_prefix(n);
    }
    while (removeExtra && llvm::StringRef(to).ends_with(space))
      to.resize(to.size() - space.size());
    if (addSpace && spaceBehind)
      to += space;
    text = std::move(to);
  }
  bool local() const override { return map.empty() && !removeExtra && !spaceBehind && whole->empty(); }

private:
  /// What the beginning of a text becomes, and its length there.
  std::pair<std::string_view, size_t> first(std::string_view text) const {
    if (const size_t n = longestPrefix(*whole, text))
      return {text.substr(0, n), n};
    if (!map.empty())
      if (const Charsmap::Entry e = map.longest(text); e.length)
        return {e.text, e.length};
    const size_t n = firstCodePoint(text).length;
    return {text.substr(0, n), n};
  }

  std::shared_ptr<const ByteTrie> whole;
  Charsmap map;
  bool addSpace, removeExtra, spaceBehind;
  std::string_view space;
};

// ---- byte-pair encoding by scores
// -------------------------------------------------------------------------------------

/// Merges the neighbours whose concatenation is the piece of the highest score, of equal ones the leftmost.
class ScoredBpe : public Model {
public:
  ScoredBpe(const SentencePieceModel &m, std::shared_ptr<const ByteTrie> whole, int32_t unknown)
      : whole(std::move(whole)), unknown(unknown), byteFallback(m.byteFallback) {
    VocabularyIds all;
    spacesLead = true;
    for (size_t id = 0; id < m.pieces.size(); ++id) {
      const auto &p = m.pieces[id];
      all[p.text] = int32_t(id);
      if (isReserved(p.type))
        continue;
      pieces[p.text] = {int32_t(id), p.score, p.type == Type::unused};
      spacesLead = spacesLead && spaceLeads(p.text);
    }
    spacesLead = spacesLead && pieces.count(kSpaceMark);
    fallback = byteTokens(all);
  }

  void encode(std::string_view word, std::vector<int32_t> &out) const override {
    if (const auto it = pieces.find(word); it != pieces.end() && isOneCodePoint(word))
      return push(word, out);
    std::vector<Symbol> symbols;
    for (size_t at = 0; at < word.size();) {
      size_t n = longestPrefix(*whole, word.substr(at));
      const bool frozen = n > 0;
      if (!frozen)
        n = firstCodePoint(word.substr(at)).length;
      symbols.push_back({at, n, int(symbols.size()) - 1, int(symbols.size()) + 1, frozen});
      at += n;
    }
    if (symbols.empty())
      return;
    symbols.back().next = -1;
    Undone undone;
    merge(word, symbols, undone);
    bool unknownBefore = false;
    for (int i = 0; i >= 0; i = symbols[size_t(i)].next)
      emit(word.substr(symbols[size_t(i)].begin, symbols[size_t(i)].length), undone, out, unknownBefore);
  }
  bool cutsBeforeSpace() const override { return spacesLead; }

private:
  struct Symbol {
    size_t begin, length;  // length 0: merged into the one before
    int prev, next;
    bool frozen;
  };
  struct Piece {
    int32_t id;
    float score;
    bool unused;
  };
  struct Candidate {
    float score;
    int left, right;
    size_t length;
    bool operator<(const Candidate &o) const { return score != o.score ? score < o.score : left > o.left; }
  };
  /// An unused piece, and where it is taken apart again: the length of its left part.
  using Undone = llvm::StringMap<size_t>;

  void push(std::string_view text, std::vector<int32_t> &out) const {
    Undone none;
    bool unknownBefore = false;
    emit(text, none, out, unknownBefore);
  }

  void merge(std::string_view word, std::vector<Symbol> &symbols, Undone &undone) const {
    std::priority_queue<Candidate> queue;
    auto consider = [&](int l, int r) {
      if (l < 0 || r < 0 || symbols[size_t(l)].frozen || symbols[size_t(r)].frozen)
        return;
      const Symbol &left = symbols[size_t(l)], &right = symbols[size_t(r)];
      const std::string_view text = word.substr(left.begin, left.length + right.length);
      const auto it = pieces.find(text);
      if (it == pieces.end())
        return;
      queue.push({it->second.score, l, r, text.size()});
      if (it->second.unused)
        undone[text] = left.length;
    };
    for (size_t i = 1; i < symbols.size(); ++i)
      consider(int(i) - 1, int(i));
    while (!queue.empty()) {
      const Candidate c = queue.top();
      queue.pop();
      Symbol &left = symbols[size_t(c.left)], &right = symbols[size_t(c.right)];
      if (!left.length || !right.length || left.length + right.length != c.length)
        continue;
      left.length += right.length;
      right.length = 0;
      left.next = right.next;
      if (right.next >= 0)
        symbols[size_t(right.next)].prev = c.left;
      consider(left.prev, c.left);
      consider(c.left, left.next);
    }
  }

  void emit(std::string_view text, const Undone &undone, std::vector<int32_t> &out, bool &unknownBefore) const {
    const auto it = pieces.find(text);
    if (it != pieces.end() && it->second.unused)
      if (const auto parts = undone.find(text); parts != undone.end()) {
        emit(text.substr(0, parts->second), undone, out, unknownBefore);
        return emit(text.substr(parts->second), undone, out, unknownBefore);
      }
    if (it != pieces.end()) {
      unknownBefore = false;
      out.push_back(it->second.id);
    } else if (byteFallback) {
      for (char c : text)
        out.push_back(fallback[uint8_t(c)]);
    } else {
      if (!unknownBefore)
        out.push_back(unknown);
      unknownBefore = true;
    }
  }

  std::shared_ptr<const ByteTrie> whole;
  llvm::StringMap<Piece> pieces;
  std::array<int32_t, 256> fallback;
  int32_t unknown;
  bool byteFallback, spacesLead;
};

// ---- decoder
// ---------------------------------------------------------------------------------------------------------

class SentencePieceDecoder : public Decoder {
public:
  explicit SentencePieceDecoder(const SentencePieceModel &m)
      : unknownText(m.unknownText), dropsFirstSpace(m.addSpace || m.removeExtraSpaces),
        dropsAllSpace(m.removeExtraSpaces), bytes(m.byteFallback) {
    for (const auto &p : m.pieces)
      if (p.type == Type::control)
        controls.insert(p.text);
      else if (p.type == Type::unknown)
        unknown = p.text;
  }
  void apply(std::vector<std::string> &tokens) const override {
    std::vector<std::string> out;
    bool atStart = dropsFirstSpace;
    std::string run;  // bytes
    auto flush = [&] {
      std::string text;
      for (std::string_view rest = run; !rest.empty();) {
        const CodePoint c = firstCodePoint(rest);
        appendUtf8(text, c.value);
        rest.remove_prefix(c.length);
      }
      run.clear();
      if (!text.empty())
        out.push_back(text);
    };
    for (std::string &t : tokens) {
      unsigned byte;
      llvm::StringRef s = t;
      if (bytes && s.size() == 6 && s.consume_front("<0x") && s.consume_back(">") && !s.getAsInteger(16, byte)) {
        run += char(byte);
        atStart = false;
        continue;
      }
      flush();
      if (controls.contains(t)) {
        out.push_back(t);
        continue;
      }
      if (t == unknown) {
        out.push_back(unknownText);
        atStart = false;
        continue;
      }
      if (atStart && llvm::StringRef(t).starts_with(kSpaceMark)) {
        t.erase(0, kSpaceMark.size());
        atStart = dropsAllSpace && t.empty();
      } else if (!t.empty()) {
        atStart = false;
      }
      replaceAll(t, kSpaceMark, " ");
      out.push_back(t);
    }
    flush();
    tokens = std::move(out);
  }

private:
  std::string unknownText, unknown;
  llvm::StringSet<> controls;
  bool dropsFirstSpace, dropsAllSpace, bytes;
};

}  // namespace

Tokenizer sentencePieceTokenizer(SentencePieceModel model, TokenizerFile content, const std::string &file, bool addBos,
                                 bool addEos) {
  auto bad = [&](const std::string &why) {
    return UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", file, why), "get the file again");
  };
  auto p = std::make_unique<Pipeline>();
  llvm::StringMap<int32_t> ids;
  int32_t unknown = -1;
  std::vector<UnigramPiece> pieces;
  for (const auto &piece : model.pieces) {
    const int32_t id = int32_t(p->pieces.size());
    if (piece.text.empty() || !ids.try_emplace(piece.text, id).second)
      throw bad(fmt::format("piece {} is \"{}\", {}", id, piece.text, piece.text.empty() ? "empty" : "as another is"));
    p->pieces.push_back(piece.text);
    pieces.push_back({piece.text, piece.score,
                      piece.type == Type::userDefined                        ? UnigramPiece::userDefined
                      : isReserved(piece.type) || piece.type == Type::unused ? UnigramPiece::hidden
                                                                             : UnigramPiece::normal});
    if (piece.type == Type::unknown) {
      if (unknown >= 0)
        throw bad(fmt::format("pieces {} and {} both stand for unknown text", unknown, id));
      unknown = id;
    } else if (piece.type == Type::control) {
      p->setControl(id);
      AddedToken t;
      t.id = id;
      t.content = piece.text;
      t.special = true;
      p->added.add(t, t.content);
    }
  }
  if (unknown < 0)
    throw bad("no piece stands for unknown text");
  if (model.byteFallback)
    for (int b = 0; b < 256; ++b)
      if (!ids.count(fmt::format("<0x{:02X}>", b)))
        throw bad(fmt::format("byte_fallback without a piece <0x{:02X}>", b));
  const std::shared_ptr<const ByteTrie> whole = userDefined(model);
  p->normalizer = std::make_unique<SentencePieceNormalizer>(model, whole, file);
  p->normalizer->where = file;
  if (model.kind == SentencePieceModel::unigram)
    p->model = std::make_unique<Unigram>(pieces, Unigram::Options{unknown, model.byteFallback, true});
  else
    p->model = std::make_unique<ScoredBpe>(model, whole, unknown);
  p->kind = model.kind == SentencePieceModel::unigram ? "unigram" : "bpe";
  p->decoder = std::make_unique<SentencePieceDecoder>(model);
  auto idOf = [&](const std::string &name) {
    const auto it = ids.find(name);
    return it != ids.end() && model.pieces[size_t(it->second)].type == Type::control ? it->second : -1;
  };
  const int32_t bos = idOf(model.bos), eos = idOf(model.eos);
  p->endOfText = eos;
  p->surround(addBos ? bos : -1, addEos ? eos : -1);
  p->file = std::move(content);
  return Tokenizer(std::shared_ptr<const Pipeline>(std::move(p)));
}

Tokenizer Tokenizer::fromSentencePiece(const std::string &content, const std::string &file) {
  return sentencePieceTokenizer(parseSentencePiece(content, file), {"tokenizer.model", content}, file, true, false);
}

}  // namespace gptc
