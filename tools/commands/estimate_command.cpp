// gptc estimate: forecasts speed, memory and days of a training run, or serving. gptc calibrate: fits a cluster to its
// logs.
#include "runtime/cuda/gpu.h"
#include "support/files.h"
#include "support/json.h"
#include "support/words.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/commands/estimate_loss.h"
#include "tools/commands/estimate_serving.h"
#include "tools/commands/estimate_table.h"
#include "tools/commands/run_as_options.h"
#include "tools/compiler/compile.h"
#include "tools/compiler/imported_model.h"
#include "tools/estimate/calibrate.h"
#include "tools/estimate/certainty.h"
#include "tools/estimate/pictures.h"
#include "tools/estimate/products.h"
#include "tools/estimate/run_log.h"
#include "tools/estimate/search.h"
#include "tools/planner/cache_dir.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <cmath>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

/// "8", "1..64" (powers of two) or "8,16,48".
std::vector<int64_t> parseGpus(const std::string &text) {
  std::vector<int64_t> all;
  auto number = [&](llvm::StringRef s) {
    int64_t n = 0;
    if (s.trim().getAsInteger(10, n) || n < 1 || n > (1 << 20))
      throw UserError(ErrorCode::Usage, fmt::format("--gpus '{}' names no number of GPUs", text),
                      "one number (8), several (8,16,48) or a range (1..64), up to 1048576");
    return n;
  };
  if (auto [first, last] = llvm::StringRef(text).split(".."); !last.empty()) {
    const int64_t from = number(first), to = number(last);
    if (from > to)
      throw UserError(ErrorCode::Usage, fmt::format("--gpus {} is an empty range", text),
                      "write the smaller number first");
    for (int64_t n = from; n <= to; n *= 2)
      all.push_back(n);
    if (all.back() != to)
      all.push_back(to);
    return all;
  }
  llvm::SmallVector<llvm::StringRef> parts;
  llvm::StringRef(text).split(parts, ',');
  for (llvm::StringRef p : parts)
    if (const int64_t n = number(p); !llvm::is_contained(all, n))
      all.push_back(n);
  return all;
}

struct EstimateOptions {
  std::string model, cluster, svg, tokensWritten = "100B";
  std::optional<std::string> gpus;
  std::vector<std::string> settings;
  LossRequest loss;
  bool json = false, search = false, byCode = false;
  int64_t pipeline = 1;
  ServingRequest serving;
};

double tokensOf(const std::string &written) {
  const std::optional<double> n = parseTokens(written);
  if (!n)
    throw UserError(ErrorCode::Usage, fmt::format("--tokens '{}' is no number of tokens", written),
                    "1 to 1e18, such as 100B, 1.5T, 250M or 300e9");
  return *n;
}

/// Appends the three best strategies that gptc can run on `n` GPUs, and one that it cannot if that is faster by more
/// than the forecast's error.
void searched(Forecaster &f, int64_t n, std::vector<Estimate> &all) {
  const std::vector<Estimate> found = searchStrategies(f, n);
  if (found.empty()) {
    Estimate none;
    none.strategy.gpus = n;
    none.problem = fmt::format("no strategy for {} GPUs within the limits", n);
    none.remedy = "a larger limits.global_batch_tokens, or a smaller train.micro_batch";
    all.push_back(none);
    return;
  }
  const std::optional<Estimate> best = runnable(f, found);
  if (best) {
    all.push_back(*best);
    if (best->fits())
      for (Estimate &e : othersRunnable(f, found, *best, 2))
        all.push_back(std::move(e));
  }
  const Estimate &first = found.front();
  if (!best ||
      (first.predictedOnly && first.fits() && (!best->fits() || first.tokensPerSecond > 1.05 * best->tokensPerSecond)))
    all.push_back(first);
}

