#include "tools/compiler/imported_model.h"

#include "codegen/codegen.h"
#include "frontends/gguf/gguf_model.h"
#include "frontends/hf_families.h"
#include "frontends/hf_mask.h"
#include "frontends/hf_tokens.h"
#include "frontends/model_builder.h"
#include "frontends/model_text.h"
#include "frontends/tokenizer/tokenizer.h"
#include "runtime/checkpoint/checkpoint.h"
#include "support/files.h"
#include "support/gguf/gguf_file.h"
#include "support/json.h"
#include "tools/compiler/compile.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace gptc {

namespace fs = std::filesystem;
using json = nlohmann::json;

namespace {

/// Weights may be in a pickle only, which can run code when it is read. Throws UserError(FileMissing).
void requireSafetensors(const fs::path &dir) {
  std::error_code e;
  for (const char *name : {"model.safetensors", "model.safetensors.index.json"})
    if (fs::exists(dir / name, e))
      return;
  std::string pickle;
  for (const auto &entry : fs::directory_iterator(dir, e))
    if (const std::string kind = entry.path().extension();
        kind == ".bin" || kind == ".pt" || kind == ".pth" || kind == ".ckpt" || kind == ".pkl")
      pickle = std::max(pickle, entry.path().filename().string());
  if (pickle.empty())
    throw UserError(ErrorCode::FileMissing, fmt::format("{} has no model.safetensors", dir.string()),
                    "name the folder that holds config.json and the weights as safetensors");
  throw UserError(ErrorCode::FileMissing,
                  fmt::format("{} has no model.safetensors, but {}: a pickle, which can run code when it is read",
                              dir.string(), pickle),
                  "gptc reads safetensors only; where you trust the file, transformers converts it: "
                  "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW, safe_serialization=True)");
}

std::unique_ptr<Module> moduleOf(const Config &config, ImportFor purpose, int64_t labels = 0) {
  const bool fills = purpose == ImportFor::masks, embeds = fills || purpose == ImportFor::vectors ||
                                                           purpose == ImportFor::labels ||
                                                           purpose == ImportFor::newLabels;
  return buildModel(config, {.sampling = false, .embed = embeds, .fills = fills, .labels = labels});
}

/// Compares the weights with what describes them, by names, dtypes and shapes. Returns whether a matrix has more than
/// 16 bits. Throws UserErrors CheckpointDamaged, CheckpointMismatch and NotBuiltYet.
bool requireWeights(const std::string &path, const Module &model, ImportFor purpose) {
  return checkWeights(model, path,
                      isGguf(path) ? "convert the original weights again with a newer llama.cpp"
                                   : "copy config.json and the weights again, both from the same model",
                      purpose == ImportFor::newLabels);
}

/// The keys of [model], each with its value.
std::vector<std::string> settingsOf(const ModelConfig &model) {
  std::vector<std::string> settings;
  const std::string text = modelText(model);
  for (llvm::StringRef line : llvm::split(llvm::StringRef(text).rtrim(), '\n')) {
    const auto [key, value] = line.split(" #").first.rtrim().split(" = ");
    settings.push_back(fmt::format("model.{}={}", key.str(), value.str()));
  }
  return settings;
}

/// What the reader of model files says of these keys: of values that are not built, for example. Throws its UserErrors.
Config requireBuilt(const std::string &dir, const ModelConfig &model) {
  Config config;
  try {
    config = loadConfig("", settingsOf(model), [](const std::string &) { return 0; });
  } catch (UserError &e) {
    for (Diagnostic &d : e.diagnostics) {
      d.message = fmt::format("{} describes a model that gptc cannot take: {}", dir, d.message);
      d.where = {};
      if (d.code == ErrorCode::NotBuiltYet)  // what the help offers is another model
        d.help = {"take another model; docs/keys.md lists the keys of [model]"};
    }
    throw UserError(e.diagnostics);
  }
  return config;
}

/// Labels are learned in the form of a family's classifier.
void requireEncoder(const std::string &dir, const ModelConfig &model) {
  const std::string family = describeForHf(model, "float32", {}).family;
  if (const std::vector<std::string> known = familiesWithClassifier(); !llvm::is_contained(known, family))
    throw UserError(
        ErrorCode::NotBuiltYet,
        fmt::format("{}: labels for a model of {}", dir, family.empty() ? "no family" : "the family " + family),
        fmt::format("gptc learns labels with models of the families {}", fmt::join(known, " and ")));
}

json contentOf(const fs::path &path) {
  json content = parseJsonOrDiscard<json>(readInput(path.string(), "configuration", kConfigLimit));
  if (!content.is_object())
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{} is no JSON object", path.string()),
                    "copy it again from where the weights are from, or remove it");
  return content;
}

