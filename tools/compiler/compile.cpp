#include "tools/compiler/compile.h"

#include "codegen/codegen.h"
#include "codegen/cuda/jit.h"
#include "codegen/cuda/launch.h"
#include "frontends/hf_folder.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/tuning/cache_secret.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/words.h"
#include "tools/estimate/auto.h"
#include "tools/planner/gir_file.h"
#include "tools/planner/plan_memory.h"

#include "llvm/ADT/STLExtras.h"

#include <chrono>
#include <map>
#include <type_traits>

namespace gptc {

namespace {

class Stopwatch {
public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }

private:
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

constexpr int64_t boundless = int64_t(1) << 62;

}  // namespace

RunSettings runSettings(const Config &c) {
  RunSettings r = c.run;
  eachPath(r, [](std::string &path) { path = absolutePath(path); });
  return r;
}

/// Turns every group of the planned module into a kernel and compiles it into the cache.
static void compileKernels(const Plan &plan, const std::string &cacheDir, CompileReport &report) {
  const Stopwatch kernels;
  std::map<std::string, LoweredGroup> lowered;  // equal groups have equal kernels
  std::map<std::string, const kir::Kernel *> alone, ofHost;
  std::map<std::pair<const Function *, int64_t>, std::vector<const kir::Kernel *>> launches;
  for (const auto &f : plan.planned->functions)
    for (const Op &op : f->body) {
      if (!op.is(OpKind::fused))
        continue;
      ++report.groups;
      const auto [group, isNew] = lowered.try_emplace(groupKey(op));
      if (isNew) {
        Schedule schedule;
        GPTC_CHECK(Schedule::parse(fact<&GroupFacts::schedule>(op), schedule), "schedule of {}", op.loc);
        group->second = lowerGroup(op, schedule, runsOnHost(op) ? hostTarget() : plan.target);
      }
      const kir::Kernel *kernel = &group->second.kernel;
      if (const int64_t launch = fact<&GroupFacts::launch>(op))
        launches[{f.get(), launch}].push_back(kernel);
      else
        (runsOnHost(op) ? ofHost : alone)[group->first] = kernel;
    }
  auto compile = [&](auto jit, const std::map<std::string, const kir::Kernel *> &kernels) {
    jit.compile(llvm::to_vector(llvm::make_second_range(kernels)));
    if constexpr (std::is_same_v<decltype(jit), CudaJit>)
      for (const auto &[number, members] : launches) {
        const CudaLaunch launch(members);
        jit.compile(launch.cuda(), launch.name());
      }
    report.compiled += jit.stats.compiled;
    report.reused += jit.stats.reused;
  };
  if (plan.target.isCuda())
    compile(CudaJit(plan.target, cacheDir), alone);
  else
    compile(Jit(plan.target, cacheDir), alone);
  if (!ofHost.empty())
    compile(Jit(hostTarget(), cacheDir), ofHost);
  report.kernelSeconds = kernels.seconds();
}

// 1. Build the graph from the configuration and run the default pipeline, or what a .gir file still needs of it. Copy
//    the module before fusion: that is the joint graph. Ranks and micro-batch left to "auto" are decided first.
// 2. If the GPU is in this machine, time the algorithms of cuBLASLt calls and pin the fastest in the schedules.
// 3. Turn every group into a kernel and compile it into the cache.
// 4. Write the plan last, so that an existing plan has kernels that compile.
static CompileReport compileInto(const CompileRequest &request, Config &config, Plan &plan) {
  CompileReport report;
  const Stopwatch total;
  const bool gir = isGirFile(request.modelFile);
  const char *firstPass = "canonicalize";
  if (gir) {
    plan.planned = loadGir(request.modelFile);
    firstPass = firstPassFor(*plan.planned, request.modelFile);
    config = configOfGir(*plan.planned, request.modelFile, request.settings);
    if (config.written.count("compile.remat"))
      setFact<&CompileFacts::remat>(*plan.planned, config.compile.remat);
  } else {
    config = readConfig(request.modelFile, request.settings);
  }
  bool here = true;
  plan.target = targetOf(config, here);
  plan.run = request.run ? *request.run : runSettings(config);

  const Stopwatch passes;
  const PlanMemory memory = memoryForPlans(config, plan.target, here, request.ranksPerNode);
  if (!gir) {
    const std::vector<Decision> chosen = chooseParallel(config, plan.target, memory.ofRank, request.clusterFile);
    const std::string records = here ? request.cacheDir : "";
    report.micro = chooseMicroBatch(config, plan.target, here,
                                    [&](const Config &c) { return planModule(c, plan.target, records, boundless); });
    plan.planned = buildModel(config);
    for (const Decision &d : chosen)
      record(*plan.planned, d);
    plan.model = modelSettings(config);
    HfFolder folder;
    if (!request.hf)
      folder = describeFolder(config.model, plan.run.tokenizer, plan.run.initFrom, config.labels);
    plan.hf = request.hf ? *request.hf : folder.files;
    report.noFamilyHolds = std::move(folder.differing);
    report.tokenizerProblem = std::move(folder.tokenizerProblem);
  }
  report.available = memory.ofPlan;
  if (report.micro && !report.micro->fits)
    report.available = std::min(report.available, report.micro->room);  // recomputation must stay within it
  const bool tune = config.compile.autotune != "off" && (here || !plan.target.isCuda());
  const int64_t ranks = Mesh::of(*plan.planned).ranks(), perNode = request.ranksPerNode ? request.ranksPerNode : ranks;
  std::optional<Target> ofRank;
  if (!plan.target.isCuda() && perNode > 1)
    ofRank = hostTarget(request.byRank ? plan.target.threads : 0, unsigned(perNode));
  report.tuned = runPasses(plan, config,
                           {.first = firstPass,
                            .cacheDir = tune ? request.cacheDir : "",
                            .tuned = tune,
                            .available = report.available,
                            .pipeline = request.pipeline,
                            .measured = ofRank ? &*ofRank : nullptr},
                           gir);
  GPTC_CHECK(plan.joint, "the default pipeline does not fuse");
  if (std::string problem = gir ? planProblem(*plan.planned) : ""; !problem.empty())
    throw UserError(ErrorCode::GirInvalid, fmt::format("{}: {}", request.modelFile, problem),
                    "frontends/model_builder.h says what a training module consists of");
  report.passSeconds = passes.seconds();
  report.arenaBytes = fact<&MemoryFacts::arenaBytes>(*plan.planned);
  report.hostBytes = fact<&MemoryFacts::hostBytes>(*plan.planned);
  if (!plan.target.callsLibrary() || config.compile.autotune == "off")
    report.tuning.problem = "compile.autotune is off";
  else
    report.tuning = cuda::pinAlgorithms(*plan.planned, plan.target, request.cacheDir);
  compileKernels(plan, request.cacheDir, report);

  report.planDir = request.planDir.empty() ? config.name + ".plan" : request.planDir;
  writePlan(report.planDir, plan, neededCacheSecret(request.cacheDir));
  report.totalSeconds = total.seconds();
  return report;
}

PlanForRanks::PlanForRanks(const Plan &plan, int64_t ranks, int64_t ranksPerNode) {
  request.ranksPerNode = ranksPerNode;
  if (plan.model.empty())
    throw UserError(ErrorCode::RanksUnclear,
                    fmt::format("the plan is for {} ranks and was compiled from a module, which does not say how to "
                                "make one for {}",
                                Mesh::of(*plan.planned).ranks(), ranks),
                    "compile the module again with that mesh_data");
  const Module &m = *plan.planned;
  const int64_t B = fact<&BatchFacts::microBatch>(m),
                sequences = Mesh::of(m).data * fact<&BatchFacts::accumulate>(m) * B;
  request.settings = plan.model;
  // With parallel.tensor = "auto" the division of the ranks is decided anew.
  const bool open = llvm::is_contained(plan.model, "parallel.tensor=\"auto\"");
  const int64_t tensor = open ? 1 : Mesh::of(m).tensor, data = ranks == 1 ? 1 : ranks / tensor;
  if (ranks != 1 && ranks % tensor)
    throw UserError(ErrorCode::RanksUnclear,
                    fmt::format("{} ranks do not divide into groups of parallel.tensor = {}", ranks, tensor),
                    fmt::format("start a multiple of {}, or compile with another parallel.tensor", tensor));
  request.settings.push_back(fmt::format("parallel.data={}", data));
  if (ranks == 1 && !open)
    request.settings.push_back("parallel.tensor=1");
  // Ranks that meet in outer steps, or compress gradients, have one shard each, however many they are.
  const bool apart = fact<&ParallelFacts::syncEvery>(m) > 1 || fact<&ParallelFacts::gradientRank>(m) > 0;
  if (apart)
    request.settings.push_back(fmt::format("parallel.logical_shards={}", data));
  const bool fixed = !apart && llvm::any_of(plan.model, [](const std::string &s) {
    return llvm::StringRef(s).starts_with("parallel.logical_shards=") && s.back() != '"';
  });
  const int64_t shards = fixed ? Mesh::of(m).data * fact<&ParallelFacts::shards>(m) : data, share = sequences / shards;
  int64_t micro = std::min(B, share);
  if (share < 1 || sequences % shards)
    throw UserError(ErrorCode::RanksUnclear,
                    fmt::format("a global batch of {} sequences does not divide by {} ranks", sequences, data),
                    "choose a number of ranks that divides it, or another train.global_batch_tokens");
  while (share % micro)
    --micro;
  request.settings.push_back(fmt::format("train.micro_batch={}", micro));
  request.settings.push_back(plan.target.isCuda() ? "compile.target=" + plan.target.name : "compile.target=cpu");
  request.run = plan.run;
  request.hf = plan.hf;
  Target t;
  try {
    bool here;
    t = targetOf(readConfig("", request.settings), here);
  } catch (UserError &e) {
    for (Diagnostic &d : e.diagnostics)
      d.where = {};  // it would point to settings that no user has written
    throw UserError(e.diagnostics);
  }
  madeFrom = blake3(fmt::format("{} {} {} {} {} {}\n{}", plan.hash, t.name, t.cpu, t.features, t.threads, ranksPerNode,
                                fmt::join(request.settings, "\n")));
}

bool PlanForRanks::isIn(const std::string &dir) const {
  try {
    const Plan there = loadPlan(dir);
    return there.madeFrom == madeFrom && there.run == *request.run && there.hf == *request.hf;
  } catch (const UserError &) {
    return false;
  }
}

void PlanForRanks::write(const std::string &dir, const std::string &cacheDir) const {
  CompileRequest r = request;
  r.planDir = dir;
  r.cacheDir = cacheDir;
  r.byRank = true;
  Config config;
  Plan other;
  other.madeFrom = madeFrom;
  compilePlan(r, config, other);
}

/// Of settings that no user has written: errors point to none of them.
static Config configOfSettings(const std::vector<std::string> &settings) {
  try {
    return readConfig("", settings);
  } catch (UserError &e) {
    for (Diagnostic &d : e.diagnostics) {
      d.where = {};
      d.label.clear();
    }
    throw UserError(e.diagnostics);
  }
}

std::vector<std::string> PlanForRanks::settingsFor(int64_t tensor) const {
  std::vector<std::string> settings = request.settings;
  settings.insert(settings.end(), {"parallel.sync_every=1", "parallel.compression=none"});  // of training alone
  if (tensor > 1)
    settings.push_back(fmt::format("parallel.tensor={}", tensor));
  return settings;
}

void PlanForRanks::requireShared(int64_t tensor) const { configOfSettings(settingsFor(tensor)); }

std::unique_ptr<Module> PlanForRanks::planForInference(const Target &target, const std::string &cacheDir,
                                                       const BuildOptions &build, int64_t tensor) const {
  std::vector<std::string> settings = settingsFor(tensor);
  // These settings affect time and memory of training only, and no bits.
  settings.insert(settings.end(), {"compile.remat=none", "parallel.offload=none"});
  if (!build.slots && !build.embed)  // with these it keeps no copies
    settings.push_back("compile.pack_weights=false");
  const Config config = configOfSettings(settings);
  std::unique_ptr<Module> m = planModule(config, target, cacheDir, int64_t(1) << 62, build);
  if (target.callsLibrary() && config.compile.autotune != "off")
    cuda::pinAlgorithms(*m, target, cacheDir);
  return m;
}

CompileReport compilePlan(const CompileRequest &request, Config &config, Plan &plan) {
  if (!isGirFile(request.modelFile))
    return compileInto(request, config, plan);
  try {
    return compileInto(request, config, plan);
  } catch (const InternalError &e) {
    // A module comes from outside: it may be valid and still ask for what no pass makes.
    throw UserError(ErrorCode::GirInvalid,
                    fmt::format("{} cannot be compiled: {}", request.modelFile, withoutPlaces(e.what())));
  }
}

}  // namespace gptc
