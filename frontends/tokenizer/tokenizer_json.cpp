// Reads tokenizer.json, the format of Hugging Face's `tokenizers`.
#include "frontends/tokenizer/pipeline.h"
#include "frontends/tokenizer/printable.h"
#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"
#include "support/json_problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Base64.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>

namespace gptc {
namespace {

using Json = nlohmann::json;

/// A number as `tokenizers` reads it, whose JSON library divides the digits by a power of ten and rounds twice. Scores
/// in the last bit decide between segmentations of the same pieces.
double asTokenizersReads(double value) {
  if (value == 0 || !std::isfinite(value))
    return value;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, std::abs(value), std::chars_format::scientific).ptr;
  const auto [digits, exponent] = llvm::StringRef(text, size_t(end - text)).split('e');
  const auto [whole, fraction] = digits.split('.');
  const uint64_t significand = std::stoull((whole + fraction).str());
  const int power = std::stoi(exponent.str()) - int(fraction.size());
  const double ten = std::strtod(fmt::format("1e{}", std::abs(power)).c_str(), nullptr);
  const double read = power >= 0 ? double(significand) * ten : double(significand) / ten;
  return std::copysign(std::isfinite(read) ? read : value, value);
}

class JsonReader {
public:
  JsonReader(const Json &j, const std::string &file, const std::string &end)
      : j(j), file(file), end(end), p(std::make_unique<Pipeline>()) {}

