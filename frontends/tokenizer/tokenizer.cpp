// Encoding and decoding by a pipeline. Files are read in tokenizer_json.cpp, sentencepiece.cpp, tiktoken.cpp and
// gguf_vocabulary.cpp; own tokenizers are made in own_tokenizers.cpp and trained in training.cpp.
#include "frontends/tokenizer/tokenizer.h"

#include "frontends/tokenizer/json_parts.h"
#include "frontends/tokenizer/pipeline.h"
#include "frontends/tokenizer/printable.h"
#include "frontends/tokenizer/utf8.h"
#include "frontends/tokenizer/word_cache.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/gguf/gguf_file.h"
#include "support/json_problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <filesystem>

namespace gptc {

// ---- pipeline
// --------------------------------------------------------------------------------------------------------

void Pipeline::place(int64_t id, std::string text, const std::string &where) {
  if (id < 0 || id >= kMostTokens)
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("{}: the id {} of {} is no token number", where, id, shown(text)),
                    fmt::format("ids are 0 to {}", kMostTokens - 1));
  const size_t n = size_t(id);
  if (pieces.size() <= n)
    pieces.resize(n + 1);
  if (!pieces[n].empty() && pieces[n] != text)
    throw UserError(
        ErrorCode::DataInvalid,
        fmt::format("{}: token {} stands there twice, as {} and {}", where, n, shown(pieces[n]), shown(text)),
        "get the file again");
  pieces[n] = std::move(text);
}

void Pipeline::setControl(int32_t id) {
  if (control.size() <= size_t(id))
    control.resize(size_t(id) + 1);
  control[size_t(id)] = true;
}

void Pipeline::surround(int32_t before, int32_t after) {
  if (before >= 0)
    single.insert(single.begin(), {.token = before});
  if (after >= 0)
    single.push_back({.token = after});
}

void Pipeline::findEndOfText() {
  for (const char *name : {kEndOfText, "<|end_of_text|>", "</s>", "<eos>"})
    for (size_t id = 0; id < control.size() && endOfText < 0; ++id)
      if (control[id] && pieces[id] == name)
        endOfText = int32_t(id);
}

// ---- tokenizer
// -------------------------------------------------------------------------------------------------------

Tokenizer::Tokenizer(std::shared_ptr<const Pipeline> pipeline)
    : pipeline(std::move(pipeline)), cache(std::make_unique<WordCache>()) {}
Tokenizer::Tokenizer(const Tokenizer &other) : Tokenizer(other.pipeline) {}
Tokenizer::Tokenizer(Tokenizer &&) noexcept = default;
Tokenizer &Tokenizer::operator=(Tokenizer &&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

/// Encodes the words of one text.
class WordEncoder {
public:
  WordEncoder(const Pipeline &p, WordCache &cache, std::vector<int32_t> &out)
      : p(p), cache(cache), out(out), cutsBeforeSpace(p.model->cutsBeforeSpace()) {}

  void words(std::string_view text, WordPlace place) {
    if (p.preTokenizer)
      p.preTokenizer->split(text, place, [this](std::string_view word, WordPlace) { this->word(word); });
    else
      word(text);
  }

private:
  void word(std::string_view text) {
    if (p.printed) {
      bytesOfPrintable(text, unprinted);
      text = unprinted;
    }
    if (!cutsBeforeSpace)
      return part(text);
    // Most of such a tokenizer's words are whole texts.
    constexpr std::string_view space = kSpaceMark;
    size_t begin = 0;
    for (size_t at = text.find(space, 1); at != std::string_view::npos; at = text.find(space, at + space.size())) {
      if (at < space.size() || text.substr(at - space.size(), space.size()) != space) {
        part(text.substr(begin, at - begin));
        begin = at;
      }
    }
    part(text.substr(begin));
  }
  void part(std::string_view text) {
    cache.encode(text, out, [&](std::vector<int32_t> &ids) { p.model->encode(text, ids); });
  }

  const Pipeline &p;
  WordCache &cache;
  std::vector<int32_t> &out;
  bool cutsBeforeSpace;
  std::string unprinted;
};

bool takesBytes(const Pipeline &p) {
  return p.bytes && !p.normalizer && p.normalizedAdded.empty() && (!p.preTokenizer || p.preTokenizer->takesBytes());
}

}  // namespace

