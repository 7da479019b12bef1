// The computation and memory of one rank for one micro-batch, independent of the number of ranks: taken from the same
// graph as a plan, or for other software from that graph as it runs there (decomposed attention, no fusion, no
// padding).
//
// Layers are alike, so every sum over ops is affine in their number. The graph is built with two and three layers and
// extrapolated, so forecasts of deep models are cheap. Memory peaks are not sums, but are affine too as long as the
// same op is at the peak (tests/estimate/workload_test.cpp compares with graphs of full depth).
#pragma once

#include "frontends/cluster_config.h"
#include "frontends/toml_config.h"
#include "passes/analysis/cost.h"

#include <map>
#include <string>
#include <vector>

namespace gptc {

/// Bytes that are live at the peak, by name: "softmax of attention".
using Buffers = std::map<std::string, double>;

/// Extrapolates to `more` layers beyond `deeper`, which has one layer more than `less`.
Buffers lineThrough(const Buffers &less, const Buffers &deeper, double more);

struct Workload {
  // For one micro-batch, forward and backward, without recomputation:
  double flops = 0;         // executed
  double seconds = 0;       // by the roofline at the device's rates, without slowdown
  double forwardFlops = 0;  // of the layers' forward part, which checkpointing repeats
  double forwardSeconds = 0;
  // Per step: the optimizer over all parameters.
  double updateBytes = 0;
  // Memory of one rank:
  double parameters = 0;             // elements, as laid out
  std::map<int64_t, double> byRows;  // these by the rows of their tensor; 1 for one-dimensional tensors
  /// Share of the parameters that `ranks` ranks cannot divide; each keeps them whole (passes/partition.cpp).
  double undivided(int64_t ranks) const;
  double activations = 0;   // bytes at the peak of @accumulate
  double perLayer = 0;      // the part of these that every layer adds
  double checkpointed = 0;  // the same if every layer's forward part is recomputed
  double layerInput = 0;    // bytes of x between two layers
  double momentBytes = 0;   // bytes of optimizer state per element, without master copies
  Buffers buffers;          // of `activations`
  Buffers checkpointedBuffers;
  int64_t rows = 0;  // tokens per micro-batch
};

/// The target of GPU plans in forecasts: a machine with cuBLASLt and cuDNN, if the configuration lets plans call them.
/// Neither memory nor counts depend on its architecture.
Target targetOnGpus(const Config &config);

/// A device's rates for costOf with `rows` tokens per micro-batch.
MachineRates ratesOf(const DeviceSpec &d, double rows);

/// FLOPs per token, forward and backward, by nanoGPT's formula: 6 N + 12 n_layer n_embd T, N without learned positions.
double modelFlopsPerToken(const Config &config);
/// Parameters of a model: elements without padding.
double parameterCount(const Config &config);

/// Bytes of activations and temporaries at each op of a forward and backward pass, in order, at full depth.
std::vector<double> memoryCurve(const Config &config, const ClusterConfig &cluster, bool remat);

/// Ranks that share layers in `parts` logical parts (parallel.logical_tensor).
struct InParts {
  int64_t tensor = 1, parts = 1;
};

/// The workload of `config`'s model, micro-batch, precision and optimizer, extrapolated from graphs of `shallow` layers
/// and one more: without `shared` as of one rank, whatever parallel.tensor is, else that of one of those ranks, without
/// its collectives. Throws what buildModel throws.
Workload workloadOf(const Config &config, const ClusterConfig &cluster, int64_t shallow = 2, InParts shared = {});

}  // namespace gptc
