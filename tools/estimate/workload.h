// What one rank computes and holds for one micro-batch of a model, before anything is said of ranks: taken from the
// very graph that a plan is made of, or, for other people's software, from the same graph as that software runs it
// (attention in parts, no fusion, no padding).
//
// Layers are alike, so that every sum over ops is an affine function of their number. The graph is built with two and
// with three layers, and the line through both is taken: a model of any depth costs as little to forecast as these.
// Only peaks of memory are not sums; they are affine too as long as the same op is at the peak
// (tests/estimate/workload_test.cpp compares with graphs of full depth).
#pragma once

#include "frontends/cluster_config.h"
#include "frontends/toml_config.h"
#include "passes/analysis/cost.h"

#include <map>
#include <string>
#include <vector>

namespace gptc {

/// Bytes that live at the peak, by what they are: "softmax of attention".
using Buffers = std::map<std::string, double>;

/// What lives with `more` layers more than `deeper` has, which is one layer deeper than `less`.
Buffers lineThrough(const Buffers &less, const Buffers &deeper, double more);

struct Workload {
  // Of one micro-batch, forward and backward, nothing computed twice.
  double flops = 0;         // executed
  double seconds = 0;       // by the roofline on the device's rates, not slowed down
  double forwardFlops = 0;  // of the layers' forward part: what checkpointing computes again
  double forwardSeconds = 0;
  // The same once per step: the optimizer over all parameters.
  double updateBytes = 0;
  // Memory of one rank.
  double parameters = 0;             // elements, as laid out
  std::map<int64_t, double> byRows;  // of these, by rows of their tensor; 1 for tensors of one dimension
  /// Share of the parameters that `ranks` cannot divide: they stay whole (passes/partition.cpp).
  double undivided(int64_t ranks) const;
  double activations = 0;   // bytes at the peak of @accumulate
  double perLayer = 0;      // of which every layer adds so many
  double checkpointed = 0;  // the same with every layer's forward part computed again
  double layerInput = 0;    // bytes of x between two layers
  double momentBytes = 0;   // bytes of optimizer state per element, master copies not counted
  Buffers buffers;          // of `activations`
  Buffers checkpointedBuffers;
  int64_t rows = 0;  // tokens of the micro-batch
};

/// What gptc's plans for GPUs are made for in forecasts: machines that have cuBLASLt and cuDNN where the configuration
/// lets plans call them. Of the architecture neither memory nor what is counted here depends.
Target targetOnGpus(const Config &config);

/// Rates of a device for costOf, at the size of the micro-batch.
MachineRates ratesOf(const DeviceSpec &d, double rows);

/// nanoGPT's formula, FLOPs per token of forward and backward: 6 N + 12 n_layer n_embd T, N without learned positions.
double modelFlopsPerToken(const Config &config);
/// Parameters of a model (elements, without padding).
double parameterCount(const Config &config);

/// Bytes of activations and temporaries at each op of one forward and backward pass, in order, at the model's full
/// depth.
std::vector<double> memoryCurve(const Config &config, const ClusterConfig &cluster, bool remat);

/// Of the model, micro-batch, precision and optimizer that `config` says, by the line through graphs of `shallow`
/// layers and of one more. Throws what buildModel throws.
Workload workloadOf(const Config &config, const ClusterConfig &cluster, int64_t shallow = 2);

}  // namespace gptc
