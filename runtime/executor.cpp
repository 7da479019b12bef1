#include "runtime/executor.h"

#include <chrono>

namespace gptc {

int64_t monotonicNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

StateView::StateView(Executor &executor, const State &state, StateAccess access)
    : data(executor.openView(state, access)), executor(executor), state(state), access(access) {}
StateView::~StateView() { executor.closeView(state, access, data); }

Executor::Executor(const Module &planned, const Target &target, const Target &host, ThreadPool &pool,
                   const std::string &cacheDir)
    : module(planned), target(target), host(host), pool(pool), jit(host, cacheDir) {}

const Type &Executor::argType(llvm::StringRef function, unsigned i) const {
  return module.function(function)->body.args.at(i)->type;
}

}  // namespace gptc
