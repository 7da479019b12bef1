#include "runtime/device/executor.h"

#include "ir/mesh.h"
#include "runtime/collectives/communicator.h"
#include "support/diagnostics.h"

#include <chrono>

namespace gptc {

int64_t monotonicNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

StateView::StateView(Executor &executor, const State &state, StateAccess access)
    : data(openView(executor, state, access)), executor(executor), state(state), access(access) {}

void *StateView::openView(Executor &executor, const State &state, StateAccess access) {
  GPTC_CHECK(!isInFiles(state), "@{} has no memory", state.name);
  return executor.openView(state, access);
}

StateView::~StateView() { executor.closeView(state, access, data); }

Executor::Executor(const Module &planned, const Target &target, const Target &host, ThreadPool &pool,
                   const std::string &cacheDir)
    : module(planned), target(target), host(host), pool(pool), cacheDir(cacheDir), jit(host, cacheDir) {}

const Type &Executor::argType(llvm::StringRef function, unsigned i) const {
  return module.function(function)->body.args.at(i)->type;
}

Communicator *Executor::along(llvm::StringRef axis) const {
  const Mesh mesh = Mesh::of(module);
  const int64_t extent = mesh.extent(axis);
  if (extent <= 1)
    return nullptr;
  Communicator *along = extent == mesh.ranks() ? ranks : axis == "data" ? dataRanks : tensorRanks;
  GPTC_CHECK(along && along->world == extent, "{} ranks along {} for a plan of {}", along ? along->world : 1,
             axis.str(), extent);
  return along;
}

int64_t Executor::index(llvm::StringRef axis) const {
  const Communicator *of = along(axis);
  return of ? of->rank : 0;
}

}  // namespace gptc