std::vector<Estimate> forecastAll(const EstimateOptions &o, const ClusterConfig &cluster,
                                  std::optional<Config> &shown) {
  std::vector<Estimate> all;
  const auto plans = std::make_shared<Forecaster::Plans>();
  const std::vector<int64_t> counts = o.gpus ? parseGpus(*o.gpus) : std::vector<int64_t>{0};
  std::optional<Config> written;  // gives the number of data ranks
  if (o.gpus) {
    try {
      written = readForForecast(o.model, o.settings, 0, cluster, o.pipeline);
      if (!written->fixes("parallel.data"))
        written.reset();
    } catch (const UserError &) {
      // Reported below, for the requested numbers of ranks.
    }
  }
  // If several numbers of GPUs are requested, the row of an impossible one says why.
  auto cannot = [&](int64_t gpus, const Diagnostic &d) {
    if (counts.size() == 1)
      throw UserError(d);
    Estimate none;
    none.strategy.gpus = gpus;
    none.problem = d.message;
    none.remedy = llvm::join(d.help, "; ");
    all.push_back(none);
  };
  for (int64_t gpus : counts) {
    std::vector<std::string> settings = o.settings;
    if (written)
      if (const int64_t ranks = written->parallel.data * written->parallel.tensor * o.pipeline; ranks != gpus) {
        cannot(gpus, Diagnostic{ErrorCode::Contradiction,
                                fmt::format("parallel.data = {} takes {} GPUs, and --gpus says {}",
                                            written->parallel.data, ranks, gpus),
                                written->where("parallel.data"),
                                "does not follow --gpus",
                                {fmt::format("--gpus {} works, or parallel.data = \"auto\" for any number", ranks)}});
        continue;
      }
    Config config;
    try {
      config = readForForecast(o.model, settings, gpus, cluster, o.pipeline);
    } catch (const UserError &e) {
      if (counts.size() == 1 || e.diagnostics[0].code != ErrorCode::ShapeMismatch)
        throw;
      cannot(gpus, e.diagnostics[0]);
      continue;
    }
    if (!shown)
      shown = config;
    Forecaster f(config, cluster, plans);
    if (o.byCode)
      f.takeTimesByCode();
    const int64_t n = gpus ? gpus : config.parallel.data * config.parallel.tensor * o.pipeline;
    const size_t first = all.size();
    if (o.search) {
      searched(f, n, all);
    } else if (o.pipeline > 1) {
      all.push_back(f.estimate(f.strategyFor(n, o.pipeline)));
    } else {
      std::vector<Estimate> some = strategiesOf(f, n);
      all.insert(all.end(), some.begin(), some.end());
    }
    judge(f, all, first);
  }
  markNeverSeen(all, cluster);
  return all;
}

/// The best that gptc runs, or else the best.
Estimate shownBest(const std::vector<Estimate> &all) {
  std::vector<Estimate> some;
  llvm::copy_if(all, std::back_inserter(some), [](const Estimate &e) { return e.fits() && !e.predictedOnly; });
  return *bestOf(some.empty() ? all : some);
}

void runEstimate(const EstimateOptions &o) {
  const ClusterConfig cluster = loadCluster(o.cluster);
  requireSlowdown(cluster);
  std::optional<Config> config;
  const std::vector<Estimate> all = forecastAll(o, cluster, config);
  if (llvm::none_of(all, [](const Estimate &e) { return e.problem.empty(); }))
    throw UserError(ErrorCode::Contradiction, all.front().problem, all.front().remedy);
  std::vector<int64_t> counts;
  for (const Estimate &e : all)
    if (counts.empty() || counts.back() != e.strategy.gpus)
      counts.push_back(e.strategy.gpus);
  const LossForecast loss = forecastLoss(*config, o.loss, tokensOf(o.tokensWritten));
  const RunTokens &tokens = loss.tokens;
  if (o.json) {
    auto show = [&](const Estimate &e) {
      json j = jsonOf(e, tokens, cluster);
      if (e.problem.empty())
        j["loss"] = jsonOf(loss, e);
      return j;
    };
    auto bestFor = [&](int64_t gpus) {
      std::vector<Estimate> here;
      for (const Estimate &e : all)
        if (e.strategy.gpus == gpus)
          here.push_back(e);
      const Estimate *best = o.search ? &here.front() : bestOf(here);
      json j = show(*best);
      if (here.size() > 1)
        for (const Estimate &e : here)
          j["alternatives"].push_back(show(e));
      return j;
    };
    json out = json::array();
    for (int64_t n : counts)
      out.push_back(bestFor(n));
    fmt::print("{}\n", (counts.size() == 1 ? out[0] : out).dump(2));
  } else {
    if (config)
      fmt::print("{}: {:.4g} parameters, {:.3g} tokens, on {} ({} per node, {}, {} {})\n\n", config->name,
                 parameterCount(*config), tokens.value, cluster.device.name, cluster.node.devices,
                 formatBytes(cluster.device.memory), formatFlops(cluster.device.peak(config->precision.compute)),
                 config->precision.compute);
    fmt::print("{}", tableOf(all, tokens, cluster));
    if (!o.search && o.pipeline == 1)
      fmt::print(
          "\n`--search` also tries micro-batches, accumulation, tensor parallelism, checkpointing and offload\n");
    const Estimate best = shownBest(all);
    for (const auto &notes : {notesOf(all, best, tokens, cluster), notesOf(loss, all, best),
                              memoryNotesOf(all, cluster), networkAdvice(all, cluster, tokens)})
      for (const std::string &note : notes)
        fmt::print("\n{}\n", note);
  }
  if (!o.svg.empty()) {
    makeFolder(o.svg);
    writeFileAtomically(o.svg + "/days.svg", daysPicture(all, tokens, cluster));
    const Estimate *best = bestOf(all);
    writeFileAtomically(o.svg + "/step.svg", stepPicture(*best));
    Config c = *config;
    c.train.microBatch = best->strategy.microBatch;
    writeFileAtomically(o.svg + "/memory.svg",
                        memoryPicture(*best, memoryCurve(c, cluster, best->strategy.remat), cluster));
    if (!o.json)
      fmt::print("\npictures in {}: days.svg step.svg memory.svg\n", o.svg);
  }
}

