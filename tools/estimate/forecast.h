// What a strategy costs on a cluster before anything runs: seconds of a step by cause, bytes of a device by kind.
//
//   step = accumulate x (compute + recompute + what ranks along `tensor` and `pipeline` exchange)
//        + collectives along `data` - what of them the backward part hides + optimizer + host link + overhead
//
// Collectives cost the bytes that a rank must send (Thakur, Rabenseifner & Gropp 2005: (P-1)/P of the data for an
// all_gather or a reduce_scatter, twice that for an all_reduce) over the bus bandwidth of the slowest link in the
// group, as NCCL's tests count it. Memory follows ZeRO (Rajbhandari et al. 2020) with activations from the graph
// (workload.h).
#pragma once

#include "tools/estimate/planned.h"
#include "tools/estimate/workload.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

struct Strategy {
  int64_t gpus = 1, tensor = 1, pipeline = 1;
  int64_t zeroStage = 0;
  int64_t microBatch = 1, accumulate = 1;
  bool remat = false;                // every layer's forward part is computed again
  bool offload = false;              // moments and master weights in the host's memory
  std::string compression = "none";  // powersgd | onebit
  int64_t data() const { return gpus / (tensor * pipeline); }
  /// "ZeRO-1", "ZeRO-3 + tensor 8 + checkpointing".
  std::string name() const;
};

struct Estimate {
  Strategy strategy;
  std::string problem, remedy;  // why it cannot be, empty where it can; and what would
  bool predictedOnly = false;   // gptc does not run it yet
  bool planned = false;         // memory is that of a plan

  // Seconds of one step.
  double compute = 0, recompute = 0, bubble = 0;
  double reduce = 0, gather = 0, exchange = 0;  // gradients; parameters; activations along tensor and pipeline
  double hidden = 0;                            // of these, beside the backward part
  double bytesReduced = 0, bytesGathered = 0, bytesExchanged = 0;  // what one rank sends for them
  double optimizer = 0, host = 0, overhead = 0;
  double step = 0;
  double overNetwork = 0;  // of the collectives, what went between nodes and was not hidden

  double tokensPerStep = 0, tokensPerSecond = 0;
  double flops = 0;  // executed in a step, by all devices
  double mfu = 0;    // FLOPs of nanoGPT's formula over the peak
  double hfu = 0;    // likewise those that run, and no fewer than the formula's: kernels may skip what a mask hides
  // Bytes of one device.
  double parameters = 0, gradients = 0, moments = 0, activations = 0, inFlight = 0, reserved = 0;
  double bytesResident() const { return parameters + gradients + moments; }
  double bytesPeak() const { return bytesResident() + activations + inFlight + reserved; }
  bool outOfMemory = false;
  bool hostOutOfMemory = false;
  double hostBytes = 0;  // of all devices of a node, with offload
  Buffers buffers;       // at the peak, by name
  std::string binds;     // "compute", "memory bandwidth", "node links", "network" or "host"

  bool fits() const { return problem.empty() && !outOfMemory && !hostOutOfMemory; }
  double days(double tokens) const { return tokens / tokensPerSecond / 86400; }
};

/// Forecasts of one model on one cluster. Graphs are built once per micro-batch and kept.
class Forecaster {
public:
  /// What is known of plans for GPUs of one model: by what of the strategy changes their memory.
  struct Plans {
    struct ZeRO3 {
      int64_t data = 1, layers = 0;   // for which it was planned
      PlannedMemory memory, shallow;  // and of three layers
    };
    std::map<std::string, PlannedMemory> known;
    std::map<std::string, ZeRO3> zero3;
    // For --search, which cannot plan all: bytes by which plans exceeded estimate(), by likeOf, and how many did not
    // fit.
    std::map<std::string, double> beyond;
    int tooLarge = 0;
  };
  /// `config` from loadConfig with ConfigPurpose::forecast. `plans`: of forecasts of the same model for other numbers
  /// of GPUs.
  Forecaster(const Config &config, ClusterConfig cluster, std::shared_ptr<Plans> plans = std::make_shared<Plans>());
  ~Forecaster();

  /// The strategy that the configuration asks for with so many GPUs; what it leaves open is as gptc chooses it: ZeRO-1
  /// where there are several ranks.
  Strategy strategyFor(int64_t gpus, int64_t pipeline = 1) const;
  /// By formulas over the graph of one micro-batch, for any software and any number of ranks.
  Estimate estimate(const Strategy &s);
  /// Of one configuration: as estimate(), but of what gptc runs memory is that of its plan (tools/estimate/planned.h),
  /// and time as well where devices are CPUs.
  Estimate forecast(const Strategy &s);

  /// What strategies have in common that differ in sizes alone: numbers of ranks along "data", micro-batches.
  static std::string likeOf(const Strategy &s);
  Plans &plansOnGpus() { return *onGpus; }

  const Config &config() const { return base; }
  const ClusterConfig &cluster() const { return machines; }
  /// Other scalars than those of the file, for calibration.
  void setFitted(const Fitted &slowdown, const Fitted &stepOverhead, const Fitted &effective);

private:
  Config base;
  ClusterConfig machines;
  double flopsPerToken = 0;
  std::map<int64_t, Workload> workloads;  // by micro-batch
  const Workload &workload(int64_t microBatch);
  std::map<std::string, PlannedStep> plans;  // on CPUs, by strategy
  std::shared_ptr<Plans> onGpus;
  bool isPlanned(const Strategy &s) const;
  Config configOf(const Strategy &s) const;
  const PlannedStep &planned(const Strategy &s);
  const PlannedMemory &plannedOnGpu(const Strategy &s);
  PlannedMemory plannedZeRO3(const Strategy &s, const std::string &key,
                             const std::function<PlannedMemory(int64_t)> &with);
  void takeMemory(Estimate &e, const PlannedMemory &m) const;
  void takeHost(Estimate &e, double bytes) const;  // of one device
  int64_t perNode(const Strategy &s) const;
  double flopsOf(const Strategy &s) const;  // peak of all ranks
};

/// One collective along an axis of the mesh.
struct Link {
  LinkRates rates;
  bool network = false;
  int64_t ranks = 1;
  double share() const { return double(ranks - 1) / double(ranks); }
};

/// `ranks` that stand `stride` apart, of all of which there are as many groups side by side.
Link linkOf(const ClusterConfig &c, int64_t ranks, int64_t stride);
/// What most of a step goes into. `outside`: collectives along `tensor` leave the node.
const char *whatBinds(const Estimate &e, bool alongNetwork, bool outside);

/// Reads a model for a forecast on `gpus` devices (0: as many as [parallel] says) in groups of `pipeline` stages.
/// `settings` may hold accumulate=K beside keys of model.toml: the global batch is K passes then of all ranks along
/// `data`.
Config readForForecast(const std::string &modelFile, const std::vector<std::string> &settings, int64_t gpus,
                       const ClusterConfig &cluster, int64_t pipeline = 1);

/// UserError(MissingKey) for other people's software of which the file does not say how far it stays below the peak,
/// where nothing fits that to a log.
void requireSlowdown(const ClusterConfig &cluster);

/// "12.3", and below a tenth of a day hours: "1.6 h".
std::string formatDays(double days, int digits = 1);

}  // namespace gptc
