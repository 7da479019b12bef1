// cluster.toml: the machines, network and software of a forecast. Every quantity is a string with its unit, such as
// "312 TFLOP/s", "80 GiB", "5 GB/s" or "20 us"; examples/clusters/every-key.toml has every key.
//
// Unmeasured scalars may be left out and fitted (`gptc calibrate`) from [[observation]] rows, each a model with its
// settings and what was observed.
#pragma once

#include "frontends/toml_document.h"

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// A scalar that is given or fitted, with its 90% confidence interval if known.
struct Fitted {
  double value = 0;
  double low = 0, high = 0;  // equal if it was given rather than fitted
  bool known = false;
  Fitted() = default;
  Fitted(double v) : value(v), low(v), high(v), known(true) {}
  operator double() const { return value; }
};

/// One device of a node: a GPU, or all cores of the node, which its CPU ranks share.
struct DeviceSpec {
  std::string name;
  bool isCpu = false;                             // its plans are for CPUs
  double fp32 = 0, tf32 = 0, fp16 = 0, bf16 = 0;  // dense peaks in FLOP/s with f32 sums
  double memory = 0;                              // bytes
  double bandwidth = 0;                           // of memory, bytes/s
  double cacheBandwidth = 0, cacheBytes = 0;      // of the last-level cache: bytes/s, bytes
  double launch = 1.5e-6;                         // seconds to launch a kernel
  // Shares of the peak that our kernels reach: products, attention forward and backward, other arithmetic, scatters.
  double matmul = 0.7, attention = 0.5, attentionGrad = 0.4, elementwise = 0.25, scatter = 1.0 / 256;
  bool packs = false;  // products copy their operands into panels
  /// Factors on `matmul` by the rows of a product (tokens of a micro-batch), ascending; linear in between, constant
  /// outside.
  std::vector<std::pair<double, double>> efficiency;
  double efficiencyAt(double rows) const;
  /// Peak of contractions with factors of type "fp32", "tf32", "fp16" or "bf16"; fp32's if the type has none.
  double peak(const std::string &compute) const;
};

struct NodeSpec {
  int64_t devices = 1;  // per node
  // Collectives within a node: bus bandwidth per rank in bytes/s, as NCCL's tests count, and seconds per message.
  double bandwidth = 0, latency = 5e-6;
  double hostLink = 0;       // bytes/s between host and one device
  double hostMemory = 0;     // bytes
  double hostBandwidth = 0;  // of host memory, bytes/s for all devices together
  /// Whether the host is described well enough to cost offload.
  bool knowsHost() const { return hostLink > 0 && hostBandwidth > 0; }
};

struct NetworkSpec {
  double nominal = 0;      // bytes/s per node, by its data sheet
  Fitted effective;        // bus bandwidth of collectives between nodes, bytes/s per node; measured or fitted
  double latency = 20e-6;  // seconds per message
};

/// The training software. The defaults describe gptc; other values describe how another program differs.
struct SoftwareSpec {
  std::string name = "gptc";
  Fitted slowdown = 1;  // gptc: factor on predicted kernel times; others: on the time of the FLOPs at the device's peak
  Fitted stepOverhead = 0;  // seconds per optimizer step not explained by FLOPs or bytes
  /// The factor by which a single run's seconds are at most off the fit in either direction, with 90% confidence: by
  /// the rows fitted, so that rows set aside do not count. None if no fit is known to have told.
  std::optional<double> scatter;
  double overlap = 0;        // share of the backward part that collectives may overlap
  double fragmentation = 0;  // unusable allocator bytes per byte of activations
  double context = 0;        // device bytes of the driver and its libraries
  // Optimisations that the software has:
  bool fusedAttention = true, fusedLoss = true, paddedVocab = true, fusedKernels = true;
  std::string zero1 = "reduce_scatter";  // | all_reduce: of gradients in ZeRO stages 1 and 2
  std::string gradients = "fp32";        // | compute: type in which gradients are held and sent
  int64_t powersgdRank = 4;              // of the factors
  SourceLoc where;                       // of the name
  bool isGptc() const { return name == "gptc"; }
  /// Whether a single kernel does in place what needs fusion of all kernels elsewhere.
  bool lossInPlace() const { return fusedLoss && !fusedKernels; }
};

struct LimitsSpec {
  int64_t globalBatchTokens = 0;  // maximum; 0: none
  double price = 0;               // per GPU and hour, in `currency`
  std::string currency = "USD";
};

/// One row of a log.
struct Observation {
  SourceLoc where;
  std::string name;   // for messages
  std::string model;  // file, absolute
  int64_t gpus = 0;
  int64_t pipeline = 1;               // stages
  std::vector<std::string> settings;  // key=value of model.toml
  /// The observed speed in seconds per step, from whichever of the three keys was given; 0 if none was.
  double days = 0, tokens = 100e9, secondsPerStep = 0, tokensPerSecond = 0;
  double bytesPeak = 0;  // peak memory of a device; 0: not observed
  bool outOfMemory = false;
  bool fit = true;  // false: compare only
};

struct ClusterConfig {
  std::string file, name;
  DeviceSpec device;
  NodeSpec node;
  NetworkSpec network;
  SoftwareSpec software;
  LimitsSpec limits;
  std::vector<Observation> observations;
};

/// Reads a cluster file. Throws UserError with every problem: missing units, impossible values, incomplete
/// observations.
ClusterConfig loadCluster(const std::string &file);

/// The file's text with the fitted scalars of [software] and [network] from `c`, and how far single runs scatter about
/// them; everything else is unchanged.
std::string withFitted(const std::string &text, const ClusterConfig &c);
/// The file's text with device.matmul and device.efficiency from `d`; everything else is unchanged.
std::string withEfficiency(const std::string &text, const DeviceSpec &d);
/// As in the file: "[[256, 0.6], [4096, 1]]".
std::string formatShares(llvm::ArrayRef<std::pair<double, double>> shares);

/// The text of the cluster file `from` for the place `to`: relative model paths are adapted to lead to the same files.
std::string movedTo(const std::string &text, const std::string &from, const std::string &to);

/// With four digits: "312 TFLOP/s".
std::string formatFlops(double flopsPerSecond);
std::string formatBandwidth(double bytesPerSecond);
std::string formatSeconds(double seconds);

}  // namespace gptc
