// gptc bench peak, step, kernels and decode: measurements with the recorded schedules.
#include "codegen/codegen.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/cost.h"
#include "runtime/device/profile.h"
#include "runtime/serve/sample.h"
#include "runtime/tuning/tuned_schedules.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/stderr.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/compiler/compile.h"
#include "tools/planner/cache_dir.h"
#include "tools/planner/variants.h"
#include "tools/study/bench_gpu.h"
#include "tools/study/kernel_times.h"

#include "llvm/ADT/STLExtras.h"

#include <map>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

struct Request {
  std::string modelFile;
  std::vector<std::string> settings;
  int64_t steps = 10;  // or tokens
  unsigned threads = 0;
  bool json = false;
  // For kernels: a plan instead of a model, calls of each kernel on a GPU, and the JSON file besides the table.
  int calls = 20;
  std::string jsonFile;
  bool wantsTable() const { return !json || !jsonFile.empty(); }
  void write(const std::string &text) const {
    if (jsonFile.empty())
      return fmt::print("{}", text);
    writeSynced(jsonFile, text);
  }
};

json jsonOf(const MachineSpeed &s) {
  return {{"fp32_flops", s.peakFp32},
          {"bf16_flops", s.peakBf16},
          {"read_bytes_per_s", s.memory.read},
          {"copy_bytes_per_s", s.memory.copy},
          {"triad_bytes_per_s", s.memory.triad}};
}

/// Memory bandwidth, measured in turn with something else.
class MemorySamples {
public:
  explicit MemorySamples(Session &s) : probe(s.pool, s.host) {}
  void sample() {
    const MemorySpeed s = probe.once();
    read.push_back(s.read), copy.push_back(s.copy), triad.push_back(s.triad);
  }
  MemorySpeed median() const { return {spreadOf(read).median, spreadOf(copy).median, spreadOf(triad).median}; }

private:
  MemoryProbe probe;
  std::vector<double> read, copy, triad;
};

void peak(const Request &r) {
  const Target target = hostTarget(r.threads);
  ThreadPool pool(target.threads);
  // The user asked for a measurement, so do not use the record; the greatest value counts from now on.
  const Peak fp32 = peakOfCpu(pool, target, DType::f32, defaultCacheDir()).again(),
             bf16 = peakOfCpu(pool, target, DType::bf16, defaultCacheDir()).again();
  const MachineSpeed s{fp32.flops, bf16.flops, measureMemory(pool, target)};
  if (r.json)
    return fmt::print("{}\n", jsonOf(s).dump(2));
  fmt::print("{} thread{} of {}\n", target.threads, target.threads == 1 ? "" : "s", target.cpu);
  fmt::print("fp32  {:8.1f} GFLOP/s, fused multiply-adds in registers, measured {}\n", s.peakFp32 * 1e-9, fp32.date);
  fmt::print("bf16  {:8.1f} GFLOP/s, {}, measured {}\n", s.peakBf16 * 1e-9,
             target.bf16Dot ? "dot products of pairs" : "converted, as this CPU multiplies no bf16", bf16.date);
  fmt::print("read  {:8.1f} GB/s\n", s.memory.read * 1e-9);
  fmt::print("copy  {:8.1f} GB/s, read and written past the caches\n", s.memory.copy * 1e-9);
  fmt::print("triad {:8.1f} GB/s, two arrays read and one written past the caches\n", s.memory.triad * 1e-9);
}

/// The module that the options ask for, with schedules on record.
std::unique_ptr<StepRunner> runnerOf(const Request &r, const Config &config, const BuildOptions &build) {
  const Target target = hostTarget(r.threads);
  TuningRecords records(config.compile.autotune == "off" ? "" : defaultCacheDir());
  TunedSchedules tuned(records, target);
  std::unique_ptr<Module> planned =
      runFrom(*buildModel(config, build), "canonicalize", target, [&](std::vector<PassUse> &uses) {
        for (PassUse &u : uses)
          u.options.schedules = &tuned;
      });
  return std::make_unique<StepRunner>(std::move(planned), target, defaultCacheDir(), r.threads);
}

