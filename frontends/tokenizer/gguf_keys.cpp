// Vocabularies of GGUF files: their keys.
#include "frontends/tokenizer/gguf_vocabulary.h"
#include "support/diagnostics.h"
#include "support/gguf/gguf_file.h"

#include <fmt/format.h>

namespace gptc {
namespace {

struct SpecialId {
  const char *key;
  int64_t GgufVocabulary::*id;
};
constexpr SpecialId kIds[] = {{"tokenizer.ggml.bos_token_id", &GgufVocabulary::bos},
                              {"tokenizer.ggml.eos_token_id", &GgufVocabulary::eos},
                              {"tokenizer.ggml.eot_token_id", &GgufVocabulary::eot},
                              {"tokenizer.ggml.unknown_token_id", &GgufVocabulary::unknown},
                              {"tokenizer.ggml.padding_token_id", &GgufVocabulary::pad}};

struct Flag {
  const char *key;
  bool GgufVocabulary::*value;
};
constexpr Flag kFlags[] = {{"tokenizer.ggml.add_bos_token", &GgufVocabulary::addBos},
                           {"tokenizer.ggml.add_eos_token", &GgufVocabulary::addEos},
                           {"tokenizer.ggml.add_space_prefix", &GgufVocabulary::addSpacePrefix}};

}  // namespace

std::optional<GgufVocabulary> readVocabulary(const GgufFile &file) {
  GgufVocabulary v;
  v.model = file.text("tokenizer.ggml.model").value_or("no_vocab");
  if (v.model == "no_vocab")
    return std::nullopt;
  v.pre = file.text("tokenizer.ggml.pre").value_or("");
  v.tokens = file.texts("tokenizer.ggml.tokens").value_or(std::vector<std::string>());
  v.merges = file.texts("tokenizer.ggml.merges").value_or(std::vector<std::string>());
  if (v.tokens.empty())
    file.damaged("tokenizer.ggml.tokens is missing or empty");
  auto requireLength = [&](const char *key, size_t n) {
    if (n != v.tokens.size())
      file.damaged(fmt::format("{} has {} entries for {} tokens", key, n, v.tokens.size()));
  };
  if (const auto scores = file.numbers("tokenizer.ggml.scores")) {
    requireLength("tokenizer.ggml.scores", scores->size());
    for (const double score : *scores)
      v.scores.push_back(float(score));
  }
  v.types.assign(v.tokens.size(), GgufVocabulary::normal);
  if (const auto types = file.integers("tokenizer.ggml.token_type")) {
    requireLength("tokenizer.ggml.token_type", types->size());
    for (size_t i = 0; i < types->size(); ++i) {
      if ((*types)[i] < GgufVocabulary::normal || (*types)[i] > GgufVocabulary::byte)
        file.damaged(fmt::format("tokenizer.ggml.token_type has {}, which is no type of token", (*types)[i]));
      v.types[i] = int32_t((*types)[i]);
    }
  }
  for (const SpecialId &s : kIds) {
    v.*s.id = file.integer(s.key).value_or(-1);
    if (file.has(s.key) && (v.*s.id < 0 || v.*s.id >= int64_t(v.tokens.size())))
      file.damaged(fmt::format("{} = {} is no token", s.key, v.*s.id));
  }
  // What llama.cpp takes where a file does not say it.
  const bool sentences = v.model == "llama",
             ofLlama3 = v.pre == "llama-bpe" || v.pre == "llama3" || v.pre == "llama-v3";
  v.addBos = sentences || (v.model == "gpt2" && ofLlama3);
  v.addSpacePrefix = sentences;
  for (const Flag &f : kFlags)
    v.*f.value = file.boolean(f.key).value_or(v.*f.value);
  v.chatTemplate = file.text("tokenizer.chat_template").value_or("");
  return v;
}

GgufVocabulary requireVocabulary(const std::string &path) {
  std::optional<GgufVocabulary> v = readVocabulary(GgufFile(path));
  if (!v)
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} has no vocabulary", path),
                    "name the tokenizer.json of its model");
  return *std::move(v);
}

void addVocabulary(GgufKeys &keys, const GgufVocabulary *v) {
  keys.emplace_back("tokenizer.ggml.model", v ? v->model : std::string("no_vocab"));
  if (!v)
    return;
  if (!v->pre.empty())
    keys.emplace_back("tokenizer.ggml.pre", v->pre);
  keys.emplace_back("tokenizer.ggml.tokens", v->tokens);
  if (!v->scores.empty())
    keys.emplace_back("tokenizer.ggml.scores", v->scores);
  keys.emplace_back("tokenizer.ggml.token_type", v->types);
  if (!v->merges.empty() || v->model == "gpt2")
    keys.emplace_back("tokenizer.ggml.merges", v->merges);
  for (const SpecialId &s : kIds)
    if (v->*s.id >= 0)
      keys.emplace_back(s.key, uint32_t(v->*s.id));
  for (const Flag &f : kFlags)
    keys.emplace_back(f.key, v->*f.value);
  if (!v->chatTemplate.empty())
    keys.emplace_back("tokenizer.chat_template", v->chatTemplate);
}

}  // namespace gptc
