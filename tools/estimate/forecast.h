// Forecasts the cost of a strategy on a cluster: seconds of a step by cause, bytes of a device by kind.
//
//   step = accumulate x (compute + recompute + exchanges along `tensor` and `pipeline`)
//        + collectives along `data` - their part hidden behind the backward pass + optimizer + host link + overhead
//
// A collective costs the bytes that a rank must send (Thakur, Rabenseifner & Gropp 2005: (P-1)/P of the data for an
// all_gather or a reduce_scatter, twice that for an all_reduce) divided by the bus bandwidth, as NCCL's tests define
// it, of the slowest link in the group. Memory follows ZeRO (Rajbhandari et al. 2020), with activations from the graph
// (workload.h).
#pragma once

#include "tools/estimate/by_code.h"
#include "tools/estimate/planned.h"
#include "tools/estimate/workload.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct Strategy {
  int64_t gpus = 1, tensor = 1, pipeline = 1;  // all ranks; degrees of tensor and pipeline parallelism
  int64_t zeroStage = 0;
  int64_t microBatch = 1, accumulate = 1;  // sequences per pass; passes per step
  bool remat = false;                      // recompute every layer's forward pass
  bool offload = false;                    // moments and master weights in host memory
  std::string compression = "none";        // powersgd | onebit
  int64_t syncEvery = 1;                   // steps of each rank by itself, to the next outer step
  int64_t data() const { return gpus / (tensor * pipeline); }
  /// "ZeRO-1", "ZeRO-3 + tensor 8 + checkpointing", "DiLoCo every 50".
  std::string name() const;
};

/// Tokens of a whole run: as given, or as many as a loss takes, which then lie between `low` and `high` with 90%
/// confidence. `high` may be infinite.
struct RunTokens {
  double value, low, high;
  bool isGiven;  // and not in doubt; the ends of a doubt may meet
  RunTokens(double v) : value(v), low(v), high(v), isGiven(true) {}
  RunTokens(double v, double low, double high) : value(v), low(low), high(high), isGiven(false) {}
  operator double() const { return value; }
};

/// Factors on the seconds of a forecast step between which a run falls with 90% confidence (certainty.h). `high` is
/// infinite only of days, for tokens without an upper end.
struct Certainty {
  double low = 1, high = 1;
  bool byDefault = false;  // by the errors of earlier forecasts with nothing fitted, not by this cluster's own fit
};

struct Estimate {
  Strategy strategy;
  std::string problem, remedy;  // why the strategy is impossible, "" if it is not; and a remedy
  bool predictedOnly = false;   // gptc cannot run it yet
  bool planned = false;         // memory is a plan's
  bool byCode = false;          // seconds of computation and optimizer are those of the plan's code

  // Seconds of one step.
  double compute = 0, recompute = 0, bubble = 0;
  double reduce = 0, gather = 0, exchange = 0;  // of gradients; of parameters; of activations along tensor and pipeline
  double hidden = 0;                            // the part of these that the backward pass hides
  double bytesReduced = 0, bytesGathered = 0, bytesExchanged = 0;  // bytes that one rank sends for them
  double optimizer = 0, host = 0, overhead = 0;                    // host: transfers and updates of offload
  double step = 0;
  double overNetwork = 0;  // part of the collectives that crosses nodes and is not hidden

  double tokensPerStep = 0, tokensPerSecond = 0;
  double flops = 0;  // executed in a step by all devices
  double mfu = 0;    // FLOPs of nanoGPT's formula, relative to the peak
  double hfu = 0;    // executed FLOPs relative to the peak, at least mfu: kernels may skip what a mask hides
  // Bytes of one device:
  double parameters = 0, gradients = 0, moments = 0, activations = 0, inFlight = 0, reserved = 0;
  double bytesResident() const { return parameters + gradients + moments; }
  double bytesPeak() const { return bytesResident() + activations + inFlight + reserved; }
  bool outOfMemory = false;
  bool hostOutOfMemory = false;
  double hostBytes = 0;  // of all devices of a node, with offload
  Buffers buffers;       // at the peak of memory, by name
  std::string binds;     // the bottleneck: "compute", "memory bandwidth", "node links", "network" or "host"
  Certainty sure;        // set by judge (certainty.h)
  std::vector<std::string> neverSeen;  // by markNeverSeen: what of the strategy no row of the cluster's log has tried

  bool fits() const { return problem.empty() && !outOfMemory && !hostOutOfMemory; }
  double days(double tokens) const { return tokens / tokensPerSecond / 86400; }
};