/// The model as `gptc compile` makes it, ready for steps.
std::unique_ptr<StepRunner> runnerOf(const Request &r, double &tokens, double &flops, std::string &compute) {
  const Config config = readConfigForBench(r.modelFile, r.settings);
  std::unique_ptr<StepRunner> runner = runnerOf(r, config, {});
  tokens = double(config.train.globalBatchTokens);
  flops = tokens * flopsPerToken(*runner->session.plan.planned);
  compute = config.precision.compute;
  return runner;
}

void step(const Request &r) {
  double tokens, flops;
  std::string compute;
  std::unique_ptr<StepRunner> runner = runnerOf(r, tokens, flops, compute);
  runner->step();
  std::vector<double> seconds;
  for (int64_t i = 0; i < r.steps; ++i)
    seconds.push_back(runner->step());
  const Spread s = spreadOf(seconds);
  Utilization utilization(0, {}, runner->session.executor.peak(compute), compute);
  const int64_t every = fact<&ParallelFacts::syncEvery>(*runner->session.plan.planned);
  const double mfu = utilization.at(flops / s.median, [](const std::string &text) { printError("{}\n", text); }).mfu;
  if (r.json) {
    const MachineSpeed speed = measureSpeed(runner->session.pool, runner->session.host, defaultCacheDir());
    return fmt::print("{}\n",
                      json{{"ms", {{"median", 1e3 * s.median}, {"least", 1e3 * s.least}, {"most", 1e3 * s.most}}},
                           {"tokens_per_s", tokens / s.median},
                           {"gflops_per_step", flops * 1e-9},
                           {"mfu", mfu},
                           {"machine", jsonOf(speed)}}
                          .dump(2));
  }
  fmt::print("{:.2f} ms per step ({:.2f}..{:.2f}, {} steps), {:.0f} tokens/s; MFU {:.1f}%: {}\n", 1e3 * s.median,
             1e3 * s.least, 1e3 * s.most, r.steps, tokens / s.median, 100 * mfu, utilization.describe());
  if (every > 1)
    fmt::print("without the outer step that follows every {} of them\n", every);
}

