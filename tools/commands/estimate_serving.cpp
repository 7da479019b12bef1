// 1. Plan: the one that `gptrun sample` makes for each number of slots, without kernels. For GPUs it is like those of
//    forecasts of training: with the libraries, and without tuning records.
// 2. Rates: of a cluster file, or of this CPU. Its peaks are recorded in the cache; memory is measured now.
// 3. Forecast by tools/estimate/serving.h.
#include "tools/commands/estimate_serving.h"

#include "frontends/cluster_config.h"
#include "frontends/model_builder.h"
#include "ir/facts.h"
#include "runtime/device/arena.h"
#include "runtime/serve/sample.h"
#include "support/cpus.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "support/stderr.h"
#include "support/words.h"
#include "tools/compiler/compile.h"
#include "tools/compiler/inference.h"
#include "tools/estimate/forecast.h"
#include "tools/estimate/workload.h"
#include "tools/planner/cache_dir.h"
#include "tools/planner/gir_file.h"
#include "tools/study/kernel_times.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <filesystem>
#include <optional>

namespace gptc {

namespace fs = std::filesystem;

namespace {

using json = nlohmann::ordered_json;

constexpr int64_t mostSlots = 1024;  // as of gptrun sample and serve

/// A plan of a model.toml, as `gptc compile` would give it to `gptrun sample`.
Plan planOfFile(const ServingRequest &r, bool onGpus) {
  const Config config = readConfig(r.model, r.settings);
  if (!onGpus)
    requireCpuTarget(config, "on GPUs serving is forecast with a cluster file",
                     "name a cluster file that describes them with --cluster, or --set compile.target=cpu");
  Plan plan;
  plan.target = hostTarget();
  plan.run = runSettings(config);
  plan.model = modelSettings(config);
  plan.planned = buildModel(config);
  return plan;
}

/// A machine, and what its rates are and where they come from.
struct Machine {
  ServingMachine rates;
  MachineRates peaks;
  double memory = 0;   // bytes that an arena may take
  std::string device;  // "2 threads of znver5"
  std::string source;  // "measured" or the file
  std::string memoryIs;
};

Machine machineOf(const ClusterConfig &c, int64_t ranks) {
  if (!c.software.isGptc())
    throw UserError(ErrorCode::Contradiction,
                    fmt::format("{} describes {}, and gptc's kernels serve", c.file, c.software.name),
                    "give a file without software.name");
  if (const std::optional<Refusal> r = refusalOfNetwork(c, ranks))
    throw UserError(ErrorCode::Contradiction, r->problem, r->remedy);
  const DeviceSpec device = c.device.isCpu ? shareOf(c.device, std::min(ranks, c.node.devices)) : c.device;
  const std::string name = device.name.empty() ? "the CPU" : device.name;
  Machine m;
  m.rates.rates = [device](double rows) { return ratesOf(device, rows); };
  m.rates.slowdown = c.software.slowdown;
  m.rates.link = linkOf(c, ranks, 1).rates;
  m.peaks = ratesOf(device, 1);
  m.memory = std::max(0.0, device.memory - c.software.context);
  m.device = ranks > 1 ? fmt::format("a rank of {}, on {}", ranks, name) : name;
  m.source = c.file;
  m.memoryIs = "that the file gives it";
  return m;
}

Machine measuredMachine(unsigned threads) {
  const Target host = hostTarget(threads);
  Machine m;
  m.memory = double(availableMemory());  // before measuring takes some
  ThreadPool pool(host.threads);
  const MachineSpeed speed = measureSpeed(pool, host, defaultCacheDir());
  m.peaks = ratesOf(host, speed.peakFp32);
  m.peaks.bf16 = speed.peakBf16;
  m.peaks.dram = speed.memory.read;
  m.rates.rates = [rates = m.peaks](double) { return rates; };
  m.device = fmt::format("{} thread{} of {}", host.threads, host.threads == 1 ? "" : "s", host.cpu);
  m.source = "measured";
  m.memoryIs = "available here";
  return m;
}

std::string rateText(double rate) { return fmt::format("{:.4g}", rate); }

void printTable(const std::vector<ServingForecast> &all, const std::vector<std::string> &memory, const Machine &m,
                const ServingLoad &load) {
  fmt::print("{}: memory {}, fp32 {}, bf16 {}, {}\n\n", m.device, formatBandwidth(m.peaks.dram),
             formatFlops(m.peaks.fp32), formatFlops(m.peaks.bf16),
             m.source == "measured" ? "measured" : "by " + m.source);
  fmt::print("{:>5} {:>11} {:>11} {:>11} {:>12} {:<10} {:>11} {:>9} {:<10} {:>11}\n", "slots", "arena", "weights",
             "cache", "prefill t/s", "bound by", "decode t/s", "per slot", "bound by", "first token");
  for (const ServingForecast &f : all)
    fmt::print("{:>5} {:>11} {:>11} {:>11} {:>12} {:<10} {:>11} {:>9} {:<10} {:>11}\n", f.slots,
               formatBytes(double(f.arena)), formatBytes(double(f.weights)), formatBytes(double(f.cache)),
               rateText(f.prefillRate()), f.prefill.boundBy(), rateText(f.decodeRate()),
               rateText(f.decodeRate() / double(f.slots)), f.decode.boundBy(), formatSeconds(f.prefill.seconds()));
  fmt::print("\nt/s: tokens per second. First token: of a prompt of {} tokens that comes alone. Decode: {} new tokens "
             "of every slot\n",
             load.promptTokens, load.newTokens);
  for (size_t i = 0; i < all.size(); ++i)
    fmt::print("{}: {} {} {}\n", memory[i],
               double(all[i].arena) <= m.memory ? "fits into the" : "DOES NOT FIT into the", formatBytes(m.memory),
               m.memoryIs);
}

void printJson(const std::vector<ServingForecast> &all, const Module &any, const ServingRequest &r, const Machine &m,
               const ServingLoad &load) {
  json j = {{"model", r.model},
            {"context", fact<&ModelFacts::blockSize>(any)},
            {"precision", std::string(nameOf(fact<&PrecisionFacts::compute>(any)))},
            {"weights", std::string(nameOf(fact<&PrecisionFacts::weights>(any)))},
            {"prompt_tokens", load.promptTokens},
            {"new_tokens", load.newTokens},
            {"tensor", r.tensor},
            {"machine",
             {{"device", m.device},
              {"source", m.source},
              {"read_bytes_per_s", m.peaks.dram},
              {"fp32_flops", m.peaks.fp32},
              {"bf16_flops", m.peaks.bf16},
              {"memory_bytes", int64_t(m.memory)}}},
            {"slots", json::array()}};
  for (const ServingForecast &f : all)
    j["slots"].push_back({{"slots", f.slots},
                          {"arena_bytes", f.arena},
                          {"weights_bytes", f.weights},
                          {"cache_bytes", f.cache},
                          {"cache_bytes_per_slot", f.cache / f.slots},
                          {"fits", double(f.arena) <= m.memory},
                          {"prefill_tokens_per_s", f.prefillRate()},
                          {"prefill_bound_by", f.prefill.boundBy()},
                          {"decode_tokens_per_s", f.decodeRate()},
                          {"decode_tokens_per_s_per_slot", f.decodeRate() / double(f.slots)},
                          {"decode_bound_by", f.decode.boundBy()},
                          {"s_to_first_token", f.prefill.seconds()}});
  fmt::print("{}\n", j.dump(2, ' ', false, json::error_handler_t::replace));  // names of files need not be UTF-8
}

}  // namespace

std::vector<int64_t> parseSlots(const std::string &text) {
  std::vector<int64_t> all;
  llvm::SmallVector<llvm::StringRef> parts;
  llvm::StringRef(text).split(parts, ',');
  for (llvm::StringRef part : parts) {
    int64_t n = 0;
    if (part.trim().getAsInteger(10, n) || n < 1 || n > mostSlots)
      throw UserError(ErrorCode::Usage, fmt::format("--slots '{}' names no number of slots", text),
                      fmt::format("one number (8) or several (1,8,32), up to {}", mostSlots));
    if (llvm::is_contained(all, n))
      throw UserError(ErrorCode::Usage, fmt::format("--slots {} names {} twice", text, n), "name each number once");
    all.push_back(n);
  }
  return all;
}

Plan planToServe(const ServingRequest &r, bool onGpus) {
  std::error_code e;
  const llvm::StringRef name = r.model;
  const bool model = isImportable(r.model) || name.ends_with(".gguf") || name.ends_with(".safetensors"),
             compiled = isGivenAsPlan(r.model);
  if (!model && !compiled && !fs::exists(r.model, e))
    throw UserError(ErrorCode::FileMissing, fmt::format("there is no {}", r.model),
                    "name a model.toml, a plan, a Hugging Face folder or a GGUF file");
  if (!model && isGirFile(r.model))
    throw UserError(ErrorCode::NotBuiltYet, fmt::format("{} is a module, which has no slots", r.model),
                    "give the model.toml");
  if ((model || compiled) && !r.settings.empty())
    throw UserError(ErrorCode::Usage, fmt::format("--set is for a model.toml, and {} is none", r.model),
                    "leave it out");
  if (!model)
    requireNoRunAs(r.as, compiled ? "a plan has its own" : "a model.toml has its own",
                   compiled ? "leave it out, or compile the plan again"
                            : "--set model.block_size=N, precision.compute, precision.weights and precision.cache");
  Plan plan = model      ? planOfModel(importedModel(r.model, ImportFor::sizes), r.as, ImportFor::sizes)
              : compiled ? loadPlan(r.model)
                         : planOfFile(r, onGpus);
  requireGenerator(*plan.planned);
  if (plan.model.empty())
    throw UserError(ErrorCode::NotBuiltYet, "the plan was compiled from a module, which has no slots",
                    "compile a model.toml");
  if (onGpus) {
    plan.target = targetOnGpus(readConfig("", plan.model));
    plan.model.push_back("compile.autotune=\"off\"");  // records change no memory, and need the GPU
  } else if (plan.target.isCuda()) {
    throw UserError(
        ErrorCode::NotBuiltYet,
        fmt::format("the plan is for {}: on GPUs serving is forecast with a cluster file", plan.target.name),
        "name a cluster file that describes them with --cluster, or compile with --set compile.target=cpu");
  }
  return plan;
}

ServingLoad loadOf(const ServingRequest &r, int64_t context) {
  const ServingLoad usual;
  ServingLoad load{r.promptTokens, r.newTokens};
  if (!load.newTokens)
    load.newTokens = std::clamp(context + 1 - load.promptTokens, int64_t(1),
                                load.promptTokens ? usual.newTokens : std::min(usual.newTokens, (context + 1) / 2));
  if (!load.promptTokens)
    load.promptTokens = std::clamp(context + 1 - load.newTokens, int64_t(1), usual.promptTokens);
  // The last new token needs no place.
  if (load.promptTokens + load.newTokens - 1 > context)
    throw UserError(ErrorCode::Usage,
                    fmt::format("a prompt of {} tokens and {} new ones do not fit into a context of {}",
                                load.promptTokens, load.newTokens, context),
                    "smaller --prompt-tokens or --new-tokens, or a larger --context (of a model.toml: "
                    "--set model.block_size)");
  return load;
}

namespace {

/// Threads that take turns do not make a larger machine.
void noteThreads(unsigned threads) {
  const unsigned cpus = usableCpuCount();
  if (threads > cpus)
    printError(
        "note: {} threads share the {} CPU{} that this process may use, so times are those of {}; a machine with "
        "more is described by --cluster FILE\n",
        threads, cpus, cpus == 1 ? "" : "s", cpus == 1 ? "one" : "these");
}

}  // namespace

void estimateServing(const ServingRequest &r) {
  noteThreads(r.threads);
  const std::vector<int64_t> counts = parseSlots(r.slots);
  std::optional<Machine> machine;
  bool onGpus = false;
  if (!r.cluster.empty()) {
    const ClusterConfig cluster = loadCluster(r.cluster);
    machine = machineOf(cluster, r.tensor);
    onGpus = !cluster.device.isCpu;
  }
  const Plan plan = planToServe(r, onGpus);
  const ServingLoad load = loadOf(r, fact<&ModelFacts::blockSize>(*plan.planned));
  std::vector<std::unique_ptr<Module>> modules;
  for (const int64_t n : counts)
    modules.push_back(servingModule(plan, n, defaultCacheDir(), r.tensor));
  if (!machine)
    machine = measuredMachine(r.threads);
  std::vector<ServingForecast> all;
  std::vector<std::string> memory;
  for (size_t i = 0; i < counts.size(); ++i) {
    all.push_back(servingForecast(*modules[i], machine->rates, load));
    memory.push_back(slotsInWords(*modules[i], counts[i]));
  }
  const Module &any = *modules.front();
  if (r.json)
    return printJson(all, any, r, *machine, load);
  const std::string kept = weightsInWords(any);
  fmt::print("{}: {}, a context of {} tokens{}\n", r.model, nameOf(fact<&PrecisionFacts::compute>(any)),
             fact<&ModelFacts::blockSize>(any), kept.empty() ? "" : ", weights as " + kept);
  printTable(all, memory, *machine, load);
}

}  // namespace gptc
