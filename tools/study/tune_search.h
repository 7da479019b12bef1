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

/// Tunes on this machine's GPU: kernels alone, those with most to compute or to move first. Throws
/// UserError(TargetUnavailable) if there is none.
TuneReport tuneOnGpu(const TuneRequest &request, const Config &config,
                     const std::function<void(const TuneProgress &)> &progress);

}  // namespace gptc
