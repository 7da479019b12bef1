// gptc export: writes a model as other programs read it.
#include "frontends/hf_families.h"
#include "frontends/hf_folder.h"
#include "frontends/own_config.h"
#include "frontends/toml_config.h"
#include "runtime/checkpoint/checkpoint_saver.h"
#include "runtime/checkpoint/export_folder.h"
#include "runtime/train/session.h"
#include "runtime/train/weights.h"
#include "runtime/tuning/cache_secret.h"
#include "support/files.h"
#include "support/json.h"
#include "support/stderr.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/commands/export_gguf.h"
#include "tools/compiler/inference.h"
#include "tools/planner/cache_dir.h"
#include "tools/planner/plan_module.h"

#include <filesystem>

namespace gptc {

namespace fs = std::filesystem;
using json = nlohmann::json;

namespace {

struct Options {
  std::string run, out, dtype, format;
  std::optional<std::string> checkpoint;

  bool isGguf() const { return format.empty() ? llvm::StringRef(out).ends_with(".gguf") : format == "gguf"; }
};

/// The checkpoint of a run: the newest that is whole, or the one that was chosen.
CheckpointStore::Published checkpointOf(const std::string &outDir, const std::optional<std::string> &choice) {
  const CheckpointStore store(outDir);
  RunSettings run;
  run.outDir = outDir;
  const WeightsChoice weights = choice ? WeightsChoice::parse(*choice) : WeightsChoice();
  if (weights.kind == WeightsChoice::inFolder)
    throw UserError(ErrorCode::Usage, fmt::format("--checkpoint {} is a folder", *choice),
                    fmt::format("gptc export {} -o DIR exports it", *choice));
  requireWeights(run, weights);
  if (weights.kind == WeightsChoice::ofStep)
    return CheckpointStore::published(store.pathOf(weights.step));
  if (weights.kind == WeightsChoice::best)
    return CheckpointStore::published(store.pathOf(store.best().value_or(0)));
  const std::vector<int64_t> steps = store.steps();
  for (int64_t step : steps)
    try {
      return CheckpointStore::published(store.pathOf(step));
    } catch (const UserError &e) {
      const ErrorCode code = e.diagnostics[0].code;
      if (step == steps.back() || (code != ErrorCode::CheckpointDamaged && code != ErrorCode::FileMissing))
        throw;
      printError("warning: passing over a damaged checkpoint: {}\n", e.diagnostics[0].message);
    }
  GPTC_UNREACHABLE("requireWeights finds no checkpoint in {}", outDir);
}

/// What is exported.
struct Source {
  CheckpointStore::Published checkpoint;
  std::string shown;                       // where it is from
  std::unique_ptr<AtomicDir> folder = {};  // of the checkpoint, if it lives only as long as this
};

/// The weights with which a run begins, as a checkpoint beside what is written.
Source initialWeights(const Options &o, Plan plan) {
  const std::string from = llvm::StringRef(plan.run.initFrom).split(':').second.str();
  const ModelIdentity model = modelIdentity(*plan.planned);
  const std::string hash = plan.hash, cacheDir = defaultCacheDir();
  const HfFiles described = plan.hf;
  if (!plan.model.empty())
    requireSameModel(from, plan.model);                                     // they may have changed since
  Session session(inferencePlan(std::move(plan), {}, cacheDir), cacheDir);  // parameters alone
  loadWeights(session.executor, from, model);
  auto folder = std::make_unique<AtomicDir>(absolutePath(o.out) + ".first");
  const CheckpointStore store(folder->path());
  CheckpointSaver(session.executor, store, false, described).save({.planHash = hash, .model = model}, 0);
  return {CheckpointStore::published(store.pathOf(0)), from, std::move(folder)};
}

/// Throws UserError(Unwritable) if what is written would replace the weights with which the plan begins.
void requireOtherThan(const std::string &weights, const std::string &out) {
  std::error_code e;
  if (weights.empty())  // it begins from scratch
    return;
  if (fs::equivalent(weights, out, e) || (fs::is_directory(out, e) && liesWithin(weights, out)))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} holds the weights with which the plan begins", out),
                    "choose another name with -o");
}

Source checkpointOfPlan(const Options &o) {
  Plan plan = loadPlan(o.run, cacheSecret(defaultCacheDir()));
  requireOtherThan(llvm::StringRef(plan.run.initFrom).split(':').second.str(), o.out);
  const std::string here = fs::current_path().string();
  if (!plan.madeHere && !liesWithin(plan.run.outDir, here))
    throw UserError(
        ErrorCode::Usage,
        fmt::format("the plan {} was not compiled with the cache of this user, and its out_dir {} leads out "
                    "of the working folder {}",
                    o.run, plan.run.outDir, here),
        "name the folder of the run instead of the plan");
  if (!o.checkpoint && plan.run.initFrom != "scratch" && CheckpointStore(plan.run.outDir).steps().empty())
    return initialWeights(o, std::move(plan));
  CheckpointStore::Published found = checkpointOf(plan.run.outDir, o.checkpoint);
  // Earlier versions described no model; the plan does, even theirs.
  if (found.described.empty())
    found.described = !plan.hf.empty()     ? plan.hf
                      : plan.model.empty() ? HfFiles()
                                           : describeFolder(readConfig("", plan.model).model, plan.run.tokenizer).files;
  const std::string dir = found.info.dir;
  return {std::move(found), dir};
}

