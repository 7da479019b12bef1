#include "frontends/hf_folder.h"

#include "frontends/hf_tokens.h"
#include "frontends/own_config.h"
#include "frontends/tokenizer/json_parts.h"
#include "frontends/tokenizer/sentencepiece.h"
#include "frontends/tokenizer/tokenizer.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/gguf/gguf_file.h"
#include "support/json.h"

#include "llvm/ADT/STLExtras.h"

#include <filesystem>

namespace gptc {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr const char *const kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

ModelTokens ofVocabulary(const GgufVocabulary &v) {
  ModelTokens out;
  for (const int64_t id : {v.eos, v.eot})
    if (id >= 0 && !llvm::is_contained(out.ends, id))
      out.ends.push_back(int32_t(id));
  for (const auto &[role, id] : {std::pair("bos_token", v.bos), std::pair("pad_token", v.pad),
                                 std::pair("unk_token", v.unknown), std::pair("eos_token", v.eos)})
    if (id >= 0)
      out.named.emplace_back(role, v.tokens[size_t(id)]);
  out.chatTemplate = v.chatTemplate;
  return out;
}

/// Reads what the tokenizer's folder says of it. Other programs write these files, and people edit them.
class Tokens {
public:
  /// `initFrom`: model.init_from. Ids are below `vocabSize`.
  Tokens(const std::string &file, const std::string &initFrom, int64_t vocabSize) : file(file) {
    if (isGguf(file)) {
      takeFromGguf();
      return;
    }
    text = readInput(file, "tokenizer", kTokenizerLimit);
    tokenizer = parseJsonOrDiscard(text);
    if (!part(tokenizer, "model").is_object())
      convert(Tokenizer::load(file).file(), true, false);
    if (areJson())
      takeFromFolder();
    // Models for dialogue end an answer with a token of their own, which only the model's files name.
    const std::string folder = fs::path(file).parent_path().string(), weights = folderOfWeights(initFrom);
    const HfTokens beside = readHfTokens(folder, vocabSize);
    for (const int64_t id : beside.eos)
      if (!llvm::is_contained(ids.eos, id))
        ids.eos.push_back(id);
    addWhatIsMissing(beside);
    if (!weights.empty() && weights != folder)
      addWhatIsMissing(readHfTokens(weights, vocabSize));
  }

  /// False for a tokenizer that tokenizer.json cannot hold.
  bool areJson() const { return tokenizer.is_object(); }

  /// `takesSegments`: the model has the input token_type_ids. Without model_input_names transformers 4 gives it to all.
  /// How texts are cut and typed stays as it was, since a classifier has learned texts in that form.
  void write(int64_t context, bool takesSegments, std::map<std::string, std::string> &files) const {
    const json inputs = takesSegments && givesTypes ? json{"input_ids", "token_type_ids", "attention_mask"}
                                                    : json{"input_ids", "attention_mask"};
    json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"model_max_length", context},
                   {"model_input_names", inputs},
                   {"clean_up_tokenization_spaces", false}};
    if (truncationSide.is_string())
      config["truncation_side"] = truncationSide;
    config.update(special);
    if (!chatTemplate.is_null())
      config["chat_template"] = chatTemplate;
    files["tokenizer.json"] = text;
    files["tokenizer_config.json"] = written(config);
    files["special_tokens_map.json"] = written(special);
  }

  ModelTokens ofModel() const {
    ModelTokens out;
    for (const int64_t id : ids.eos)
      out.ends.push_back(int32_t(id));
    for (const auto &[role, text] : special.items())
      if (text.is_string())
        out.named.emplace_back(role, text.get<std::string>());
    out.chatTemplate = plainTemplate();
    return out;
  }

  static std::string written(const json &j) { return j.dump(2, ' ', false, json::error_handler_t::replace) + "\n"; }

  HfTokens ids;
  std::string problem;  // why tokenizer.json cannot hold it

