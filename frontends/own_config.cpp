#include "frontends/own_config.h"

#include "ir/settings/model_keys.h"
#include "support/json_problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

json valueOf(const Member &member) {
  return std::visit(
      [](auto m) -> json {
        using M = decltype(m);
        if constexpr (std::is_same_v<M, std::monostate> || std::is_same_v<M, PatternList *>)  // none of [model]
          return nullptr;
        else if constexpr (std::is_same_v<M, WordMember>)
          return m.word();
        else if constexpr (std::is_same_v<M, NumberPair>)
          return json::array({*m.first, *m.second});
        else if constexpr (requires { m->has_value(); })
          return m->has_value() ? json(**m) : json();
        else
          return *m;
      },
      member);
}

}  // namespace

json modelValues(const ModelConfig &model) {
  Settings s;
  s.model = model;
  json values;
  for (const Setting &key : keysOf(s))
    if (saysWhatIsComputed(key))  // only a family's model has labels
      values[key.leaf()] = valueOf(key.member);
  return values;
}

void writeTokens(const HfTokens &t, json &config) {
  config["bos_token_id"] = t.bos ? json(*t.bos) : json();
  config["eos_token_id"] = t.eos.empty() ? json() : t.eos.size() == 1 ? json(t.eos[0]) : json(t.eos);
  config["pad_token_id"] = t.pad ? json(*t.pad) : json();
}

std::string ownConfig(const ModelConfig &model, const std::string &dtype, const HfTokens &tokens,
                      const std::vector<std::string> &differing) {
  json c = {{"model_type", kOwnModelType}, {kNoFamilyHolds, differing}};
  c.update(modelValues(model));
  writeTokens(tokens, c);
  c["dtype"] = dtype;
  return c.dump(2) + "\n";
}

std::vector<Diagnostic> compareOwnConfig(const std::string &file, const nlohmann::json &config,
                                         const ModelConfig &model) {
  std::vector<Diagnostic> found;
  const nlohmann::json ours = modelValues(model), absent = modelValues(ModelConfig());
  for (const auto &[key, here] : ours.items()) {
    const nlohmann::json there = config.contains(key) ? config.at(key) : absent.at(key);
    if (there != here)
      found.push_back({ErrorCode::Contradiction,
                       fmt::format("{}: {} = {}, but model.{} = {}", file, key, shown(there), key, shown(here)),
                       {},
                       "",
                       {fmt::format("write {} = {} in [model], or take weights of another model", key, shown(there))}});
  }
  const char *const others[] = {"model_type", kNoFamilyHolds, "dtype", "bos_token_id", "eos_token_id", "pad_token_id"};
  for (const auto &[key, value] : config.items())
    if (!ours.contains(key) && !llvm::is_contained(others, llvm::StringRef(key)))
      found.push_back({ErrorCode::UnknownKey,
                       fmt::format("{}: unknown key {} = {}", file, key, shown(value)),
                       {},
                       "",
                       {"a newer gptc wrote it: it may change what the model computes"}});
  return found;
}

}  // namespace gptc