void kernels(const Request &r) {
  double tokens, flops;
  std::string compute;
  std::unique_ptr<StepRunner> runner;
  if (isGivenAsPlan(r.modelFile)) {
    if (!r.settings.empty())
      throw UserError(ErrorCode::Usage, "--set changes a model, and a plan is made already",
                      "compile with these settings, or give the model.toml");
    Plan plan = loadPlan(r.modelFile);
    if (plan.target.isCuda()) {
      const GpuKernelReport report = benchGpuKernels(std::move(plan), defaultCacheDir(), r.threads, r.calls);
      if (r.wantsTable())
        fmt::print("{}", tableOf(report));
      if (r.json)
        r.write(jsonOf(report));
      return;
    }
    runner = std::make_unique<StepRunner>(std::move(plan.planned), plan.target, defaultCacheDir(), r.threads);
  } else {
    runner = runnerOf(r, tokens, flops, compute);
  }
  MachineSpeed speed = measureArithmetic(runner->session.pool, runner->session.host, defaultCacheDir());
  MemorySamples memory(runner->session);
  const GroupsByProblem groups(*runner->session.plan.planned, runner->session.plan.target);
  TimesByProblem times(groups);
  runner->step();
  runner->session.executor.observer = &times;
  for (int64_t i = 0; i < r.steps; ++i) {
    runner->step();
    memory.sample();
  }
  speed.memory = memory.median();
  struct Row {
    const Op *op;
    double calls, ms, flops, bytes, peak;
  };
  std::vector<Row> rows;
  double all = 0, optimizerMs = 0, optimizerBytes = 0;
  for (const auto &[problem, ops] : groups.ops)
    if (const Timing t = times.timing(problem); t.runs) {
      const Op &op = *ops.front();
      const Row &row = rows.emplace_back(
          Row{&op, groups.calls.at(problem), 1e3 * t.median, flopsOf(op), bytesOf(op), speed.peak(operandsOf(op))});
      all += row.calls * row.ms;
      if (op.loc == "optimizer") {  // norm, clipping, update (passes/optimizer.cpp)
        optimizerMs += row.calls * row.ms;
        optimizerBytes += row.calls * row.bytes;
      }
    }
  const double optimizerShare = 1e-3 * optimizerMs * speed.memory.triad / optimizerBytes;
  llvm::stable_sort(rows, [](const Row &a, const Row &b) { return a.calls * a.ms > b.calls * b.ms; });
  const MachineRates rates = ratesOf(runner->session.plan.target, speed.peakFp32);
  json list = json::array();
  double mostOfPeak = 0, mostOfMemory = 0;
  if (r.wantsTable())
    fmt::print("{:<44} {:<24} {:>5} {:>9} {:>6} {:>7} {:>7}  {}\n", "kernel", "shapes", "calls", "ms", "share",
               "% peak", "% mem", "schedule");
  for (const Row &row : rows) {
    const double s = 1e-3 * row.ms, ofPeak = 100 * row.flops / s / row.peak,
                 ofMemory = 100 * row.bytes / s / speed.memory.triad;
    mostOfPeak = std::max(mostOfPeak, ofPeak), mostOfMemory = std::max(mostOfMemory, ofMemory);
    const std::string place = describe(*row.op), shapes = shapesOf(*row.op),
                      schedule = fact<&GroupFacts::schedule>(*row.op);
    if (r.json)
      list.push_back({{"place", place},
                      {"shapes", shapes},
                      {"class", nameOf(classOf(*row.op))},
                      {"calls", row.calls},
                      {"ms", row.ms},
                      {"predicted_ms", 1e3 * costOf(*row.op, rates).seconds},
                      {"flops", row.flops},
                      {"bytes", row.bytes},
                      {"percent_of_peak", ofPeak},
                      {"percent_of_memory", ofMemory},
                      {"schedule", schedule}});
    if (r.wantsTable())
      fmt::print("{:<44.44} {:<24.24} {:>5} {:>9.3f} {:>5.1f}% {:>6.1f}% {:>6.1f}%  {}\n", place, shapes, row.calls,
                 row.ms, 100 * row.calls * row.ms / all, ofPeak, ofMemory, schedule);
  }
  if (r.json)
    r.write(json{{"machine", jsonOf(speed)},
                 {"optimizer", {{"ms", optimizerMs}, {"bytes", optimizerBytes}, {"times_streaming", optimizerShare}}},
                 {"kernels", list}}
                .dump(2) +
            "\n");
  if (!r.wantsTable())
    return;
  fmt::print("{}", noteOnShares(mostOfPeak, mostOfMemory));
  fmt::print("memory between steps, medians: read {:.1f} GB/s, copy {:.1f}, triad {:.1f}, which is what % mem is of\n",
             speed.memory.read * 1e-9, speed.memory.copy * 1e-9, speed.memory.triad * 1e-9);
  fmt::print("optimizer with clipping: {:.2f} ms for {:.3f} GB, {:.2f}x the time of the triad for as many\n",
             optimizerMs, optimizerBytes * 1e-9, optimizerShare);
}

/// Bytes of the weights that a token reads completely, as they are in memory.
double weightsPerToken(const Module &m) {
  std::map<std::string, double> read;
  for (const Op &op : m.function("step_1")->body)
    for (unsigned i = 0; op.is(OpKind::fused) && i < op.numOperands(); ++i) {
      const Op *from = op.operand(i)->def;
      const State *s = from && from->is(OpKind::read) ? m.state(from->state) : nullptr;
      const std::optional<StateKind> kind = s ? kindOf(*s) : std::nullopt;
      const bool isMatrix = kind == StateKind::param || kind == StateKind::low;
      if (!isMatrix && kind != StateKind::packed && kind != StateKind::quantized)
        continue;
      if (!isMatrix ||
          llvm::any_of(op.body->args[i]->users(), [](const Op *u) { return u->def().fusion != FusionKind::gather; }))
        read[s->name] = double(s->type.bytes());
    }
  double sum = 0;
  for (const auto &[name, bytes] : read)
    sum += bytes;
  return sum;
}