struct CalibrateOptions {
  std::string cluster, out;
  std::vector<std::string> fit, logs;
  bool json = false, write = false, records = false;
};

/// Shares of products in the tuning records of this machine, which must be one of the cluster's.
ProductShares sharesOnRecord(const ClusterConfig &cluster, std::string &machine) {
  if (!cluster.software.isGptc())
    throw UserError(
        ErrorCode::Contradiction,
        fmt::format("{} describes {}, and records are of gptc's kernels", cluster.file, cluster.software.name),
        "give a cluster file without software.name, or fit software.slowdown to a log");
  Config config;
  config.compile.target = cluster.device.isCpu ? "cpu" : "cuda:" + cuda::architectureHere();
  bool here = true;
  const Target target = targetOf(config, here);
  machine = fingerprintOf(target);
  TuningRecords records(neededCacheDir());
  ProductShares shares = productShares(records, target, cluster.device);
  if (shares.byRows.empty())
    throw UserError(ErrorCode::FileMissing, fmt::format("no product of {} is on record", machine),
                    fmt::format("`gptc tune MODEL.toml --set compile.target={}` measures those of a model",
                                cluster.device.isCpu ? "cpu" : "cuda"));
  return shares;
}

const Fitted &valueOf(const ClusterConfig &c, Scalar s) {
  return s == Scalar::slowdown    ? c.software.slowdown
         : s == Scalar::effective ? c.network.effective
                                  : c.software.stepOverhead;
}

json jsonOf(const Calibration &c) {
  json j = json::object();
  for (Scalar s : c.fitted) {
    const Fitted &f = valueOf(c.cluster, s);
    j["fitted"].push_back({{"name", nameOf(s)}, {"value", f.value}, {"low", f.low}, {"high", f.high}});
  }
  if (const std::optional<double> scatter = c.cluster.software.scatter; scatter && !c.fitted.empty())
    j["scatter"] = *scatter;
  for (const ObservedRow &r : c.rows) {
    json e = {{"name", r.observation->name},
              {"fitted", r.fitted},
              {"set_aside", r.setAside || r.impossible},
              {"s_per_step", r.predicted},
              {"oom", r.estimate.outOfMemory}};
    if (r.seen > 0) {
      e["seen"] = r.seen;
      e["error"] = r.error;
      if (!std::isnan(r.leftOut))
        e["leave_one_out"] = r.leftOut;
    }
    e["contradictions"] = r.contradictions;
    j["rows"].push_back(e);
  }
  j["notes"] = c.notes;
  return j;
}

