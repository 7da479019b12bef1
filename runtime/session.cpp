#include "runtime/session.h"

#include "runtime/cpu_executor.h"
#include "runtime/cuda/cuda_executor.h"

namespace gptc {

static std::unique_ptr<Executor> makeExecutor(Session &s, const std::string &cacheDir) {
  const Module &m = *s.plan.planned;
  if (s.plan.target.isCuda())
    return std::make_unique<cuda::CudaExecutor>(m, s.plan.target, s.host, s.pool, cacheDir);
  return std::make_unique<CpuExecutor>(m, s.plan.target, s.host, *s.arena, s.pool, cacheDir);
}

Session::Session(Plan given, const std::string &cacheDir, unsigned threads)
    : plan(std::move(given)), host(hostTarget(threads)), pool(host.threads),
      arena(plan.target.isCuda() ? nullptr : std::make_unique<Arena>(plan.planned->attrs.getInt("arena_bytes"), &pool)),
      device(makeExecutor(*this, cacheDir)), executor(*device) {}

}  // namespace gptc
