// gptc import: writes a model.toml that begins with the weights of a Hugging Face folder or a GGUF file.
#include "frontends/gguf/gguf_model.h"
#include "frontends/hf_families.h"
#include "frontends/model_builder.h"
#include "frontends/model_text.h"
#include "frontends/tokenizer/tokenizer.h"
#include "frontends/toml_config.h"
#include "runtime/checkpoint/checkpoint.h"
#include "support/files.h"
#include "support/gguf/gguf_file.h"
#include "support/json.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace gptc {

namespace fs = std::filesystem;
using json = nlohmann::json;

namespace {

struct ImportOptions {
  std::string dir, out = "model.toml";
  bool force = false;
};

/// The model that a folder or a GGUF file describes.
struct Found {
  ModelConfig model;
  int64_t context;  // as it is described, which block_size may be too short for
  std::string family, title;
  std::vector<std::string> ends = {};  // ids of the tokens that end a text
  std::string tokenizer = {};          // its file, in or below what is imported
};

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

/// Compares the weights with what describes them, by names, dtypes and shapes. Throws UserErrors CheckpointDamaged,
/// CheckpointMismatch and NotBuiltYet.
void requireWeights(const std::string &path, const Config &config) {
  checkWeights(*buildModel(config, {.sampling = false}), path,
               isGguf(path) ? "convert the original weights again with a newer llama.cpp"
                            : "copy config.json and the weights again, both from the same model");
}

/// What the reader of model files says of these keys: of values that are not built, for example. Throws its UserErrors.
Config requireBuilt(const std::string &dir, const ModelConfig &model) {
  std::vector<std::string> settings;
  const std::string text = modelText(model);
  for (llvm::StringRef line : llvm::split(llvm::StringRef(text).rtrim(), '\n')) {
    const auto [key, value] = line.split(" #").first.rtrim().split(" = ");
    settings.push_back(fmt::format("model.{}={}", key.str(), value.str()));
  }
  Config config;
  try {
    config = loadConfig("", settings, [](const std::string &) { return 0; });
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

json contentOf(const fs::path &path) {
  json content = parseJsonOrDiscard<json>(readInput(path.string(), "configuration", kConfigLimit));
  if (!content.is_object())
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{} is no JSON object", path.string()),
                    "copy it again from where the weights are from, or remove it");
  return content;
}

Found find(const std::string &dir) {
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
  int64_t context = 0;
  const ModelConfig model = readHfConfig(dir, &context);
  Found found{model, context, "", ""};
  requireSafetensors(dir);
  const Config built = requireBuilt(dir, found.model);
  if (const HfComparison there = compareHfConfig(dir, built.model); !there.differences.empty())
    throw UserError(there.differences);
  requireWeights(dir, built);
  const json config = contentOf(fs::path(dir) / "config.json");
  found.family = config.at("model_type");
  found.title = "a model of the family " + found.family;
  for (const char *name : {"tokenizer.json", "tokenizer.model", "tekken.json"})
    if (found.tokenizer.empty() && fs::exists(fs::path(dir) / name, e))
      found.tokenizer = name;
  if (found.tokenizer.empty())
    found.tokenizer = "tokenizer.json";
  // Models for dialogue have more ends in generation_config.json.
  const fs::path beside = fs::path(dir) / "generation_config.json";
  const json generation = fs::exists(beside, e) ? contentOf(beside) : json::object();
  for (const json *j : {&generation, &config})
    if (const auto it = j->find("eos_token_id"); it != j->end() && !it->is_null() && found.ends.empty())
      for (const json &id : it->is_array() ? *it : json::array({*it}))
        if (id.is_number_unsigned())
          found.ends.push_back(id.dump());
  return found;
}

Found findInGguf(const std::string &path) {
  const GgufFile file(path);
  int64_t context = 0;
  const ModelConfig model = importGguf(file, &context);
  Found found{model, context, "", ""};
  requireWeights(path, requireBuilt(path, found.model));
  found.family = file.text("general.architecture").value_or("");
  std::set<std::string> formats;
  for (const GgufTensor &t : file.tensors())
    formats.insert(t.format->name);
  found.title =
      fmt::format("the model of a GGUF file: architecture {}, tensors of {}", found.family, fmt::join(formats, ", "));
  if (const auto v = readVocabulary(file))
    for (const int64_t id : {v->eos, v->eot})
      if (const std::string text = std::to_string(id); id >= 0 && !llvm::is_contained(found.ends, text))
        found.ends.push_back(text);
  return found;
}

/// The line of [data] for the tokenizer. One that cannot be used is in a comment, with the reason.
std::string tokenizerLine(const std::string &file, const std::string &shown, const ModelConfig &model) {
  std::error_code e;
  if (!fs::exists(file, e))
    return "# tokenizer = \"data/tokenizer.json\"  # the folder has no tokenizer.json\n";
  std::string why;
  try {
    // An encoder's [MASK] would be one more.
    const int64_t tokens = Tokenizer::load(file).vocabSize();
    if (tokens + !model.causal > model.vocabSize)
      why = fmt::format("it has {} tokens, the model {}", tokens, model.vocabSize);
  } catch (const UserError &error) {
    why = error.diagnostics[0].message;
  }
  std::replace_if(why.begin(), why.end(), [](char c) { return uint8_t(c) < ' '; }, ' ');
  const std::string line = "tokenizer = " + tomlString(shown);
  return why.empty() ? line + "\n" : fmt::format("# {}  # {}\n", line, why);
}

/// `dir` as it stands in the model file: from that file's folder on, if it was given so.
std::string pathFrom(const std::string &file, const std::string &dir) {
  const fs::path beside = fs::absolute(file).lexically_normal().parent_path();
  const fs::path whole = fs::path(absolutePath(dir));
  const fs::path shown = fs::path(dir).is_absolute() ? whole : whole.lexically_relative(beside);
  return shown.empty() ? "." : shown.string();
}

std::string textOf(const ImportOptions &o, const Found &f) {
  const std::string from = pathFrom(o.out, o.dir);
  const bool gguf = f.tokenizer.empty();
  const fs::path whole = absolutePath(o.dir), name = gguf ? whole.stem() : whole.filename();
  auto tokenizerIn = [&](const std::string &dir) { return gguf ? dir : (fs::path(dir) / f.tokenizer).string(); };
  return fmt::format(
      R"(# gptc import: {title}, with whose weights it begins.
# `gptc compile FILE` says how long training will take on this machine, `--set train.steps=100` overrides any key, and
# `gptc config --list` shows every key there is. Paths count from the folder of this file.

name = {name}

[model]                         # docs/model.md
init_from = {init}  # compared with {source}
{model}
[train]
steps = 1000
micro_batch = "auto"            # sequences of one pass

[optimizer]                     # AdamW; docs/optimizers.md
lr = 3e-5                       # low, for weights that have been trained
weight_decay = 0.1              # of matrices
schedule = "cosine"             # wsd linear constant
warmup_steps = 50
min_lr_ratio = 0.1              # of lr, at the end

[data]                          # gptc data prepare YOUR.txt --tokenizer {tokenizer} --out data
train = "data/train.bin"
val = "data/val.bin"
{line}{ends}
[eval]
every = 200                     # steps; 0: only at the end
steps = 20                      # global batches of validation data each time

[checkpoint]
every = 200                     # steps; a run that was ended goes on from the newest
keep = 3
)",
      fmt::arg("title", f.title), fmt::arg("name", tomlString(name.string())),
      fmt::arg("init", tomlString((gguf ? "gguf:" : "hf:") + from)),
      fmt::arg("source", gguf ? "the keys of the file" : "the config.json there"),
      fmt::arg("model", modelText(f.model, f.context)), fmt::arg("tokenizer", tomlString(tokenizerIn(from))),
      fmt::arg("line", tokenizerLine(tokenizerIn(o.dir), tokenizerIn(from), f.model)),
      fmt::arg("ends", f.ends.empty() ? "" : fmt::format("# tokens that end a text: {}\n", fmt::join(f.ends, ", "))));
}

void importModel(const ImportOptions &o) {
  if (!o.force && fs::exists(fs::symlink_status(o.out)))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} is there already", o.out),
                    fmt::format("-o FILE writes another one, --force writes over {}", o.out));
  const Found f = isGguf(o.dir) ? findInGguf(o.dir) : find(o.dir);
  writeFileAtomically(o.out, textOf(o, f));
  fmt::print("{}: {}, {} layers of {} features, {} tokens\n", o.out, f.family, f.model.nLayer, f.model.nEmbd,
             f.model.vocabSize);
  fmt::print("next        gptc compile {} -o {}.plan\n", o.out, fs::path(o.out).stem().string());
}

}  // namespace

void addImportCommand(Command &app) {
  Command c =
      app.command("import", "Writes a model.toml that begins with the weights of a Hugging Face folder or a GGUF file");
  auto o = std::make_shared<ImportOptions>();
  c.option("folder", o->dir, "Folder with config.json and safetensors, or a GGUF file")
      .type("DIR|FILE.gguf")
      .required();
  c.option("-o,--out", o->out, "File to write").type("MODEL.toml").showDefault();
  c.flag("--force", o->force, "Writes over a file that is there");
  c.run([o] { importModel(*o); });
}

}  // namespace gptc
