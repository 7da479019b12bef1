#include "tools/estimate/search.h"

#include "ir/words.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>

namespace gptc {

namespace {

/// Whether model.toml or --set says something else than "auto".
bool fixed(const Config &c, const char *key) {
  auto it = c.written.find(key);
  if (it == c.written.end())
    return false;
  auto *word = std::get_if<std::string>(&it->second.value);
  return !word || *word != "auto";
}

/// Per token, so that global batches of any size compare. Speeds in one bucket of a relative width of `grain` are
/// equal: buckets rather than distances, as an order must be transitive.
bool better(const Estimate &a, const Estimate &b, double grain) {
  if (a.fits() != b.fits())
    return a.fits();
  if (!a.fits()) {
    if (a.problem.empty() != b.problem.empty())
      return a.problem.empty();
    return a.bytesPeak() < b.bytesPeak();
  }
  auto bucket = [&](const Estimate &e) { return std::floor(std::log(e.tokensPerSecond) / grain); };
  if (bucket(a) != bucket(b))
    return bucket(a) > bucket(b);
  return a.bytesPeak() < b.bytesPeak();
}

// Of a few stages the fastest is taken, so that more bandwidth never costs days. Among the hundreds of a search many
// differ by less than any forecast knows.
constexpr double exact = 1e-9, searched = 1e-3;

/// As a run does it with compile.remat = "auto", or with a budget: computed again only where it does not fit otherwise.
Estimate withRematAsNeeded(Forecaster &f, Strategy s, ForecastBy by) {
  auto forecast = [&] { return by == ForecastBy::plans ? f.forecast(s) : f.estimate(s); };
  const Estimate e = forecast();
  const std::optional<int64_t> budget = parseBytes(f.config().compile.remat);
  if ((budget || !fixed(f.config(), "compile.remat")) &&
      (e.outOfMemory || (budget && e.bytesPeak() > double(*budget)))) {
    s.remat = true;
    Estimate again = forecast();
    if (again.fits() || again.bytesPeak() < e.bytesPeak())
      return again;
  }
  return e;
}

}  // namespace

std::vector<Estimate> strategiesOf(Forecaster &f, int64_t gpus, ForecastBy by) {
  Strategy s = f.strategyFor(gpus);
  std::vector<Estimate> all;
  if (s.data() > 1 && !fixed(f.config(), "parallel.zero_stage") && s.compression == "none") {
    for (int stage = 0; stage <= 3; ++stage) {
      s.zeroStage = stage;
      all.push_back(withRematAsNeeded(f, s, by));
    }
  } else {
    if (s.compression != "none" && !fixed(f.config(), "parallel.zero_stage"))
      s.zeroStage = 0;
    all.push_back(withRematAsNeeded(f, s, by));
  }
  return all;
}

const Estimate *bestOf(const std::vector<Estimate> &all) {
  if (all.empty())
    return nullptr;
  return &*std::min_element(all.begin(), all.end(),
                            [](const Estimate &a, const Estimate &b) { return better(a, b, exact); });
}

std::vector<Estimate> searchStrategies(Forecaster &f, int64_t gpus) {
  const Config &c = f.config();
  const ClusterConfig &cluster = f.cluster();
  const Strategy base = f.strategyFor(gpus);
  auto powers = [](int64_t most) {
    std::vector<int64_t> all;
    for (int64_t n = 1; n <= most; n *= 2)
      all.push_back(n);
    return all;
  };
  const std::vector<int64_t> tensors = fixed(c, "parallel.tensor") || cluster.device.isCpu
                                           ? std::vector{base.tensor}
                                           : powers(std::min(gpus, cluster.node.devices));
  const std::vector<int64_t> pipelines =
      cluster.device.isCpu ? std::vector<int64_t>{1} : powers(std::min<int64_t>(gpus, 16));
  const std::vector<int64_t> micros = fixed(c, "train.micro_batch") ? std::vector{base.microBatch} : powers(64);
  const bool batchFixed = fixed(c, "train.global_batch_tokens");
  std::vector<bool> remats = {base.remat};
  if (!fixed(c, "compile.remat"))
    remats = {false, true};
  std::vector<bool> offloads = {base.offload};
  if (!fixed(c, "parallel.offload") && cluster.node.hostLink > 0 && cluster.node.hostBandwidth > 0)
    offloads = {false, true};

  std::vector<Estimate> all;
  for (int64_t tensor : tensors)
    for (int64_t pipeline : pipelines) {
      Strategy s = base;
      s.tensor = tensor;
      s.pipeline = pipeline;
      if (gpus % (tensor * pipeline))
        continue;
      for (int64_t micro : micros) {
        s.microBatch = micro;
        const int64_t unit = micro * c.model.blockSize * s.data();
        std::vector<int64_t> accumulates;
        if (batchFixed) {
          if (c.train.globalBatchTokens % unit)
            continue;
          accumulates = {c.train.globalBatchTokens / unit};
        } else {
          const int64_t limit = cluster.limits.globalBatchTokens ? cluster.limits.globalBatchTokens : int64_t(4) << 20;
          accumulates = powers(std::min<int64_t>(limit / unit, 1024));
        }
        for (int64_t accumulate : accumulates) {
          s.accumulate = accumulate;
          for (bool remat : remats)
            for (bool offload : offloads) {
              s.remat = remat;
              s.offload = offload;
              const bool stageFixed = fixed(c, "parallel.zero_stage") || s.data() == 1 || s.compression != "none";
              for (int64_t stage = stageFixed ? s.zeroStage : 0; stage <= (stageFixed ? s.zeroStage : 3); ++stage) {
                Strategy one = s;
                one.zeroStage = s.data() == 1 ? 0 : stage;
                all.push_back(f.estimate(one));
              }
            }
        }
      }
    }
  llvm::stable_sort(all, [](const Estimate &a, const Estimate &b) { return better(a, b, searched); });
  return all;
}

const Estimate *runnable(const std::vector<Estimate> &found) {
  auto it = llvm::find_if(found, [](const Estimate &e) { return e.fits() && !e.predictedOnly; });
  return it == found.end() ? nullptr : &*it;
}

std::vector<std::string> whySlower(const Estimate &slow, const Estimate &fast) {
  // Per million tokens, as steps may hold different numbers of them.
  const double a = 1e6 / slow.tokensPerStep, b = 1e6 / fast.tokensPerStep;
  struct Cause {
    std::string text;
    double seconds;
  };
  std::vector<Cause> causes;
  auto add = [&](const char *what, double slowSeconds, double fastSeconds, double slowBytes = 0, double fastBytes = 0) {
    const double d = slowSeconds * a - fastSeconds * b;
    if (std::abs(d) <= 1e-3 * slow.step * a)
      return;
    auto amount = [](double seconds, double bytes) {
      return bytes > 0 ? fmt::format("{:.3g} s for {:.3g} GB sent ({:.3g} GB/s)", seconds, bytes * 1e-9,
                                     bytes * 1e-9 / seconds)
                       : fmt::format("{:.3g} s", seconds);
    };
    causes.push_back({fmt::format("{:+8.3g} s  {}: {} against {}", d, what, amount(slowSeconds * a, slowBytes * a),
                                  amount(fastSeconds * b, fastBytes * b)),
                      d});
  };
  add("forward and backward", slow.compute, fast.compute);
  add("computed again (checkpointing)", slow.recompute, fast.recompute);
  add("waiting in the pipeline", slow.bubble, fast.bubble);
  add("gradients summed over ranks", slow.reduce, fast.reduce, slow.bytesReduced, fast.bytesReduced);
  add("parameters gathered", slow.gather, fast.gather, slow.bytesGathered, fast.bytesGathered);
  add("collectives hidden behind the backward part", -slow.hidden, -fast.hidden);
  add("activations between ranks", slow.exchange, fast.exchange, slow.bytesExchanged, fast.bytesExchanged);
  add("optimizer", slow.optimizer, fast.optimizer);
  add("host", slow.host, fast.host);
  add("per step, whatever it holds", slow.overhead, fast.overhead);
  llvm::sort(causes, [](const Cause &x, const Cause &y) { return std::abs(x.seconds) > std::abs(y.seconds); });
  std::vector<std::string> lines;
  for (const Cause &c : causes)
    lines.push_back(c.text);
  return lines;
}

}  // namespace gptc
