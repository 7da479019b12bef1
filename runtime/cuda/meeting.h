// The collectives of one group of a plan (codegen/collectives.h), as NCCL calls and copies on a stream.
#pragma once

#include "codegen/collectives.h"
#include "runtime/cuda/nccl.h"

#include "llvm/ADT/ArrayRef.h"

#include <vector>

namespace gptc::cuda {

class Meeting {
public:
  /// `params`: the kernel's operands, results and workspaces. `ranks`: the communicator along the axis, null if it has
  /// one rank. `index`: this rank's place among them. `indexAt`: where the GPU finds that as an i64.
  Meeting(const Gpu &gpu, const Collectives &what, llvm::ArrayRef<DevicePtr> params, unsigned operands,
          unsigned results, NcclCommunicator *ranks, int64_t index, DevicePtr indexAt);

  /// Enqueue the work before and after the group's kernel. Both may be captured.
  void before(Stream stream) const;
  void after(Stream stream) const;
  /// Whether other ranks take part. If so, all ranks must enqueue their groups in the same order.
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
  std::vector<NcclCollective> gathers;  // of the sums that the kernel has computed
};

}  // namespace gptc::cuda
