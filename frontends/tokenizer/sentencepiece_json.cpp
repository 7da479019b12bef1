// SentencePiece's models in the format of Hugging Face's `tokenizers`, as transformers converts those of Llama.
#include "frontends/tokenizer/json_parts.h"
#include "frontends/tokenizer/sentencepiece.h"
#include "frontends/tokenizer/utf8.h"
#include "support/json.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Base64.h"

#include <algorithm>
#include <fmt/format.h>

namespace gptc {
namespace {

using Json = nlohmann::ordered_json;
using Type = SentencePieceModel::Type;

class Conversion {
public:
  Conversion(const SentencePieceModel &m, bool addBos, bool addEos) : m(m), addBos(addBos), addEos(addEos) {
    for (size_t id = 0; id < m.pieces.size(); ++id) {
      ids[m.pieces[id].text] = int64_t(id);
      users = users || m.pieces[id].type == Type::userDefined;
      if (m.pieces[id].type == Type::unknown)
        unknown = int64_t(id);
    }
  }

  std::string run() const {
    if (!problem().empty())
      return "";
    Json steps = Json::array({replace({{"String", kSpaceMark}}, " ")});
    if (m.byteFallback)
      steps.push_back({{"type", "ByteFallback"}});
    steps.push_back({{"type", "Fuse"}});
    if (m.addSpace || m.removeExtraSpaces)
      steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    const Json file = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", added()},
                       {"normalizer", normalizer()},
                       {"pre_tokenizer", preTokenizer()},
                       {"post_processor", postProcessor()},
                       {"decoder", {{"type", "Sequence"}, {"decoders", steps}}},
                       {"model", m.kind == SentencePieceModel::bpe ? bpe() : unigram()}};
    return file.dump(1) + "\n";
  }

  /// `tokenizers` finds what users defined first and normalizes the texts between by themselves; to it every other
  /// piece is text.
  std::string problem() const {
    if (m.spaceBehind)
      return "spaces stand behind words (treat_whitespace_as_suffix)";
    if (!m.escapeSpaces)
      return "spaces stay as they are (escape_whitespaces = false)";
    if (unknown < 0)
      return "no piece is the unknown one";
    if (users && m.removeExtraSpaces)
      return "users defined pieces, and extra spaces are removed (remove_extra_whitespaces)";
    for (const SentencePieceModel::Piece &p : m.pieces)
      if (p.type == Type::unused && comesOfText(p.text))
        return fmt::format("the piece \"{}\" is unused", p.text);
      else if (p.type == Type::userDefined && llvm::StringRef(p.text).contains(kSpaceMark))
        return fmt::format("the piece \"{}\", which users defined, has a space", p.text);
    return "";
  }

private:
  /// Whether an unused piece may be joined, to be taken apart again. Else it is no token of any text and is left out: a
  /// vocabulary that was filled up has such pieces.
  bool comesOfText(llvm::StringRef piece) const {
    auto isSymbol = [&](llvm::StringRef text) { return isOneCodePoint(text) || ids.count(text); };
    return m.kind != SentencePieceModel::bpe || isOneCodePoint(piece) || llvm::any_of(splitsOf(piece), [&](size_t at) {
             return isSymbol(piece.take_front(at)) && isSymbol(piece.drop_front(at));
           });
  }