private:
  const std::string file;
  std::string text;
  nlohmann::json tokenizer;  // sorted: members of an ordered_json are found one by one
  json special = json::object(), chatTemplate, truncationSide;
  bool givesTypes = true;  // so the texts of a pair are told apart

  void addWhatIsMissing(const HfTokens &said) {
    if (ids.eos.empty())
      ids.eos = said.eos;
    if (!ids.bos)
      ids.bos = said.bos;
    if (!ids.pad)
      ids.pad = said.pad;
  }

  /// Takes what was loaded as a tokenizer.json.
  void convert(const TokenizerFile &loaded, bool addBos, bool addEos) {
    text = loaded.name == "tokenizer.json" ? loaded.content : "";
    if (loaded.name == "tokenizer.model") {
      const SentencePieceModel m = parseSentencePiece(loaded.content, file);
      text = sentencePieceJson(m, addBos, addEos);
      problem = sentencePieceJsonProblem(m);
      for (size_t id = 0; id < m.pieces.size(); ++id)
        if (const SentencePieceModel::Piece &p = m.pieces[id]; p.type == SentencePieceModel::unknown) {
          special["unk_token"] = p.text;
        } else if (p.type == SentencePieceModel::control && p.text == m.bos) {
          special["bos_token"] = p.text;
          ids.bos = int64_t(id);
        } else if (p.type == SentencePieceModel::control && p.text == m.eos) {
          special["eos_token"] = p.text;
          ids.eos = {int64_t(id)};
        }
    } else if (text.empty()) {
      problem = "it ranks tokens, and names no pairs that merge";
    }
    tokenizer = parseJsonOrDiscard(text);
  }

  void takeFromFolder() {
    ids = {};
    const json beside = read("tokenizer_config.json");
    for (const char *role : kRoles)
      if (const std::string *token = tokenOfRole(beside, role))
        special[role] = *token;
    if (beside.is_null() && special.empty() && idOf(kEndOfText))
      special["bos_token"] = special["eos_token"] = kEndOfText;
    ids.bos = idOfRole("bos_token");
    ids.pad = idOfRole("pad_token");
    if (const auto eos = idOfRole("eos_token"))
      ids.eos.push_back(*eos);
    truncationSide = part(beside, "truncation_side");
    const json &inputs = part(beside, "model_input_names");
    givesTypes = !inputs.is_array() || llvm::any_of(inputs, [](const json &name) { return name == "token_type_ids"; });
    chatTemplate = part(beside, "chat_template");
    const fs::path jinja = fs::path(file).replace_filename("chat_template.jinja");
    if (std::error_code e; chatTemplate.is_null() && fs::exists(jinja, e))
      chatTemplate = readInput(jinja.string(), "chat template", kConfigLimit);
  }

  void takeFromGguf() {
    const GgufVocabulary v = requireVocabulary(file);
    convert(Tokenizer::fromGguf(v, file).file(), v.addBos, v.addEos);
    const ModelTokens said = ofVocabulary(v);
    special = json::object();
    for (const auto &[role, token] : said.named)
      special[role] = token;
    ids = {};
    ids.eos.assign(said.ends.begin(), said.ends.end());
    if (v.bos >= 0)
      ids.bos = v.bos;
    if (v.pad >= 0)
      ids.pad = v.pad;
    if (!said.chatTemplate.empty())
      chatTemplate = said.chatTemplate;
  }

  /// Of several templates the one for talking.
  std::string plainTemplate() const {
    if (chatTemplate.is_string())
      return chatTemplate.get<std::string>();
    for (const json &one : chatTemplate.is_array() ? chatTemplate : json::array())
      if (part(one, "name") == "default" && part(one, "template").is_string())
        return part(one, "template").get<std::string>();
    return "";
  }

  /// A file beside the tokenizer; null if there is none.
  json read(const char *name) const {
    const fs::path path = fs::path(file).replace_filename(name);
    if (std::error_code e; !fs::exists(path, e))
      return nullptr;
    json content = parseJsonOrDiscard<json>(readInput(path.string(), "description of the tokenizer", kConfigLimit));
    if (!content.is_object())
      throw UserError(ErrorCode::DataInvalid, fmt::format("{} is no JSON object", path.string()),
                      "copy it again from where the tokenizer is from, or remove it");
    return content;
  }

  std::optional<int64_t> idOf(const std::string &token) const {
    for (const auto &added : part(tokenizer, "added_tokens"))
      if (part(added, "content") == token && part(added, "id").is_number_unsigned())
        return part(added, "id").get<int64_t>();
    const auto &vocab = part(part(tokenizer, "model"), "vocab");
    if (const auto &id = part(vocab, token.c_str()); id.is_number_unsigned())
      return id.get<int64_t>();
    return std::nullopt;
  }

  std::optional<int64_t> idOfRole(const char *role) const {
    if (!special.contains(role))
      return std::nullopt;
    const std::string token = special.at(role);
    const std::optional<int64_t> id = idOf(token);
    if (!id)
      throw UserError(ErrorCode::DataInvalid,
                      fmt::format("{} is \"{}\" in {}, and the tokenizer {} has no such token", role, token,
                                  fs::path(file).replace_filename("tokenizer_config.json").string(), file),
                      "take both files from the same model");
    return id;
  }
};

}  // namespace

ModelTokens modelTokens(const std::string &file, const Tokenizer &tokenizer, const std::string &initFrom,
                        int64_t vocabSize) {
  ModelTokens out;
  if (std::error_code e; fs::is_regular_file(file, e))  // else the name of a pattern stands behind that of the file
    out = isGguf(file) ? ofVocabulary(requireVocabulary(file)) : Tokens(file, initFrom, vocabSize).ofModel();
  if (tokenizer.endOfText() >= 0 && !llvm::is_contained(out.ends, tokenizer.endOfText()))
    out.ends.push_back(tokenizer.endOfText());
  return out;
}

HfFolder describeFolder(const ModelConfig &model, const std::string &tokenizer, const std::string &initFrom,
                        const std::vector<std::string> &labels) {
  HfFolder folder;
  std::optional<Tokens> tokens;
  if (!tokenizer.empty())
    tokens.emplace(tokenizer, initFrom, model.vocabSize);
  const std::string weights = folderOfWeights(initFrom);
  const HfTokens ids = tokens ? tokens->ids : weights.empty() ? HfTokens() : readHfTokens(weights, model.vocabSize);
  HfDescription d = describeForHf(model, "float32", ids, labels);
  folder.files["config.json"] = std::move(d.config);
  folder.differing = std::move(d.differing);
  json generation;
  writeTokens(ids, generation);
  folder.files["generation_config.json"] = Tokens::written(generation);
  if (tokens && tokens->areJson())
    tokens->write(model.blockSize, d.family == "bert", folder.files);
  else if (tokens)
    folder.tokenizerProblem = tokens->problem;
  return folder;
}

}  // namespace gptc
