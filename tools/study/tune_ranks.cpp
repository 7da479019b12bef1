// 1. Compile the model for its ranks, as `gptc compile` does, with default schedules.
// 2. Bind this thread to the CPUs of the machine's rank 0, and threads to those of each other rank.
// 3. Measure what rank 0's threads could do alone, for shares of it.
// 4. Search kernels with rank 0's threads. Whenever one is timed, all ranks run it at the same time, each in memory of
//    its own. Collectives have no sizes to choose. Steps are not compared: those of several ranks need all of them.
#include "codegen/tuner/group_bench.h"
#include "frontends/toml_config.h"
#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/launch/cores.h"
#include "support/cpus.h"
#include "support/diagnostics.h"
#include "tools/estimate/auto.h"
#include "tools/planner/plan_memory.h"
#include "tools/planner/plan_module.h"
#include "tools/study/tune_search.h"

#include <chrono>
#include <optional>

namespace gptc {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Binds the calling thread for the time that this lives.
class Bound {
public:
  explicit Bound(const std::vector<int> &cpus) : before(usableCpus()) { bindTo(cpus); }
  ~Bound() { bindTo(before); }
  Bound(const Bound &) = delete;

private:
  const std::vector<int> before;
};

void requireCpus(int64_t ranks, unsigned cpus) {
  if (ranks <= int64_t(cpus))
    return;
  throw UserError(
      ErrorCode::TargetUnavailable,
      fmt::format("{} ranks of a machine are measured together, and this one lets {} CPU{} be used", ranks, cpus,
                  cpus == 1 ? "" : "s"),
      "--nodes N or --ranks-per-node K says that a machine has fewer of the plan's ranks; so does a machine "
      "with more CPUs");
}

}  // namespace

TuneReport tuneRank(const TuneRequest &request, const Config &given,
                    const std::function<void(const TuneProgress &)> &progress) {
  constexpr double flopsPerByte = 10;  // of a CPU
  const double begin = now();
  double measuring = 0;  // seconds of measuring the machine; not part of the time limit
  auto left = [&] { return request.seconds + measuring - (now() - begin); };
  Config config = given;
  const int64_t ranks = Mesh{config.parallel.data, config.parallel.tensor}.ranks();
  const int64_t here = request.ranksPerNode ? request.ranksPerNode : ranks;
  requireCpus(here, usableCpuCount());
  const Target machine = hostTarget(request.threads), target = hostTarget(request.threads, unsigned(here));
  const PlanMemory memory = memoryForPlans(config, machine, true, here);
  chooseParallel(config, machine, memory.ofRank, request.clusterFile);
  const std::unique_ptr<Module> planned = planModule(config, machine, "", memory.ofPlan);

  std::vector<std::vector<int>> cpus = shareCpus(orderedCpus(), int(here));
  const Bound bound(cpus.at(0));
  cpus.erase(cpus.begin());
  ThreadPool pool(target.threads);
  const double asked = now();
  const MachineSpeed speed = measureSpeed(pool, target, request.cacheDir);  // of a rank while the others rest
  measuring = now() - asked;
  std::optional<Neighbours> others;
  if (here > 1)
    others.emplace(cpus, target.threads);
  TuningRecords records(request.cacheDir);
  const bool cold = fact<&MemoryFacts::arenaBytes>(*planned) * here > target.l3Bytes;
  auto bench = [&](const Op &op, std::vector<Schedule> &space) {
    space = scheduleSpace(op, target);
    return std::make_unique<GroupBench>(op, target, pool, cold, nullptr, others ? &*others : nullptr);
  };
  TuneReport report =
      tuneAlone(request, {*planned, target, pool, records, flopsPerByte, 0.05, cold, bench, left}, progress);
  report.note = here == 1 ? "each kernel ran alone, as this machine has one rank"
                          : fmt::format("each kernel ran while {} other rank{} of this machine ran it too", here - 1,
                                        here == 2 ? "" : "s");
  report.note += "; steps of several ranks are not compared";
  report.speed = speed;
  report.seconds = now() - begin;
  return report;
}

}  // namespace gptc
