// Tunes one kernel on any target; and runs the whole of `gptc tune` on a GPU.
#pragma once

#include "frontends/toml_config.h"
#include "runtime/tuning/tuning_records.h"
#include "tools/study/tune.h"

namespace gptc {

/// Id of a search; sorts after those of earlier searches.
std::string newSession(int n);

/// Number of distinct trials made on this machine.
int trialsOnRecord(const TuningRecords &records, llvm::StringRef problem, llvm::StringRef machine);

/// Searches a space. Records every trial and the race when they are made. Fills in `k`, counts in `report`, and calls
/// `tell` whenever they change.
void searchKernel(CandidateBench &bench, std::vector<Schedule> space, const Op &op, const Target &target,
                  TuningRecords &records, SearchLimits limits, bool again, TunedKernel &k, TuneReport &report,
                  const std::function<void()> &tell);

TuneProgress progressOf(const TuneReport &report, const TunedKernel &k, int kernels, double secondsLeft);

/// Kernels that are tuned alone, without steps.
struct KernelsAlone {
  const Module &planned;
  const Target &target;
  ThreadPool &pool;
  TuningRecords &records;
  double flopsPerByte;  // what the device computes while it moves a byte, roughly
  double leastSeconds;  // of the search of a kernel
  bool cold;            // as in SearchLimits
  /// Makes the bench of a kernel, and says what it may choose from.
  std::function<std::unique_ptr<CandidateBench>(const Op &, std::vector<Schedule> &space)> bench;
  /// Seconds that are left of the request's time.
  std::function<double()> left;
};

/// Searches distinct kernels that have a choice and no race on record, ordered by their lower bound of time: the longer
/// of computing and moving data. Time is in proportion to that bound. Leaves `note` and `seconds` of the report open.
TuneReport tuneAlone(const TuneRequest &request, const KernelsAlone &kernels,
                     const std::function<void(const TuneProgress &)> &progress);

/// Tunes the kernels of one rank of several on this machine's CPUs, each beside the machine's other ranks, which run it
/// too. Throws UserError(TargetUnavailable) if there are fewer CPUs than ranks.
TuneReport tuneRank(const TuneRequest &request, const Config &config,
                    const std::function<void(const TuneProgress &)> &progress);

/// Tunes on this machine's GPU: kernels alone. Throws UserError(TargetUnavailable) if there is none.
TuneReport tuneOnGpu(const TuneRequest &request, const Config &config,
                     const std::function<void(const TuneProgress &)> &progress);

}  // namespace gptc
