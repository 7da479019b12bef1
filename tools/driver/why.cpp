#include "tools/driver/why.h"

#include "ir/diagnostics.h"
#include "ir/words.h"
#include "tools/estimate/search.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <cstdio>

namespace gptc {

namespace {

Estimate forecastOf(const std::string &run, const ClusterConfig &cluster) {
  std::string model;
  std::vector<std::string> settings;
  int64_t gpus = 0;
  llvm::SmallVector<llvm::StringRef> words;
  llvm::StringRef(run).split(words, ' ', -1, false);
  for (llvm::StringRef w : words) {
    auto [key, value] = w.split('=');
    if (key == "gpus") {
      if (value.getAsInteger(10, gpus) || gpus < 1 || gpus > (1 << 20))
        throw UserError(ErrorCode::Usage, fmt::format("{} names no number of GPUs", w.str()), "such as gpus=16");
    } else if (w.contains('=')) {
      settings.push_back(w.str());
    } else if (model.empty()) {
      model = w.str();
    } else {
      throw UserError(ErrorCode::Usage, fmt::format("--why \"{}\" names two files", run),
                      "a run is one model file and settings: \"M.toml gpus=16 parallel.zero_stage=3\"");
    }
  }
  if (model.empty())
    throw UserError(ErrorCode::Usage, fmt::format("--why \"{}\" names no model file", run),
                    "a run is a model file and settings: \"M.toml gpus=16 parallel.zero_stage=3\"");
  const Config config = readForForecast(model, settings, gpus, cluster);
  Forecaster f(config, cluster);
  const Estimate e = *bestOf(strategiesOf(f, gpus ? gpus : config.parallel.data * config.parallel.tensor));
  if (!e.problem.empty())
    throw UserError(ErrorCode::Contradiction, e.problem, e.remedy);
  return e;
}

void print(const char *name, const Estimate &e) {
  fmt::print("{}  {} GPUs, {}, {} x {}: {:.4g} s a step, {:.4g} tokens/s, bound by {}, {} at the peak{}\n", name,
             e.strategy.gpus, e.strategy.name(), e.strategy.microBatch, e.strategy.accumulate, e.step,
             e.tokensPerSecond, e.binds, formatBytes(e.bytesPeak()), e.fits() ? "" : ", OUT OF MEMORY");
}

}  // namespace

void explainWhy(const std::string &a, const std::string &b, const std::string &clusterFile) {
  const ClusterConfig cluster = loadCluster(clusterFile);
  const Estimate first = forecastOf(a, cluster), second = forecastOf(b, cluster);
  print("A", first);
  print("B", second);
  const double ratio = second.tokensPerSecond / first.tokensPerSecond;
  fmt::print("\nA takes {:.3g} x the time of B for as many tokens. Per million tokens, A minus B:\n\n", ratio);
  for (const std::string &line : whySlower(first, second))
    fmt::print("{}\n", line);
}

}  // namespace gptc
