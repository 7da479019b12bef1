// What `gptc tune` does for one kernel, on whatever machine; and the whole of it on a GPU.
#pragma once

#include "frontends/toml_config.h"
#include "runtime/tuning/tuning_records.h"
#include "tools/study/tune.h"

namespace gptc {

/// Sorts behind those of earlier searches.
std::string newSession(int n);

/// Different ones, made here.
int trialsOnRecord(const TuningRecords &records, llvm::StringRef problem, llvm::StringRef machine);

/// Searches; every trial and the race go on record as they are made. Fills in `k` and counts in `report`; calls `tell`
/// whenever they have changed.
void searchKernel(CandidateBench &bench, std::vector<Schedule> space, const Op &op, const Target &target,
                  TuningRecords &records, SearchLimits limits, bool again, TunedKernel &k, TuneReport &report,
                  const std::function<void()> &tell);

TuneProgress progressOf(const TuneReport &report, const TunedKernel &k, int kernels, double secondsLeft);

/// Of the GPU of this machine: kernels alone, those first that have most to compute or to move.
/// UserError(TargetUnavailable) without one.
TuneReport tuneOnGpu(const TuneRequest &request, const Config &config,
                     const std::function<void(const TuneProgress &)> &progress);

}  // namespace gptc