void printTable(const Calibration &c) {
  auto text = [](Scalar s, double v) {
    return s == Scalar::slowdown    ? fmt::format("{:.4g}", v)
           : s == Scalar::effective ? formatBandwidth(v)
                                    : formatSeconds(v);
  };
  for (Scalar s : c.fitted) {
    const Fitted &f = valueOf(c.cluster, s);
    const std::string interval =
        f.low < f.high ? fmt::format("{} to {} with 90% confidence", text(s, f.low), text(s, f.high)) : "";
    fmt::print("{}\n", llvm::StringRef(fmt::format("{:<24} {:<12} {}", nameOf(s), text(s, f), interval)).rtrim().str());
  }
  if (const std::optional<double> scatter = c.cluster.software.scatter; scatter && !c.fitted.empty())
    fmt::print("{:<24} {:<12.4g} single runs within this factor with 90% confidence\n", "software.scatter", *scatter);
  for (const std::string &n : c.notes)
    fmt::print("note: {}\n", n);
  if (!c.rows.empty())
    fmt::print("\n{:<52} {:>10} {:>10} {:>7}  {:>8}\n", "observation", "seen", "predicted", "error", "left out");
  for (const ObservedRow &r : c.rows) {
    const std::string speed =
        r.seen > 0 ? fmt::format("{:>10.4g} {:>10.4g} {:>+6.1f}%  {:>8}", r.seen, r.predicted, 100 * r.error,
                                 !r.fitted               ? "not fit"
                                 : std::isnan(r.leftOut) ? "too few"
                                                         : fmt::format("{:+.1f}%", 100 * r.leftOut))
                   : fmt::format("{:>10} {:>10}", r.observation->outOfMemory ? "no memory" : "",
                                 r.estimate.outOfMemory ? "no memory" : fmt::format("{:.4g}", r.predicted));
    fmt::print("{:<52} {}\n", r.observation->name, speed);
    for (const std::string &why : r.contradictions)
      fmt::print("    ! {}\n", why);
  }
  if (!c.rows.empty())
    fmt::print("\nSeconds per step. Left out: predicted by the others.\n");
}

void runCalibrate(const CalibrateOptions &o) {
  ClusterConfig cluster = loadCluster(o.cluster);
  for (const std::string &log : o.logs)
    for (Observation &row : readForecasts(log, cluster))
      cluster.observations.push_back(std::move(row));
  std::vector<Scalar> which;
  for (const std::string &name : o.fit)
    which.push_back(name == "slowdown"    ? Scalar::slowdown
                    : name == "effective" ? Scalar::effective
                                          : Scalar::stepOverhead);
  std::optional<ProductShares> shares;
  std::string machine;
  if (o.records) {
    shares = sharesOnRecord(cluster, machine);
    setShares(cluster.device, *shares);
  }
  // Records are worth storing even without a log.
  const Calibration c = shares && cluster.observations.empty() && which.empty() ? Calibration{cluster, {}, {}, {}}
                                                                                : calibrate(cluster, which);
  const DeviceSpec &device = c.cluster.device;
  if (o.json) {
    json j = json::object();
    if (shares)
      j["device"] = {{"matmul", device.matmul},
                     {"efficiency", device.efficiency},
                     {"products", shares->products},
                     {"machine", machine}};
    j.update(jsonOf(c));
    fmt::print("{}\n", j.dump(2));
  } else {
    if (shares)
      fmt::print("device.matmul            {:.4g}\ndevice.efficiency        {}\nnote: by the times of {} product{} on "
                 "record of {}\n",
                 device.matmul, formatShares(device.efficiency), shares->products, shares->products == 1 ? "" : "s",
                 machine);
    printTable(c);
  }
  const std::string target = o.write ? o.cluster : o.out;
  if (!target.empty()) {
    std::string text = movedTo(readInput(o.cluster, "cluster file"), o.cluster, target);
    if (!c.fitted.empty())
      text = withFitted(text, c.cluster);
    writeFileAtomically(target, shares ? withEfficiency(text, device) : text);
    if (!o.json)
      fmt::print("written to {}\n", target);
  }
}

}  // namespace

/// Options of a forecast of serving. `training`: those that are not.
static Option addServingOptions(Command c, ServingRequest &r, const Option &cluster,
                                const std::vector<Option> &training) {
  Option slots = c.option("--slots", r.slots,
                          "Forecasts gptrun sample and serve instead, on this CPU or with --cluster, with so many "
                          "samples at once: 8 or 1,8,32. The model may be a plan, too")
                     .type("N");
  for (const Option &o : training)
    slots.excludes(o);
  std::vector<Option> all = addRunAsOptions(c, r.as);
  all.push_back(addCacheOption(c, r.as));
  all.push_back(
      c.option("--prompt-tokens", r.promptTokens, "Tokens of a prompt; default: 512, or what the context has room for")
          .tokens(1, int64_t(1) << 20));
  all.push_back(c.option("--new-tokens", r.newTokens, "New tokens of a sample; default: 128, or half of the context")
                    .tokens(1, int64_t(1) << 20));
  all.push_back(c.option("--tensor", r.tensor, "Ranks that share the model, each on a device of the cluster")
                    .within(int64_t(1), int64_t(1024))
                    .needs(cluster));
  all.push_back(c.option("--threads", r.threads, "Threads of this CPU (0: all cores)").within(0, 4096));
  for (Option &o : all)
    o.needs(slots);
  return slots;
}

