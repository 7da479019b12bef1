// gptc import: writes a model.toml that begins with the weights of a Hugging Face folder or a GGUF file.
#include "frontends/model_text.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/stderr.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/compiler/imported_model.h"

#include <filesystem>
#include <optional>

namespace gptc {

namespace fs = std::filesystem;

namespace {

struct ImportOptions {
  std::string dir, out = "model.toml", labels;
  bool force = false;
};

ImportFor purposeOf(const ImportOptions &o) { return o.labels.empty() ? ImportFor::tokens : ImportFor::newLabels; }

/// The line of [data] for the tokenizer. One that cannot be used is in a comment, with the reason, `why`.
std::string tokenizerLine(const ImportedModel &m, const std::string &shown, const std::string &why) {
  if (m.tokenizer.empty())
    return "# tokenizer = \"data/tokenizer.json\"  # the folder has no tokenizer.json\n";
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

/// Where `gptc data prepare` has written labels.json, and texts beside it. None without labels; a folder with a
/// classifier has no data.
std::optional<fs::path> preparedFolder(const ImportOptions &o) {
  std::error_code e;
  if (o.labels.empty() || fs::is_directory(o.labels, e))
    return std::nullopt;
  const fs::path folder = fs::path(o.labels).parent_path();
  return folder.empty() ? "." : folder;
}

/// The folder of what is trained on, as it stands in the model file.
fs::path dataFolder(const ImportOptions &o) {
  const std::optional<fs::path> prepared = preparedFolder(o);
  return prepared ? pathFrom(o.out, prepared->string()) : "data";
}

/// The lines of [data] for what is trained and validated on: few texts with labels may leave none for the latter.
std::string filesLines(const ImportOptions &o) {
  const auto named = [&](const char *name) { return tomlString((dataFolder(o) / name).lexically_normal().string()); };
  const std::string train = fmt::format("train = {}\n", named("train.bin")), val = "val = " + named("val.bin");
  const std::optional<fs::path> prepared = preparedFolder(o);
  std::error_code e;
  const bool none = prepared && fs::exists(*prepared / "train.bin", e) && !fs::exists(*prepared / "val.bin", e);
  return train + (none ? fmt::format("{:<31} # there is none\n", "# " + val) : val + "\n");
}

/// `why`: why the tokenizer cannot be used.
std::string textOf(const ImportOptions &o, const ImportedModel &f, const std::string &why) {
  const std::string from = pathFrom(o.out, o.dir);
  const bool gguf = f.isGguf();
  const fs::path file = f.tokenizer.empty() ? "tokenizer.json" : fs::path(f.tokenizer).filename();
  const std::string folder = dataFolder(o).string(),
                    texts = o.labels.empty() ? "YOUR.txt"
                            : f.labels.problem == ProblemType::single_label_classification
                                ? "YOUR.jsonl --labels auto"
                                : fmt::format("YOUR.jsonl --labels auto --problem-type {}", nameOf(f.labels.problem));
  const std::string tokenizer = gguf ? from : (fs::path(from) / file).string();
  return fmt::format(
      R"(# gptc import: {title}, with whose weights it begins.
# `gptc compile FILE` says how long training will take on this machine, `--set train.steps=100` overrides any key, and
# `gptc config --list` shows every key there is. Paths count from the folder of this file.

name = {name}

[model]                         # docs/model.md
init_from = {init}  # compared with {source}
{model}{pooling}
[train]
steps = 1000
micro_batch = "auto"            # sequences of one pass

[optimizer]                     # AdamW; docs/optimizers.md
lr = {lr}                       # low, for weights that have been trained
weight_decay = 0.1              # of matrices
schedule = "cosine"             # wsd linear constant
warmup_steps = 50
min_lr_ratio = 0.1              # of lr, at the end

[data]                          # gptc data prepare {texts} --tokenizer {tokenizer} --out {out}
{files}{labels}{line}{ends}
[eval]
every = 200                     # steps; 0: only at the end
steps = 20                      # global batches of validation data each time

[checkpoint]
every = 200                     # steps; a run that was ended goes on from the newest
keep = 3
)",
      fmt::arg("title", f.title), fmt::arg("name", tomlString(nameOfModel(f.path))),
      fmt::arg("init", tomlString((gguf ? "gguf:" : "hf:") + from)),
      fmt::arg("source", gguf ? "the keys of the file" : "the config.json there"),
      fmt::arg("model", modelText(f.model, f.context)),
      fmt::arg("pooling", f.labels.pooling == ClassifierPooling::cls
                              ? ""
                              : fmt::format("classifier_pooling = \"{}\"\n", nameOf(f.labels.pooling))),
      fmt::arg("tokenizer", tomlString(tokenizer)), fmt::arg("lr", o.labels.empty() ? "3e-5" : "2e-5"),
      fmt::arg("texts", texts),
      fmt::arg("labels", o.labels.empty() ? "" : fmt::format("labels = {}\n", tomlString(pathFrom(o.out, o.labels)))),
      fmt::arg("out", folder == "data" ? "data" : tomlString(folder)), fmt::arg("files", filesLines(o)),
      fmt::arg("line", tokenizerLine(f, tokenizer, why)),
      fmt::arg("ends", f.ends.empty() ? "" : fmt::format("# tokens that end a text: {}\n", fmt::join(f.ends, ", "))));
}

void importModel(const ImportOptions &o) {
  if (!o.force && fs::exists(fs::symlink_status(o.out)))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} is there already", o.out),
                    fmt::format("-o FILE writes another one, --force writes over {}", o.out));
  const LabelNames labels = o.labels.empty() ? LabelNames() : readLabelNames(o.labels);
  const ImportedModel f = importedModel(o.dir, purposeOf(o), labels);
  if (!f.note.empty())
    printError("note: {}\n", f.note);
  const std::string why = f.tokenizer.empty() ? "" : f.tokenizerProblem(purposeOf(o));
  if (!why.empty())
    printError("warning: {} names no tokenizer, as {} cannot be used: {}\n", o.out, f.tokenizer, why);
  writeFileAtomically(o.out, textOf(o, f, why));
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
  c.option("--labels", o->labels, "labels.json of `gptc data prepare --labels`: the model learns these labels of texts")
      .type("FILE");
  c.flag("--force", o->force, "Writes over a file that is there");
  c.run([o] { importModel(*o); });
}

}  // namespace gptc
