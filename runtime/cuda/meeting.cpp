#include "runtime/cuda/meeting.h"

#include "support/diagnostics.h"

namespace gptc::cuda {

static NcclCollective::Kind kindOf(OpKind kind) {
  switch (kind) {
  case OpKind::all_reduce:
    return NcclCollective::Kind::all_reduce;
  case OpKind::reduce_scatter:
    return NcclCollective::Kind::reduce_scatter;
  case OpKind::all_gather:
    return NcclCollective::Kind::all_gather;
  case OpKind::broadcast_from:
    return NcclCollective::Kind::broadcast;
  default:
    GPTC_UNREACHABLE("'{}' is no collective", nameOf(kind).str());
  }
}

Meeting::Meeting(const Gpu &gpu, const Collectives &what, llvm::ArrayRef<DevicePtr> params, unsigned operands,
                 unsigned results, NcclCommunicator *ranks, int64_t index, DevicePtr indexAt)
    : gpu(gpu), ranks(ranks) {
  GPTC_CHECK(what.ranks == (ranks ? ranks->world : 1), "{} ranks along {} for a plan of {}", ranks ? ranks->world : 1,
             what.axis, what.ranks);
  const auto workspaces = params.drop_front(operands + results);
  for (const CollectiveCall &call : what.calls) {
    if (call.kind == OpKind::axis_index) {
      copies.push_back({indexAt, params[operands + call.to], sizeof(int64_t)});
      continue;
    }
    const size_t size = sizeOf(call.dtype), count = size_t(call.count), segments = size_t(call.segments),
                 P = size_t(what.ranks);
    const DevicePtr from = params[call.from] + size_t(call.offset) * size,
                    to = params[operands + call.to] + size_t(call.offset) * size;
    if (call.padding)
      paddings.push_back({from + size_t(call.paddingFrom) * size, size_t(call.padding) * size});
    if (call.met) {
      // Each segment of the whole has a part for every rank; the parts from one rank are contiguous.
      const DevicePtr met = workspaces[*call.met];
      if (call.kind == OpKind::reduce_scatter) {
        for (size_t s = 0; s < segments; ++s)
          exchanges.push_back(
              {from + s * count * P * size, met + s * count * size, count, count, segments * count, call.dtype});
      } else if (call.summed) {
        exchanges.push_back({from, met, count / P, count / P, count / P, call.dtype});
        gathers.push_back({NcclCollective::Kind::all_gather, workspaces[*call.summed], to, count / P, call.dtype});
      } else {
        exchanges.push_back({from, met, count, 0, count, call.dtype});
      }
      continue;
    }
    for (size_t s = 0; s < segments; ++s) {
      const size_t piece = s * count * size, whole = piece * P;
      if (call.kind == OpKind::own_part || !ranks)
        copies.push_back({from + whole + size_t(index) * count * size, to + piece, count * size});
      else if (call.kind == OpKind::all_gather)
        collectives.push_back({kindOf(call.kind), from + piece, to + whole, count, call.dtype});
      else
        collectives.push_back({kindOf(call.kind), from + whole, to + piece, count, call.dtype, call.root});
    }
  }
}

void Meeting::before(Stream stream) const {
  for (const Copy &c : copies)
    if (c.from != c.to)
      gpu.d.check(gpu.d.copyOnDevice(c.to, c.from, c.bytes, stream), "cuMemcpyDtoDAsync");
  for (const Zeros &z : paddings)
    gpu.d.check(gpu.d.memsetBytes(z.at, 0, z.bytes, stream), "cuMemsetD8Async");
  // Exchanges for sums that the kernel adds, and collectives that NCCL sums, form one NCCL group each.
  if (!exchanges.empty())
    ranks->exchange(exchanges, stream);
  if (!collectives.empty())
    ranks->enqueue(collectives, stream);
}

void Meeting::after(Stream stream) const {
  if (!gathers.empty())
    ranks->enqueue(gathers, stream);
}

}  // namespace gptc::cuda
