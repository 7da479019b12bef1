// From a run back to the forecast: OUT_DIR/forecast.jsonl, one line at the end of each run with what its plan was
// predicted to take and what it took.
//
//   {"schema": 1, "time": ..., "plan": hash, "target": "cpu", "cpu": "znver5", "threads": 2, "ranks": 1, "nodes": 1,
//    "tokens_per_step": ..., "steps": 97,
//    "predicted": {"s_per_step": ..., "kernels": {"matmul": ..., ...}, "communication": ..., "bytes": ...},
//    "measured":  {"s_per_step": ..., "kernels": {...}, "communication": ..., "bytes": ...},
//    "settings": ["model.n_layer=4", ...]}
//
// Seconds of kernels are per step, of the few steps at which the run looked; s_per_step is the median of the others. On
// a GPU, where looking costs the CUDA graph, and where machines are joined by a network of which nothing is known, what
// is not known is null. Bytes: the plan's arena, and the process.
#pragma once

#include "frontends/cluster_config.h"
#include "passes/analysis/cost.h"
#include "runtime/train/trainer.h"

#include <map>
#include <string>
#include <vector>

namespace gptc {

class ClassTimes : public KernelObserver {
public:
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  std::map<KernelClass, double> seconds;  // of all steps seen
};

/// The line, without its newline; "" where too few steps were timed. Measures the machine's peak.
std::string forecastLine(const Session &session, int64_t nodes, const RunTimes &times, const ClassTimes &kernels);
/// Appends it in one write. False where that cannot be done.
bool appendForecast(const std::string &outDir, const std::string &line);

/// The lines of such a file as rows to calibrate `cluster` with. UserError(FileMissing, DataInvalid); Contradiction for
/// a run on other devices than the cluster's.
std::vector<Observation> readForecasts(const std::string &file, const ClusterConfig &cluster);

}  // namespace gptc
