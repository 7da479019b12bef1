// gptc bench cluster: measures this machine as a cluster.toml.
//
// 1. Measure peaks of arithmetic in registers, memory (codegen/cpu/peak.h), and an all_reduce between ranks of this
//    machine.
// 2. Run training steps of a few small models in fp32 and bf16, with each kernel timed within the step.
// 3. Fit what no instruction loop shows: the shares of the peak that kernels reach, and their streaming rates.
//    Coordinate descent on the cost model itself (passes/analysis/cost.h) minimises what forecasts depend on: the
//    squares of log(predicted / measured) of each step and, weighted by its share of the step, of each kernel.
#include "tools/commands/bench_cluster.h"

#include "codegen/codegen.h"
#include "frontends/cluster_config.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "passes/analysis/cost.h"
#include "runtime/device/arena.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/compiler/compile.h"
#include "tools/planner/cache_dir.h"
#include "tools/study/kernel_times.h"

#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <unistd.h>

namespace gptc {

namespace {

/// A kernel of a model, as the fit uses it.
struct Sample {
  const Op *op;
  double seconds;  // per call
  double calls;    // per step
};

/// The lower quartile, for measurements that other processes may have disturbed for a while.
double undisturbed(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 4];
}

/// One model, measured repeatedly in turn with others, so that a disturbance of some seconds does not affect only one.
class MeasuredModel : public KernelObserver {
public:
  MeasuredModel(const std::vector<std::string> &settings, const Target &target)
      : runner(planModule(readConfig("", settings), target, defaultCacheDir(), availableMemory()), target,
               defaultCacheDir(), target.threads),
        groups(*runner.session.plan.planned, runner.session.plan.target) {}

  /// Runs steps for `seconds`, at least two; unless that is 0, after one that restores the model's data to the caches.
  void visit(double seconds) {
    if (seconds > 0)
      runner.step();
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    do {
      runner.session.executor.observer = this;
      runner.step();
      runner.session.executor.observer = nullptr;
      steps.push_back(runner.step());
    } while (std::chrono::steady_clock::now() < until);
  }

  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override {
    times[groups.problems.at(kernel.op)].push_back(1e-9 * double(end - begin));
  }

  void finish() {
    for (const auto &[problem, ops] : groups.ops)
      if (auto it = times.find(problem); it != times.end()) {
        const Sample &s = samples.emplace_back(Sample{ops.front(), undisturbed(it->second), groups.calls.at(problem)});
        kernels += s.calls * s.seconds;
      }
    step = undisturbed(steps);
  }

  ThreadPool &pool() { return runner.session.pool; }

  std::vector<Sample> samples;
  double kernels = 0;  // seconds of all kernels, one by one
  double step = 0;     // seconds of a step, in which independent kernels run concurrently

private:
  StepRunner runner;
  const GroupsByProblem groups;
  std::map<std::string, std::vector<double>> times;  // by problem
  std::vector<double> steps;
};

/// Widths at which kernels behave differently: data in a core's caches, in the machine's caches, in memory.
std::vector<std::vector<std::string>> typicalModels() {
  auto model = [](int layers, int heads, int width, int context, int vocab, int sequences) {
    return std::vector<std::string>{fmt::format("model.n_layer={}", layers),
                                    fmt::format("model.n_head={}", heads),
                                    fmt::format("model.n_embd={}", width),
                                    fmt::format("model.block_size={}", context),
                                    fmt::format("model.vocab_size={}", vocab),
                                    fmt::format("train.micro_batch={}", sequences),
                                    fmt::format("train.global_batch_tokens={}", sequences * context),
                                    "train.steps=1000",
                                    "compile.target=cpu",
                                    "compile.remat=none"};
  };
  std::vector<std::vector<std::string>> all;
  for (const char *compute : {"fp32", "bf16"})
    for (std::vector<std::string> m :
         {model(2, 4, 128, 64, 65, 12), model(2, 6, 384, 256, 65, 16), model(1, 12, 768, 256, 50257, 4)}) {
      m.push_back(fmt::format("precision.compute={}", compute));
      all.push_back(std::move(m));
    }
  return all;
}

class Fit {
public:
  Fit(const std::vector<std::unique_ptr<MeasuredModel>> &models, MachineRates start) : rates(start), models(models) {}