int64_t Tokenizer::encode(std::string_view text, std::vector<int32_t> &out, const EncodeOptions &options) const {
  const Pipeline &p = *pipeline;
  const RegexWork bound(text.size());
  if (!takesBytes(p))
    requireUtf8(text, "the text");
  const auto own = llvm::find_if(p.single, [](const SequencePart &s) { return s.text == 0; });
  if (options.addSpecial && !options.continues)
    for (auto s = p.single.begin(); s != own; ++s)
      out.push_back(s->token);
  WordEncoder encoder(p, *cache, out);
  // A vocabulary may have its control tokens as words, too.
  auto encodeWords = [&](std::string_view words, WordPlace place) {
    const size_t before = out.size();
    encoder.words(words, place);
    if (options.foreign)
      for (size_t i = before; i < out.size(); ++i)
        if (isControl(out[i]))
          throw UserError(ErrorCode::DataInvalid,
                          fmt::format("{} in a text is a control token of this model", this->text(out[i])));
  };
  int64_t found = 0;
  std::vector<Section> sections, inner;
  static const ByteRanges none;
  const ByteRanges &foreign = options.foreign ? *options.foreign : none;
  if (!p.added.empty())
    found += p.added.split(text, options.parseSpecial, foreign, sections);
  else if (!text.empty())
    sections.push_back({text});
  std::string normalized;
  for (const Section &s : sections) {
    if (s.token >= 0) {
      out.push_back(s.token);
      continue;
    }
    const auto begin = size_t(s.text.data() - text.data());
    const bool start = begin == 0;
    const bool continues = start && options.continues;
    std::string_view rest = s.text;
    if (p.normalizer) {
      normalized.assign(rest);
      p.normalizer->apply(normalized, continues);
      rest = normalized;
    }
    inner.clear();
    if (!p.normalizedAdded.empty())
      // Where a range is in the normalized text is not known.
      found += p.normalizedAdded.split(rest, options.parseSpecial && !touches(foreign, begin, begin + s.text.size()),
                                       none, inner);
    else if (!rest.empty())
      inner.push_back({rest});
    for (const Section &i : inner)
      if (i.token >= 0)
        out.push_back(i.token);
      else
        encodeWords(i.text, {start && i.text.data() == rest.data(), continues});
  }
  if (options.addSpecial && !options.continued)
    for (auto s = own + 1; s != p.single.end(); ++s)
      out.push_back(s->token);
  return found;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions &options) const {
  std::vector<int32_t> out;
  encode(text, out, options);
  return out;
}

std::vector<SequencePart> Tokenizer::sequenceOf(int texts) const {
  return texts == 2 ? pipeline->pair : pipeline->single;
}

CutPoint Tokenizer::cut() const {
  const Pipeline &p = *pipeline;
  if (p.cutsAnywhere)
    return CutPoint::anywhere;
  if (!p.added.local() || !p.normalizedAdded.local() || (p.normalizer && !p.normalizer->local()))
    return CutPoint::nowhere;
  if (p.preTokenizer && p.preTokenizer->cutBeforeLineFeed() == PreTokenizer::Cut::always)
    return CutPoint::beforeLineFeed;
  if (!p.model->cutsBeforeSpace() || (p.preTokenizer && !p.preTokenizer->cutsBeforeSpace()))
    return CutPoint::nowhere;
  // Whether a space becomes U+2581, and nothing else happens to it.
  std::string text = "a b", words;
  if (p.normalizer)
    p.normalizer->apply(text, true);
  if (p.preTokenizer)
    p.preTokenizer->split(text, {true, true}, [&](std::string_view word, WordPlace) { words += word; });
  else
    words = text;
  return words == fmt::format("a{}b", kSpaceMark) ? CutPoint::beforeSpace : CutPoint::nowhere;
}

const std::string &Tokenizer::text(int32_t token) const {
  static const std::string none;
  return token >= 0 && token < vocabSize() ? pipeline->pieces[size_t(token)] : none;
}

bool Tokenizer::isControl(int32_t token) const {
  return token >= 0 && size_t(token) < pipeline->control.size() && pipeline->control[size_t(token)];
}

bool Tokenizer::decodesByToken() const { return !pipeline->decoder; }

