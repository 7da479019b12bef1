// gptc bench peak, step and kernels: what there is, with what is on record about schedules.
#include "codegen/codegen.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/diagnostics.h"
#include "runtime/profile.h"
#include "runtime/tuned_schedules.h"
#include "tools/driver/cache_dir.h"
#include "tools/driver/command_line.h"
#include "tools/driver/commands.h"
#include "tools/driver/compile.h"
#include "tools/driver/gir_file.h"
#include "tools/driver/kernel_times.h"
#include "tools/driver/variants.h"

#include "llvm/ADT/STLExtras.h"

#include <nlohmann/json.hpp>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

struct Request {
  std::string modelFile;
  std::vector<std::string> settings;
  int64_t steps = 10;
  unsigned threads = 0;
  bool json = false;
};

json jsonOf(const MachineSpeed &s) {
  return {{"fp32_flops", s.peakFp32}, {"bf16_flops", s.peakBf16}, {"copy_bytes_per_s", s.copyBytes}};
}

void peak(const Request &r) {
  const Target target = hostTarget(r.threads);
  ThreadPool pool(target.threads);
  const MachineSpeed s = measureSpeed(pool, target);
  if (r.json)
    return fmt::print("{}\n", jsonOf(s).dump(2));
  fmt::print("{} thread{} of {}\n", target.threads, target.threads == 1 ? "" : "s", target.cpu);
  fmt::print("fp32  {:8.1f} GFLOP/s, fused multiply-adds in registers\n", s.peakFp32 * 1e-9);
  fmt::print("bf16  {:8.1f} GFLOP/s, {}\n", s.peakBf16 * 1e-9,
             target.bf16Dot ? "dot products of pairs" : "converted, as this CPU multiplies no bf16");
  fmt::print("copy  {:8.1f} GB/s, read and written\n", s.copyBytes * 1e-9);
}

/// The model as `gptc compile` makes it, ready to take steps.
std::unique_ptr<StepRunner> runnerOf(const Request &r, double &tokens, double &flops, std::string &compute) {
  if (isGirFile(r.modelFile))
    throw UserError(ErrorCode::Usage, fmt::format("{} is a module", r.modelFile), "give the model.toml");
  const Config config = readConfig(r.modelFile, r.settings);
  if (config.compile.target != "cpu")
    throw UserError(
        Diagnostic{ErrorCode::NotBuiltYet,
                   fmt::format("compile.target = \"{}\": steps are measured on the CPU only", config.compile.target),
                   config.where("compile.target"),
                   "",
                   {"--set compile.target=cpu; on a GPU `gptrun PLAN` prints what a step takes"},
                   {}});
  const Target target = hostTarget(r.threads);
  TuningRecords records(config.compile.autotune == "off" ? "" : defaultCacheDir());
  TunedSchedules tuned(records, target);
  std::unique_ptr<Module> planned =
      runFrom(*buildModel(config), "canonicalize", target, [&](std::vector<PassUse> &uses) {
        for (PassUse &u : uses)
          u.options.schedules = &tuned;
      });
  tokens = double(config.train.globalBatchTokens);
  flops = tokens * flopsPerToken(*planned);
  compute = config.precision.compute;
  return std::make_unique<StepRunner>(std::move(planned), target, defaultCacheDir(), r.threads);
}

void step(const Request &r) {
  double tokens, flops;
  std::string compute;
  std::unique_ptr<StepRunner> runner = runnerOf(r, tokens, flops, compute);
  const MachineSpeed speed = measureSpeed(runner->session.pool, runner->session.host);
  runner->step();
  std::vector<double> seconds;
  for (int64_t i = 0; i < r.steps; ++i)
    seconds.push_back(runner->step());
  const Spread s = spreadOf(seconds);
  const double peak = speed.peak(compute == "bf16" ? DType::bf16 : DType::f32);
  if (r.json)
    return fmt::print("{}\n",
                      json{{"ms", {{"median", 1e3 * s.median}, {"least", 1e3 * s.least}, {"most", 1e3 * s.most}}},
                           {"tokens_per_s", tokens / s.median},
                           {"gflops_per_step", flops * 1e-9},
                           {"mfu", flops / s.median / peak},
                           {"machine", jsonOf(speed)}}
                          .dump(2));
  fmt::print("{:.2f} ms per step ({:.2f}..{:.2f}, {} steps), {:.0f} tokens/s, {:.1f}% of {:.0f} GFLOP/s {}\n",
             1e3 * s.median, 1e3 * s.least, 1e3 * s.most, r.steps, tokens / s.median, 100 * flops / s.median / peak,
             peak * 1e-9, compute);
}

