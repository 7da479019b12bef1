// gptc experiment: runs what an experiment.toml lists, and compares the runs.
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/stderr.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/study/experiment_runner.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

struct Options {
  std::string file, out;
  std::vector<std::string> compared;
  unsigned threads = 0;
  bool yes = false, retry = false, stopOnFailure = false, json = false;
};

json jsonOf(const FirstDifference &p, const std::string &first, const std::string &second) {
  return {{"runs", {first, second}},
          {"shared_steps", p.shared},
          {"last_shared_step", p.last},
          {"step", p.step >= 0 ? json(p.step) : json()},
          {"losses", p.step >= 0 ? json{finiteOrNull<json>(p.first), finiteOrNull<json>(p.second)} : json()}};
}

std::string inWords(const FirstDifference &p) {
  return p.step >= 0
             ? fmt::format("losses first differ at step {}: {} and {}", p.step, p.first, p.second)
             : fmt::format("losses of all {} steps that both have logged are the same, to step {}", p.shared, p.last);
}

std::string decimals(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-";
}

void printTable(const std::vector<RunResult> &sorted) {
  size_t width = 4;
  for (const RunResult &r : sorted)
    width = std::max(width, r.name.size());
  fmt::print("{:<{}} {:>9} {:>7} {:>9} {:>8} {:>12} {:>9} {:>9}  {}\n", "name", width, "best val", "at step", "loss",
             "steps", "tokens", "tok/s", "seconds", "status");
  for (const RunResult &r : sorted)
    fmt::print("{:<{}} {:>9} {:>7} {:>9} {:>8} {:>12} {:>9} {:>9.1f}  {}\n", r.name, width, decimals(r.valLoss, 4),
               r.valStep >= 0 ? std::to_string(r.valStep) : "-", decimals(r.loss, 4), r.steps, r.tokens,
               decimals(r.tokensPerSecond, 0), r.seconds,
               !r.failed              ? "done"
               : r.error.code.empty() ? "failed: " + r.error.message
                                      : "failed: " + r.error.code);
}

/// Of variants with several seeds.
void printStatistics(const std::vector<SeedStatistics> &all) {
  if (std::none_of(all.begin(), all.end(),
                   [](const SeedStatistics &s) { return s.values.size() + size_t(s.without) > 1; }))
    return;
  size_t width = 7;
  for (const SeedStatistics &s : all)
    width = std::max(width, s.variant.size());
  fmt::print("\n{:<{}} {:>6} {:>9}  {}\n", "variant", width, "seeds", "mean", "95% interval");
  for (const SeedStatistics &s : all)
    fmt::print("{:<{}} {:>6} {:>9.4f}  {}\n", s.variant, width,
               s.without ? fmt::format("{} of {}", s.values.size(), s.values.size() + size_t(s.without))
                         : std::to_string(s.values.size()),
               s.mean,
               std::isfinite(s.halfWidth) ? fmt::format("{:.4f} to {:.4f}", s.mean - s.halfWidth, s.mean + s.halfWidth)
                                          : "-");
  fmt::print(
      "of the best validation losses over seeds; intervals of the mean by Student's t, n - 1 degrees of freedom\n");
}

json jsonOf(const std::vector<SeedStatistics> &all) {
  json list = json::array();
  for (const SeedStatistics &s : all)
    list.push_back({{"variant", s.variant},
                    {"seeds", s.values.size()},
                    {"without_value", s.without},
                    {"mean", finiteOrNull<json>(s.mean)},
                    {"low_95", finiteOrNull<json>(s.mean - s.halfWidth)},
                    {"high_95", finiteOrNull<json>(s.mean + s.halfWidth)}});
  return list;
}

/// Of an experiment's two runs; nullopt if their logs cannot be compared.
std::optional<FirstDifference> firstDifferenceOf(const std::string &dir, const std::vector<RunResult> &results) {
  if (results.size() != 2)
    return std::nullopt;
  try {
    return compareRuns(dir + "/" + results[0].name, dir + "/" + results[1].name);
  } catch (const UserError &) {
    return std::nullopt;
  }
}