/// Forecasts of one model on one cluster. Builds graphs once per micro-batch and keeps them.
class Forecaster {
public:
  /// Known memory of GPU plans of one model, keyed by the parts of a strategy that change memory.
  struct Plans {
    struct ZeRO3 {
      int64_t data = 1, layers = 0;   // of the plan
      PlannedMemory memory, shallow;  // of that plan, and of the one with three layers
    };
    std::map<std::string, PlannedMemory> known;
    std::map<std::string, ZeRO3> zero3;
    // For --search, which cannot plan everything: bytes by which plans exceeded estimate(), by likeOf, and the number
    // of plans that did not fit.
    std::map<std::string, double> beyond;
    int tooLarge = 0;
  };
  /// `config`: from loadConfig with ConfigPurpose::forecast. `plans`: shared with forecasts of the same model on other
  /// numbers of GPUs.
  Forecaster(const Config &config, ClusterConfig cluster, std::shared_ptr<Plans> plans = std::make_shared<Plans>());
  ~Forecaster();

  /// The strategy that the configuration specifies for this many GPUs, with gptc's defaults for what is open: ZeRO-1 if
  /// there are several ranks.
  Strategy strategyFor(int64_t gpus, int64_t pipeline = 1) const;
  /// By formulas over the graph of one micro-batch, for any software and any number of ranks.
  Estimate estimate(const Strategy &s);
  /// The forecast of one configuration: estimate(), but with the memory of the plan (tools/estimate/planned.h) if gptc
  /// can run it, on CPUs with the plan's time as well, and on GPUs after takeTimesByCode with the times of its code.
  Estimate forecast(const Strategy &s);
  /// From now on forecast() takes the times of gptc's plans from their code. UserError: Contradiction for other
  /// software or CPUs, UnknownValue if no data sheet has the cluster's GPU.
  void takeTimesByCode();

  /// A key that is equal for strategies that differ only in sizes: numbers of data ranks, micro-batches.
  static std::string likeOf(const Strategy &s);
  Plans &plansOnGpus() { return *onGpus; }

  const Config &config() const { return base; }
  const ClusterConfig &cluster() const { return machines; }
  /// Replaces the file's scalars, for calibration.
  void setFitted(const Fitted &slowdown, const Fitted &stepOverhead, const Fitted &effective);

private:
  Config base;
  ClusterConfig machines;
  double flopsPerToken = 0;
  std::map<std::pair<int64_t, int64_t>, Workload> workloads;  // by micro-batch, and by ranks of logical parts or 0
  /// Of one rank that does all; of one of `tensor` ranks if they share layers in logical parts.
  const Workload &workload(int64_t microBatch, int64_t tensor = 0);
  std::map<std::string, PlannedStep> plans;  // on CPUs, by strategy
  std::shared_ptr<Plans> onGpus;
  const GpuSheet *sheet = nullptr;          // of the GPU, for times by code
  std::map<std::string, CodeTimes> byCode;  // by strategy
  const CodeTimes &timesOf(const Strategy &s);
  Estimate estimate(const Strategy &s, const CodeTimes *times);
  bool isPlanned(const Strategy &s) const;
  Config configOf(const Strategy &s) const;
  const PlannedStep &planned(const Strategy &s);
  const PlannedMemory &plannedOnGpu(const Strategy &s);
  PlannedMemory plannedZeRO3(const Strategy &s, const std::string &key,
                             const std::function<PlannedMemory(int64_t)> &with);
  void takeMemory(Estimate &e, const PlannedMemory &m) const;
  void takeHost(Estimate &e, double bytes) const;  // bytes: of one device
  int64_t perNode(const Strategy &s) const;
  double flopsOf(const Strategy &s) const;  // peak of all ranks, FLOP/s
};

/// Why a strategy cannot be, and what would.
struct Refusal {
  std::string problem, remedy;
};
/// Of so many ranks on several nodes of a cluster whose network is not known.
std::optional<Refusal> refusalOfNetwork(const ClusterConfig &c, int64_t ranks);

/// Whether gptc's optimizers, offload and compression do what the strategy asks for.
bool isBuilt(const Config &base, const Strategy &s);

/// One group of ranks along an axis of the mesh.
struct Link {
  LinkRates rates;
  bool network = false;  // it crosses nodes
  int64_t ranks = 1;
  double share() const { return double(ranks - 1) / double(ranks); }
};

/// The group of `ranks` ranks at distance `stride`; `stride` such groups run side by side.
Link linkOf(const ClusterConfig &c, int64_t ranks, int64_t stride);
/// The bottleneck of a step. `outside`: collectives along `tensor` leave the node.
const char *whatBinds(const Estimate &e, bool alongNetwork, bool outside);

/// Reads a model for a forecast on `gpus` devices (0: as [parallel] says) with `pipeline` stages. `settings` may
/// contain accumulate=K besides keys of model.toml: the global batch is then K passes of all ranks along `data`.
Config readForForecast(const std::string &modelFile, const std::vector<std::string> &settings, int64_t gpus,
                       const ClusterConfig &cluster, int64_t pipeline = 1);

/// Throws UserError(MissingKey) if the cluster's software is another program's, its slowdown below the peak is not in
/// the file, and nothing fits it.
void requireSlowdown(const ClusterConfig &cluster);

/// "12.3"; below a tenth of a day in hours: "1.6 h".
std::string formatDays(double days, int digits = 1);

}  // namespace gptc