void kernels(const Request &r) {
  double tokens, flops;
  std::string compute;
  std::unique_ptr<StepRunner> runner = runnerOf(r, tokens, flops, compute);
  const MachineSpeed speed = measureSpeed(runner->session.pool, runner->session.host);
  const GroupsByProblem groups(*runner->session.plan.planned, runner->session.plan.target);
  TimesByProblem times(groups);
  runner->step();
  runner->session.executor.observer = &times;
  for (int64_t i = 0; i < r.steps; ++i)
    runner->step();
  struct Row {
    const Op *op;
    double calls, ms, flops, bytes, peak;
  };
  std::vector<Row> rows;
  double all = 0;
  for (const auto &[problem, ops] : groups.ops)
    if (const Timing t = times.timing(problem); t.runs) {
      const Op &op = *ops.front();
      rows.push_back(
          {&op, groups.calls.at(problem), 1e3 * t.median, flopsOf(op), bytesOf(op), speed.peak(operandsOf(op))});
      all += rows.back().calls * rows.back().ms;
    }
  llvm::stable_sort(rows, [](const Row &a, const Row &b) { return a.calls * a.ms > b.calls * b.ms; });
  json list = json::array();
  if (!r.json)
    fmt::print("{:<44} {:<24} {:>5} {:>9} {:>6} {:>7} {:>7}  {}\n", "kernel", "shapes", "calls", "ms", "share",
               "% peak", "% copy", "schedule");
  for (const Row &row : rows) {
    const double s = 1e-3 * row.ms, ofPeak = 100 * row.flops / s / row.peak,
                 ofCopy = 100 * row.bytes / s / speed.copyBytes;
    const std::string place = describe(*row.op), shapes = shapesOf(*row.op),
                      schedule = row.op->attrs.getString("schedule");
    if (r.json)
      list.push_back({{"place", place},
                      {"shapes", shapes},
                      {"calls", row.calls},
                      {"ms", row.ms},
                      {"percent_of_peak", ofPeak},
                      {"percent_of_copy", ofCopy},
                      {"schedule", schedule}});
    else
      fmt::print("{:<44.44} {:<24.24} {:>5} {:>9.3f} {:>5.1f}% {:>6.1f}% {:>6.1f}%  {}\n", place, shapes, row.calls,
                 row.ms, 100 * row.calls * row.ms / all, ofPeak, ofCopy, schedule);
  }
  if (r.json)
    fmt::print("{}\n", json{{"machine", jsonOf(speed)}, {"kernels", list}}.dump(2));
}

}  // namespace

void addMeasurements(CLI::App &bench) {
  auto add = [&](const char *name, const char *what, void (*run)(const Request &), bool model) {
    CLI::App *c = bench.add_subcommand(name, what);
    auto r = std::make_shared<Request>();
    if (model) {
      addModel(*c, r->modelFile, r->settings);
      c->add_option("--steps", r->steps, "Timed steps [10]")->check(CLI::Range(1, 100000));
    }
    c->add_option("--threads", r->threads, "Threads (0: all cores)")->check(CLI::Range(0, 4096));
    c->add_flag("--json", r->json, "Prints JSON instead of text");
    c->callback([r, run] { run(*r); });
  };
  add("peak", "Measures arithmetic and memory at their best", peak, false);
  add("step", "Measures a training step", step, true);
  add("kernels", "Measures each kernel within the training step", kernels, true);
}

}  // namespace gptc