  MachineRates run() {
    struct Scalar {
      double *value;
      double least, most;
    };
    const Scalar scalars[] = {{&rates.matmul, 0.05, 1},
                              {&rates.attention, 0.02, 1},
                              {&rates.attentionGrad, 0.02, 1},
                              {&rates.elementwise, 0.005, 1},
                              {&rates.scatter, 1e-5, 1},
                              {&rates.dram, rates.dram / 4, rates.dram * 1.2},
                              {&rates.cache, rates.dram / 2, rates.dram * 8},
                              {&rates.launch, 1e-7, 1e-4}};
    double now = error();
    for (int round = 0; round < 20; ++round) {
      const double before = now;
      for (const Scalar &s : scalars)
        now = descend(*s.value, s.least, s.most);
      if (before - now < 1e-6)
        break;
    }
    return rates;
  }

  double error() const {
    double sum = 0;
    for (const auto &m : models) {
      double kernels = 0, step = 0;
      for (const Sample &s : m->samples) {
        const double seconds = costOf(*s.op, rates).seconds;
        step += s.calls * seconds;
        kernels += s.calls * s.seconds / m->kernels * std::pow(std::log(seconds / s.seconds), 2);
      }
      sum += kernels + stepWeight * std::pow(std::log(step / m->step), 2);
    }
    return sum / double(models.size());
  }

  /// Ratios of predicted to measured time, per model's step.
  std::vector<double> steps() const {
    std::vector<double> all;
    for (const auto &m : models) {
      double step = 0;
      for (const Sample &s : m->samples)
        step += s.calls * costOf(*s.op, rates).seconds;
      all.push_back(step / m->step);
    }
    return all;
  }

private:
  static constexpr double stepWeight = 4;  // steps are the goal; kernels explain them
  MachineRates rates;
  const std::vector<std::unique_ptr<MeasuredModel>> &models;

  /// The best value of one scalar, by a grid of factors that narrows. The error is not convex, because a kernel's bound
  /// changes with the value.
  double descend(double &value, double least, double most) {
    double best = value, bestError = error();
    for (double factor : {1.5, 1.1, 1.02, 1.004}) {
      const double centre = best;
      for (int k = -8; k <= 8; ++k) {
        value = std::clamp(centre * std::pow(factor, k), least, most);
        if (const double e = error(); e < bestError) {
          bestError = e;
          best = value;
        }
      }
    }
    value = best;
    return bestError;
  }
};

std::string today() {
  const std::time_t t = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&t));
  return text;
}

