// gptc explain: reports the decisions in a plan, their worth, and the alternatives.
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/planner/cache_dir.h"
#include "tools/study/explain.h"
#include "tools/study/explain_gpu.h"
#include "tools/study/explain_threads.h"
#include "tools/study/explain_weights.h"
#include "tools/study/step_trace.h"
#include "tools/study/why.h"

#include "codegen/codegen.h"
#include "runtime/device/peak.h"
#include "runtime/tuning/cache_secret.h"
#include "support/json.h"
#include "support/words.h"

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

json jsonOf(const Effect &e) { return {{"arena_bytes", e.memory}, {"traffic_bytes", e.traffic}, {"ms", e.ms}}; }

json jsonOf(const Plan &plan, const Explanation &e, const std::optional<WeightsKept> &kept) {
  json list = json::array();
  for (const Decision &d : e.decisions) {
    json entry = {
        {"pass", d.pass}, {"name", d.name}, {"choice", d.choice}, {"effect", jsonOf(d.effect)}, {"note", d.note}};
    for (const Alternative &a : d.rejected)
      entry["rejected"].push_back({{"choice", a.choice}, {"effect", jsonOf(a.effect)}, {"why", a.why}});
    list.push_back(entry);
  }
  json all = {
      {"plan", plan.hash},
      {"arena_bytes", e.plan.arena},
      {"step", {{"ms", 1e3 * e.plan.step.seconds}, {"flops", e.plan.step.flops}, {"traffic_bytes", e.plan.step.bytes}}},
      {"fp32_peak", e.rates.fp32},
      {"decisions", list}};
  if (kept)
    all["weights"] = jsonOf(*kept);
  return all;
}

/// This machine's peak in FLOP/s. If other processes disturb the measurement, tries again, and at last takes the
/// typical value of such a machine, so that the report does not depend on how busy the machine is.
double undisturbedPeak(const Target &target, bool &measured) {
  const double typical = ratesOf(target).fp32;
  ThreadPool pool(target.threads);
  const PeakRecord peak = peakOfCpu(pool, hostTarget(target.threads), DType::f32, defaultCacheDir());
  double best = peak.get().flops;
  for (int round = 0; round < 3 && best < 0.5 * typical; ++round)
    best = peak.again().flops;
  measured = best >= 0.25 * typical;
  return measured ? best : typical;
}

void run(const std::string &dir, bool asJson, bool rounding) {
  const std::string cacheDir = defaultCacheDir();
  const Plan plan = loadPlan(dir, cacheSecret(cacheDir));
  const std::optional<WeightsKept> kept = weightsKeptBy(plan, cacheDir, rounding);
  bool measured = false;
  const Explanation e = explain(plan, undisturbedPeak(plan.target, measured));
  if (asJson) {  // paths need not be UTF-8
    fmt::print("{}\n", jsonOf(plan, e, kept).dump(2, ' ', false, json::error_handler_t::replace));
    return;
  }
  fmt::print("plan        {}  {}\n", dir, plan.hash.substr(0, 12));
  fmt::print("machine     {} with {} thread{}, {:.0f} GFLOP/s fp32 {}\n", plan.target.cpu, plan.target.threads,
             plan.target.threads == 1 ? "" : "s", e.rates.fp32 * 1e-9,
             measured ? "measured" : "typical (too busy to measure)");
  fmt::print("step        {:.4g} ms predicted: {:.4g} GFLOP, {:.3g} GB to and from memory\n", 1e3 * e.plan.step.seconds,
             e.plan.step.flops * 1e-9, e.plan.step.bytes * 1e-9);
  fmt::print("arena       {}\n\n", formatBytes(double(e.plan.arena)));
  fmt::print(
      "Each line: with the choice minus without it; negative numbers are savings. Below it, what an alternative\n"
      "would have done instead. Bytes of the arena are those of plans really made; times and traffic are per step and\n"
      "predicted.\n\n{}",
      tableOf(e.decisions));
  if (kept)
    fmt::print("\n{}", tableOf(*kept));
}

