// Vocabularies of GGUF files.
#include "frontends/tokenizer/patterns.h"
#include "frontends/tokenizer/pipeline.h"
#include "frontends/tokenizer/printable.h"
#include "frontends/tokenizer/sentencepiece.h"
#include "support/diagnostics.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"

namespace gptc {
namespace {

/// How a text is cut into words, by tokenizer.ggml.pre; an empty pattern is GPT-2's.
struct Words {
  const char *pre;
  const char *pattern;
  bool digitsAlone = false;   // first each digit by itself
  bool ignoreMerges = false;  // a word that is a token is that token
};
constexpr Words kWords[] = {{"gpt-2", ""},
                            {"phi-2", ""},
                            {"mpt", ""},
                            {"olmo", ""},
                            {"jais", ""},
                            {"llama-bpe", patterns::llama3, false, true},
                            {"llama3", patterns::llama3, false, true},
                            {"llama-v3", patterns::llama3, false, true},
                            {"dbrx", patterns::llama3},
                            {"smaug-bpe", patterns::llama3},
                            {"qwen2", patterns::qwen2},
                            {"stablelm2", patterns::qwen2},
                            {"smollm", "", true},
                            {"starcoder", "", true},
                            {"refact", "", true},
                            {"command-r", "", true},
                            {"codeshell", "", true},
                            {"bloom", patterns::bloomFlat},
                            {"gpt3-finnish", patterns::bloomFlat}};

UserError bad(const std::string &file, const std::string &why) {
  return {ErrorCode::DataInvalid, fmt::format("{}: its vocabulary is unusable: {}", file, why), "get the file again"};
}

int32_t typeOf(const GgufVocabulary &v, size_t id) {
  return v.types.empty() ? int32_t(GgufVocabulary::normal) : v.types[id];
}

void check(const GgufVocabulary &v, const std::string &file) {
  const size_t n = v.tokens.size();
  if (n == 0 || n > size_t(kMostTokens))
    throw bad(file, fmt::format("it has {} tokens", n));
  if ((!v.types.empty() && v.types.size() != n) || (!v.scores.empty() && v.scores.size() != n))
    throw bad(file, fmt::format("{} tokens have {} types and {} scores", n, v.types.size(), v.scores.size()));
  for (size_t id = 0; id < n; ++id)
    if (typeOf(v, id) < GgufVocabulary::normal || typeOf(v, id) > GgufVocabulary::byte)
      throw bad(file, fmt::format("token {} is of type {}", id, typeOf(v, id)));
  for (const auto &[name, id] : {std::pair("bos", v.bos), {"eos", v.eos}, {"eot", v.eot}, {"unknown", v.unknown}})
    if (id < -1 || id >= int64_t(n))
      throw bad(file, fmt::format("{} is token {} of {}", name, id, n));
}

Tokenizer sentencePiece(const GgufVocabulary &v, const std::string &file) {
  SentencePieceModel m;
  m.kind = SentencePieceModel::bpe;
  m.addSpace = v.addSpacePrefix;
  m.removeExtraSpaces = false;
  if (v.scores.empty())
    throw bad(file, "its tokens have no scores");
  bool bytes = false;
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    int32_t type = typeOf(v, id);
    if (int64_t(id) == v.unknown)
      type = GgufVocabulary::unknownToken;
    else if (type == GgufVocabulary::unknownToken && v.unknown >= 0)  // some files mark each control token so
      type = GgufVocabulary::control;
    if (!std::isfinite(v.scores[id]))
      throw bad(file, fmt::format("the score of token {} is no number", id));
    bytes = bytes || type == GgufVocabulary::byte;
    m.pieces.push_back({v.tokens[id], v.scores[id], SentencePieceModel::Type(type)});
  }
  m.byteFallback = bytes;
  if (v.bos >= 0)
    m.bos = v.tokens[size_t(v.bos)];
  if (v.eos >= 0)
    m.eos = v.tokens[size_t(v.eos)];
  std::string content = writeSentencePiece(m);
  return sentencePieceTokenizer(std::move(m), {"tokenizer.model", std::move(content)}, file, v.addBos, v.addEos);
}

Tokenizer byteLevelBpe(const GgufVocabulary &v, const std::string &file) {
  const Words *words = std::find_if(std::begin(kWords), std::end(kWords), [&](auto &w) { return v.pre == w.pre; });
  if (words == std::end(kWords))
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("{} cuts words by tokenizer.ggml.pre = \"{}\", which is not built yet", file, v.pre),
                    "take the model's tokenizer.json");
  auto p = std::make_unique<Pipeline>();
  BpeParts bpe;
  bpe.pattern = words->pattern;
  bpe.digitsAlone = words->digitsAlone;
  bpe.ignoreMerges = words->ignoreMerges;
  llvm::StringMap<int32_t> ids;
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    const std::string &written = v.tokens[id];
    const int32_t type = typeOf(v, id);
    ids[written] = int32_t(id);
    std::string bytes;
    const bool added =
        type == GgufVocabulary::control || type == GgufVocabulary::userDefined || !bytesOfPrintable(written, bytes);
    p->place(int64_t(id), added ? written : bytes, file);
    if (!added)
      continue;
    // What is neither text nor to be found in it, as a padding token, is beside the vocabulary too, but never found.
    AddedToken t;
    t.id = int32_t(id);
    t.content = written;
    t.special = type != GgufVocabulary::userDefined;
    bpe.added.push_back(std::move(t));
  }
  for (const std::string &merge : v.merges) {
    const auto [left, right] = llvm::StringRef(merge).split(' ');
    const auto l = ids.find(left), r = ids.find(right), both = ids.find((left + right).str());
    if (l == ids.end() || r == ids.end() || both == ids.end())
      throw bad(file, fmt::format("merge {}, \"{}\", is not in it", bpe.merges.size(), merge));
    bpe.merges.emplace_back(l->second, r->second);
    bpe.into.push_back(both->second);
  }
  p->surround(v.addBos ? v.bos : -1, v.addEos ? v.eos : -1);
  p->endOfText = v.eos;
  return finishByteLevel(std::move(p), bpe, file);
}

}  // namespace

Tokenizer Tokenizer::fromGguf(const GgufVocabulary &v, const std::string &file) {
  check(v, file);
  if (v.model == "gpt2")
    return byteLevelBpe(v, file);
  if (v.model == "llama")
    return sentencePiece(v, file);
  throw UserError(
      ErrorCode::NotBuiltYet,
      fmt::format("{} has a vocabulary of tokenizer.ggml.model = \"{}\", which is not built yet", file, v.model),
      "gpt2 and llama work; or take the model's tokenizer.json");
}

}  // namespace gptc
