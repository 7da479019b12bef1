// Compares runs with forecasts: OUT_DIR/forecast.jsonl gets a line at the end of each run with the plan's prediction
// and the measurement.
//
//   {"schema": 1, "time": ..., "plan": hash, "target": "cpu", "cpu": "znver5", "threads": 2, "ranks": 1, "nodes": 1,
//    "tokens_per_step": ..., "steps": 97,
//    "predicted": {"s_per_step": ..., "kernels": {"matmul": ..., ...}, "communication": ..., "bytes": ...},
//    "measured":  {"s_per_step": ..., "kernels": {...}, "communication": ..., "bytes": ...},
//    "settings": ["model.n_layer=4", ...]}
//
// Seconds of kernels are per step, from the few observed steps; s_per_step is the median of the others. Unknown values
// are null: kernel times on a GPU, where observing would break up the CUDA graph, and predictions across a network of
// unknown speed. bytes: the plan's arena, and the process.
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
  std::map<KernelClass, double> seconds;  // sum over the observed steps
};

/// The line without newline; "" if too few steps were timed. Measures the machine's peak. `outer`: of outer steps, of
/// which each step has its part.
std::string forecastLine(const Session &session, int64_t nodes, const RunTimes &times, const ClassTimes &kernels,
                         const ClassTimes &outer);
/// Appends the line in one write; false if that fails.
bool appendForecast(const std::string &outDir, const std::string &line);

/// The file's lines as observations for calibrating `cluster`. Throws UserErrors FileMissing and DataInvalid, and
/// Contradiction for a run on devices other than the cluster's.
std::vector<Observation> readForecasts(const std::string &file, const ClusterConfig &cluster);

}  // namespace gptc
