#include "frontends/gguf/vocabulary.h"

#include "frontends/gguf/sentencepiece_scores.h"
#include "frontends/tokenizer/json_parts.h"
#include "frontends/tokenizer/patterns.h"
#include "support/diagnostics.h"
#include "support/json.h"

#include "llvm/ADT/STLExtras.h"

#include <map>

namespace gptc {
namespace {

using json = nlohmann::json;

/// Whether a step of a pre-tokenizer makes bytes printable, and splits by GPT-2's pattern exactly if `splits`.
bool isByteLevel(const json &step, bool splits) {
  return part(step, "type") == "ByteLevel" && part(step, "add_prefix_space") != true &&
         (part(step, "use_regex") != false) == splits;
}

/// llama.cpp's name of the splitting that a pre-tokenizer does before BPE; "" if it has none.
std::string splittingOf(const json &pre, const json &normalizer, const json &model) {
  const bool ignoresMerges = part(model, "ignore_merges") == true;
  if (isByteLevel(pre, true))
    return normalizer.is_null() && !ignoresMerges ? "gpt-2" : "";
  const json &steps = part(pre, "pretokenizers");
  // Where nothing merges, nothing depends on where a text is split.
  if (isByteLevel(pre, false))
    return normalizer.is_null() && part(model, "merges").is_array() && part(model, "merges").empty() ? "gpt-2" : "";
  if (part(pre, "type") != "Sequence" || !steps.is_array() || steps.size() != 2)
    return "";
  const json &first = steps[0];
  if (part(first, "type") == "Digits" && part(first, "individual_digits") == true && isByteLevel(steps[1], true))
    return normalizer.is_null() && !ignoresMerges ? "smollm" : "";
  const bool isolates = part(first, "type") == "Split" && part(first, "behavior") == "Isolated" &&
                        part(first, "invert") != true && isByteLevel(steps[1], false);
  const json &pattern = part(part(first, "pattern"), "Regex");
  if (isolates && pattern == patterns::llama3 && normalizer.is_null() && ignoresMerges)
    return "llama-bpe";
  // llama.cpp leaves Qwen's normal form to its users, as it does for files that its own script writes.
  if (isolates && pattern == patterns::qwen2 && (normalizer.is_null() || part(normalizer, "type") == "NFC") &&
      !ignoresMerges)
    return "qwen2";
  if (isolates && (pattern == patterns::bloom || pattern == patterns::bloomFlat) && normalizer.is_null() &&
      !ignoresMerges)
    return "bloom";
  return "";
}

/// Reads the vocabulary of a tokenizer.json.
class Conversion {
public:
  Conversion(const std::map<std::string, std::string> &texts, const std::string &file, int64_t vocabSize,
             std::vector<std::string> *notes)
      : texts(texts), file(file), notes(notes) {
    v.model = "gpt2";
    v.tokens.resize(size_t(vocabSize));
    v.types.resize(size_t(vocabSize), GgufVocabulary::unused);
  }

