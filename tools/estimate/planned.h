// Forecasts from plans rather than models: time of a planned module's step by kind of work, and memory of a rank. If a
// cluster's software is gptc, the module is the one that `gptc compile` makes for that mesh, so memory equals the
// plan's arena to the byte.
#pragma once

#include "tools/estimate/workload.h"

#include <map>

namespace gptc {

/// The share of one rank of a CPU cluster in its node's cores, memory and caches, which `ranks` ranks divide.
DeviceSpec shareOf(const DeviceSpec &node, int64_t ranks);

/// Rates of collectives along one axis of a mesh.
struct LinkRates {
  double bandwidth = 1e30;  // bus bandwidth per rank, bytes/s
  double latency = 0;       // seconds per collective, or per several that run as one
};

/// Memory of one rank of a plan, in bytes.
struct PlannedMemory {
  double host = 0;                                    // pinned host memory, with offload
  double parameters = 0, gradients = 0, moments = 0;  // on the device
  double cache = 0;                                   // keys and values, for samples
  /// The region behind the states, shared by all functions: each function's size and its buffers at the peak.
  struct Region {
    double bytes = 0;
    Buffers buffers;
  };
  std::map<std::string, Region> regions;

  double states() const { return parameters + gradients + moments + cache; }
  /// The largest function's region.
  const Region &largest() const;
  /// The device's arena, to the byte the module's.
  double arena() const { return states() + largest().bytes; }
};

/// `target`: the target of the module's schedules.
PlannedMemory plannedMemory(const Module &planned, const Target &target);

/// Extrapolates to `more` layers beyond `deeper`, which has one layer more than `less`. States and each function's
/// region are affine in the number of layers as long as the same op is at a function's peak.
PlannedMemory lineThrough(const PlannedMemory &less, const PlannedMemory &deeper, double more);

/// Bytes that a rank sends in a collective, as NCCL's tests count for bus bandwidth: (P-1)/P of the whole for an
/// all_gather, a reduce_scatter or a broadcast, twice that for an all_reduce. 0 for other ops.
double bytesSent(const Op &op);

/// One step of a rank.
struct PlannedStep {
  std::map<KernelClass, double> seconds;  // kernels by class, without communication
  double flops = 0;                       // executed
  double recompute = 0;                   // seconds among these for recomputation that saves memory
  struct Sent {
    double bytes = 0;     // by bytesSent
    double messages = 0;  // adjacent collectives count once
    double seconds(const LinkRates &l) const { return bytes / l.bandwidth + messages * l.latency; }
  };
  Sent reduce, gather, exchange;  // of gradients; of parameters; of activations along "tensor"
  PlannedMemory memory;

  double kernels() const;
};

/// What the collectives of a kernel send: one message, whatever their number; nothing for other kernels.
PlannedStep::Sent sentBy(const Op &kernel);

/// `target`: the target of the module's schedules.
PlannedStep plannedStep(const Module &planned, const Target &target, const MachineRates &rates);

/// The largest sum of live bytes at any op of `f`, and its `buffers` by name. `lossInPlace`: gradients of logits
/// overwrite the logits.
double peakOf(const Function &f, Buffers &buffers, bool lossInPlace = false);

}  // namespace gptc