std::string Tokenizer::decode(const std::vector<int32_t> &tokens) const {
  std::vector<std::string> texts;
  for (int32_t t : tokens)
    texts.push_back(text(t));
  if (pipeline->decoder) {
    size_t bytes = 0;
    for (const std::string &t : texts)
      bytes += t.size();
    const RegexWork bound(bytes);
    pipeline->decoder->apply(texts);
  }
  std::string out;
  for (const std::string &t : texts)
    out += t;
  return out;
}

int64_t Tokenizer::vocabSize() const { return int64_t(pipeline->pieces.size()); }
int32_t Tokenizer::endOfText() const { return pipeline->endOfText; }
std::string Tokenizer::describe() const { return fmt::format("{}, {} tokens", pipeline->kind, vocabSize()); }
const TokenizerFile &Tokenizer::file() const { return pipeline->file; }

namespace {

/// eos_token of the tokenizer_config.json beside a tokenizer.json; "" if there is none.
std::string endBeside(const std::string &file) {
  const std::filesystem::path beside = std::filesystem::path(file).replace_filename("tokenizer_config.json");
  if (std::error_code e; !std::filesystem::is_regular_file(beside, e))
    return "";
  const auto config = parseJsonOrDiscard(readInput(beside.string(), "description of the tokenizer", kConfigLimit));
  const std::string *end = tokenOfRole(config, "eos_token");
  return end ? *end : "";
}

}  // namespace

Tokenizer Tokenizer::load(const std::string &name) {
  auto [file, pattern] = llvm::StringRef(name).rsplit(':');
  const bool named = pattern == "gpt2" || pattern == "cl100k" || pattern == "o200k" || pattern == "llama3";
  const std::string path = named ? file.str() : name;
  if (isGguf(path))  // large, and only its keys are read
    return fromGguf(requireVocabulary(path), path);
  const std::string content = readInput(path, "tokenizer", kTokenizerLimit);
  if (named)
    return fromTiktoken(content, path, pattern.str());
  const llvm::StringRef text = llvm::StringRef(content).ltrim();
  if (text.starts_with("{") || llvm::StringRef(path).ends_with(".json"))
    return text.take_front(4096).contains("\"num_vocab_tokens\"") || text.take_front(4096).contains("\"token_bytes\"")
               ? fromTekken(content, path)
               : fromJson(content, path, endBeside(path));
  if (text.starts_with("#version"))
    return fromMerges(path);
  // A message whose first field is a piece, or a line of base64 and a number.
  if (!content.empty() && content[0] == '\n')
    return fromSentencePiece(content, path);
  if (llvm::StringRef(path).ends_with(".tiktoken"))
    throw UserError(ErrorCode::Usage, fmt::format("{} has tiktoken's ranks, but not the pattern of words", path),
                    fmt::format("name it: {}:cl100k, :o200k, :llama3 or :gpt2", path));
  return fromSentencePiece(content, path);
}

// ---- streaming
// -------------------------------------------------------------------------------------------------------

std::string TextStream::pushBytes(int32_t token) {
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

/// The text of the window's tokens that was not returned.
std::string TextStream::rest() const {
  const std::string all = tokenizer.decode(window);
  const std::string before = said ? tokenizer.decode({window.begin(), window.begin() + int64_t(said)}) : "";
  return all.size() > before.size() ? all.substr(before.size()) : "";
}

std::string TextStream::push(int32_t token) {
  if (tokenizer.decodesByToken())
    return pushBytes(token);
  constexpr size_t longest = 16;  // tokens that wait for the rest of a character
  window.push_back(token);
  std::string text = rest();
  if (text.empty() || (llvm::StringRef(text).ends_with("\ufffd") && window.size() - said < longest))
    return "";
  // Tokens that were returned stay, so that what follows is not taken for the start of a text: at least one that is
  // more than space.
  constexpr size_t most = 64;
  if (llvm::StringRef(text).find_first_not_of(' ') != llvm::StringRef::npos || window.size() > most)
    window.erase(window.begin(), window.begin() + int64_t(said));
  said = window.size();
  return text;
}

std::string TextStream::finish() {
  std::string out = window.empty() ? "" : rest();
  if (!pending.empty())
    appendUtf8(out, 0xfffd);
  pending.clear();
  window.clear();
  said = 0;
  return out;
}

}  // namespace gptc