void decode(const Request &r) {
  const Config config = readConfigForBench(r.modelFile, r.settings);
  std::unique_ptr<StepRunner> runner = runnerOf(r, config, {.slots = config.model.causal ? 1 : 0});
  Session &session = runner->session;
  const Module &m = *session.plan.planned;
  requireGenerator(m);
  MemorySamples memory(session);
  constexpr int64_t between = 8;  // tokens between two measurements of memory
  SampleOptions options;
  options.maxTokens = r.steps + 1;  // the first one comes from reading the prompt
  std::vector<double> seconds;
  auto generate = [&](const std::function<void()> &token) {
    sampleTokens(session.executor, {0}, options, [&](int32_t) {
      token();
      return true;
    });
  };
  int64_t last = 0;
  generate([&] {
    if (const int64_t now = monotonicNow(); last)
      seconds.push_back(1e-9 * double(now - last));
    if (seconds.size() % between == 0)
      memory.sample();
    last = monotonicNow();
  });
  Profile profile;
  session.executor.observer = &profile;
  generate([] {});
  const Spread s = spreadOf(seconds);
  const double bytes = weightsPerToken(m), rate = bytes / s.median, read = memory.median().read;
  if (r.json)
    return fmt::print("{}\n",
                      json{{"ms", {{"median", 1e3 * s.median}, {"least", 1e3 * s.least}, {"most", 1e3 * s.most}}},
                           {"bytes", bytes},
                           {"bytes_per_s", rate},
                           {"read_bytes_per_s", read},
                           {"share", rate / read}}
                          .dump(2));
  fmt::print("{}kernels one by one; the first token reads the prompt\n\n", profile.table(r.steps));
  fmt::print("{:.2f} ms per token ({:.2f}..{:.2f}, {} tokens)\n", 1e3 * s.median, 1e3 * s.least, 1e3 * s.most, r.steps);
  fmt::print("{:.1f} MB of weights a token: {:.1f} GB/s, {:.1f}% of {:.1f} GB/s that the machine reads, in turn\n",
             bytes * 1e-6, rate * 1e-9, 100 * rate / read, read * 1e-9);
}

}  // namespace

void addMeasurements(Command &bench) {
  auto add = [&](const char *name, const char *what, void (*run)(const Request &), const char *steps) {
    Command c = bench.command(name, what);
    auto r = std::make_shared<Request>();
    if (steps) {
      addModel(c, r->modelFile, r->settings);
      c.option(steps, r->steps, fmt::format("How many are timed [{}]", r->steps)).within(1, 100000);
    }
    c.option("--threads", r->threads, "Threads (0: all cores)").within(0, 4096);
    c.flag("--json", r->json, "Prints JSON instead of text");
    c.run([r, run] { run(*r); });
  };
  add("peak", "Measures arithmetic and memory at their best", peak, nullptr);
  add("step", "Measures a training step", step, "--steps");
  Command k = bench.command("kernels", "Measures each kernel: on a CPU within the training step, on a GPU "
                                       "by itself");
  auto r = std::make_shared<Request>();
  k.option("model", r->modelFile, "A plan, or a model.toml for this CPU").required().type("PLAN|MODEL.toml");
  k.option("--set", r->settings, "Overrides a key of the model; may be repeated").type("KEY=VALUE").repeated();
  k.option("--steps", r->steps, fmt::format("Steps on a CPU [{}]", r->steps)).within(1, 100000);
  k.option("--calls", r->calls, fmt::format("Calls of each kernel in a graph, on a GPU [{}]", r->calls))
      .within(1, 1000);
  k.option("--threads", r->threads, "Threads (0: all cores)").within(0, 4096);
  const Option file = k.option("--json", r->jsonFile,
                               "Prints JSON instead of a table, or writes it into a file "
                               "beside the table")
                          .type("[FILE]")
                          .mayHaveValue();
  k.run([r, file] {
    r->json = file.given();
    kernels(*r);
  });
  add("decode", "Measures what a token of a sample takes, and its kernels", decode, "--tokens");
}

}  // namespace gptc
