#include "runtime/session.h"

namespace gptc {

Session::Session(Plan given, const std::string &cacheDir, unsigned threads)
    : plan(std::move(given)), host(hostTarget(threads)), pool(host.threads),
      arena(plan.planned->attrs.getInt("arena_bytes"), &pool),
      executor(*plan.planned, plan.target, host, arena, pool, cacheDir) {}

}  // namespace gptc
