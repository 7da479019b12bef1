#include "tools/commands/export_source.h"

#include "frontends/hf_families.h"
#include "frontends/hf_folder.h"
#include "frontends/own_config.h"
#include "runtime/checkpoint/checkpoint_saver.h"
#include "runtime/checkpoint/export_folder.h"
#include "runtime/train/session.h"
#include "runtime/train/weights.h"
#include "runtime/tuning/cache_secret.h"
#include "support/json.h"
#include "support/stderr.h"
#include "tools/compiler/inference.h"
#include "tools/planner/cache_dir.h"
#include "tools/planner/plan_module.h"

#include <filesystem>

namespace gptc {

namespace fs = std::filesystem;
using json = nlohmann::json;

namespace {

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

/// The weights with which a run begins, as a checkpoint beside what is written.
ExportSource initialWeights(const std::string &out, Plan plan) {
  const std::string from = llvm::StringRef(plan.run.initFrom).split(':').second.str();
  const ModelIdentity model = modelIdentity(*plan.planned);
  const std::string hash = plan.hash, cacheDir = defaultCacheDir();
  const HfFiles described = plan.hf;
  const std::string tokenizer =
      plan.run.tokenizer.empty() ? "data.tokenizer" : fmt::format("data.tokenizer {}", plan.run.tokenizer);
  if (!plan.model.empty())
    requireSameModel(from, plan.model);                                     // they may have changed since
  Session session(inferencePlan(std::move(plan), {}, cacheDir), cacheDir);  // parameters alone
  loadWeights(session.executor, from, model);
  auto folder = std::make_unique<AtomicDir>(absolutePath(out) + ".first");
  const CheckpointStore store(folder->path());
  CheckpointSaver(session.executor, store, false, described).save({.planHash = hash, .model = model}, 0);
  return {CheckpointStore::published(store.pathOf(0)), from, std::move(folder), tokenizer};
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

ExportSource checkpointOfPlan(const std::string &run, const std::string &out,
                              const std::optional<std::string> &choice) {
  Plan plan = loadPlan(run, cacheSecret(defaultCacheDir()));
  requireOtherThan(llvm::StringRef(plan.run.initFrom).split(':').second.str(), out);
  const std::string here = fs::current_path().string();
  if (!plan.madeHere && !liesWithin(plan.run.outDir, here))
    throw UserError(
        ErrorCode::Usage,
        fmt::format("the plan {} was not compiled with the cache of this user, and its out_dir {} leads out "
                    "of the working folder {}",
                    run, plan.run.outDir, here),
        "name the folder of the run instead of the plan");
  if (!choice && plan.run.initFrom != "scratch" && CheckpointStore(plan.run.outDir).steps().empty())
    return initialWeights(out, std::move(plan));
  CheckpointStore::Published found = checkpointOf(plan.run.outDir, choice);
  // Earlier versions described no model; the plan does, even theirs.
  if (found.described.empty())
    found.described =
        !plan.hf.empty() ? plan.hf
        : plan.model.empty()
            ? HfFiles()
            : describeFolder(readConfig("", plan.model).model, plan.run.tokenizer, plan.run.initFrom).files;
  const std::string dir = found.info.dir;
  return {std::move(found), dir};
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

bool has(const std::string &folder, const char *name) {
  std::error_code e;
  return fs::exists(fs::path(folder) / name, e);
}

}  // namespace

bool isExportable(const std::string &path) {
  return isPlanFolder(path) || has(path, "checkpoints") || has(path, "manifest.json");
}

ExportSource exportSource(const std::string &run, const std::string &out, const std::optional<std::string> &choice) {
  auto of = [](CheckpointStore::Published found) {
    const std::string dir = found.info.dir;
    return ExportSource{std::move(found), dir};
  };
  if (isPlanFolder(run))
    return checkpointOfPlan(run, out, choice);
  if (has(run, "checkpoints"))
    return of(checkpointOf(absolutePath(run), choice));
  if (!isExportable(run))
    throw UserError(ErrorCode::FileMissing, fmt::format("{} is no plan, no run and no checkpoint", run),
                    "name the plan, the out_dir of its run, or a folder checkpoints/step-N in that");
  if (choice)
    throw UserError(ErrorCode::Usage, fmt::format("{} is a checkpoint: --checkpoint chooses among those of a run", run),
                    "leave out --checkpoint");
  return of(CheckpointStore::published(absolutePath(run)));
}

GgufSource ggufSource(ExportSource from) {
  GgufSource source{configOf(from.checkpoint),
                    std::move(from.checkpoint.weights),
                    std::move(from.checkpoint.described),
                    from.checkpoint.info.dir,
                    from.folder ? std::move(from.tokenizer) : from.checkpoint.info.dir + "/tokenizer.json",
                    std::move(from.shown),
                    std::move(from.folder)};
  return source;
}

GgufSource ggufSource(const ImportedModel &folder) {
  Config config = configOf(folder);
  HfFiles described = describeFolder(config.model, folder.tokenizer, "hf:" + folder.path).files;
  return {std::move(config),
          weightFiles(folder.path),
          std::move(described),
          folder.path,
          folder.tokenizer.empty() ? folder.path + "/tokenizer.json" : folder.tokenizer,
          folder.path};
}

}  // namespace gptc