  std::shared_ptr<const Pipeline> read(const std::string &text) {
    const Json &model = part(j, "model");
    if (!model.is_object())
      bad("it has no model");
    // Older files leave the type out; only BPE's have merges.
    const std::string type = !part(model, "type").is_null()     ? word(model, "type", "model")
                             : part(model, "merges").is_array() ? "BPE"
                                                                : "";
    checkUnread();
    readAdded();
    if (const Json &n = part(j, "normalizer"); !n.is_null())
      p->normalizer = normalizer(n, "normalizer");
    if (const Json &t = part(j, "pre_tokenizer"); !t.is_null()) {
      p->bytes = type == "BPE" && usesByteLevel(t);
      p->preTokenizer = preTokenizer(t, "pre_tokenizer", true);
    }
    if (type == "BPE")
      readBpe(model);
    else if (type == "Unigram")
      readUnigram(model);
    else if (type == "WordPiece" || type == "WordLevel")
      readWords(model, type);
    else
      later(type.empty() ? "a model without type" : "a model of type " + shown(type));
    placeAdded();
    if (p->pieces.empty())
      bad("its vocabulary is empty");
    p->pair = {{.text = 0}, {.text = 1, .type = 1}};  // without a post_processor
    if (const Json &post = part(j, "post_processor"); !post.is_null())
      readPostProcessor(post);
    readDecoder(part(j, "decoder"));
    p->file = {"tokenizer.json", text};
    return std::move(p);
  }

private:
  [[noreturn]] void bad(const std::string &why) const {
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} is no tokenizer that gptc can use: {}", file, why),
                    "`gptc data prepare` writes one; a tokenizer.json of Hugging Face's `tokenizers` works too");
  }
  [[noreturn]] void later(const std::string &what) const {
    throw UserError(ErrorCode::NotBuiltYet, fmt::format("{} uses {}, which is not built yet", file, what),
                    "take a tokenizer without it");
  }

  // Members of an object, by type. `where` is for messages: "normalizer.normalizers[1]".
  std::string word(const Json &of, const char *name, const std::string &where) const {
    const Json &v = part(of, name);
    if (!v.is_string())
      bad(fmt::format("{}.{} is no text", where, name));
    return v.get<std::string>();
  }
  bool flag(const Json &of, const char *name, const std::string &where, bool otherwise) const {
    const Json &v = part(of, name);
    if (!v.is_null() && !v.is_boolean())
      bad(fmt::format("{}.{} is neither true nor false", where, name));
    return v.is_null() ? otherwise : v.get<bool>();
  }
  int64_t number(const Json &of, const char *name, const std::string &where) const {
    const Json &v = part(of, name);
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() >= kMostTokens)
      bad(fmt::format("{}.{} is no whole number below {}", where, name, kMostTokens));
    return v.get<int64_t>();
  }
  const Json &list(const Json &of, const char *name, const std::string &where) const {
    const Json &v = part(of, name);
    if (!v.is_array())
      bad(fmt::format("{}.{} is no list", where, name));
    return v;
  }

  // What no id and no text depends on: its type is checked, as a file that is damaged there may be so elsewhere. What
  // truncation and padding hold, names that nothing asks for, and null in place of a value are passed over.

  void checkUnread() const {
    for (const char *name : {"truncation", "padding"})
      if (const Json &v = part(j, name); !v.is_null() && !v.is_object())
        bad(fmt::format("{} is neither null nor an object", name));
    if (const Json &v = part(j, "version"); !v.is_null() && !v.is_string())
      bad("version is no text");
  }

  void checkByteLevel(const Json &step, const std::string &where) const {
    for (const char *name : {"add_prefix_space", "trim_offsets", "use_regex"})
      flag(step, name, where, true);
  }

  // ---- normalizers ----

  std::unique_ptr<Normalizer> normalizer(const Json &n, const std::string &where) const {
    std::unique_ptr<Normalizer> step = normalizerOf(n, where);
    step->where = fmt::format("{}: {}", file, where);
    return step;
  }

  std::unique_ptr<Normalizer> normalizerOf(const Json &n, const std::string &where) const {
    const std::string type = word(n, "type", where);
    if (type == "Sequence") {
      std::vector<std::unique_ptr<Normalizer>> all;
      for (const Json &step : list(n, "normalizers", where))
        all.push_back(normalizer(step, fmt::format("{}.normalizers[{}]", where, all.size())));
      return allOf(std::move(all));
    }
    if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD")
      return normalForm(type == "NFC"    ? NormalForm::nfc
                        : type == "NFD"  ? NormalForm::nfd
                        : type == "NFKC" ? NormalForm::nfkc
                                         : NormalForm::nfkd);
    if (type == "Lowercase")
      return lowercase();
    if (type == "StripAccents")
      return stripAccents();
    if (type == "Strip")
      return stripSpace(flag(n, "strip_left", where, true), flag(n, "strip_right", where, true));
    if (type == "Prepend")
      return prepend(word(n, "prepend", where));
    if (type == "Replace") {
      const Json &pattern = part(n, "pattern");
      const std::string content = word(n, "content", where);
      if (part(pattern, "Regex").is_string())
        return replaceMatches(Regex(word(pattern, "Regex", where), fmt::format("{}: {}", file, where)), content);
      const std::string text = word(pattern, "String", where + ".pattern");
      if (text.empty())  // which `tokenizers` finds between all characters, as an expression
        return replaceMatches(Regex(text, fmt::format("{}: {}", file, where)), content);
      return replaceText(text, content);
    }
    if (type == "BertNormalizer") {
      const bool lower = flag(n, "lowercase", where, true);
      return bertNormalizer(flag(n, "clean_text", where, true), flag(n, "handle_chinese_chars", where, true),
                            flag(n, "strip_accents", where, lower), lower);
    }
    if (type == "Precompiled") {
      std::vector<char> blob;
      const Json &map = part(n, "precompiled_charsmap");
      if (map.is_string()) {
        if (llvm::Error e = llvm::decodeBase64(map.get_ref<const std::string &>(), blob)) {
          llvm::consumeError(std::move(e));
          bad(where + ".precompiled_charsmap is no base64");
        }
      } else if (!map.is_null()) {
        bad(where + ".precompiled_charsmap is no text");
      }
      if (blob.empty())
        return allOf(std::vector<std::unique_ptr<Normalizer>>{});
      return precompiled(Charsmap(std::string(blob.begin(), blob.end()), fmt::format("{}: {}", file, where)));
    }
    later("a normalizer of type " + shown(type));
  }

  // ---- pre-tokenizers ----

  static bool usesByteLevel(const Json &t) {
    if (part(t, "type") == "ByteLevel")
      return true;
    const Json &all = part(t, "pretokenizers");
    return all.is_array() && std::any_of(all.begin(), all.end(), usesByteLevel);
  }

  SplitBehavior behavior(const Json &t, const std::string &where) const {
    const std::string name = word(t, "behavior", where);
    constexpr std::pair<const char *, SplitBehavior> names[] = {
        {"Removed", SplitBehavior::removed},
        {"Isolated", SplitBehavior::isolated},
        {"MergedWithPrevious", SplitBehavior::mergedWithPrevious},
        {"MergedWithNext", SplitBehavior::mergedWithNext},
        {"Contiguous", SplitBehavior::contiguous}};
    for (const auto &[known, b] : names)
      if (name == known)
        return b;
    bad(fmt::format("{}.behavior is {}", where, shown(name)));
  }

  std::unique_ptr<PreTokenizer> splitPreTokenizer(const Json &t, const std::string &where) const {
    const Json &pattern = part(t, "pattern");
    const SplitBehavior b = behavior(t, where);
    const bool invert = flag(t, "invert", where, false);
    if (!part(pattern, "Regex").is_string()) {
      const std::string text = word(pattern, "String", where + ".pattern");
      if (text.empty())  // as above
        return splitOn(Regex(text, fmt::format("{}: {}", file, where)), b, invert, false);
      return splitOn(text, b, invert);
    }
    const std::string regex = word(pattern, "Regex", where);
    const bool wordsAlone = (b == SplitBehavior::isolated && !invert) || (b == SplitBehavior::removed && invert);
    if (const FirstWord words = wordsOfPattern(regex); words && wordsAlone)
      return splitByHand(words);
    return splitOn(Regex(regex, fmt::format("{}: {}", file, where)), b, invert,
                   wordsAlone && cutsBeforeLineFeed(regex));
  }

  PrependScheme prependScheme(const Json &t, const std::string &where) const {
    const bool prefix = flag(t, "add_prefix_space", where, true);  // as older files say it
    if (part(t, "prepend_scheme").is_null())
      return prefix ? PrependScheme::always : PrependScheme::never;
    const std::string scheme = word(t, "prepend_scheme", where);
    constexpr std::pair<const char *, PrependScheme> names[] = {
        {"always", PrependScheme::always}, {"first", PrependScheme::first}, {"never", PrependScheme::never}};
    for (const auto &[known, s] : names)
      if (scheme == known)
        return s;
    bad(fmt::format("{}.prepend_scheme is {}", where, shown(scheme)));
  }

  std::unique_ptr<PreTokenizer> metaspacePreTokenizer(const Json &t, const std::string &where) const {
    return metaspace(word(t, "replacement", where), prependScheme(t, where), flag(t, "split", where, true));
  }

  /// `last`: no step follows.
  std::unique_ptr<PreTokenizer> preTokenizer(const Json &t, const std::string &where, bool last) {
    const std::string type = word(t, "type", where);
    if (type == "Sequence") {
      std::vector<std::unique_ptr<PreTokenizer>> all;
      const Json &steps = list(t, "pretokenizers", where);
      for (const Json &step : steps)
        all.push_back(preTokenizer(step, fmt::format("{}.pretokenizers[{}]", where, all.size()),
                                   last && all.size() + 1 == steps.size()));
      return allOf(std::move(all));
    }
    if (type == "Split")
      return splitPreTokenizer(t, where);
    if (type == "ByteLevel") {
      if (p->printed)
        later("two steps of type ByteLevel");
      checkByteLevel(t, where);
      const bool print = !last || !p->bytes;
      p->printed = p->bytes && print;
      return byteLevel(flag(t, "add_prefix_space", where, true), flag(t, "use_regex", where, true), print);
    }
    if (type == "Digits")
      return digits(flag(t, "individual_digits", where, false));
    if (type == "Punctuation")
      return punctuation(part(t, "behavior").is_null() ? SplitBehavior::isolated : behavior(t, where));
    if (type == "Metaspace")
      return metaspacePreTokenizer(t, where);
    if (type == "Whitespace")  // `tokenizers` counts the joiners among the letters
      return splitOn(Regex("[\\w\\x{200c}\\x{200d}]+|[^\\w\\s\\x{200c}\\x{200d}]+", where), SplitBehavior::removed,
                     true, true);
    if (type == "WhitespaceSplit")
      return whitespaceSplit();
    if (type == "BertPreTokenizer")
      return bertPreTokenizer();
    later("a pre_tokenizer of type " + shown(type));
  }

  // ---- vocabularies ----

  /// The name of a token whose id the vocabulary gives; -1 for null.
  int32_t unknownToken(const Json &model, const VocabularyIds &ids) const {
    const Json &unknown = part(model, "unk_token");
    if (unknown.is_null())
      return -1;
    const std::string name = word(model, "unk_token", "model");
    const auto it = ids.find(name);
    if (it == ids.end())
      bad(fmt::format("model.unk_token {} is not in the vocabulary", shown(name)));
    return it->second;
  }

  std::string optionalWord(const Json &model, const char *name) const {
    return part(model, name).is_null() ? "" : word(model, name, "model");
  }

  void readBpe(const Json &model) {
    const Json &vocab = part(model, "vocab"), &merges = part(model, "merges");
    if (!vocab.is_object() || !merges.is_array())
      bad("model.vocab or model.merges is missing");
    if (const Json &d = part(model, "dropout"); !d.is_null() && !(d.is_number() && d == 0))
      later("dropout");
    VocabularyIds ids;  // as written in the file
    std::vector<std::pair<std::string, int32_t>> texts;
    for (auto &[written, id] : vocab.items()) {
      // What is no byte-level text never comes out of a word: a control token, say.
      std::string bytes;
      const bool reachable = !p->bytes || bytesOfPrintable(written, bytes);
      ids[written] = placeId(id, p->bytes && reachable && !isAdded(written) ? bytes : written);
      if (reachable)
        texts.emplace_back(p->bytes ? bytes : written, ids[written]);
    }
    BpeOptions o;
    o.bytes = p->bytes;
    o.ignoreMerges = flag(model, "ignore_merges", "model", false);
    o.byteFallback = flag(model, "byte_fallback", "model", false);
    o.fuseUnknown = flag(model, "fuse_unk", "model", false);
    o.unknown = unknownToken(model, ids);
    o.prefix = optionalWord(model, "continuing_subword_prefix");
    o.suffix = optionalWord(model, "end_of_word_suffix");
    if (o.bytes && !(o.prefix.empty() && o.suffix.empty()))
      later("ByteLevel with a prefix or suffix of pieces");
    auto bpe = std::make_unique<Bpe>(o);
    for (const auto &[text, id] : texts)
      bpe->add(text, id);
    int32_t rank = 0;
    for (const Json &m : merges) {
      std::string left, right;
      if (m.is_string()) {
        auto [l, r] = llvm::StringRef(m.get_ref<const std::string &>()).split(' ');
        left = l.str();
        right = r.str();
      } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
        left = m[0];
        right = m[1];
      }
      // A piece that continues a word loses its prefix where it is joined.
      const std::string whole =
          left + (llvm::StringRef(right).starts_with(o.prefix) ? right.substr(o.prefix.size()) : right);
      auto l = ids.find(left), r = ids.find(right), both = ids.find(whole);
      if (l == ids.end() || r == ids.end() || both == ids.end())
        bad(fmt::format("merge {} of {} and {} is not in the vocabulary", rank, shown(left), shown(right)));
      bpe->addMerge(l->second, r->second, both->second, rank++);
    }
    bpe->finish(p->pieces);
    p->kind = bpe->hasMerges() ? "bpe" : p->bytes ? "byte" : "char";
    p->cutsAnywhere = !bpe->hasMerges() && !p->normalizer && added.empty() && o.unknown < 0 && !o.byteFallback &&
                      o.prefix.empty() && o.suffix.empty() &&
                      (!p->preTokenizer || (p->bytes && part(part(j, "pre_tokenizer"), "add_prefix_space") == false));
    p->model = std::move(bpe);
    known = std::move(ids);
  }

  void readUnigram(const Json &model) {
    std::vector<UnigramPiece> pieces;
    for (const Json &entry : list(model, "vocab", "model")) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
        bad(fmt::format("entry {} of model.vocab is no piece with its score", pieces.size()));
      pieces.push_back({entry[0].get<std::string>(), asTokenizersReads(entry[1].get<double>())});
      if (!std::isfinite(pieces.back().score))
        bad(fmt::format("the score of {} is no number", shown(pieces.back().text)));
      known[pieces.back().text] = placeId(int64_t(pieces.size()) - 1, pieces.back().text);
    }
    Unigram::Options o;
    if (!part(model, "unk_id").is_null()) {
      o.unknown = int32_t(number(model, "unk_id", "model"));
      if (size_t(o.unknown) >= pieces.size())
        bad(fmt::format("model.unk_id is {} of {} pieces", o.unknown, pieces.size()));
    }
    o.byteFallback = flag(model, "byte_fallback", "model", false);
    p->kind = "unigram";
    p->model = std::make_unique<Unigram>(pieces, o);
  }

  void readWords(const Json &model, const std::string &type) {
    const Json &vocab = part(model, "vocab");
    if (!vocab.is_object())
      bad("model.vocab is missing");
    for (auto &[text, id] : vocab.items())
      known[text] = placeId(id, text);
    int32_t unknown = -1;
    if (const auto it = known.find(optionalWord(model, "unk_token")); it != known.end())
      unknown = it->second;
    if (type == "WordLevel") {
      p->kind = "words";
      p->model = std::make_unique<WholeWords>(known, unknown);
      return;
    }
    if (unknown < 0)
      bad("model.unk_token is not in the vocabulary");
    p->kind = "wordpiece";
    p->model = std::make_unique<WordPiece>(
        known, unknown, optionalWord(model, "continuing_subword_prefix"),
        part(model, "max_input_chars_per_word").is_null() ? 100 : number(model, "max_input_chars_per_word", "model"));
  }

  int32_t placeId(const Json &id, const std::string &text) {
    if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<uint64_t>() >= uint64_t(kMostTokens)))
      bad(fmt::format("the id of {} is no token number", shown(text)));
    p->place(id.get<int64_t>(), text, file);
    return int32_t(id.get<int64_t>());
  }

  // ---- added tokens ----

  void readAdded() {
    const Json &all = part(j, "added_tokens");
    if (all.is_null())
      return;
    if (!all.is_array())
      bad("added_tokens is no list");
    for (const Json &a : all) {
      const std::string where = fmt::format("added_tokens[{}]", added.size());
      AddedToken t;
      t.content = word(a, "content", where);
      t.id = int32_t(number(a, "id", where));
      t.singleWord = flag(a, "single_word", where, false);
      t.stripLeft = flag(a, "lstrip", where, false);
      t.stripRight = flag(a, "rstrip", where, false);
      if (!part(a, "special").is_boolean())  // without it control tokens would come out of users' text
        bad(where + ".special is neither true nor false");
      t.special = a.at("special").get<bool>();
      t.normalized = flag(a, "normalized", where, !t.special);
      contents.insert(t.content);
      added.push_back(std::move(t));
    }
  }

  bool isAdded(const std::string &text) const { return contents.count(text); }

  void placeAdded() {
    for (AddedToken &t : added) {
      if (t.content.empty())
        continue;
      if (const auto it = known.find(t.content); it != known.end() && it->second != t.id)
        bad(fmt::format("{} is token {} of the vocabulary and {} of added_tokens", shown(t.content), it->second, t.id));
      p->place(t.id, t.content, file);
      if (t.special)
        p->setControl(t.id);
      if (t.content == kEndOfText)
        p->endOfText = t.id;
      std::string needle = t.content;
      if (t.normalized && p->normalizer)
        p->normalizer->apply(needle, false);
      if (!t.special)
        p->pieces[size_t(t.id)] = needle;  // which `tokenizers` decodes to, too
      (t.normalized ? p->normalizedAdded : p->added).add(t, needle);
    }
    p->findEndOfText();
    for (const AddedToken &t : added)
      if (p->endOfText < 0 && !t.content.empty() && t.content == end)
        p->endOfText = t.id;
  }

  // ---- post-processors ----

  int32_t idWithin(const Json &id, const std::string &where) const {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= int64_t(p->pieces.size()))
      bad(fmt::format("{} names a token that is not there", where));
    return int32_t(id.get<int64_t>());
  }

  /// The parts of the template `post.which`.
  std::vector<SequencePart> partsOf(const Json &post, const char *which, const std::string &where) const {
    const std::string here = fmt::format("{}.{}", where, which);
    std::vector<SequencePart> parts;
    const Json &steps = list(post, which, where);
    for (size_t n = 0; n < steps.size(); ++n) {
      const Json &step = steps[n];
      const Json &text = part(step, "Sequence"), &token = part(step, "SpecialToken");
      const Json &own = text.is_null() ? token : text;
      const auto type = int32_t(part(own, "type_id").is_null() ? 0 : number(own, "type_id", here));
      if (!text.is_null()) {
        const Json &id = part(text, "id");
        if (id != "A" && id != "B")
          bad(fmt::format("{}[{}].Sequence.id is {}, and neither A nor B", here, n, shown(id)));
        parts.push_back({.text = id == "B", .type = type});
        continue;
      }
      const Json &entry = part(part(post, "special_tokens"), word(token, "id", here).c_str());
      for (const Json &id : list(entry, "ids", where + ".special_tokens"))
        parts.push_back({.token = idWithin(id, where + ".special_tokens"), .type = type});
    }
    return parts;
  }

  /// Of the tokens of a template, also of those that it does not use.
  void checkTokensOf(const Json &post, const std::string &where) const {
    const Json &tokens = part(post, "special_tokens");
    if (!tokens.is_null() && !tokens.is_object())
      bad(where + ".special_tokens is no object");
    for (const auto &[name, token] : tokens.items()) {
      const Json &texts = part(token, "tokens"), &id = part(token, "id");
      auto isText = [](const Json &text) { return text.is_string(); };
      const std::string here = fmt::format("{}.special_tokens.{}", where, shown(name));
      if (!token.is_object())
        bad(here + " is no object");
      if (!llvm::all_of(list(token, "ids", here), [](const Json &n) { return n.is_number_integer(); }))
        bad(here + ".ids is no list of whole numbers");
      if (!texts.is_null() && !(texts.is_array() && llvm::all_of(texts, isText)))
        bad(here + ".tokens is no list of texts");
      if (!id.is_null() && !isText(id))
        bad(here + ".id is no text");
    }
  }

  void readTemplate(const Json &post, const std::string &where) {
    checkTokensOf(post, where);
    std::vector<SequencePart> single = partsOf(post, "single", where), pair;
    int texts = 0;
    for (SequencePart &s : single)
      if (s.text >= 0) {
        s.text = 0;
        ++texts;
      }
    if (texts > 1)
      later("a post_processor that repeats a text");
    if (texts == 0)
      bad(where + ".single has no text");
    if (!part(post, "pair").is_null())
      pair = partsOf(post, "pair", where);
    for (const int text : {0, 1})
      if (llvm::count_if(pair, [&](const SequencePart &s) { return s.text == text; }) != 1)
        pair.clear();
    surround(single, std::move(pair));
  }

  /// Puts a template around what an earlier one makes of a text. What two make of a pair is not known.
  void surround(const std::vector<SequencePart> &single, std::vector<SequencePart> pair) {
    const std::vector<SequencePart> inner = std::exchange(p->single, {});
    for (const SequencePart &outer : single) {
      if (outer.text < 0) {
        p->single.push_back(outer);
        continue;
      }
      for (SequencePart s : inner) {
        s.type = outer.type;
        p->single.push_back(s);
      }
    }
    p->pair = std::exchange(hasTemplate, true) ? std::vector<SequencePart>() : std::move(pair);
  }

  void readPostProcessor(const Json &post, const std::string &where = "post_processor") {
    const std::string type = word(post, "type", where);
    if (type == "Sequence") {
      size_t i = 0;
      for (const Json &step : list(post, "processors", where))
        readPostProcessor(step, fmt::format("{}.processors[{}]", where, i++));
    } else if (type == "TemplateProcessing") {
      readTemplate(post, where);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      auto id = [&](const char *name) {
        const Json &pair = part(post, name);
        if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string())
          bad(fmt::format("{}.{} is no token with its id", where, name));
        return idWithin(pair[1], fmt::format("{}.{}", where, name));
      };
      checkByteLevel(post, where);
      const SequencePart cls = {.token = id("cls")}, sep = {.token = id("sep")}, text = {.text = 0};
      if (type == "RobertaProcessing")
        surround({cls, text, sep}, {cls, text, sep, sep, {.text = 1}, sep});
      else
        surround({cls, text, sep}, {cls, text, sep, {.text = 1, .type = 1}, {.token = sep.token, .type = 1}});
    } else if (type == "ByteLevel") {  // which changes offsets only
      checkByteLevel(post, where);
    } else {
      later("a post_processor of type " + shown(type));
    }
  }

  // ---- decoders ----

  std::unique_ptr<Decoder> decoder(const Json &d, const std::string &where) const {
    const std::string type = word(d, "type", where);
    if (type == "Sequence") {
      std::vector<std::unique_ptr<Decoder>> all;
      for (const Json &step : list(d, "decoders", where))
        all.push_back(decoder(step, fmt::format("{}.decoders[{}]", where, all.size())));
      return allOf(std::move(all));
    }
    if (type == "ByteLevel")
      checkByteLevel(d, where);
    if (type == "ByteLevel" && !p->bytes)
      later("a decoder of type ByteLevel without a pre_tokenizer of that type");
    if (type == "Fuse" || type == "ByteLevel")
      return fuseDecoder();
    if (type == "ByteFallback")
      return byteFallbackDecoder();
    if (type == "Metaspace") {
      flag(d, "split", where, true);
      return metaspaceDecoder(word(d, "replacement", where), prependScheme(d, where) != PrependScheme::never);
    }
    if (type == "WordPiece")
      return wordPieceDecoder(word(d, "prefix", where), flag(d, "cleanup", where, true));
    if (type == "BPEDecoder")
      return bpeDecoder(word(d, "suffix", where));
    if (type == "Strip")
      return stripDecoder(word(d, "content", where), size_t(number(d, "start", where)),
                          size_t(number(d, "stop", where)));
    if (type == "Replace") {
      const Json &pattern = part(d, "pattern");
      const std::string content = word(d, "content", where);
      if (part(pattern, "Regex").is_string())
        return replaceDecoder(Regex(word(pattern, "Regex", where), fmt::format("{}: {}", file, where)), content);
      return replaceDecoder(word(pattern, "String", where + ".pattern"), content);
    }
    later("a decoder of type " + shown(type));
  }

  void readDecoder(const Json &d) {
    if (d.is_null()) {
      p->decoder = p->bytes ? nullptr : spacesBetween();
      return;
    }
    std::unique_ptr<Decoder> all = decoder(d, "decoder");
    const Json &type = part(d, "type");
    if (type != "Fuse" && !(p->bytes && type == "ByteLevel"))  // else a text is its tokens' bytes
      p->decoder = std::move(all);
  }

  const Json &j;
  const std::string &file, &end;
  std::unique_ptr<Pipeline> p;
  std::vector<AddedToken> added;
  std::set<std::string> contents;  // of the added tokens
  bool hasTemplate = false;        // a post-processor's
  VocabularyIds known;
};

}  // namespace

Tokenizer Tokenizer::fromJson(const std::string &text, const std::string &file, const std::string &end) {
  const Json j = parseJsonOrDiscard(text);
  if (j.is_discarded() || !j.is_object())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} is no tokenizer that gptc can use: it is not JSON", file),
                    "`gptc data prepare` writes one; a tokenizer.json of Hugging Face's `tokenizers` works too");
  return Tokenizer(JsonReader(j, file, end).read(text));
}

}  // namespace gptc