Source find(const Options &o) {
  std::error_code e;
  auto has = [&](const char *name) { return fs::exists(fs::path(o.run) / name, e); };
  auto of = [](CheckpointStore::Published found) {
    const std::string dir = found.info.dir;
    return Source{std::move(found), dir};
  };
  if (has("planned.gir"))
    return checkpointOfPlan(o);
  if (has("checkpoints"))
    return of(checkpointOf(absolutePath(o.run), o.checkpoint));
  if (!has("manifest.json"))
    throw UserError(ErrorCode::FileMissing, fmt::format("{} is no plan, no run and no checkpoint", o.run),
                    "name the plan, the out_dir of its run, or a folder checkpoints/step-N in that");
  if (o.checkpoint)
    throw UserError(ErrorCode::Usage,
                    fmt::format("{} is a checkpoint: --checkpoint chooses among those of a run", o.run),
                    "leave out --checkpoint");
  return of(CheckpointStore::published(absolutePath(o.run)));
}

/// The configuration of a checkpoint's model. Its manifest has the keys of [model], but the context only where a table
/// has a row for each position; else config.json says it, or the family's default in transformers (BLOOM's). Throws
/// UserError(MissingKey) if nothing describes the model.
Config configOf(const CheckpointStore::Published &from) {
  std::vector<std::string> settings;
  for (const auto &[key, value] : from.info.model.keys)
    settings.push_back(fmt::format("model.{}={}", key, value));
  if (!from.info.model.keys.count("block_size")) {
    const std::string &text = describedConfig(from);
    const json config = parseJsonOrDiscard<json>(text);
    const bool own = config.is_object() && config.value("model_type", "") == kOwnModelType;
    settings.push_back(
        fmt::format("model.block_size={}", own ? config.value("block_size", int64_t(1))
                                               : readHfConfigText(text, from.info.dir + "/config.json").blockSize));
  }
  return readConfig("", settings);
}

/// Throws UserErrors: those of exportGguf, and Unwritable for what is there and no export wrote.
void exportAsGguf(const Options &o, const Source &source) {
  const CheckpointStore::Published &from = source.checkpoint;
  std::error_code e;
  if (fs::exists(fs::symlink_status(o.out, e)) && (fs::is_symlink(o.out, e) || !isExportedGguf(o.out)))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} is there, and no GGUF file that an export wrote", o.out),
                    "remove it, or choose another name with -o");
  const std::string word = o.dtype.empty() ? "fp32" : o.dtype;
  const TensorFiles weights(from.weights);
  const std::vector<std::string> notes = exportGguf(o.out, {.config = configOf(from),
                                                            .source = weights,
                                                            .described = from.described,
                                                            .folder = from.info.dir,
                                                            .name = fs::path(o.out).stem().string(),
                                                            .type = *ggufFormatOf(word)});
  fmt::print("{:<11} {}\n", source.folder ? "weights" : "checkpoint", source.shown);
  fmt::print("{:<11} {}: {}, {}\n", "written", o.out, word, formatBytes(double(fs::file_size(o.out))));
  for (const std::string &note : notes)
    fmt::print("{:<11} {}\n", "vocabulary", note);
}

void exportRun(const Options &o) {
  if (o.isGguf())
    return exportAsGguf(o, find(o));
  if (o.dtype == "q8_0" || o.dtype == "q4_0")
    throw UserError(ErrorCode::Usage, fmt::format("--dtype {} is a format of GGUF files", o.dtype),
                    "write -o FILE.gguf, or add --format gguf");
  ExportOptions options;
  if (!o.dtype.empty())
    options.dtype = o.dtype == "fp32" ? DType::f32 : o.dtype == "bf16" ? DType::bf16 : DType::f16;
  const Source source = find(o);
  const Exported done = exportFolder(source.checkpoint, o.out, options);
  fmt::print("{:<11} {}\n", source.folder ? "weights" : "checkpoint", source.shown);
  fmt::print("{:<11} {}: {} tensors of {}, {} in {} file{}\n", "written", o.out, done.tensors, nameOf(done.dtype).str(),
             formatBytes(double(done.bytes)), done.files, done.files == 1 ? "" : "s");
  if (!source.checkpoint.described.count("tokenizer.json"))
    fmt::print("{:<11} none: the run has no tokenizer.json\n", "tokenizer");
}

}  // namespace

void addExportCommand(Command &app) {
  Command c = app.command("export", "Writes a trained model as Hugging Face's programs or llama.cpp read it");
  auto o = std::make_shared<Options>();
  c.option("run", o->run,
           "A plan, the out_dir of its run, or a checkpoint; of a plan that has not run, the weights of init_from")
      .required()
      .type("PLAN|DIR");
  c.option("-o,--out", o->out, "Folder or file to write; what an earlier export wrote is replaced")
      .required()
      .type("DIR|FILE.gguf");
  c.option("--dtype", o->dtype,
           "Precision of the weights [hf: the checkpoint's, gguf: fp32]; q8_0 and q4_0 of GGUF files only")
      .oneOf({"fp32", "bf16", "fp16", "q8_0", "q4_0"});
  c.option("--format", o->format,
           "hf: config.json, safetensors and the tokenizer; gguf: one file, for llama.cpp [by the ending of -o]")
      .oneOf({"hf", "gguf"});
  c.option("--checkpoint", o->checkpoint, "The number of a step, or best: least validation loss [the newest]")
      .type("STEP|best");
  c.run([o] { exportRun(*o); });
}

}  // namespace gptc
