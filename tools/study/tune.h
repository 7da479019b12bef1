// gptc tune: finds the fastest schedules of a model's kernels on this machine by measurement, and records them.
#pragma once

#include "passes/analysis/cost.h"
#include "runtime/tuning/tuning_records.h"
#include "tools/study/kernel_times.h"
#include "tools/study/tune_verdict.h"

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace gptc {

struct TuneRequest {
  std::string modelFile;
  std::vector<std::string> settings;  // key=value
  std::string cacheDir;
  double seconds = 120;                     // time limit, not counting the measurement of the machine
  unsigned threads = 0;                     // 0: as hostTarget() decides
  std::string clusterFile;                  // machines for which "auto" in [parallel] is decided; "": one node
  int64_t ranksPerNode = 0;                 // ranks of the plan on this machine; 0: all
  bool again = false;                       // also measure what is known
  bool onlyNew = false;                     // do nothing if all is known
  const std::atomic<bool> *stop = nullptr;  // may be set to end the search; its findings are kept
};

/// One distinct kernel.
struct TunedKernel {
  std::string place;            // its first place in the model: "h0.mlp.c_fc (matmul+add+gelu_tanh)"
  std::string shapes;           // of its first operands: "12x64x128 128x512"
  int instances = 0;            // in all functions
  double calls = 0;             // per training step
  double flops = 0, bytes = 0;  // per call
  DType operands = DType::f32;  // type whose peak counts
  Schedule base, best;
  size_t candidates = 0;      // in the space
  size_t tried = 0;           // candidates that were tried
  bool known = false;         // from earlier records
  bool takenBack = false;     // faster alone but not within the step: the default stays
  double raced = 1;           // time of the best relative to the default, alone, in this search's race
  double nearestRaced = 0;    // the same for the schedule of the nearest shape's records; 0: none
  double baseMs = 0, ms = 0;  // one call within the step, before and after; 0 if it is not in the training step
};

struct TuneReport {
  std::vector<TunedKernel> kernels;            // largest share of the step first
  StepVerdict verdict;                         // on the final choice: the last plan compared
  std::string note;                            // why steps were not compared
  int searched = 0, known = 0, takenBack = 0;  // numbers of kernels
  int unsearched = 0;                          // for lack of time
  int trials = 0;                              // of all searched or known kernels
  int knownTrials = 0;                         // the part of these from earlier searches
  int failed = 0;                              // other bits, did not compile and the like
  double seconds = 0;                          // of the whole search
  MachineSpeed speed;
};

struct TuneProgress {
  int kernel = 0, kernels = 0;
  std::string name;
  int trials = 0, knownTrials = 0;  // of all kernels so far; the part of these from earlier searches
  double best = 1;                  // of this kernel: best time relative to the default so far
  double secondsLeft = 0;
};

/// Throws UserError for a model that does not compile, a .gir, or a target that is not this machine's. An interrupted
/// search keeps its findings.
TuneReport tune(const TuneRequest &request, const std::function<void(const TuneProgress &)> &progress);

/// A roofline picture with each kernel before and after tuning.
std::string rooflineSvg(const TuneReport &report);

}  // namespace gptc
