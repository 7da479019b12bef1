#include "runtime/session.h"

#include "ir/diagnostics.h"
#include "ir/mesh.h"
#include "runtime/cpu_executor.h"
#include "runtime/cuda/cuda_executor.h"

namespace gptc {

static std::unique_ptr<Executor> makeExecutor(Session &s, const std::string &cacheDir) {
  const Module &m = *s.plan.planned;
  if (s.plan.target.isCuda())
    return std::make_unique<cuda::CudaExecutor>(m, s.plan.target, s.host, s.pool, cacheDir);
  return std::make_unique<CpuExecutor>(m, s.plan.target, s.host, *s.arena, s.pool, cacheDir);
}

/// What the trainer and others that run a plan in one process cannot do.
static Plan forOneRank(Plan plan) {
  const int64_t ranks = Mesh::of(*plan.planned).ranks(), shards = plan.planned->attrs.getInt("shards", 1);
  if (ranks != 1 || shards != 1)
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("the plan is for {} ranks with {} logical shards each: only one process can run a plan "
                                "yet",
                                ranks, shards),
                    "compile it for one rank");
  return plan;
}

Session::Session(Plan given, const std::string &cacheDir, unsigned threads)
    : plan(forOneRank(std::move(given))), host(hostTarget(threads)), pool(host.threads),
      arena(plan.target.isCuda() ? nullptr : std::make_unique<Arena>(plan.planned->attrs.getInt("arena_bytes"), &pool)),
      device(makeExecutor(*this, cacheDir)), executor(*device) {}

}  // namespace gptc
