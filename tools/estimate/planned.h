// Forecasts of plans rather than of models: what one step of a planned module takes by kind of work, and what a rank
// holds of it. Where a cluster's software is gptc, the module is the one that `gptc compile` makes for that mesh, so
// that memory is the plan's arena to the byte.
#pragma once

#include "tools/estimate/workload.h"

#include <map>

namespace gptc {

/// Ranks of a CPU cluster share the cores, memory and caches of their node: what one of `ranks` on a node has of them.
DeviceSpec shareOf(const DeviceSpec &node, int64_t ranks);

/// Rates of collectives along one axis of a mesh.
struct LinkRates {
  double bandwidth = 1e30;  // bus bandwidth of a rank, bytes/s
  double latency = 0;       // seconds of one collective, or of several that go as one
};

/// What a rank holds of a plan; bytes.
struct PlannedMemory {
  double host = 0;                                    // pinned there, with offload
  double parameters = 0, gradients = 0, moments = 0;  // on the device
  double cache = 0;                                   // keys and values, for samples
  /// Behind the states, in one place for all functions: what each has there, and what that is at its peak.
  struct Region {
    double bytes = 0;
    Buffers buffers;
  };
  std::map<std::string, Region> regions;

  double states() const { return parameters + gradients + moments + cache; }
  /// The region of the function that asks for the most.
  const Region &largest() const;
  /// Of the device: to the byte that of the module.
  double arena() const { return states() + largest().bytes; }
};

/// `target`: what the module was planned for.
PlannedMemory plannedMemory(const Module &planned, const Target &target);

/// The same of a plan with `more` layers more than `deeper`, which has one more than `less`: states and what each
/// function has are affine functions of the number of layers, as long as the same op is at a function's peak.
PlannedMemory lineThrough(const PlannedMemory &less, const PlannedMemory &deeper, double more);

/// One step of a rank.
struct PlannedStep {
  std::map<KernelClass, double> seconds;  // kernels by class; without communication
  double flops = 0;                       // executed
  double recompute = 0;                   // of the seconds: what is computed a second time to save memory
  /// Bytes that this rank sends and receives, as NCCL's tests count for bus bandwidth.
  struct Sent {
    double bytes = 0;  // (P-1)/P of an all_gather's or a reduce_scatter's whole, twice that of an all_reduce's
    double messages = 0;
    double seconds(const LinkRates &l) const { return bytes / l.bandwidth + messages * l.latency; }
  };
  Sent reduce, gather, exchange;  // gradients; parameters; activations along "tensor"
  PlannedMemory memory;

  double kernels() const;
};

/// `target`: as above.
PlannedStep plannedStep(const Module &planned, const Target &target, const MachineRates &rates);

/// Bytes by what they are at the position of `f` with the most, and their sum. With `lossInPlace` gradients of logits
/// are written over the logits.
double peakOf(const Function &f, Buffers &buffers, bool lossInPlace = false);

}  // namespace gptc
