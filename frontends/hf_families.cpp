#include "frontends/hf_families.h"

#include "frontends/hf/read.h"
#include "frontends/hf/write.h"
#include "frontends/label_names.h"
#include "frontends/own_config.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/json_problem.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <filesystem>

namespace gptc {

namespace {

namespace fs = std::filesystem;
using hf::json;

constexpr const char *biases[] = {"qkv_bias", "attention_bias", "mlp_bias"};

/// Whether it is a checkpoint of ours, whose manifest says more: loading compares that.
bool isCheckpoint(const fs::path &folder) {
  constexpr size_t limit = 64 << 20;
  const json manifest = parseJsonOrDiscard<json>(readTextFile(folder / "manifest.json", limit).text);
  return manifest.is_object() && manifest.contains("model_keys");
}

/// The content of a config.json with its model_type. Throws UserErrors CheckpointDamaged and MissingKey.
json contentOf(const std::string &text, const std::string &file) {
  json config = objectInFile(text, file, "copy it again from where the weights are from");
  if (!config.contains("model_type"))
    throw UserError(ErrorCode::MissingKey, fmt::format("{} does not say model_type", file),
                    fmt::format("{} work today", hf::familyNames()));
  return config;
}

/// Throws UserError(NotBuiltYet) for another model_type than a family's.
const hf::Family &familyIn(const std::string &file, const json &config) {
  const json &type = config.at("model_type");
  const hf::Family *family = type.is_string() ? hf::findFamily(type.get<std::string>()) : nullptr;
  if (!family)
    throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: model_type = {} is not built yet", file, shown(type)),
                    fmt::format("{} work today", hf::familyNames()));
  return *family;
}

/// Compares what config.json says with a model, one error for each key of [model].
class Comparison {
public:
  Comparison(const std::string &file, const hf::Family &family, hf::Reading there, const ModelConfig &model)
      : file(file), family(family), said(std::move(there)), here(hf::valuesOf(model)) {}

  std::vector<Diagnostic> run() {
    positions();
    const hf::ModelValues there = said.values();
    auto differs = [&](const std::string &key) {
      const auto s = said.said.find(key);
      // A value that follows here from the same keys as there needs no comparison.
      return s != said.said.end() && !hf::isSame(there.at(key), here.at(key)) &&
             !(s->second.derived && hf::isSame(s->second.derived(here), here.at(key)));
    };
    const bool norms = there.count("norm") && there.at("norm") == "layernorm" && here.at("norm") == "layernorm";
    const bool bias = llvm::all_of(biases, differs) && (!norms || differs("norm_bias"));
    if (bias)
      differ(fmt::format("model_type = \"{}\" has bias = {}", family.name, shown(there.at("mlp_bias"))), "bias",
             there.at("mlp_bias"), here.at("mlp_bias"));
    for (const std::string &key : hf::modelKeys()) {
      const bool isBias = llvm::is_contained(biases, key) || key == "norm_bias";
      if (differs(key) && !(isBias && bias) && !(key == "norm_bias" && !norms))
        differ(said.said.find(key)->second.what, key, there.at(key), here.at(key));
    }
    found.insert(found.end(), said.problems.begin(), said.problems.end());
    return std::move(found);
  }

private:
  void add(ErrorCode code, const std::string &what, std::string help) {
    found.push_back({code, fmt::format("{}: {}", file, what), {}, "", {std::move(help)}});
  }

  void differ(const std::string &what, const std::string &key, const json &there, const json &ours) {
    add(ErrorCode::Contradiction, fmt::format("{}, but model.{} = {}", what, key, shown(ours)),
        fmt::format("write {} = {} in [model], or take weights of another model", key, shown(there)));
  }

  /// A model may have fewer positions: of a table it takes the first rows.
  void positions() {
    hf::Said &n = said.said["block_size"];
    const json &block = here.at("block_size");
    if (*family.positions && (!n.value.is_number_integer() || n.value < block))
      add(ErrorCode::Contradiction, fmt::format("{}, but model.block_size = {}", n.what, shown(block)),
          fmt::format("write block_size = {} in [model], or less", shown(n.value)));
    n.value = block;
  }

