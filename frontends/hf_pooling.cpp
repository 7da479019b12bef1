#include "frontends/hf_pooling.h"

#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/words.h"

#include "llvm/ADT/StringRef.h"

#include <filesystem>
#include <utility>
#include <vector>

namespace gptc {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr size_t mostBytes = 1 << 20;
constexpr uint64_t mostTokens = 1 << 30;

[[noreturn]] void damaged(const std::string &file, const std::string &why) {
  throw UserError(
      ErrorCode::CheckpointDamaged, fmt::format("{}: {}", file, why),
      "copy it again from where the weights are from, or remove it; `gptrun embed --pooling` says what it would");
}

json contentOf(const std::string &file) {
  return parseJsonOrDiscard<json>(readInput(file, "configuration", mostBytes));
}

/// The one mode that is true; older files have a boolean for each, newer ones a word.
std::string poolingIn(const std::string &file) {
  const json config = contentOf(file);
  if (!config.is_object())
    damaged(file, "it is no JSON object");
  const std::pair<const char *, const char *> known[] = {
      {"mean", "mean"}, {"cls", "cls"}, {"cls_token", "cls"}, {"mean_tokens", "mean"}, {"lasttoken", "last"}};
  std::vector<std::string> modes;
  for (const auto &[key, value] : config.items())
    if (llvm::StringRef name = key; name.consume_front("pooling_mode")) {
      if (name.empty())
        modes.push_back(value.is_string() ? value.get<std::string>() : value.dump());
      else if (value == true)
        modes.push_back(name.drop_front().str());
    }
  if (modes.empty())
    damaged(file, "it names no pooling");
  std::string found;
  for (const auto &[theirs, ours] : known)
    if (modes.size() == 1 && modes[0] == theirs)
      found = ours;
  if (found.empty())
    throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: pooling by {}", file, quotedList(modes)),
                    "gptc knows mean, cls and last; --pooling says which to take instead");
  return found;
}

}  // namespace

HfPooling readHfPooling(const std::string &dir, bool pooling) {
  HfPooling found;
  std::error_code e;
  const std::string modules = (fs::path(dir) / "modules.json").string(),
                    limits = (fs::path(dir) / "sentence_bert_config.json").string(),
                    prompts = (fs::path(dir) / "config_sentence_transformers.json").string();
  if (fs::exists(modules, e)) {
    const json list = contentOf(modules);
    if (!list.is_array())
      damaged(modules, "it is no JSON array");
    for (const json &module : list) {
      const json &type = part(module, "type"), &path = part(module, "path");
      if (!type.is_string() || !path.is_string())
        damaged(modules, "a module has no type or no path");
      const std::string name = type.get<std::string>(), folder = path.get<std::string>();
      const llvm::StringRef kind = llvm::StringRef(name).substr(name.rfind('.') + 1);
      if (kind == "Pooling") {
        if (folder.empty() || folder.find('/') != std::string::npos || folder == "..")
          damaged(modules, fmt::format("the path {} is not beside it", folder));
        if (pooling)
          found.pooling = poolingIn((fs::path(dir) / folder / "config.json").string());
      } else if (kind == "Normalize") {
        found.normalized = true;
      } else if (kind != "Transformer") {
        throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: a module {}", modules, kind.str()),
                        "gptc knows Transformer, Pooling and Normalize");
      }
    }
  }
  if (fs::exists(limits, e)) {
    const json config = contentOf(limits);
    const json &most = part(config, "max_seq_length"), &lower = part(config, "do_lower_case");
    if (!config.is_object() || !(most.is_null() || (most.is_number_unsigned() && most > 0u && most <= mostTokens)))
      damaged(limits, "it says no number of tokens");
    if (!most.is_null())
      found.mostTokens = most.get<int64_t>();
    if (lower == true)
      throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: do_lower_case = true", limits),
                      "let the tokenizer's normalizer do so, and remove the key");
  }
  if (fs::exists(prompts, e)) {
    const json config = contentOf(prompts);
    const json &name = part(config, "default_prompt_name");
    if (!config.is_object() || !(name.is_null() || name.is_string()))
      damaged(prompts, "it is no such configuration");
    if (name.is_string()) {
      const json &text = part(part(config, "prompts"), name.get<std::string>().c_str());
      if (!text.is_string())
        damaged(prompts, fmt::format("it has no prompt {}", name.dump()));
      found.prompt = text.get<std::string>();
    }
  }
  return found;
}

}  // namespace gptc