void addEstimateCommand(Command &app) {
  Command c = app.command("estimate", "Forecasts speed, memory and days of a run on a cluster, or of serving");
  auto o = std::make_shared<EstimateOptions>();
  addModel(c, o->model, o->settings,
           "model.toml, a Hugging Face folder or a GGUF file; with --slots also a plan. Data is not read",
           "MODEL.toml|PLAN|DIR|FILE.gguf");
  const Option cluster =
      c.option("--cluster", o->cluster, "cluster.toml: devices, network, software; needed without --slots")
          .type("CLUSTER.toml");
  const Option gpus =
      c.option("--gpus", o->gpus, "How many: 8, 1..64 (powers of two) or 8,16,48; else as [parallel] says").type("N");
  const Option tokens =
      c.option("--tokens", o->tokensWritten, "Tokens of the whole run: 300B, 1.5T or 300e9").type("N").showDefault();
  const Option loss =
      c.option("--loss", o->loss.loss,
               "A loss in nats per token instead: as many tokens as it takes, by the law of Hoffmann et "
               "al. 2022 or with --curve by that")
          .within(1e-3, 20.0)
          .excludes(tokens);
  const Option curve = c.option("--curve", o->loss.curve, "Continues the loss of a run of this model by its log")
                           .type("OUT_DIR/log.jsonl");
  const Option pipeline = c.option("--pipeline", o->pipeline, "Stages of a pipeline, which is forecast and not run")
                              .within<int64_t>(1, 1024)
                              .showDefault();
  const Option search =
      c.flag("--search", o->search, "The three best strategies for each number of GPUs").excludes(pipeline);
  const Option byCode = c.flag("--by-code", o->byCode,
                               "Times by the code of the plan's kernels, as `gptc explain --target` says them. Needs "
                               "NVRTC and nvdisasm, and no GPU")
                            .excludes(pipeline)
                            .excludes(search);
  c.flag("--json", o->json, "Prints JSON: one object for one number of GPUs or for serving, else a list");
  const Option svg = c.option("--svg", o->svg, "Draws days.svg, step.svg and memory.svg into a folder").type("FOLDER");
  const Option slots =
      addServingOptions(c, o->serving, cluster, {gpus, tokens, loss, curve, pipeline, search, byCode, svg});
  c.run([o, cluster, gpus, slots] {
    if (slots.given()) {
      o->serving.model = o->model;
      o->serving.settings = o->settings;
      o->serving.cluster = o->cluster;
      o->serving.json = o->json;
      if (cluster.given() && o->serving.threads)
        throw UserError(ErrorCode::Usage, "--threads is for this CPU, and --cluster describes another",
                        "leave one of them out");
      return estimateServing(o->serving);
    }
    if (!cluster.given())
      throw UserError(ErrorCode::Usage, "--cluster is required",
                      "name a cluster.toml, or with --slots N forecast serving on this CPU");
    if (gpus.given() && !o->gpus)
      o->gpus = "";  // '' is no number of GPUs
    if (isImportable(o->model)) {
      std::vector<std::string> all = settingsOf(importedModel(o->model, ImportFor::sizes));
      all.insert(all.end(), o->settings.begin(), o->settings.end());
      o->settings = std::move(all);
      o->model.clear();
    }
    runEstimate(*o);
  });
}

void addCalibrateCommand(Command &app) {
  Command c = app.command("calibrate", "Fits a cluster's slowdown, network and overhead to its logs");
  auto o = std::make_shared<CalibrateOptions>();
  c.option("cluster", o->cluster, "cluster.toml with [[observation]] rows").required().type("CLUSTER.toml");
  c.option("--fit", o->fit, "Scalars to fit instead of those that the file leaves open: slowdown, effective, overhead")
      .oneOf({"slowdown", "effective", "overhead"})
      .separatedBy(',');
  c.option("--log", o->logs, "forecast.jsonl of a run, whose lines are observations too; may be repeated")
      .type("OUT_DIR/forecast.jsonl")
      .repeated();
  c.flag("--records", o->records,
         "Takes the share of the peak that products reach from what gptc tune has measured on this machine");
  c.flag("--write", o->write, "Writes what was found into the file");
  c.option("-o,--output", o->out, "Writes the file with what was found to another place").type("FILE");
  c.flag("--json", o->json, "Prints JSON");
  c.run([o] { runCalibrate(*o); });
}

}  // namespace gptc
