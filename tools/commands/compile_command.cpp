// gptc compile: compiles a model file to a plan and prints a short report.
#include "codegen/codegen.h"
#include "codegen/cuda/libraries.h"
#include "frontends/parameter_groups.h"
#include "frontends/toml_config.h"
#include "ir/facts.h"
#include "passes/decisions.h"
#include "runtime/checkpoint/checkpoint_files.h"
#include "support/stderr.h"
#include "support/words.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/commands/rank_options.h"
#include "tools/compiler/compile.h"
#include "tools/estimate/expected.h"
#include "tools/planner/cache_dir.h"
#include "tools/planner/gir_file.h"
#include "tools/study/explain.h"
#include "tools/study/tune.h"

#include <locale>
#include <unistd.h>

namespace gptc {

namespace {

/// 1234567 -> "1,234,567".
std::string grouped(int64_t n) {
  std::string digits = fmt::format("{}", n);
  for (int at = int(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(size_t(at), ",");
  return digits;
}

void row(const char *name, const std::string &text) { fmt::print("{:<11} {}\n", name, text); }

/// Bytes of moments on each rank.
double momentBytes(const Module &m) {
  int64_t bytes = 0;
  for (const auto &s : m.states)
    if (kindOf(*s) == StateKind::moment)
      bytes += s->type.bytes();
  return double(bytes);
}

/// What is trained: model, batch, ranks.
void accountOfModel(const Config &c, const Plan &plan, const CompileReport &r) {
  const ModelConfig &m = c.model;
  row("model", fmt::format("{}: {} layers, {} heads{}, width {}, context {}, vocabulary {}", c.name, m.nLayer, m.nHead,
                           m.nKvHead == m.nHead ? "" : fmt::format(" on {}", m.nKvHead), m.nEmbd, m.blockSize,
                           grouped(m.vocabSize)));
  row("parameters", grouped(parameterCount(*plan.planned, false)));
  const bool automatic = !c.written.count("train.micro_batch") || c.isAuto("train.micro_batch");
  row("step", fmt::format("{} tokens = {} x {} sequences x {}{}, {:.4g} GFLOP", grouped(c.train.globalBatchTokens),
                          c.train.accumulate * c.parallel.data, c.train.microBatch, m.blockSize,
                          automatic ? " (micro_batch auto)" : "",
                          flopsPerToken(*plan.planned) * double(c.train.globalBatchTokens) * 1e-9));
  if (const std::optional<MicroBatchChoice> &micro = r.micro)
    row("",
        fmt::format("micro_batch {}: {} of memory in a plan, {} for it in 90% of the {:.4g} GB of {}; {} planning{}",
                    micro->fits ? "as much as fits" : "not even 1 fits without recomputation",
                    formatBytes(double(micro->arenaBytes)), formatBytes(double(micro->room)),
                    1e-9 * double(micro->memory.bytes), micro->memory.of, micro->plannings,
                    micro->plannings == 1 ? "" : "s"));
  row("steps", fmt::format("{}, {} tokens", grouped(c.run.steps), grouped(c.run.steps * c.train.globalBatchTokens)));
  if (const ParallelConfig &p = c.parallel; p.tensor > 1)
    row("ranks", fmt::format("{} = data {} x tensor {}: each {} share heads and hidden features", p.data * p.tensor,
                             p.data, p.tensor, p.tensor));
  if (const int64_t parts = c.parallel.logicalTensor; parts > 1)
    row("features",
        fmt::format("{} logical parts, added in the order of a tree{}", parts,
                    plan.target.isCuda() ? ""
                                         : fmt::format(": any tensor that divides {} gives the same bits", parts)));
  if (const ParallelConfig &p = c.parallel; p.syncEvery > 1)
    row("outer steps", fmt::format("every {} steps, learning rate {:g}, Nesterov momentum {:g}{}", p.syncEvery,
                                   p.outerLr, p.outerMomentum, p.data > 1 ? "; each rank has moments of its own" : ""));
  for (const Decision &d : decisionsOf(*plan.planned))
    if (d.pass == "compress-gradients")
      row("gradients", fmt::format("{}: {}", d.choice, d.note));
  if (const ParallelConfig &p = c.parallel; p.logicalShards > 1)
    row(p.tensor > 1 ? "batch" : "ranks",
        fmt::format("{} share the batch{}, {} logical shards, reduced in the order of {}", p.data,
                    p.data == 1        ? ""
                    : p.zeroStage == 0 ? ", each with all parameters"
                                       : fmt::format(", ZeRO stage {}", p.zeroStage),
                    p.logicalShards, p.reduceOrder == ReduceOrder::tree ? "a tree" : "the engine"));
}

/// Which of a GPU's plan calls libraries.
void accountOfLibraries(const Config &c, const Plan &plan, const CompileReport &r) {
  struct Count {
    int groups = 0, calls = 0;
  } matmuls, attentions;
  for (const PlannedKernel &k : kernelsOf(*plan.planned)) {
    Schedule s;
    if (!Schedule::parse(fact<&GroupFacts::schedule>(*k.op), s))
      continue;
    Count *of = s.recipe == RecipeKind::matmul                                                ? &matmuls
                : s.recipe == RecipeKind::attention || s.recipe == RecipeKind::attention_grad ? &attentions
                                                                                              : nullptr;
    if (of)
      ++of->groups, of->calls += s.library;
  }
  // Mention an installed library of the wrong version if it would be used.
  auto unfit = [&](CudaLibraryId id, const Count &of) {
    const CudaLibrary &l = CudaLibrary::find(id);
    return of.groups > of.calls && l.unfit && c.compile.libraryCalls != "off" ? l.why : "";
  };
  row("library", matmuls.calls ? fmt::format("cuBLASLt for {} of {} matmul groups", matmuls.calls, matmuls.groups)
                               : "none: every matmul is a generated kernel");
  if (const std::string why = unfit(CudaLibraryId::cublasLt, matmuls); !why.empty())
    row("", why);
  const cuda::LibraryTuning &t = r.tuning;
  if (matmuls.calls && !t.problem.empty())
    row("", fmt::format("its own choice of algorithms, not timed: {}", t.problem));
  else if (matmuls.calls)
    row("", fmt::format("{} products: {} timed, {} known, in {:.2f} s; {} not by its first algorithm", t.products,
                        t.timed, t.reused, t.seconds, t.notFirst));
  if (attentions.calls)
    row("", fmt::format("cuDNN for {} of {} attention groups", attentions.calls, attentions.groups));
  else if (const std::string why = unfit(CudaLibraryId::cudnn, attentions);
           !why.empty() && c.precision.compute != "fp32")
    row("", why);
}

bool storesResidualLow(const Config &c) {
  return c.precision.residual == Residual::compute && (c.precision.compute == "bf16" || c.precision.compute == "fp16");
}

void account(const Config &c, const Plan &plan, const CompileReport &r, int64_t nodes) {
  accountOfModel(c, plan, r);
  row("target", plan.target.isCuda()
                    ? plan.target.name
                    : fmt::format("cpu {}, {}-bit vectors, {} thread{}", plan.target.cpu, 8 * plan.target.vectorBytes,
                                  plan.target.threads, plan.target.threads == 1 ? "" : "s"));
  row("precision", c.precision.compute + (c.precision.compute == "fp32" ? "" : ", parameters fp32") +
                       (c.precision.optimizerState == MomentType::fp32 ? "" : ", optimizer state bf16") +
                       (storesResidualLow(c) ? ", residual stream " + c.precision.compute : "") +
                       (c.precision.fp8 == Fp8::off ? "" : fmt::format(", fp8 {}", nameOf(c.precision.fp8))) +
                       (c.precision.compute == "fp16" ? ", loss scaled" : "") +
                       (c.isAuto("precision.compute") ? " (compute auto)" : ""));
  row("optimizer", fmt::format("{}, {} of moments", c.optimizer.name, formatBytes(momentBytes(*plan.planned))));
  const std::vector<std::string> groups = describeGroups(c, *plan.planned);
  for (size_t i = 0; i < groups.size(); ++i)
    row(i ? "" : "groups", groups[i]);
  row("kernels", fmt::format("{} for {} groups: {} compiled, {} from the cache", r.compiled + r.reused, r.groups,
                             r.compiled, r.reused));
  if (const TunedSchedules::Counts &t = r.tuned; t.exact + t.nearest + t.byDefault)
    row("schedules",
        fmt::format("{} kernels as measured, {} as the nearest shape, {} by default{}{}{}{}", t.exact, t.nearest,
                    t.byDefault, t.checked ? fmt::format("; {} from elsewhere, checked now", t.checked) : "",
                    t.stale ? fmt::format("; {} out of date, as other code is emitted now", t.stale) : "",
                    t.rejected ? fmt::format("; {} refused", t.rejected) : "",
                    t.exact + t.nearest ? "" : " (`gptc tune` measures)"));
  if (plan.target.isCuda())
    accountOfLibraries(c, plan, r);
  const int64_t memory = int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  row("memory",
      formatBytes(double(r.arenaBytes)) +
          (r.hostBytes ? fmt::format(" of the GPU, {} pinned on the host", formatBytes(double(r.hostBytes))) : "") +
          (r.arenaBytes > memory && !plan.target.isCuda()
               ? fmt::format(": more than the {} of this machine{}", formatBytes(double(memory)),
                             c.compile.remat == "auto" ? "; remat found nothing that fits" : "")
               : ""));
  if (const RunSettings &run = plan.run; run.checkpointEvery > 0 && run.checkpointEvery < run.steps)
    if (const int64_t bytes = memoryToSave(*plan.planned, run.checkpointAsync != "false"); bytes > 0)
      row("", formatBytes(double(bytes)) + " more to save checkpoints" +
                  (run.checkpointAsync == "auto" ? ", where that is free (checkpoint.async)" : ""));
  for (const Decision &d : decisionsOf(*plan.planned))
    if (d.pass == "remat")
      row(d.name == "all" ? "remat" : "",
          fmt::format("{:<40} {:>12} {:>+9.2f} ms {:>14}",
                      d.choice == "auto" ? fmt::format("auto, for {} free", formatBytes(double(r.available)))
                                         : d.choice,
                      signedBytes(d.effect.memory), d.effect.ms,
                      d.effect.ms > 0 ? formatBytes(-d.effect.memory / d.effect.ms) + "/ms" : ""));
  if (!r.noFamilyHolds.empty())
    row("export", fmt::format("no family of Hugging Face's holds this model: the nearest has another {}",
                              fmt::join(r.noFamilyHolds, ", ")));
  if (!r.tokenizerProblem.empty())
    row("tokenizer", "checkpoints and exports get none, as tokenizer.json cannot hold it: " + r.tokenizerProblem);
  row("expected", inWords(expectedOf(plan, nodes), plan));
  row("plan", fmt::format("{}  {}", r.planDir, plan.hash.substr(0, 12)));
  row("time", fmt::format("{:.2f} s: passes {:.2f}, kernels {:.2f}", r.totalSeconds, r.passSeconds, r.kernelSeconds));
}

/// Implements compile.autotune = "search".
void tuneFirst(const CompileRequest &request) {
  if (isGirFile(request.modelFile))
    return;
  const Config config = readConfig(request.modelFile, request.settings);
  if (config.compile.autotune != "search")
    return;
  try {
    TuningRecords(request.cacheDir).keep({});
  } catch (const UserError &e) {
    return printError("warning: nothing is tuned, as it could not be kept: {}\n", e.diagnostics[0].message);
  }
  TuneRequest t;
  t.modelFile = request.modelFile, t.settings = request.settings, t.cacheDir = request.cacheDir;
  t.seconds = config.compile.autotuneSeconds;
  t.onlyNew = true;
  t.clusterFile = request.clusterFile;
  t.ranksPerNode = request.ranksPerNode;
  try {
    const TuneReport r = tune(t, [](const TuneProgress &) {});
    row("tuned", fmt::format("{} kernels searched, {} known, in {:.1f} s", r.searched, r.known, r.seconds));
  } catch (const UserError &e) {
    if (config.compile.target != "cpu" || e.diagnostics[0].code != ErrorCode::TargetUnavailable)
      throw;
    printError("warning: nothing is tuned: {}\n", e.diagnostics[0].message);  // more ranks than CPUs
  }
}

}  // namespace

void addCompileCommand(Command &app) {
  Command c = app.command("compile", "Compiles a model file into a plan");
  struct Options {
    CompileRequest request;
    std::string target;
    RankOptions ranks;
  };
  auto o = std::make_shared<Options>();
  o->request.cacheDir = defaultCacheDir();
  c.option("model", o->request.modelFile,
           "model.toml (`gptc config --list` has every key), or a module x.gir of any phase")
      .required()
      .type("MODEL.toml");
  c.option("-o,--out", o->request.planDir, "Folder of the plan [NAME.plan]").type("PLAN");
  c.option("--set", o->request.settings, "Overrides a key, for example train.steps=100; may be repeated")
      .type("KEY=VALUE")
      .repeated();
  c.option("--target", o->target, "cpu, cuda (the GPU here) or cuda:sm_90a and the like; as --set compile.target=...")
      .type("cpu|cuda|cuda:SM");
  c.option("--cluster", o->request.clusterFile,
           "cluster.toml of the machines for which \"auto\" in [parallel] is decided [one node, typical links]")
      .type("CLUSTER.toml");
  c.option("--dump-dir", o->request.pipeline.dumpDir, "Writes the graph after every pass into this folder").type("DIR");
  c.flag("--time-passes", o->request.pipeline.timePasses, "Prints the time of every pass to stderr");
  o->ranks.addTo(c);
  c.run([o] {
    if (!o->target.empty())
      o->request.settings.push_back("compile.target=" + o->target);
    o->ranks.set(o->request.modelFile, o->target, o->request.settings);
    o->request.ranksPerNode = o->ranks.ofMachine();
    tuneFirst(o->request);
    Config config;
    Plan plan;
    CompileReport report = compilePlan(o->request, config, plan);
    account(config, plan, report, std::max<int64_t>(1, o->ranks.nodes));
    for (const std::string &w : config.warnings)
      printError("warning: {}\n", w);
  });
}

}  // namespace gptc
