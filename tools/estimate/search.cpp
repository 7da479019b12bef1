#include "tools/estimate/search.h"

#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace gptc {

namespace {

/// Compares speeds per token, so that global batches may differ. Speeds in the same bucket of relative width `grain`
/// are equal; buckets keep the order transitive, which distances would not.
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

// For a few stages the exact fastest is taken, so that more bandwidth never costs days. Among the hundreds of a search
// many differ by less than the forecast's precision.
constexpr double exact = 1e-9, searched = 1e-3;

/// Whether memory exceeds the budget of compile.remat, not counting the driver's and the allocator's reserve.
bool exceedsBudget(const Forecaster &f, const Estimate &e) {
  const std::optional<int64_t> budget = parseBytes(f.config().compile.remat);
  return budget && e.problem.empty() && e.bytesPeak() - e.reserved > double(*budget);
}

/// GPUs only. For CPU plans the passes report it, and formulas are no lower bound there.
void refuseBeyondBudget(const Forecaster &f, Estimate &e) {
  if (f.cluster().device.isCpu || !exceedsBudget(f, e))
    return;
  e.problem =
      fmt::format("no plan fits into compile.remat = {}: {} it takes {}", f.config().compile.remat,
                  e.strategy.remat ? "with every layer's forward part computed again" : "with nothing computed again",
                  formatBytes(e.bytesPeak() - e.reserved));
  e.remedy = "a larger budget, or \"auto\" for the memory that there is";
}

/// As compile.remat = "auto" or a budget does: recompute only if it does not fit otherwise.
Estimate withRematAsNeeded(Forecaster &f, Strategy s, ForecastBy by) {
  auto forecast = [&] { return by == ForecastBy::plans ? f.forecast(s) : f.estimate(s); };
  Estimate e = forecast();
  const bool budget = parseBytes(f.config().compile.remat).has_value();
  if ((budget || !f.config().fixes("compile.remat")) && e.problem.empty() && (e.outOfMemory || exceedsBudget(f, e))) {
    s.remat = true;
    Estimate again = forecast();
    if (again.fits() || again.bytesPeak() < e.bytesPeak())
      e = std::move(again);
  }
  refuseBeyondBudget(f, e);
  return e;
}

/// Plans the best strategy until the best is one that was planned. Formulas give lower bounds of memory and, on GPUs,
/// the final times, so no other strategy can be better. Times by code differ from them by the model's error.
void planBest(Forecaster &f, std::vector<Estimate> &all, const std::vector<Strategy> &asked) {
  std::vector<bool> planned(all.size());
  for (size_t i; !planned[i = size_t(bestOf(all) - all.data())]; planned[i] = true)
    all[i] = withRematAsNeeded(f, asked[i], ForecastBy::plans);
}

}  // namespace

