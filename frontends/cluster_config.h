// cluster.toml: what a forecast must know of machines, their network and the software that trains on them. Every
// quantity is a string with its unit, such as "312 TFLOP/s", "80 GiB", "5 GB/s" or "20 us"; docs/planning.md has every
// key.
//
// What nobody has measured may be left out and fitted (`gptc calibrate`) from [[observation]] rows, each a model with
// the settings it ran with and what was seen.
#pragma once

#include "frontends/toml_document.h"

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// A number that was fitted, and between what it lies with 90% confidence where that is known.
struct Fitted {
  double value = 0;
  double low = 0, high = 0;  // equal to each other where it was given rather than fitted
  bool known = false;
  Fitted() = default;
  Fitted(double v) : value(v), low(v), high(v), known(true) {}
  operator double() const { return value; }
};

/// One device of a node: a GPU, or all cores of the node, which CPU ranks share.
struct DeviceSpec {
  std::string name;
  bool isCpu = false;                             // its plans are the CPU's
  double fp32 = 0, tf32 = 0, fp16 = 0, bf16 = 0;  // dense peaks, FLOP/s, sums in f32
  double memory = 0;                              // bytes
  double bandwidth = 0;                           // of memory, bytes/s
  double cacheBandwidth = 0, cacheBytes = 0;      // of the last-level cache
  double launch = 1.5e-6;                         // seconds to start a kernel
  // Shares of the peak that our kernels reach: of products, of attention each way, of arithmetic between them.
  double matmul = 0.7, attention = 0.5, attentionGrad = 0.4, elementwise = 0.25, scatter = 1.0 / 256;
  bool packs = false;  // products copy their operands into panels
  /// Share of `matmul` by rows of a product (tokens of a micro-batch), rising; linear in between, flat outside.
  std::vector<std::pair<double, double>> efficiency;
  double efficiencyAt(double rows) const;
  /// Peak of contractions with factors of this type ("fp32", "tf32", "fp16", "bf16"); fp32's where it has no other.
  double peak(const std::string &compute) const;
};

struct NodeSpec {
  int64_t devices = 1;
  // Bus bandwidth of collectives within a node: bytes/s of a rank, as NCCL's tests count, and seconds per message.
  double bandwidth = 0, latency = 5e-6;
  double hostLink = 0;       // bytes/s between host and one device
  double hostMemory = 0;     // bytes
  double hostBandwidth = 0;  // bytes/s of the host's memory, all devices together
  /// Whether enough is known of the host to say what offload costs.
  bool knowsHost() const { return hostLink > 0 && hostBandwidth > 0; }
};

struct NetworkSpec {
  double nominal = 0;      // bytes/s of a node, by its data sheet
  Fitted effective;        // bus bandwidth of collectives between nodes, bytes/s of a node; fitted or measured
  double latency = 20e-6;  // seconds per message
};

/// What runs there. The defaults are gptc's own plans; for other people's logs it says how their software differs.
struct SoftwareSpec {
  std::string name = "gptc";
  Fitted slowdown = 1;       // gptc: of predicted kernel times; others: of FLOPs at the device's peak
  Fitted stepOverhead = 0;   // seconds per optimizer step that no FLOP or byte explains
  double overlap = 0;        // share of the backward part beside which collectives may run
  double fragmentation = 0;  // bytes of the allocator per byte of activations that it cannot use
  double context = 0;        // bytes of a device that belong to the driver and its libraries
  bool fusedAttention = true, fusedLoss = true, paddedVocab = true, fusedKernels = true;
  std::string zero1 =
      "reduce_scatter";            // | all_reduce: of gradients by ZeRO stages 1 and 2, before parameters are gathered
  std::string gradients = "fp32";  // | compute: the type in which gradients are held and sent
  int64_t powersgdRank = 4;
  SourceLoc where;  // of the name
  bool isGptc() const { return name == "gptc"; }
  /// Whether a kernel of its own does what the fusion of all kernels does elsewhere.
  bool lossInPlace() const { return fusedLoss && !fusedKernels; }
};

struct LimitsSpec {
  int64_t globalBatchTokens = 0;  // largest; 0: none
  double price = 0;               // per GPU and hour, in the user's currency
  std::string currency = "USD";
};

/// One row of somebody's log.
struct Observation {
  SourceLoc where;
  std::string name;   // for messages
  std::string model;  // file, resolved
  int64_t gpus = 0;
  std::vector<std::string> settings;  // key=value of model.toml
  /// What was seen: seconds per step, from whichever of the three was written; 0 where none was.
  double days = 0, tokens = 100e9, secondsPerStep = 0, tokensPerSecond = 0;
  double bytesPeak = 0;  // most memory of a device; 0: not seen
  bool outOfMemory = false;
  bool fit = true;  // false: only compared with
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

/// Reads a cluster file. Throws UserError with every problem found: units missing, numbers that no machine has,
/// observations without the facts they need.
ClusterConfig loadCluster(const std::string &file);

/// The file with the fitted scalars of [software] and [network] as in `c`, everything else as it was written.
std::string withFitted(const std::string &text, const ClusterConfig &c);
/// The file with device.matmul and device.efficiency as in `d`, everything else as it was written.
std::string withEfficiency(const std::string &text, const DeviceSpec &d);
/// "[[256, 0.6], [4096, 1]]", as in the file.
std::string formatShares(llvm::ArrayRef<std::pair<double, double>> shares);

/// The text of a cluster file `from` as it must be in the file `to`: relative paths of models lead to the same files.
std::string movedTo(const std::string &text, const std::string &from, const std::string &to);

/// "312 TFLOP/s" and the like, with four digits.
std::string formatFlops(double flopsPerSecond);
std::string formatBandwidth(double bytesPerSecond);
std::string formatSeconds(double seconds);

}  // namespace gptc
