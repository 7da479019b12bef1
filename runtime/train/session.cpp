#include "runtime/train/session.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/collectives/communicator.h"
#include "runtime/cuda/cuda_executor.h"
#include "runtime/device/cpu_executor.h"
#include "support/diagnostics.h"

namespace gptc {

static std::unique_ptr<Executor> makeExecutor(Session &s, const std::string &cacheDir, int device) {
  const Module &m = *s.plan.planned;
  if (s.plan.target.isCuda())
    return std::make_unique<cuda::CudaExecutor>(m, s.plan.target, s.host, s.pool, cacheDir, device);
  return std::make_unique<CpuExecutor>(m, s.plan.target, s.host, *s.arena, s.pool, cacheDir);
}

/// Checks that the number of ranks is that of the plan's mesh. A caller with another number must derive another plan
/// first.
static Plan forRanks(Plan plan, const Communicator *ranks) {
  const int64_t wanted = Mesh::of(*plan.planned).ranks(), here = ranks ? ranks->world : 1;
  GPTC_CHECK(wanted == here, "a plan for {} ranks, and there are {}", wanted, here);
  return plan;
}

Session::Session(Plan given, const std::string &cacheDir, unsigned threads, Communicator *ranks, MeshAxes along,
                 int gpu)
    : plan(forRanks(std::move(given), ranks)), host(hostTarget(threads)), pool(host.threads),
      arena(plan.target.isCuda() ? nullptr
                                 : std::make_unique<Arena>(fact<&MemoryFacts::arenaBytes>(*plan.planned), &pool)),
      device(makeExecutor(*this, cacheDir, gpu)), executor(*device) {
  executor.ranks = ranks;
  executor.dataRanks = along.data;
  executor.tensorRanks = along.tensor;
}

}  // namespace gptc
