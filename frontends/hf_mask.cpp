#include "frontends/hf_mask.h"

#include "frontends/hf/family.h"
#include "frontends/hf_folder.h"
#include "frontends/tokenizer/tokenizer.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/json_problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <filesystem>
#include <optional>

namespace gptc {

namespace {

using json = nlohmann::json;

/// The classes of the models that gptc takes: "BertForMaskedLM".
std::vector<std::string> knownClasses() {
  std::vector<std::string> known;
  for (const hf::Family &f : hf::families())
    if (llvm::StringRef(f.architecture).ends_with("ForMaskedLM"))
      known.push_back(f.architecture);
  return known;
}

bool hasMaskedHead(const json &name) {
  if (!name.is_string())
    return false;
  const llvm::StringRef text = name.get_ref<const std::string &>();
  return text.ends_with("ForMaskedLM") || text.ends_with("ForPreTraining");
}

/// The id of a token: of several with one text that of the first control token, else of the first.
std::optional<int32_t> idOf(const Tokenizer &tokenizer, const std::string &text) {
  std::optional<int32_t> found;
  for (int32_t id = 0; id < int32_t(tokenizer.vocabSize()); ++id)
    if (tokenizer.text(id) == text && (!found || (tokenizer.isControl(id) && !tokenizer.isControl(*found))))
      found = id;
  return found;
}

}  // namespace

void requireMaskedHead(const std::string &dir, bool causal) {
  const std::string file = (std::filesystem::path(dir) / "config.json").string();
  const json config = objectInFile(readInput(file, "configuration", kConfigLimit), file,
                                   "copy it again from where the weights are from");
  const json &names = part(config, "architectures");
  const bool namesNone = names.is_null() || (names.is_array() && names.empty());
  if (!causal && (namesNone || (names.is_array() && llvm::any_of(names, hasMaskedHead))))
    return;
  throw UserError(
      ErrorCode::Contradiction,
      fmt::format("{}: no head for masked tokens, architectures is {}", file, namesNone ? "missing" : names.dump()),
      fmt::format("take a model of {}; `gptrun {}` takes this one", fmt::join(knownClasses(), " or "),
                  causal ? "sample" : "embed"));
}

MaskToken maskTokenOf(const Tokenizer &tokenizer, const std::string &file, const std::string &initFrom,
                      int64_t vocabSize) {
  std::vector<std::string> texts = {"[MASK]", "<mask>"};
  bool isNamed = false;
  for (const auto &[role, text] : modelTokens(file, tokenizer, initFrom, vocabSize).named)
    if (role == "mask_token") {
      texts = {text};
      isNamed = true;
    }
  MaskToken mask;
  for (const std::string &text : texts)
    if (const std::optional<int32_t> id = idOf(tokenizer, text); id && mask.id < 0)
      mask = {.text = text, .id = *id};
  if (mask.id < 0)
    throw UserError(ErrorCode::Contradiction,
                    isNamed ? fmt::format("the tokenizer {} has no token {:?}, which is the mask_token of "
                                          "tokenizer_config.json",
                                          file, texts[0])
                            : fmt::format("the tokenizer {} names no mask_token, and has neither {} nor {}", file,
                                          texts[0], texts[1]),
                    "take tokenizer.json and tokenizer_config.json of the same model");
  try {
    mask.isParsed = tokenizer.encode(mask.text, {.parseSpecial = true}) == std::vector<int32_t>{mask.id};
  } catch (const UserError &) {  // it knows the token, and not its characters
  }
  return mask;
}

}  // namespace gptc