  static Json replace(const Json &pattern, std::string_view content) {
    return {{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
  }

  Json added() const {
    Json all = Json::array();
    for (size_t id = 0; id < m.pieces.size(); ++id)
      if (const auto &p = m.pieces[id];
          p.type == Type::unknown || p.type == Type::control || p.type == Type::userDefined)
        all.push_back(addedTokenJson({.id = int32_t(id), .content = p.text, .special = p.type != Type::userDefined}));
    return all;
  }

  Json normalizer() const {
    Json steps = Json::array();
    if (!m.charsmap.empty())
      steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", llvm::encodeBase64(m.charsmap)}});
    if (m.removeExtraSpaces) {
      steps.push_back(replace({{"Regex", "\\A +| +\\z"}}, ""));
      steps.push_back(replace({{"Regex", " {2,}"}}, " "));
    }
    if (m.addSpace && !users)
      steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
    steps.push_back(replace({{"String", " "}}, kSpaceMark));
    return {{"type", "Sequence"}, {"normalizers", steps}};
  }

  /// Behind a token that users defined no space is added. As transformers has it for such models, none is added to a
  /// text that begins with a space either.
  Json preTokenizer() const {
    if (!m.addSpace || !users)
      return nullptr;
    return {{"type", "Metaspace"}, {"replacement", kSpaceMark}, {"prepend_scheme", "first"}, {"split", false}};
  }

  Json postProcessor() const {
    std::vector<SequencePart> parts = {{.text = 0}};
    if (const int32_t bos = controlOf(m.bos); addBos && bos >= 0)
      parts.insert(parts.begin(), {.token = bos});
    if (const int32_t eos = controlOf(m.eos); addEos && eos >= 0)
      parts.push_back({.token = eos});
    return postProcessorJson(parts, [&](int32_t id) { return m.pieces[size_t(id)].text; });
  }

  /// -1 if there is no such control token.
  int32_t controlOf(const std::string &name) const {
    const auto it = ids.find(name);
    return it != ids.end() && m.pieces[size_t(it->second)].type == Type::control ? int32_t(it->second) : -1;
  }

  Json unigram() const {
    Json vocab = Json::array();
    for (const auto &p : m.pieces)
      vocab.push_back(Json::array({p.text, p.score}));
    return {{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", vocab}, {"byte_fallback", m.byteFallback}};
  }

  /// Two pieces merge if their concatenation is one, the higher its score the sooner.
  Json bpe() const {
    struct Merge {
      float score;
      llvm::StringRef left, right;
    };
    auto isText = [&](llvm::StringRef piece) {
      const auto it = ids.find(piece);
      return it != ids.end() && m.pieces[size_t(it->second)].type == Type::normal;
    };
    std::vector<Merge> merges;
    Json vocab = Json::object(), pairs = Json::array();
    for (size_t id = 0; id < m.pieces.size(); ++id) {
      const auto &p = m.pieces[id];
      if (p.type == Type::unused)
        continue;
      vocab.get_ref<Json::object_t &>().emplace_back(p.text, id);  // operator[] would compare all earlier names
      if (p.type != Type::normal)
        continue;
      const llvm::StringRef text = p.text;
      for (const size_t at : splitsOf(text))
        if (isText(text.take_front(at)) && isText(text.drop_front(at)))
          merges.push_back({p.score, text.take_front(at), text.drop_front(at)});
    }
    llvm::stable_sort(merges, [](const Merge &a, const Merge &b) { return a.score > b.score; });
    for (const Merge &x : merges)
      pairs.push_back(Json::array({x.left.str(), x.right.str()}));
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", m.pieces[size_t(unknown)].text},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", m.byteFallback},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", pairs}};
  }

  const SentencePieceModel &m;
  const bool addBos, addEos;
  llvm::StringMap<int64_t> ids;
  int64_t unknown = -1;
  bool users = false;  // whether there are pieces that users defined
};

}  // namespace

std::vector<size_t> splitsOf(std::string_view piece) {
  std::vector<size_t> lengths;
  for (size_t at = 1; at < piece.size(); ++at)
    if ((uint8_t(piece[at]) & 0xc0) != 0x80)
      lengths.push_back(at);
  return lengths;
}

std::string sentencePieceJson(const SentencePieceModel &model, bool addBos, bool addEos) {
  return Conversion(model, addBos, addEos).run();
}

std::string sentencePieceJsonProblem(const SentencePieceModel &model) {
  return Conversion(model, false, false).problem();
}

}  // namespace gptc
