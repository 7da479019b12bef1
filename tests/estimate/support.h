// Clusters and models to make forecasts of.
#pragma once

#include "tools/estimate/forecast.h"

#include <string>
#include <vector>

namespace gptc::estimate_test {

/// A file below the source folder, such as "examples/bloom-7b1.toml".
std::string sourceFile(const std::string &name);
std::string readSource(const std::string &name);

/// Reads the text of a cluster file.
ClusterConfig clusterOf(const std::string &text);
/// examples/clusters/jean-zay.toml, with the scalars that its rows were fitted to.
ClusterConfig jeanZay();
/// The same machines with gptc's own plans on them.
ClusterConfig jeanZayWithGptc();

/// A model small enough that graphs of full depth cost little: 64 wide, 4 heads, 128 tokens of context.
std::vector<std::string> smallModel();

/// examples/bloom-7b1.toml with further settings; `accumulate=K` and keys of model.toml.
Config bloom(const ClusterConfig &cluster, int64_t gpus, const std::vector<std::string> &settings);
/// The forecast of what the settings say.
Estimate forecast(const ClusterConfig &cluster, int64_t gpus, const std::vector<std::string> &settings);

}  // namespace gptc::estimate_test
