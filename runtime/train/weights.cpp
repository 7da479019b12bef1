#include "runtime/train/weights.h"

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/new_layers.h"
#include "runtime/train/session.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <filesystem>

namespace gptc {
namespace fs = std::filesystem;

namespace {

/// "3, 6, 9": the newest ones if there are many.
std::string listOf(llvm::ArrayRef<int64_t> newestFirst) {
  constexpr size_t most = 8;
  std::vector<int64_t> shown(newestFirst.take_front(most));
  std::reverse(shown.begin(), shown.end());
  return fmt::format("{}{}", newestFirst.size() > most ? "..., " : "", fmt::join(shown, ", "));
}

}  // namespace

WeightsChoice WeightsChoice::parse(const std::string &text) {
  const llvm::StringRef word = text;
  if (word == "best")
    return {best, 0, ""};
  if (int64_t step; !word.empty() && llvm::all_of(word, [](char c) { return c >= '0' && c <= '9'; }))
    if (!word.getAsInteger(10, step))
      return {ofStep, step, ""};
  if (std::error_code e; !word.empty() && fs::exists(text, e))
    return {inFolder, 0, absolutePath(text)};
  const std::string forms = "give the number of a step, best, or a folder with model.safetensors";
  if (word.contains('/'))
    throw UserError(ErrorCode::FileMissing, fmt::format("--checkpoint: there is no folder {}", text), forms);
  throw UserError(ErrorCode::Usage,
                  fmt::format("--checkpoint {} is no step, and no folder", text.empty() ? "\"\"" : text), forms);
}

void requireWeights(const RunSettings &run, const WeightsChoice &choice) {
  const CheckpointStore store(run.outDir);
  const std::vector<int64_t> steps = store.steps();
  if (choice.kind == WeightsChoice::inFolder || choice.kind == WeightsChoice::tensors ||
      (choice.kind == WeightsChoice::newest && run.initFrom != "scratch"))
    return;
  if (steps.empty())
    throw UserError(ErrorCode::FileMissing, fmt::format("there is no checkpoint under {}", run.outDir),
                    "train first: `gptrun PLAN`");
  if (choice.kind == WeightsChoice::ofStep && !llvm::is_contained(steps, choice.step))
    throw UserError(ErrorCode::FileMissing,
                    fmt::format("there is no checkpoint of step {} under {}, but of steps {}", choice.step, run.outDir,
                                listOf(steps)),
                    "name one of these, or best");
  if (choice.kind == WeightsChoice::best && !store.best())
    throw UserError(ErrorCode::FileMissing,
                    fmt::format("no checkpoint under {} was saved at a step with a validation loss", run.outDir),
                    fmt::format("name a step: {}; in model.toml, data.val and a checkpoint.every that is a multiple of "
                                "eval.every keep the best one",
                                listOf(steps)));
}

std::string loadForInference(Session &s, const ModelIdentity &model, const WeightsChoice &choice,
                             const std::function<void(const std::string &)> &warn) {
  const RunSettings &run = s.plan.run;
  requireWeights(run, choice);
  const CheckpointStore store(run.outDir);
  auto told = [&](const CheckpointInfo &info) {
    for (const std::string &note : info.notes)
      warn(note);
    return info.dir;
  };
  std::string path = choice.path;
  switch (choice.kind) {
  case WeightsChoice::ofStep:
    return told(store.loadParameters(s.executor, model, choice.step));
  case WeightsChoice::best:
    return told(store.loadParameters(s.executor, model, store.best().value_or(0)));
  case WeightsChoice::inFolder:
    if (std::error_code e; fs::exists(path + "/manifest.json", e))
      return told(CheckpointStore::loadParameters(s.executor, model, path));
    break;
  case WeightsChoice::tensors:
    break;
  case WeightsChoice::newest:
    if (const auto info = store.loadNewest(s.executor, model, true, warn))
      return told(*info);
    path = llvm::StringRef(run.initFrom).split(':').second.str();
    requireTrainedLayers(s.executor.planned(), path);
  }
  loadWeights(s.executor, path, model);
  return path;
}

}  // namespace gptc
