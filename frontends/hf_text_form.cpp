#include "frontends/hf_text_form.h"

#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/json_problem.h"

#include <filesystem>

namespace gptc {

namespace {

using json = nlohmann::json;

constexpr uint64_t mostTokens = 1 << 30;
constexpr const char *mend = "copy it again from where the weights are from, or correct the key";

[[noreturn]] void damaged(const std::string &file, const std::string &why) {
  throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {}", file, why), mend);
}

/// The file of the folder; null if there is none.
json contentOf(const std::string &file, size_t limit) {
  if (std::error_code e; !std::filesystem::is_regular_file(file, e))
    return {};
  return objectInFile(readInput(file, "description of the tokenizer", limit), file, mend);
}

/// Files say 10^30, which is no integer to us, where any length will do.
int64_t lengthIn(const std::string &file, const json &config) {
  const bool older = part(config, "model_max_length").is_null();
  const char *const key = older ? "max_len" : "model_max_length";
  const json &length = part(config, key);
  if (length.is_null() || (length.is_number() && length > mostTokens))
    return 0;
  if (!length.is_number_unsigned() || length < 1u)
    damaged(file, fmt::format("{} is {}, and no number of tokens", key, length.dump()));
  return length.get<int64_t>();
}

bool isLeft(const std::string &file, const char *key, const json &side) {
  if (side != "left" && side != "Left" && side != "right" && side != "Right")
    damaged(file, fmt::format("{} is {}, neither left nor right", key, side.dump()));
  return side == "left" || side == "Left";
}

bool hasTypes(const std::string &file, const json &config) {
  const json &names = part(config, "model_input_names");
  if (names.is_null())
    return true;
  if (!names.is_array())
    damaged(file, fmt::format("model_input_names is {}, and no list", names.dump()));
  bool has = false;
  for (const json &name : names)
    has |= name == "token_type_ids";
  return has;
}

}  // namespace

TextForm readHfTextForm(const std::string &dir) {
  const std::filesystem::path folder = dir;
  const std::string beside = (folder / "tokenizer_config.json").string(), own = (folder / "tokenizer.json").string();
  const json config = contentOf(beside, kConfigLimit);
  TextForm form;
  form.most = lengthIn(beside, config);
  form.hasTypes = hasTypes(beside, config);
  if (const json &side = part(config, "truncation_side"); !side.is_null()) {
    form.cutsBeginnings = isLeft(beside, "truncation_side", side);
  } else {
    const json tokenizer = contentOf(own, kTokenizerLimit);
    if (const json &direction = part(part(tokenizer, "truncation"), "direction"); !direction.is_null())
      form.cutsBeginnings = isLeft(own, "truncation.direction", direction);
  }
  return form;
}

TextForm textFormBeside(const std::string &tokenizer) {
  return readHfTextForm(std::filesystem::path(tokenizer).parent_path().string());
}

}  // namespace gptc
