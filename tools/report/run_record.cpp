#include "tools/report/run_record.h"

#include "support/diagnostics.h"
#include "support/files.h"
#include "support/median.h"
#include "support/words.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <unistd.h>

namespace gptc {
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr size_t logLimit = size_t(1) << 30;
constexpr int64_t mostSteps = int64_t(1) << 50;
constexpr size_t mostNames = 64;  // of values in a log
constexpr size_t hashDigits = 12;

/// UTF-8, with signs of replacement where bytes are none.
std::string cleaned(const std::string &text) {
  return parseJson(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
      .get<std::string>();
}

std::string nameOf(const std::string &folder) {
  const fs::path path = absolutePath(folder);
  const std::string last = path.filename().empty() ? path.parent_path().filename() : path.filename();
  return cleaned(last.empty() ? folder : last);
}

/// Why a folder without a log is no run, and what to name instead.
UserError noRun(const std::string &folder, const std::string &why) {
  std::error_code e;
  std::vector<std::string> below;
  constexpr size_t most = 1000;  // folders to look into
  size_t seen = 0;
  fs::directory_iterator it(folder, fs::directory_options::skip_permission_denied, e);
  for (; !e && it != fs::directory_iterator() && seen < most; it.increment(e), ++seen) {
    std::error_code none;
    if (fs::is_regular_file(it->path() / "log.jsonl", none))
      below.push_back(it->path().string());
  }
  std::sort(below.begin(), below.end());
  std::string help = "name the folder that a run writes in: out_dir of model.toml, or gptrun's --out-dir";
  if (!below.empty())
    help = "there are runs in " + quotedSome(below);
  else if (fs::exists(fs::path(folder) / "planned.gir", e))
    help = "this is a plan; " + help;
  else if (fs::is_regular_file(folder, e))
    help = "this is a file; " + help;
  return UserError(ErrorCode::FileMissing, fmt::format("there is no run in {}: log.jsonl: {}", folder, why), help);
}

/// Members of a line that are kept.
bool isValue(llvm::StringRef name) {
  static const std::set<std::string> all = {"loss",         "lr",  "grad_norm",    "ms",
                                            "tokens_per_s", "mfu", "mfu_measured", "loss_scale"};
  return name.starts_with("val_") || all.count(name.str());
}

/// The step of a line of a run's log; nullopt for anything else.
std::optional<int64_t> stepOf(const nlohmann::json &line) {
  const auto &step = part(line, "step");
  if (!step.is_number_integer() || !(line.contains("loss") || line.contains("val_loss")))
    return std::nullopt;
  for (const auto &[name, value] : line.items())
    if (isValue(name) && !value.is_number() && !value.is_null())
      return std::nullopt;
  if (step.is_number_unsigned() && step.get<uint64_t>() > uint64_t(mostSteps))
    return std::nullopt;
  const int64_t number = step.get<int64_t>();
  return number >= 0 ? std::optional(number) : std::nullopt;
}

/// Sorts by step; of equal steps the last value stays. Returns how many others there were.
size_t settle(LoggedValues &values) {
  auto byStep = [](const auto &a, const auto &b) { return a.first < b.first; };
  std::stable_sort(values.begin(), values.end(), byStep);
  size_t kept = 0;
  for (size_t i = 0; i < values.size(); ++i)
    if (i + 1 == values.size() || values[i + 1].first != values[i].first)
      values[kept++] = values[i];
  const size_t others = values.size() - kept;
  values.resize(kept);
  return others;
}

void readLog(RunRecord &run) {
  const std::string file = run.folder + "/log.jsonl";
  const OpenedFile opened = openRegularFile(file);
  if (opened.fd < 0)
    throw noRun(run.folder, opened.why);
  ::close(opened.fd);
  const std::string text = readInput(file, "log of a run", logLimit);
  llvm::StringRef rest = text;
  size_t number = 0, lines = 0, broken = 0, firstBroken = 0;
  bool endsEarly = false;
  while (!rest.empty()) {
    const bool isWhole = rest.contains('\n');
    const auto [line, behind] = rest.split('\n');
    rest = behind;
    ++number;
    if (line.trim().empty())
      continue;
    const nlohmann::json j = parseJsonOrDiscard(line);
    const std::optional<int64_t> step = stepOf(j);
    if (!step) {
      if (!isWhole)
        endsEarly = true;
      else if (++broken == 1)
        firstBroken = number;
      continue;
    }
    ++lines;
    for (const auto &[name, value] : j.items())
      if (isValue(name) && (run.values.count(name) || run.values.size() < mostNames))
        run.values[name].push_back(
            {*step, value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN()});
    if (const auto &time = part(j, "time"); time.is_string()) {
      run.lastTime = time.get<std::string>();
      if (run.firstTime.empty())
        run.firstTime = run.lastTime;
    }
  }
  if (lines == 0 && broken > 0)
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("{} has {} line{}, and none is of a run", file, broken, broken == 1 ? "" : "s"),
                    "gptrun writes a line for each logged step, as {\"step\": 10, \"loss\": 3.2}; name another folder");
  if (lines == 0)
    run.notes.push_back("The log has no step yet.");
  if (broken > 0)
    run.notes.push_back(fmt::format("{} of the log {} left out: not what gptrun writes (the first is line {}).",
                                    broken == 1 ? "1 line" : fmt::format("{} lines", broken),
                                    broken == 1 ? "is" : "are", firstBroken));
  if (endsEarly)
    run.notes.push_back(fmt::format("The last line of the log, line {}, is not complete and left out: the run is "
                                    "writing it, or was killed.",
                                    number));
  size_t repeated = 0;
  for (auto &[name, values] : run.values)
    repeated = std::max(repeated, settle(values));
  if (repeated > 0)
    run.notes.push_back(fmt::format("The log has {} more than once: the last line of each counts.",
                                    repeated == 1 ? "1 step" : fmt::format("{} steps", repeated)));
}

void readForecasts(RunRecord &run) {
  const FileText file = readTextFile(run.folder + "/forecast.jsonl", kConfigLimit);
  llvm::StringRef rest = file.text;
  size_t broken = 0;
  while (!rest.empty()) {
    const auto [line, behind] = rest.split('\n');
    rest = behind;
    if (line.trim().empty())
      continue;
    json j = parseJsonOrDiscard<json>(line);
    if (part(j, "schema") == 1 && part(j, "predicted").is_object() && part(j, "measured").is_object())
      run.forecasts.push_back(std::move(j));
    else
      ++broken;
  }
  std::error_code e;
  if (broken > 0)
    run.notes.push_back(fmt::format("{} of forecast.jsonl cannot be read and {} left out.",
                                    broken == 1 ? "1 line" : fmt::format("{} lines", broken),
                                    broken == 1 ? "is" : "are"));
  else if (!file.ok && fs::exists(run.folder + "/forecast.jsonl", e))
    run.notes.push_back(fmt::format("forecast.jsonl is left out: {}.", file.why));
}

/// Takes the settings that a checkpoint's manifest knows.
void takeManifest(RunRecord &run, const json &manifest) {
  for (const auto &[key, value] : part(manifest, "model_keys").items())
    if (value.is_string())
      run.settings["model." + key] = value.get<std::string>();
  if (const auto &name = part(manifest, "optimizer"); name.is_string())
    run.settings["optimizer.name"] = name.dump();  // in quotes, as --set has it
  if (const auto &data = part(manifest, "data"); data.is_string())
    run.settings["hash of the training data"] = data.get<std::string>().substr(0, hashDigits);
}

void readCheckpoints(RunRecord &run) {
  std::error_code e;
  size_t damaged = 0;
  json newest;
  fs::directory_iterator it(run.folder + "/checkpoints", fs::directory_options::skip_permission_denied, e);
  for (; !e && it != fs::directory_iterator(); it.increment(e)) {
    if (!llvm::StringRef(it->path().filename().string()).starts_with("step-"))
      continue;
    const FileText file = readTextFile(it->path().string() + "/manifest.json", kConfigLimit);
    json manifest = parseJsonOrDiscard<json>(file.text);
    const auto &step = part(manifest, "step");
    if (!file.ok || !step.is_number_integer()) {
      ++damaged;
      continue;
    }
    RunRecord::Saved saved{step.get<int64_t>(), std::nullopt};
    if (const auto &loss = part(manifest, "val_loss"); loss.is_number())
      saved.valLoss = loss.get<double>();
    const bool isNewest = std::all_of(run.checkpoints.begin(), run.checkpoints.end(),
                                      [&](const auto &other) { return other.step <= saved.step; });
    run.checkpoints.push_back(saved);
    if (isNewest)
      newest = std::move(manifest);
  }
  std::sort(run.checkpoints.begin(), run.checkpoints.end(),
            [](const auto &a, const auto &b) { return a.step < b.step; });
  if (damaged > 0)
    run.notes.push_back(fmt::format("{} without a readable manifest.json {} left out.",
                                    damaged == 1 ? "1 checkpoint" : fmt::format("{} checkpoints", damaged),
                                    damaged == 1 ? "is" : "are"));
  takeManifest(run, newest);
}

/// Takes the settings of the plan that ran last, which know more than checkpoints do.
void takeSettings(RunRecord &run) {
  if (run.forecasts.empty())
    return;
  const json &last = run.forecasts.back();
  if (const auto &settings = part(last, "settings"); settings.is_array())
    for (const json &setting : settings)
      if (setting.is_string()) {
        const std::string text = setting.get<std::string>();
        const auto [key, value] = llvm::StringRef(text).split('=');
        run.settings[key.str()] = value.str();
      }
  for (const char *name : {"target", "cpu", "threads", "ranks", "nodes"})
    if (const auto &value = part(last, name); value.is_string() || value.is_number())
      run.settings[name] = value.is_string() ? value.get<std::string>() : value.dump();
  if (const auto &plan = part(last, "plan"); plan.is_string())
    run.settings["hash of the plan"] = plan.get<std::string>().substr(0, hashDigits);
}

}  // namespace

