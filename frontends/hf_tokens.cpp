#include "frontends/hf_tokens.h"

#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json_problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <filesystem>

namespace gptc {

namespace fs = std::filesystem;
using json = nlohmann::json;

HfTokens readHfTokens(const std::string &folder, int64_t vocabSize) {
  HfTokens found;
  for (const char *name : {"generation_config.json", "config.json"}) {
    const std::string file = (fs::path(folder) / name).string();
    if (std::error_code e; !fs::exists(file, e))
      continue;
    const auto config = parseJsonOrDiscard<json>(readInput(file, "configuration", kConfigLimit));
    if (!config.is_object())
      throw UserError(ErrorCode::DataInvalid, fmt::format("{} is no JSON object", file),
                      "copy it again from where the weights are from, or remove it");
    auto idsOf = [&](const char *key, bool mayBeSeveral) {
      const json &said = part(config, key);
      const bool isList = mayBeSeveral && said.is_array();
      std::vector<int64_t> ids;
      for (const json &id : isList ? said : said.is_null() ? json::array() : json::array({said})) {
        if (id == -1 && said == -1 && llvm::StringRef(key) == "pad_token_id")
          continue;  // Llama's first configurations
        if (!id.is_number_unsigned())
          throw UserError(
              ErrorCode::DataInvalid,
              fmt::format("{}: {} is {}, and the model's tokens are 0 to {}", file, key, shown(said), vocabSize - 1),
              "correct the key, or write null for none");
        // transformers writes its defaults, as 50256, for smaller vocabularies too: no text has that token.
        if (id.get<uint64_t>() < uint64_t(vocabSize) && !llvm::is_contained(ids, id.get<int64_t>()))
          ids.push_back(id.get<int64_t>());
      }
      return ids;
    };
    const std::vector<int64_t> eos = idsOf("eos_token_id", true), bos = idsOf("bos_token_id", false),
                               pad = idsOf("pad_token_id", false);
    if (found.eos.empty())
      found.eos = eos;
    if (!found.bos && !bos.empty())
      found.bos = bos[0];
    if (!found.pad && !pad.empty())
      found.pad = pad[0];
  }
  return found;
}

std::string folderOfWeights(const std::string &initFrom) {
  const auto [kind, path] = llvm::StringRef(initFrom).split(':');
  if (kind != "hf" || path.empty())
    return "";
  std::error_code e;
  return fs::is_regular_file(path.str(), e) ? fs::path(path.str()).parent_path().string() : path.str();
}

}  // namespace gptc
