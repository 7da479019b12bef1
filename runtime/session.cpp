#include "runtime/session.h"

#include "runtime/cpu_executor.h"

namespace gptc {

Session::Session(Plan given, const std::string &cacheDir, unsigned threads)
    : plan(std::move(given)), host(hostTarget(threads)), pool(host.threads),
      arena(std::make_unique<Arena>(plan.planned->attrs.getInt("arena_bytes"), &pool)),
      device(std::make_unique<CpuExecutor>(*plan.planned, plan.target, host, *arena, pool, cacheDir)),
      executor(*device) {}

}  // namespace gptc