ImportedModel inFolder(const std::string &dir, ImportFor purpose, const LabelNames &labels) {
  std::error_code e;
  if (fs::is_regular_file(dir, e)) {
    const fs::path folder = fs::path(dir).has_parent_path() ? fs::path(dir).parent_path() : fs::path(".");
    throw UserError(ErrorCode::FileMissing, fmt::format("{} is a file, and no GGUF file", dir),
                    fmt::format("name the folder that holds config.json and the weights as safetensors{}",
                                fs::exists(folder / "config.json", e) ? ": " + folder.string() : ""));
  }
  if (!fs::is_directory(dir, e))
    throw UserError(ErrorCode::FileMissing, fmt::format("there is no {}", dir),
                    llvm::StringRef(dir).ends_with(".gguf")
                        ? "name a GGUF file that is there"
                        : "name the folder that holds config.json and the weights as safetensors, or a GGUF file");
  ImportedModel found{.path = dir};
  found.model = readHfConfig(dir, &found.context);
  if (purpose == ImportFor::masks)
    requireMaskedHead(dir, found.model.causal);
  requireSafetensors(dir);
  const Config built = requireBuilt(dir, found.model);
  if (const HfComparison there = compareHfConfig(dir, built.model); !there.differences.empty())
    throw UserError(there.differences);
  if (purpose == ImportFor::labels)
    found.labels = readHfLabels(dir);
  if (purpose == ImportFor::newLabels) {
    requireEncoder(dir, built.model);
    found.labels = {.names = labels.names, .problem = labels.problem};
    if (!built.model.hasPooler())
      found.labels.pooling = readClassifierPooling(dir);
    if (const std::vector<Diagnostic> differ = compareLabels(dir, labels, found.labels.pooling, found.note);
        !differ.empty())
      throw UserError(differ);
  }
  found.wide = requireWeights(dir, *moduleOf(built, purpose, int64_t(found.labels.names.size())), purpose);
  const json config = contentOf(fs::path(dir) / "config.json");
  found.family = config.at("model_type");
  found.title = "a model of the family " + found.family;
  for (const char *name : {"tokenizer.json", "tokenizer.model", "tekken.json"})
    if (found.tokenizer.empty() && fs::exists(fs::path(dir) / name, e))
      found.tokenizer = (fs::path(dir) / name).string();
  found.ends = readHfTokens(dir, found.model.vocabSize).eos;
  return found;
}

std::string weightsOf(const ImportedModel &model, const RunAs &how) {
  return how.weights.empty() ? std::string(nameOf(model.stored.weights)) : how.weights;
}

bool keepsOwnWeights(const ImportedModel &model, const RunAs &how) {
  return model.stored.weights != Weights::compute && weightsOf(model, how) == nameOf(model.stored.weights);
}

ImportedModel inGguf(const std::string &path, ImportFor purpose) {
  if (purpose == ImportFor::labels || purpose == ImportFor::newLabels)
    throw UserError(ErrorCode::NotBuiltYet, fmt::format("{} is a GGUF file, and names no labels", path),
                    "name a Hugging Face folder with a classifier");
  if (purpose == ImportFor::masks)
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("{} is a GGUF file, which holds no head for masked tokens", path),
                    "name the Hugging Face folder from which it was made");
  const GgufFile file(path);
  ImportedModel found{.path = path, .tokenizer = path};
  found.model = importGguf(file, &found.context);
  const auto model = moduleOf(requireBuilt(path, found.model), purpose);
  found.wide = requireWeights(path, *model, purpose);
  found.stored = storedWeights(*model, path);
  found.family = file.text("general.architecture").value_or("");
  std::set<std::string> formats;
  for (const GgufTensor &t : file.tensors())
    formats.insert(t.format->name);
  found.title =
      fmt::format("the model of a GGUF file: architecture {}, tensors of {}", found.family, fmt::join(formats, ", "));
  if (const auto v = readVocabulary(file))
    for (const int64_t id : {v->eos, v->eot})
      if (id >= 0 && !llvm::is_contained(found.ends, id))
        found.ends.push_back(id);
  return found;
}

}  // namespace

bool ImportedModel::isGguf() const { return tokenizer == path; }

std::string nameOfModel(const std::string &path) {
  fs::path whole = absolutePath(path);
  if (!whole.has_filename())  // DIR/
    whole = whole.parent_path();
  return gptc::isGguf(path) ? whole.stem() : whole.filename();
}

std::string ImportedModel::tokenizerProblem(ImportFor purpose) const {
  std::string why;
  try {
    // The [MASK] of an encoder that is trained here would be one more.
    const bool hides = !model.causal && purpose == ImportFor::tokens;
    const int64_t tokens = Tokenizer::load(tokenizer).vocabSize();
    if (tokens + hides > model.vocabSize)
      why = fmt::format("it has {} tokens, the model {}", tokens, model.vocabSize);
  } catch (const UserError &error) {
    why = error.diagnostics[0].message;
  }
  std::replace_if(why.begin(), why.end(), [](char c) { return uint8_t(c) < ' '; }, ' ');
  return why;
}

ImportedModel importedModel(const std::string &path, ImportFor purpose, const LabelNames &labels) {
  return isGguf(path) ? inGguf(path, purpose) : inFolder(path, purpose, labels);
}

std::vector<std::string> settingsOf(const ImportedModel &imported) {
  ModelConfig model = imported.model;
  model.blockSize = std::min(model.blockSize, kUsualContext);
  std::vector<std::string> settings = settingsOf(model);
  settings.push_back("name=" + tomlString(nameOfModel(imported.path)));
  return settings;
}