  GgufVocabulary run() {
    const json j = parseJsonOrDiscard<json>(texts.at("tokenizer.json"));
    if (!j.is_object())
      bad("it is no JSON object");
    checkModel(j);
    takeTokens(part(part(j, "model"), "vocab"), part(j, "added_tokens"));
    const PieceMerges merges = mergesOf(part(part(j, "model"), "merges"));
    takeSpecialTokens();
    if (isOfCharacters())
      takeUnknown(part(part(j, "model"), "unk_token"));
    takeTemplate(part(j, "post_processor"));
    if (v.addBos && v.bos < 0)
      bad("the tokenizer_config.json beside it asks for a bos_token, and names none");
    for (size_t i = 0; i < v.tokens.size(); ++i)
      if (v.types[i] == GgufVocabulary::unused)
        v.tokens[i] = fmt::format("[PAD{}]", i);
    // llama.cpp takes a token by its number for the end of a text if the file names none: 11, or 2 of model llama.
    if (v.eos < 0) {
      const auto free = llvm::find(v.types, int32_t(GgufVocabulary::unused));
      if (free == v.types.end())
        later("no end-of-text token, without which llama.cpp would take another for it",
              "a tokenizer bpe:N of `gptc data prepare` has one; or make model.vocab_size larger by one");
      v.eos = free - v.types.begin();
      v.bos = v.bos < 0 ? v.eos : v.bos;
      *free = GgufVocabulary::control;
    }
    if (!isOfCharacters())
      writeMerges(merges);
    else if (const std::string problem = scoreByMerges(v, merges, file); !problem.empty())
      later(problem, "a folder (without --format gguf) holds it");
    return std::move(v);
  }

private:
  [[noreturn]] void bad(const std::string &why) const {
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} is no tokenizer that gptc can use: {}", file, why),
                    "`gptc data prepare` writes one");
  }
  [[noreturn]] void later(const std::string &what, const std::string &help) const {
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("{} has {}: as a vocabulary of GGUF it is not built yet", file, what), help);
  }

  bool isOfCharacters() const { return v.model == "llama"; }

  void checkModel(const json &j) {
    const json &model = part(j, "model"), &pre = part(j, "pre_tokenizer"), &normalizer = part(j, "normalizer");
    constexpr const char *works = "byte-level BPE works today, and BPE of SentencePiece with byte_fallback";
    if (part(model, "type") != "BPE")
      later(part(model, "type").is_string() ? fmt::format("a model {}", part(model, "type").get<std::string>())
                                            : "no model",
            works);
    if (part(model, "byte_fallback") == true) {
      const auto first = firstSpaceOf(j);
      if (!first || part(model, "ignore_merges") == true)
        later("a BPE of characters that splits or changes texts (normalizer, pre_tokenizer, ignore_merges)", works);
      v.model = "llama";
      v.pre = "default";
      takeFirstSpace(*first);
    } else if (part(pre, "type") == "Metaspace" || (pre.is_null() && !normalizer.is_null())) {
      later("pieces of characters, as SentencePiece makes them, without byte_fallback", works);
    } else {
      v.pre = splittingOf(pre, normalizer, model);
    }
    if (v.pre.empty())
      later("a splitting that llama.cpp has no name for (normalizer, pre_tokenizer, ignore_merges)",
            "GPT-2's works, which `gptc data prepare --tokenizer bpe:N` uses, and those of SmolLM, Llama 3, Qwen2 and "
            "BLOOM");
    for (const char *name : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
      if (const json &value = part(model, name); !value.is_null() && value != "" && value != 0)
        if (!isOfCharacters() || name != llvm::StringRef("unk_token"))
          later(name, "BPE without it works today");
  }

  void takeFirstSpace(FirstSpace first) {
    v.addSpacePrefix = first != FirstSpace::none;
    isPrepended = first == FirstSpace::always;
    if (first == FirstSpace::unlessThere && notes)
      notes->push_back("llama.cpp puts a space before a text that begins with one too, and behind tokens that stand "
                       "beside the vocabulary");
  }

  /// What stands for unknown text, and the bytes that spell it.
  void takeUnknown(const json &name) {
    const auto it = name.is_string() ? ids.find(name.get<std::string>()) : ids.end();
    if (it == ids.end())
      later("a BPE of characters without unk_token", "name one: with byte_fallback no text becomes it");
    v.unknown = it->second;
    v.types[size_t(v.unknown)] = GgufVocabulary::unknownToken;
    for (int b = 0; b < 256; ++b) {
      const std::string byte = fmt::format("<0x{:02X}>", b);
      const auto id = ids.find(byte);
      if (id == ids.end() || v.types[size_t(id->second)] != GgufVocabulary::normal)
        later(fmt::format("byte_fallback without a piece {}", byte), "a vocabulary needs all 256 of them");
      v.types[size_t(id->second)] = GgufVocabulary::byte;
    }
  }

  /// The entry of an id, which must be one of the model's and free.
  void place(const json &id, const std::string &token, GgufVocabulary::TokenType type) {
    if (!id.is_number_integer() || id < 0)
      bad("an id is no number of a token");
    if (id >= int64_t(v.tokens.size()))
      throw UserError(
          ErrorCode::ShapeMismatch,
          fmt::format("{}: token {} is beyond the model's vocabulary of {}", file, id.get<int64_t>(), v.tokens.size()),
          "take the tokenizer that the model was trained with");
    const size_t i = id.get<size_t>();
    if (v.types[i] != GgufVocabulary::unused && v.tokens[i] != token)
      bad(fmt::format("two tokens have the number {}", i));
    v.tokens[i] = token;
    v.types[i] = type;
    ids[token] = int64_t(i);
  }

  void takeTokens(const json &vocab, const json &added) {
    if (!vocab.is_object() || vocab.empty())
      bad("model.vocab is missing");
    for (const auto &[token, id] : vocab.items())
      place(id, token, GgufVocabulary::normal);
    if (added.is_array())
      for (const json &a : added)
        if (const json &content = part(a, "content"); content.is_string()) {
          const bool special = part(a, "special") == true;
          place(part(a, "id"), content, special ? GgufVocabulary::control : GgufVocabulary::userDefined);
          checkFlags(a, content, special);
        }
  }

  /// A vocabulary of GGUF has no place for these flags. They count in any text for what is no control token, and only
  /// where control tokens are looked for, as in templates of dialogue, for what is one.
  void checkFlags(const json &added, const std::string &content, bool special) const {
    for (const char *flag : {"lstrip", "rstrip", "single_word", "normalized"}) {
      const json &value = part(added, flag);
      // With the space that a normalizer prepends, a token is found behind a space only.
      const bool isNormalized = flag == llvm::StringRef("normalized");
      if (isNormalized ? !isPrepended || !(value.is_null() ? !special : value == true) : value != true)
        continue;
      if (!special)
        later(fmt::format("the token \"{}\" with {}", content, flag),
              "without the flag llama.cpp would give other tokens; a folder (without --format gguf) holds it");
      if (notes)
        notes->push_back(
            fmt::format("the control token \"{}\" loses its {}, for which GGUF has no key", content, flag));
    }
  }

  PieceMerges mergesOf(const json &merges) const {
    if (!merges.is_array())
      bad("model.merges is missing");
    PieceMerges all;
    for (const json &m : merges) {
      const bool pair = m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string();
      if (!pair && (!m.is_string() || llvm::StringRef(m.get_ref<const std::string &>()).count(' ') != 1))
        bad(fmt::format("merge {} is no pair", all.size()));
      if (pair) {
        all.emplace_back(m[0].get<std::string>(), m[1].get<std::string>());
      } else {
        const auto [left, right] = llvm::StringRef(m.get_ref<const std::string &>()).split(' ');
        all.emplace_back(left.str(), right.str());
      }
    }
    return all;
  }

  void writeMerges(const PieceMerges &merges) {
    for (const auto &[left, right] : merges) {
      if (llvm::StringRef(left).contains(' ') || llvm::StringRef(right).contains(' '))
        bad(fmt::format("merge {} is no pair of byte-level pieces", v.merges.size()));  // bytes of spaces are printable
      v.merges.push_back(fmt::format("{} {}", left, right));
    }
  }

  json beside(const char *name) const {
    const auto text = texts.find(name);
    if (text == texts.end())
      return json::object();
    json j = parseJsonOrDiscard<json>(text->second);
    if (!j.is_object())
      throw UserError(ErrorCode::DataInvalid, fmt::format("the {} beside {} is no JSON object", name, file),
                      "copy it again from where the tokenizer is from");
    return j;
  }

  /// The id of a token that a tokenizer_config.json names; -1 if it names none.
  int64_t idOf(const json &config, const char *role) const {
    const std::string *text = tokenOfRole(config, role);
    if (!text)
      return -1;
    const auto it = ids.find(*text);
    if (it == ids.end())
      bad(fmt::format("{} of the tokenizer_config.json beside it is no token", role));
    return it->second;
  }

  void takeSpecialTokens() {
    const json config = beside("tokenizer_config.json"), generation = beside("generation_config.json");
    v.bos = idOf(config, "bos_token");
    v.eos = idOf(config, "eos_token");
    v.unknown = idOf(config, "unk_token");
    v.pad = idOf(config, "pad_token");
    // A model that ends its turns otherwise than its texts has several end tokens.
    std::vector<int64_t> ends;
    auto token = [&](const json &id, const char *key) {
      if (!id.is_number_integer() || id < 0 || id >= int64_t(v.tokens.size()))
        bad(fmt::format("{} of the generation_config.json beside it is no token", key));
      return id.get<int64_t>();
    };
    const json &listed = part(generation, "eos_token_id");
    for (const json &id : listed.is_array() ? listed : listed.is_null() ? json::array() : json::array({listed}))
      ends.push_back(token(id, "eos_token_id"));
    if (const json &id = part(generation, "bos_token_id"); v.bos < 0 && !id.is_null())
      v.bos = token(id, "bos_token_id");
    if (const json &id = part(generation, "pad_token_id"); v.pad < 0 && !id.is_null())
      v.pad = token(id, "pad_token_id");
    if (!ends.empty() && (v.eos < 0 || !llvm::is_contained(ends, v.eos)))
      v.eos = ends[0];
    for (const int64_t id : ends)
      if (id != v.eos && v.eot < 0)
        v.eot = id;
    if (const auto end = ids.find(kEndOfText); end != ids.end() && v.eos < 0) {
      v.eos = end->second;
      v.bos = v.bos < 0 ? v.eos : v.bos;
    }
    v.addBos = part(config, "add_bos_token") == true;
    v.addEos = part(config, "add_eos_token") == true;
    if (const json &chat = part(config, "chat_template"); chat.is_string())
      v.chatTemplate = chat;
    if (const auto own = texts.find("chat_template.jinja"); own != texts.end())
      v.chatTemplate = own->second;
  }

  /// What a template puts around a text.
  void takeTemplate(const json &post) {
    if (part(post, "type") == "Sequence" && part(post, "processors").is_array())
      for (const json &step : part(post, "processors"))
        takeTemplate(step);
    const json &type = part(post, "type"), &single = part(post, "single");
    if (type == "RobertaProcessing" || type == "BertProcessing")
      later(type, "byte-level BPE with a TemplateProcessing works");
    if (type != "TemplateProcessing" || !single.is_array() || single.empty())
      return;
    auto tokenAt = [&](const json &place) {
      const json &name = part(part(place, "SpecialToken"), "id");
      const auto it = name.is_string() ? ids.find(name.get<std::string>()) : ids.end();
      return it == ids.end() ? -1 : it->second;
    };
    std::vector<int64_t> around[2];  // before the text and behind it
    bool behind = false;
    for (const json &place : single)
      if (const int64_t token = tokenAt(place); token >= 0)
        around[behind].push_back(token);
      else
        behind = true;
    if (around[0].size() > 1 || around[1].size() > 1 || (!around[1].empty() && around[1][0] != v.eos))
      later("a post_processor that puts more around a text than one token before it and the end of text behind it",
            "llama.cpp adds no other tokens; make the template shorter, or export a folder");
    if (!around[0].empty()) {
      v.bos = around[0][0];
      v.addBos = true;
    }
    v.addEos = v.addEos || !around[1].empty();
  }

  const std::map<std::string, std::string> &texts;
  const std::string &file;
  std::vector<std::string> *notes;
  GgufVocabulary v;
  bool isPrepended = false;  // a normalizer puts the first space
  std::map<std::string, int64_t, std::less<>> ids;
};

}  // namespace

GgufVocabulary vocabularyOf(const std::map<std::string, std::string> &texts, const std::string &file, int64_t vocabSize,
                            std::vector<std::string> *notes) {
  return Conversion(texts, file, vocabSize, notes).run();
}

}  // namespace gptc