std::string clusterText(const Target &target, const MachineSpeed &speed, const MachineRates &r, const LinkSpeed &links,
                        const std::vector<double> &steps) {
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  char host[256] = "here";
  gethostname(host, sizeof host - 1);
  std::vector<std::string> off;
  for (double ratio : steps)
    off.push_back(fmt::format("{:+.1f}%", 100 * (ratio - 1)));
  std::string text = fmt::format(
      "# Measured by `gptc bench cluster` on {}. With these figures the steps that it took are forecast within\n"
      "# {}. Ranks share the cores: of two, each has half of [device].\n"
      "name = \"{}\"\n\n[device]\nkind = \"cpu\"\nname = \"{}, {} thread{}\"\n",
      today(), llvm::join(off, ", "), host, target.cpu, target.threads, target.threads == 1 ? "" : "s");
  auto line = [&](const char *key, const std::string &value, const char *note = "") {
    text += fmt::format("{} = {}{}{}\n", key, value, *note ? "  # " : "", note);
  };
  auto quoted = [](const std::string &s) { return "\"" + s + "\""; };
  line("peak_fp32", quoted(formatFlops(speed.peakFp32)));
  line("peak_bf16", quoted(formatFlops(speed.peakBf16)));
  line("memory", fmt::format("\"{:.4g} GiB\"", memory / 0x1p30));
  line("memory_bandwidth", quoted(formatBandwidth(r.dram)), "that kernels reach");
  line("cache_bandwidth", quoted(formatBandwidth(r.cache)));
  line("cache", fmt::format("\"{:.4g} MiB\"", r.cacheBytes / 0x1p20), "working sets that it serves");
  line("launch", quoted(fmt::format("{:.4g} us", 1e6 * r.launch)));
  line("packs", r.packs ? "true" : "false");
  line("matmul", fmt::format("{:.4g}", r.matmul), "shares of the peak");
  line("attention", fmt::format("{:.4g}", r.attention));
  line("attention_grad", fmt::format("{:.4g}", r.attentionGrad));
  line("elementwise", fmt::format("{:.4g}", r.elementwise));
  line("scatter", fmt::format("{:.4g}", r.scatter));
  text += "\n[node]\n";
  line("devices", fmt::format("{}", target.threads), "ranks that a node may have");
  if (links.bandwidth > 0) {
    line("bandwidth", quoted(formatBandwidth(links.bandwidth)), "of collectives through shared memory");
    line("latency", quoted(fmt::format("{:.4g} us", 1e6 * links.latency)));
  }
  line("host_memory", fmt::format("\"{:.4g} GiB\"", memory / 0x1p30));
  return text;
}

void benchCluster(const std::string &file, unsigned threads, double seconds) {
  const Target target = hostTarget(threads);
  // Before another thread pool exists, which would compete for CPUs.
  LinkSpeed links;
  for (int i = 0; target.threads > 1 && i < 3; ++i)
    if (const LinkSpeed l = measureLinks(2); l.bandwidth > links.bandwidth)
      links = l;
  MachineSpeed speed;
  {
    ThreadPool pool(target.threads);
    speed = measureSpeed(pool, target, "");
  }
  std::vector<std::unique_ptr<MeasuredModel>> models;
  for (const std::vector<std::string> &m : typicalModels())
    models.push_back(std::make_unique<MeasuredModel>(m, target));
  const int rounds = seconds > 0 ? 3 : 1;
  for (int round = 0; round < rounds; ++round) {
    ThreadPool &pool = models[0]->pool();
    speed.peakFp32 = std::max(speed.peakFp32, measurePeakFlops(pool, target));
    speed.peakBf16 = std::max(speed.peakBf16, measurePeakFlops(pool, target, DType::bf16));
    for (const auto &m : models)
      m->visit(seconds / rounds);
  }
  for (const auto &m : models)
    m->finish();
  MachineRates start = ratesOf(target);
  start.fp32 = start.tf32 = start.fp16 = speed.peakFp32;
  start.bf16 = std::max(speed.peakBf16, speed.peakFp32);
  start.dram = speed.memory.best();
  Fit fit(models, start);
  const MachineRates rates = fit.run();
  const std::string text = clusterText(target, speed, rates, links, fit.steps());
  if (file.empty())
    return fmt::print("{}", text);
  writeFileAtomically(file, text);
  fmt::print("written to {}\n", file);
}

}  // namespace

void addClusterBench(Command &bench) {
  Command c = bench.command("cluster", "Measures this machine for forecasts, as a cluster.toml");
  struct Options {
    std::string file;
    unsigned threads = 0;
    double seconds = 2;
  };
  auto o = std::make_shared<Options>();
  c.option("-o,--output", o->file, "File to write; default: prints it").type("CLUSTER.toml");
  c.option("--threads", o->threads, "Threads (0: all cores)").within(0, 4096);
  c.option("--seconds", o->seconds, "For the steps of each of six models, two steps at least")
      .within(0.0, 600.0)
      .showDefault();
  c.run([o] { benchCluster(o->file, o->threads, o->seconds); });
}

}  // namespace gptc