Config configOf(const ImportedModel &model) { return readConfig("", settingsOf(model.model)); }

bool isImportable(const std::string &path) {
  std::error_code e;
  return isGguf(path) || (fs::is_regular_file(fs::path(path) / "config.json", e) && !isPlanFolder(path));
}

void requireNoRunAs(const RunAs &how, const std::string &why, const std::string &help) {
  for (const auto &[option, given] : {std::pair{"--context", how.context > 0},
                                      {"--precision", !how.precision.empty()},
                                      {"--weights", !how.weights.empty()},
                                      {"--cache", !how.cache.empty()}})
    if (given)
      throw UserError(ErrorCode::Usage, fmt::format("{} is for a Hugging Face folder or a GGUF file: {}", option, why),
                      help);
}

static void requireTokenizer(const ImportedModel &imported, ImportFor purpose) {
  if (imported.tokenizer.empty())
    throw UserError(ErrorCode::FileMissing, fmt::format("{} has no tokenizer", imported.path),
                    "copy tokenizer.json or tokenizer.model into it, from where the weights are from");
  if (const std::string why = imported.tokenizerProblem(purpose); !why.empty())
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("the tokenizer {} cannot be used: {}", imported.tokenizer, why));
}

std::string roundingNote(const ImportedModel &model, const RunAs &how) {
  const StoredWeights &stored = model.stored;
  if (!keepsOwnWeights(model, how) || stored.rounded.empty())
    return "";
  const size_t more = stored.rounded.size() - 1;
  return fmt::format("{}{}, of {}, {} rounded to 8 bits", stored.rounded[0],
                     more ? fmt::format(" and {} more", more) : "", fmt::join(stored.roundedFrom, " and "),
                     more ? "are" : "is");
}

Plan planOfModel(const ImportedModel &imported, const RunAs &how, ImportFor purpose) {
  if (const std::string path = absolutePath(imported.path); !llvm::json::isUTF8(path))  // settings are
    throw UserError(ErrorCode::Usage, fmt::format("the path {} is not UTF-8", llvm::json::fixUTF8(path)),
                    "rename it, or name it by a link");
  ModelConfig model = imported.model;
  if (how.cache != "auto" && !how.cache.empty() &&
      (purpose == ImportFor::vectors || purpose == ImportFor::labels || !model.causal))
    throw UserError(ErrorCode::Usage,
                    fmt::format("--cache {} is for models that continue texts: nothing is cached here", how.cache),
                    "leave it out");
  if (how.context > model.blockSize)
    throw UserError(
        ErrorCode::Usage,
        fmt::format("--context {}: {} has a context of {} tokens", how.context, imported.path, model.blockSize),
        fmt::format("--context {} is the longest", model.blockSize));
  model.blockSize = how.context ? how.context : std::min(model.blockSize, kUsualContext);
  if (purpose != ImportFor::sizes)
    requireTokenizer(imported, purpose);

  Plan plan;
  plan.dir = absolutePath(imported.path);
  plan.target = hostTarget();
  std::string precision = how.precision;
  if (precision.empty()) {
    // A sampled token waits for its weights, which are half as long in bf16; else the CPU should multiply it.
    const bool waits = (purpose == ImportFor::tokens || purpose == ImportFor::sizes) &&
                       weightsOf(imported, how) == nameOf(Weights::compute);
    precision = !imported.wide && (plan.target.bf16Dot || waits) ? "bf16" : "fp32";
  }
  std::vector<std::string> settings = settingsOf(model);
  for (const auto &[key, value] : {std::pair<const char *, std::string>{"name", nameOfModel(imported.path)},
                                   {"model.init_from", (imported.isGguf() ? "gguf:" : "hf:") + plan.dir},
                                   {"precision.compute", precision},
                                   {"precision.weights", weightsOf(imported, how)}})
    settings.push_back(fmt::format("{}={}", key, tomlString(value)));
  if (!how.cache.empty())
    settings.push_back(fmt::format("precision.cache={}", tomlString(how.cache)));
  if (keepsOwnWeights(imported, how)) {
    std::vector<std::string> names;
    for (const std::string &name : imported.stored.eightBits)
      names.push_back(tomlString(name));
    settings.push_back(fmt::format("precision.eight_bits=[{}]", fmt::join(names, ", ")));
  }
  const std::string tokenizer = purpose == ImportFor::sizes ? "" : absolutePath(imported.tokenizer);
  // The reader wants one more token of an encoder.
  if (purpose == ImportFor::tokens || (purpose == ImportFor::vectors && model.causal))
    settings.push_back("data.tokenizer=" + tomlString(tokenizer));
  settings.push_back("train.micro_batch=1");
  const Config config = readConfig("", settings);
  plan.run = runSettings(config);
  plan.run.tokenizer = tokenizer;
  plan.model = modelSettings(config);
  plan.planned = buildModel(config);
  plan.madeHere = true;
  return plan;
}

}  // namespace gptc