  const std::string &file;
  const hf::Family &family;
  hf::Reading said;
  const hf::ModelValues here;
  std::vector<Diagnostic> found;
};

/// Biases as a person writes them: `bias`, and the other keys where they differ from it.
void settleBiases(ModelConfig &m) {
  m.bias = m.mlpBias.value_or(m.bias);
  for (std::optional<bool> *own : {&m.qkvBias, &m.attentionBias, &m.mlpBias, &m.normBias})
    if (*own == m.bias || (own == &m.normBias && m.norm == Norm::rmsnorm))
      own->reset();
}

/// Makes it the description of the family's classifier of texts.
void writeLabels(const hf::Family &family, const std::vector<std::string> &labels, const ModelConfig &model,
                 nlohmann::ordered_json &config) {
  GPTC_CHECK(family.classifier, "a classifier of the family {}", family.name);
  nlohmann::ordered_json byNumber = nlohmann::ordered_json::object(), byName = byNumber;
  for (size_t i = 0; i < labels.size(); ++i) {
    byNumber[std::to_string(i)] = labels[i];
    byName[labels[i]] = i;
  }
  config["architectures"] = {family.classifier};
  if (family.choosesVector)
    config["classifier_pooling"] = nameOf(model.classifierPooling);
  config["id2label"] = std::move(byNumber);
  config["label2id"] = std::move(byName);
  config["problem_type"] = nameOf(model.problemType);
}

}  // namespace

HfDescription describeForHf(const ModelConfig &model, const std::string &dtype, const HfTokens &tokens,
                            const std::vector<std::string> &labels) {
  const hf::ModelValues values = hf::valuesOf(model);
  HfDescription d;
  for (const hf::Family &f : hf::families()) {
    std::vector<std::string> differing = hf::differingKeys(f, values);
    if (differing.empty()) {
      nlohmann::ordered_json config = hf::write(f, values, model.dropout);
      if (model.labels)
        writeLabels(f, labels.empty() ? numberedLabels(size_t(model.labels)) : labels, model, config);
      writeTokens(tokens, config);
      // transformers 4 reads the first, transformers 5 the second.
      config["torch_dtype"] = dtype;
      config["dtype"] = dtype;
      return {f.name, {}, config.dump(2) + "\n"};
    }
    // An RMS norm has no bias.
    if (llvm::is_contained(differing, "norm"))
      llvm::erase(differing, "norm_bias");
    auto isBias = [](const std::string &key) { return llvm::is_contained(biases, key) || key == "norm_bias"; };
    if (llvm::count_if(differing, isBias) >= 3) {
      const auto first = llvm::find_if(differing, isBias);
      *first = "bias";
      differing.erase(std::remove_if(first + 1, differing.end(), isBias), differing.end());
    }
    if (d.differing.empty() || differing.size() < d.differing.size())
      d.differing = std::move(differing);
  }
  d.config = ownConfig(model, dtype, tokens, d.differing);
  return d;
}

ModelConfig readHfConfig(const std::string &dir, int64_t *context) {
  const std::string file = (fs::path(dir) / "config.json").string();
  return readHfConfigText(readInput(file, "configuration", kConfigLimit), file, context);
}

ModelConfig readHfConfigText(const std::string &text, const std::string &file, int64_t *context) {
  const json config = contentOf(text, file);
  hf::Reading there = hf::read(file, config, familyIn(file, config), 0);
  std::vector<Diagnostic> problems = std::move(there.problems);
  if (context)
    *context = there.context;
  ModelConfig m;
  for (const auto &[key, value] : there.values())
    if (const auto s = there.said.find(key); s != there.said.end())
      if (const auto refusal = hf::assign(m, key, value))
        problems.push_back({refusal->code,
                            fmt::format("{}: {}: model.{} {}", file, s->second.what, key, refusal->why),
                            {},
                            "",
                            {"copy the file again from where the weights are from, or take another model"}});
  if (!problems.empty())
    throw UserError(problems);
  settleBiases(m);
  return m;
}

HfComparison compareHfConfig(const std::string &weights, const ModelConfig &model) {
  std::error_code e;
  HfComparison result;
  const fs::path folder = fs::is_regular_file(weights, e) ? fs::path(weights).parent_path() : fs::path(weights);
  result.file = (folder / "config.json").string();
  result.found = fs::exists(result.file, e) && !(fs::is_directory(weights, e) && isCheckpoint(folder));
  if (!result.found)
    return result;
  try {
    const json config = contentOf(readInput(result.file, "configuration", kConfigLimit), result.file);
    if (config.at("model_type") == kOwnModelType) {
      result.differences = compareOwnConfig(result.file, config, model);
    } else {
      const hf::Family &family = familyIn(result.file, config);
      result.differences =
          Comparison(result.file, family, hf::read(result.file, config, family, model.blockSize), model).run();
    }
  } catch (const UserError &error) {
    result.differences = error.diagnostics;
  }
  return result;
}

}  // namespace gptc