void writeTrace(const std::string &dir, const std::string &file) {
  const std::string cacheDir = defaultCacheDir();
  const Plan plan = loadPlan(dir, cacheSecret(cacheDir));
  bool measured = false;
  const MachineRates rates =
      plan.target.isCuda() ? ratesOf(plan.target) : ratesOf(plan.target, undisturbedPeak(plan.target, measured));
  expectedTrace(*plan.planned, plan.target, rates).write(file);
  fmt::print("the step as forecast is in {}; log.trace_steps lets gptrun write measured ones\n", file);
}

void runOnThreads(const std::string &dir, unsigned threads, bool asJson) {
  const Plan plan = loadPlan(dir);
  const PlanOnThreads all = onThreads(plan, threads);
  if (asJson)
    fmt::print("{}\n", jsonOf(all).dump(2, ' ', false, json::error_handler_t::replace));
  else
    fmt::print("plan        {}  {}\n{}", dir, plan.hash.substr(0, 12), tableOf(all));
}

void runOnGpu(const std::string &dir, const std::string &name, bool asJson) {
  const Plan plan = loadPlan(dir);
  const GpuRates rates = gpuRatesOf(gpuForPlan(plan.target, name));
  const GpuStep step = gpuStepOf(*plan.planned, plan.target, rates, defaultCacheDir());
  const GpuStep token = gpuTokenOf(*plan.planned, plan.target, rates, defaultCacheDir());
  if (asJson)
    fmt::print("{}\n", jsonOf(step, token, rates).dump(2));
  else
    fmt::print("plan        {}  {}\n{}", dir, plan.hash.substr(0, 12), tableOf(step, token, rates));
}

}  // namespace

void addExplainCommand(Command &app) {
  Command c = app.command("explain", "Says what each decision of the compiler costs and saves");
  struct Options {
    std::string plan, cluster, gpu, trace;
    std::vector<std::string> why;
    bool json = false, rounding = false;
    unsigned threads = 0;  // 0: not given
  };
  auto o = std::make_shared<Options>();
  const Option plan = c.option("plan", o->plan, "Folder written by `gptc compile`").type("PLAN");
  const Option json = c.flag("--json", o->json, "Prints JSON instead of a table");
  const Option rounding = c.flag("--rounding", o->rounding,
                                 "Measures how far weights in few bits are from those of the run; reads all of them")
                              .needs(plan);
  const Option target =
      c.option("--target", o->gpu,
               "Instead: what a step costs on this GPU, by the code of its kernels (\"H200\"). No GPU "
               "is needed")
          .type("GPU")
          .needs(plan)
          .excludes(rounding);
  const Option trace = c.option("--trace", o->trace,
                                "Instead: writes the kernels of a step, as they are forecast one by one on this CPU or "
                                "a typical GPU, in the form of what gptrun measures with log.trace_steps, for Perfetto")
                           .type("FILE.json")
                           .needs(plan)
                           .excludes(json)
                           .excludes(rounding)
                           .excludes(target);
  const Option threads = c.option("--threads", o->threads,
                                  "Instead: how the work divides among so many threads of a CPU, which need not be "
                                  "here: tasks, barriers, memory")
                             .within(1, 4096)
                             .needs(plan)
                             .excludes(rounding)
                             .excludes(target)
                             .excludes(trace);
  const Option why = c.option("--why", o->why,
                              "Why A is slower than B: two plans, or two forecasts \"MODEL.toml gpus=16 KEY=VALUE...\"")
                         .values(2)
                         .type("A B")
                         .excludes(plan)
                         .excludes(json)
                         .excludes(target)
                         .excludes(trace)
                         .excludes(threads);
  c.option("--cluster", o->cluster, "On which cluster, for --why with forecasts").type("CLUSTER.toml").needs(why);
  c.run([o] {
    if (!o->why.empty())
      explainWhy(o->why[0], o->why[1], o->cluster);
    else if (o->plan.empty())
      throw UserError(ErrorCode::Usage, "gptc explain needs a plan", "gptc explain PLAN, or --why A B");
    else if (!o->trace.empty())
      writeTrace(o->plan, o->trace);
    else if (o->threads)
      runOnThreads(o->plan, o->threads, o->json);
    else if (!o->gpu.empty())
      runOnGpu(o->plan, o->gpu, o->json);
    else
      run(o->plan, o->json, o->rounding);
  });
}

}  // namespace gptc
