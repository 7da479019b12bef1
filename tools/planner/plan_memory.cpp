#include "tools/planner/plan_memory.h"

#include "frontends/toml_config.h"
#include "ir/mesh.h"
#include "runtime/cuda/cuda_executor.h"
#include "runtime/device/arena.h"
#include "tools/planner/micro_batch.h"

#include <algorithm>

namespace gptc {

PlanMemory memoryForPlans(const Config &config, const Target &target, bool here, int64_t ranksPerNode) {
  constexpr int64_t boundless = int64_t(1) << 62;
  const int64_t ranks = Mesh{config.parallel.data, config.parallel.tensor}.ranks();
  if (target.isCuda()) {  // each rank has a GPU
    const int64_t bytes = config.fixes("compile.gpu_memory")
                              ? arenaRoom(gpuMemoryOf(config, target, here), target, ranks)
                          : here ? cuda::CudaExecutor::memoryForPlans(target)
                                 : boundless;
    return {bytes, bytes};
  }
  const int64_t available = availableMemory();
  const int64_t bytes = available - std::max<int64_t>(256 << 20, available / 20);
  return {bytes, bytes / (ranksPerNode ? ranksPerNode : ranks)};
}

}  // namespace gptc