void printReport(const Options &o, const std::string &dir, const ExperimentReport &report) {
  const std::vector<SeedStatistics> statistics = SeedStatistics::of(report.results);
  const std::optional<FirstDifference> difference = report.left ? std::nullopt : firstDifferenceOf(dir, report.results);
  std::vector<RunResult> sorted = report.results;
  sortByLoss(sorted);
  if (o.json) {
    json runs = json::array();
    for (const RunResult &r : sorted)
      runs.push_back(r.json());
    const json all = {{"runs", runs},
                      {"variants", jsonOf(statistics)},
                      {"left", report.left},
                      {"first_difference",
                       difference ? jsonOf(*difference, report.results[0].name, report.results[1].name) : json()}};
    return fmt::print("{}\n", all.dump(2, ' ', false, json::error_handler_t::replace));
  }
  fmt::print("\n");
  printTable(sorted);
  printStatistics(statistics);
  if (difference)
    fmt::print("\n{} and {}: {}\n", report.results[0].name, report.results[1].name, inWords(*difference));
  if (report.left)
    fmt::print("{} run{} left: the same command goes on\n", report.left, report.left == 1 ? "" : "s");
  if (const auto failed = llvm::count_if(report.results, [](const RunResult &r) { return r.failed; }))
    fmt::print("{} run{} failed: --retry-failed runs them again\n", failed, failed == 1 ? "" : "s");
}

/// A run's folder, or the name of one in --out.
std::string runFolder(const Options &o, const std::string &run) {
  std::error_code e;
  const std::string inside = o.out + "/" + run;
  return !o.out.empty() && std::filesystem::exists(inside, e) ? inside : run;
}

void compare(const Options &o) {
  const FirstDifference p = compareRuns(runFolder(o, o.compared[0]), runFolder(o, o.compared[1]));
  if (o.json)
    fmt::print("{}\n", jsonOf(p, o.compared[0], o.compared[1]).dump(2, ' ', false, json::error_handler_t::replace));
  else
    fmt::print("{}\n", inWords(p));
}

void experiment(const Options &o) {
  if (o.file.empty() || o.out.empty())
    throw UserError(ErrorCode::Usage, o.file.empty() ? "which experiment?" : "where to? --out is missing",
                    "gptc experiment FILE.toml --out DIR, or gptc experiment --compare RUN RUN");
  const std::string dir = absolutePath(o.out);
  const ExperimentRequest request{
      .experiment = readExperiment(o.file, o.yes ? kMostRuns : kManyRuns),
      .dir = dir,
      .threads = o.threads,
      .retryFailed = o.retry,
      .stopOnFailure = o.stopOnFailure,
      .say =
          [&](const std::string &line) {
            if (o.json)
              return printError("{}\n", line);
            fmt::print("{}\n", line);
            std::fflush(stdout);
          },
  };
  const ExperimentReport report = runExperiment(request);
  printReport(o, dir, report);
  if (report.signal)
    throw EndProgram(128 + report.signal);
  for (const RunResult &r : report.results)
    if (r.failed)
      throw EndProgram(r.exit ? r.exit : exitCodeOf(ErrorCode::OutOfRange));
  if (report.left)
    throw EndProgram(128 + SIGTERM);  // somebody else has stopped one
}

}  // namespace

void addExperimentCommand(Command &app) {
  Command c = app.command("experiment", "Trains a grid or a list of variants of a model, and compares them");
  auto o = std::make_shared<Options>();
  c.option("file", o->file, "Names a model, [grid] or [[variant]], seeds, and steps, tokens, flops or seconds")
      .type("FILE.toml");
  c.option("--out", o->out, "Folder of all runs and of results.jsonl; what is done there is not done again")
      .type("DIR");
  c.option("--threads", o->threads, "Threads of each run (0: all cores)").within(0, 4096);
  c.flag("--yes", o->yes, "Makes more than 1,000 runs");
  c.flag("--retry-failed", o->retry, "Goes on with runs that have failed");
  c.flag("--stop-on-failure", o->stopOnFailure, "Ends with the first run that fails");
  c.option("--compare", o->compared, "Two runs: the first step at which their logged losses differ")
      .type("DIR")
      .values(2);
  c.flag("--json", o->json, "Prints JSON instead of a table");
  c.footer(
      "model = \"model.toml\"\n"
      "steps = 500\n"
      "seeds = [1, 2, 3]\n"
      "[grid]\n"
      "optimizer.lr = [3e-4, 1e-3]        # or a list: [[variant]], name = \"hot\", set = [\"optimizer.lr=1e-2\"]");
  c.run([o] { o->compared.empty() ? experiment(*o) : compare(*o); });
}

}  // namespace gptc
