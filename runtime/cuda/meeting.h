// What ranks do together in one group of a plan (codegen/collectives.h), as calls of NCCL and copies in a stream.
#pragma once

#include "codegen/collectives.h"
#include "runtime/cuda/nccl.h"

#include "llvm/ADT/ArrayRef.h"

#include <vector>

namespace gptc::cuda {

class Meeting {
public:
  /// `params`: of the group's kernel: operands, results, workspaces. `ranks`, null where there is one, are those along
  /// the axis, `index` is this one's place among them, and `indexAt` is where the GPU finds that as an i64.
  Meeting(const Gpu &gpu, const Collectives &what, llvm::ArrayRef<DevicePtr> params, unsigned operands,
          unsigned results, NcclCommunicator *ranks, int64_t index, DevicePtr indexAt);

  /// Enqueues what comes before the group's kernel, and what comes behind it. Both may be captured.
  void before(Stream stream) const;
  void after(Stream stream) const;
  /// Whether other ranks take part: then all enqueue their groups in the same order.
  bool meets() const { return !collectives.empty() || !exchanges.empty(); }

private:
  struct Copy {
    DevicePtr from, to;
    size_t bytes;
  };
  struct Zeros {
    DevicePtr at;
    size_t bytes;
  };
  const Gpu &gpu;
  NcclCommunicator *ranks;
  std::vector<Copy> copies;
  std::vector<Zeros> paddings;
  std::vector<NcclCollective> collectives;
  std::vector<NcclExchange> exchanges;
  std::vector<NcclCollective> gathers;  // of what the kernel has added
};

}  // namespace gptc::cuda