std::vector<Estimate> strategiesOf(Forecaster &f, int64_t gpus, ForecastBy by) {
  const Config &c = f.config();
  const ClusterConfig &cluster = f.cluster();
  const Strategy base = f.strategyFor(gpus);
  std::vector<int64_t> tensors = {base.tensor};
  if (c.isAuto("parallel.tensor"))
    for (int64_t t = 2 * base.tensor; t <= std::min(gpus, cluster.node.devices) && gpus % t == 0; t *= 2)
      tensors.push_back(t);
  std::vector<bool> offloads = {base.offload};
  if (c.isAuto("parallel.offload") && !cluster.device.isCpu && cluster.node.knowsHost())
    offloads.push_back(true);
  const bool many = by == ForecastBy::plans && !cluster.device.isCpu && tensors.size() * offloads.size() > 1;
  if (many)
    by = ForecastBy::formulas;
  std::vector<Estimate> all;
  std::vector<Strategy> asked;
  for (int64_t tensor : tensors)
    for (bool offload : offloads) {
      Strategy s = base;
      s.tensor = tensor;
      s.offload = offload;
      s.accumulate = base.accumulate * (tensor / base.tensor);  // same global batch
      const bool open = s.data() > 1 && !c.fixes("parallel.zero_stage") && s.compression == "none" && s.syncEvery == 1;
      if (!open && (s.data() == 1 || (s.compression != "none" && !c.fixes("parallel.zero_stage"))))
        s.zeroStage = 0;
      for (int64_t stage = open ? 0 : s.zeroStage; stage <= (open ? 3 : s.zeroStage); ++stage) {
        s.zeroStage = stage;
        Estimate e = withRematAsNeeded(f, s, by);
        // "auto" must resolve to something that runs.
        if ((tensor == base.tensor && offload == base.offload) || (e.problem.empty() && !e.predictedOnly)) {
          all.push_back(std::move(e));
          asked.push_back(s);
        }
      }
    }
  if (many)
    planBest(f, all, asked);
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
  std::vector<int64_t> tensors = {base.tensor};
  if (!c.fixes("parallel.tensor") && !cluster.device.isCpu) {
    tensors.clear();  // Only divisors that keep a group within a node: 12 ranks are 4 groups of 3, if heads divide.
    for (int64_t t = 1; t <= std::min(gpus, cluster.node.devices); ++t)
      if (gpus % t == 0 && (gpus <= cluster.node.devices || cluster.node.devices % t == 0))
        tensors.push_back(t);
  }
  const std::vector<int64_t> pipelines =
      cluster.device.isCpu ? std::vector<int64_t>{1} : powers(std::min<int64_t>(gpus, 16));
  const std::vector<int64_t> micros = c.fixes("train.micro_batch") ? std::vector{base.microBatch} : powers(64);
  const bool batchFixed = c.fixes("train.global_batch_tokens");
  std::vector<bool> remats = {base.remat};
  if (!c.fixes("compile.remat") || parseBytes(c.compile.remat))
    remats = {false, true};
  std::vector<bool> offloads = {base.offload};
  if (!c.fixes("parallel.offload") && cluster.node.knowsHost())
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
              const bool stageFixed =
                  c.fixes("parallel.zero_stage") || s.data() == 1 || s.compression != "none" || s.syncEvery > 1;
              for (int64_t stage = stageFixed ? s.zeroStage : 0; stage <= (stageFixed ? s.zeroStage : 3); ++stage) {
                Strategy one = s;
                one.zeroStage = s.data() == 1 ? 0 : stage;
                all.push_back(f.estimate(one));
                refuseBeyondBudget(f, all.back());
              }
            }
        }
      }
    }
  llvm::stable_sort(all, [](const Estimate &a, const Estimate &b) { return better(a, b, searched); });
  return all;
}

// After this many plans that do not fit, strategies unlike all planned ones are assumed to exceed the formula by the
// most that any did.
static constexpr int enough = 3;

/// Bytes by which the plan of `s` probably exceeds the formula.
static double beyondFormula(const Forecaster::Plans &plans, const Strategy &s) {
  double beyond = 0;
  if (auto it = plans.beyond.find(Forecaster::likeOf(s)); it != plans.beyond.end())
    beyond = it->second;
  else if (plans.tooLarge >= enough)
    for (const auto &[like, bytes] : plans.beyond)
      beyond = std::max(beyond, bytes);
  return beyond;
}

std::optional<Estimate> runnable(Forecaster &f, const std::vector<Estimate> &found) {
  std::optional<Estimate> least;
  const double memory = f.cluster().device.memory;
  for (const Estimate &e : found) {
    if (e.predictedOnly || !e.problem.empty())
      continue;
    if (!e.fits())
      return least ? least : e;  // the following do not fit either
    if (f.cluster().device.isCpu)
      return e;
    const Strategy &s = e.strategy;
    Forecaster::Plans &plans = f.plansOnGpus();
    if (e.bytesPeak() + beyondFormula(plans, s) > memory)
      continue;  // too large, judging by similar plans
    Estimate planned = f.forecast(s);
    refuseBeyondBudget(f, planned);
    plans.beyond[Forecaster::likeOf(s)] = planned.bytesPeak() - e.bytesPeak();
    if (planned.fits())
      return planned;
    ++plans.tooLarge;
    if (!least || planned.bytesPeak() < least->bytesPeak())
      least = std::move(planned);
  }
  return least;
}

std::vector<Estimate> othersRunnable(Forecaster &f, const std::vector<Estimate> &found, const Estimate &best,
                                     size_t most) {
  const ClusterConfig &c = f.cluster();
  std::set<std::string> names = {best.strategy.name()};
  std::vector<Estimate> others;
  for (const Estimate &e : found) {
    if (others.size() == most || !e.fits())
      break;  // those that do not fit come last
    const bool small = c.device.isCpu || e.bytesPeak() + beyondFormula(f.plansOnGpus(), e.strategy) <= c.device.memory;
    // What is faster than the best by the formula did not fit as a plan.
    if (!e.predictedOnly && small && e.tokensPerSecond <= best.tokensPerSecond * (1 + searched) &&
        names.insert(e.strategy.name()).second)
      others.push_back(e);
  }
  return others;
}

std::vector<std::string> whySlower(const Estimate &slow, const Estimate &fast) {
  // Per million tokens, because steps may have different numbers of them.
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