const LoggedValues &RunRecord::of(const std::string &name) const {
  static const LoggedValues none;
  const auto it = values.find(name);
  return it == values.end() ? none : it->second;
}

double RunRecord::tokensPerStep() const {
  if (!forecasts.empty())
    if (const auto &tokens = part(forecasts.back(), "tokens_per_step"); tokens.is_number())
      return tokens.get<double>();
  // The log rounds both.
  const LoggedValues &ms = of("ms"), &speed = of("tokens_per_s");
  std::vector<double> tokens;
  for (size_t i = 0, k = 0; i < ms.size(); ++i) {
    while (k < speed.size() && speed[k].first < ms[i].first)
      ++k;
    if (k < speed.size() && speed[k].first == ms[i].first)
      if (const double t = std::round(1e-3 * ms[i].second * speed[k].second); std::isfinite(t))
        tokens.push_back(t);
  }
  return medianOf(tokens);
}

RunRecord readRun(const std::string &folder) {
  RunRecord run;
  run.folder = folder;
  run.name = nameOf(folder);
  readLog(run);
  readForecasts(run);
  readCheckpoints(run);
  takeSettings(run);
  return run;
}

Parting partingOf(const LoggedValues &a, const LoggedValues &b) {
  Parting p;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    if (a[i].first != b[k].first) {
      a[i].first < b[k].first ? ++i : ++k;
      continue;
    }
    ++p.common;
    const double x = a[i].second, y = b[k].second;
    const bool isEqual = x == y || (!std::isfinite(x) && !std::isfinite(y));
    if (!isEqual && !p.at)
      p.at = a[i].first, p.a = x, p.b = y;
    if (isEqual && !p.at)
      p.lastEqual = a[i].first;
    ++i, ++k;
  }
  return p;
}

std::map<std::string, std::vector<std::string>> differencesOf(const std::vector<RunRecord> &runs) {
  std::map<std::string, std::vector<std::string>> all;
  for (size_t r = 0; r < runs.size(); ++r)
    for (const auto &[key, value] : runs[r].settings)
      all.try_emplace(key, runs.size()).first->second[r] = value;
  std::erase_if(all, [](const auto &row) {
    return std::all_of(row.second.begin(), row.second.end(), [&](const auto &v) { return v == row.second[0]; });
  });
  return all;
}

}  // namespace gptc
