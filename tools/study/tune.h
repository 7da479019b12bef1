// gptc tune: the fastest schedules of a model's kernels on this machine, found by measuring and kept as records.
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
  double seconds = 120;  // for everything but measuring the machine
  unsigned threads = 0;
  bool again = false;                       // measures also what is known
  bool onlyNew = false;                     // does nothing where all is known
  const std::atomic<bool> *stop = nullptr;  // set by whoever wants no more of it: what has been found is kept
};

/// One distinct kernel.
struct TunedKernel {
  std::string place;            // the first place of the model that it stands in: "h0.mlp.c_fc (matmul+add+gelu_tanh)"
  std::string shapes;           // of its first operands: "12x64x128 128x512"
  int instances = 0;            // in all functions
  double calls = 0;             // in one training step
  double flops = 0, bytes = 0;  // of one call
  DType operands = DType::f32;  // whose peak counts
  Schedule base, best;
  size_t candidates = 0;  // in the space
  size_t tried = 0;
  bool known = false;         // from earlier records
  bool takenBack = false;     // faster alone, and not within the step: the default stays
  double raced = 1;           // best over base, alone, in the race of this search
  double nearestRaced = 0;    // likewise what the records of the nearest shape proposed; 0: nothing
  double baseMs = 0, ms = 0;  // one call within the step, before and after; 0 where it is in no training step
};

struct TuneReport {
  std::vector<TunedKernel> kernels;  // most time first
  StepVerdict verdict;               // on what is kept; of the plan that was found last
  std::string note;                  // why steps were not compared
  int searched = 0, known = 0, takenBack = 0;
  int unsearched = 0;   // no time was left
  int trials = 0;       // of kernels that are searched or known, and of these
  int knownTrials = 0;  // from earlier searches
  int failed = 0;       // gave other bits, did not compile and the like
  double seconds = 0;
  MachineSpeed speed;
};

struct TuneProgress {
  int kernel = 0, kernels = 0;
  std::string name;
  int trials = 0, knownTrials = 0;  // of all kernels so far, and those of them from earlier searches
  double best = 1;                  // of this kernel: best over default so far
  double secondsLeft = 0;
};

/// Throws UserError for a model that does not compile, or whose target is no CPU. An interrupted search keeps what it
/// has.
TuneReport tune(const TuneRequest &request, const std::function<void(const TuneProgress &)> &progress);

/// The kernels' places under the roofline, before and after, as a picture.
std::string rooflineSvg(const TuneReport &report);

}  // namespace gptc
