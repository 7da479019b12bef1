// 1. Find rows that break physics, without any fit: faster than the device's peak; faster than the network's nominal
//    bandwidth can carry the bytes; the same configuration with other figures, or once out of memory; more devices with
//    more than a proportional speed. Rows of the first two kinds are not fitted. Configurations are compared as
//    resolved, not as written. After the fit: larger micro-batches that were not faster.
// 2. Fit the scalars by least squares on log(predicted / seen), so that a factor counts the same in both directions,
//    with Levenberg-Marquardt damping. Start from the file's values and from usual values, and take the better fit. If
//    there are fewer rows than scalars, the last scalars keep their values.
// 3. While rows disagree by more than `agreement`, and leaving one out brings the others much closer together, set that
//    row aside: it contradicts the others. At most a third of the rows. Of two rows that step 1 found to contradict
//    each other, set the one aside that the rest, if it suffices for all scalars, predicts worse. If rows disagree
//    still, fit once more with Huber's loss (1964), which grows linearly beyond `agreement`, so that no row draws the
//    fit far.
// 4. Compute each scalar's interval from the Jacobian and Student's t; the degrees of freedom are rows minus scalars.
//    The residuals' standard deviation times the same t is how far a single run scatters.
// 5. Predict each row once more with scalars fitted to the other rows, if these suffice for all scalars.
#include "tools/estimate/calibrate.h"

#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gptc {

const char *nameOf(Scalar s) {
  return s == Scalar::slowdown    ? "software.slowdown"
         : s == Scalar::effective ? "network.effective"
                                  : "software.step_overhead";
}

namespace {

constexpr double sameSpeed = 0.01;  // relative; what two runs of one job differ by
constexpr double agreement = 0.08;  // relative; smaller differences between rows of one log are no contradiction
constexpr double memoryAgreement = 0.15;
constexpr size_t mostScalars = 3;
constexpr double widest = 100;  // ratio; a wider interval says nothing

/// Student's t quantile, 95% one-sided.
double studentT(int freedom) {
  constexpr double t[] = {0, 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812};
  return freedom <= 10 ? t[std::max(freedom, 1)] : 1.645 + 1.7 / freedom;
}

/// Solves A x = b for a positive definite A of up to three rows; false if A is singular.
bool solve(std::vector<std::vector<double>> a, std::vector<double> b, std::vector<double> &x) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i; r < n; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i]))
        pivot = r;
    if (!(std::abs(a[pivot][i]) > 1e-14))
      return false;
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (size_t r = 0; r < n; ++r) {
      if (r == i)
        continue;
      const double f = a[r][i] / a[i][i];
      for (size_t c = i; c < n; ++c)
        a[r][c] -= f * a[i][c];
      b[r] -= f * b[i];
    }
  }
  x.resize(n);
  for (size_t i = 0; i < n; ++i)
    x[i] = b[i] / a[i][i];
  return true;
}

/// A configuration as resolved, so that the order of settings and explicit defaults make no difference. Leaves out what
/// costs neither time nor memory (learning rates, seeds), and the numbers of devices and passes.
struct Work {
  int64_t microBatch = 1;  // sequences of a pass
  std::string pass;        // what a rank computes and holds in one pass, beside their number
  std::string shared;      // how ranks along `data` share the rest; "" if there is only one

  Work(const Config &c, const Estimate &e, bool ours) {
    const ModelConfig &m = c.model;
    const Strategy &s = e.strategy;
    microBatch = s.microBatch;
    auto add = [](std::string &to, auto... values) { ((to += fmt::format("{} ", values)), ...); };
    add(pass, m.nLayer, m.nHead, m.nKvHead, m.nEmbd, m.ffnDim, m.vocabSize, m.blockSize, nameOf(m.norm),
        nameOf(m.activation), nameOf(m.position), m.causal, m.bias, m.tieEmbeddings, m.embeddingNorm, m.dropout > 0);
    const std::string layers =
        fmt::format("{}; {}", fmt::join(m.layersWithoutRope, ","), fmt::join(m.layersWithoutWindow, ","));
    add(pass, m.headSize(), m.rotated(), nameOf(m.ropeScaling), m.window, layers, m.attentionSoftcap > 0,
        m.logitSoftcap > 0, m.embeddingScale != 1, m.biased(m.qkvBias), m.biased(m.attentionBias), m.biased(m.mlpBias),
        m.normBiased(), m.headBias, nameOf(m.qkNorm), nameOf(m.normPosition), m.normPlusOne, m.parallelResidual,
        m.sharedNorm, m.tokenTypes > 0, m.headTransform, m.firstNorm, m.windowRopeTheta != 0);
    const OptimizerConfig &o = c.optimizer;
    add(pass, o.name, c.train.gradClip > 0, o.name == "sgd" && o.momentum > 0,
        o.name == "adafactor" && o.firstMoment > 0);
    for (const ParameterGroup &g : o.groups)
      for (const auto &[pattern, where] : g.patterns)
        if (g.frozen)
          add(pass, pattern);
    add(pass, c.precision.compute, c.precision.params, nameOf(c.precision.optimizerState));
    // A byte budget for activations has no effect if all fit.
    add(pass, s.tensor, s.pipeline, s.remat ? "full" : e.recompute > 0 ? c.compile.remat : "none", s.offload);
    if (ours)
      add(pass, c.parallel.shardsPerRank(), c.compile.libraryCalls, c.compile.autotune == "off",
          c.compile.packWeights ? *c.compile.packWeights ? "packed" : "unpacked" : "auto");
    if (s.data() > 1)
      add(shared, s.zeroStage, s.compression, ours ? nameOf(c.parallel.reduceOrder) : "");
  }
  bool isSame(const Work &o) const { return microBatch == o.microBatch && isSameBesideMicroBatch(o); }
  bool isSameBesideMicroBatch(const Work &o) const {
    return pass == o.pass && (shared == o.shared || shared.empty() || o.shared.empty());
  }
};

/// Whether two figures differ by more than the factor 1 + `agreement`.
bool differ(double a, double b, double agreement) { return std::abs(std::log(a / b)) > std::log(1 + agreement); }

/// A row's seconds per step, expressed in the unit of its log.
std::string stepOf(const ObservedRow &row, double seconds) {
  const Observation &o = *row.observation;
  const double tokens = row.estimate.tokensPerStep;
  if (o.days > 0)
    return fmt::format("{:.4g} s ({:.4g} days)", seconds, seconds * o.tokens / tokens / 86400);
  if (o.tokensPerSecond > 0)
    return fmt::format("{:.4g} s ({:.4g} tokens/s)", seconds, tokens / seconds);
  return fmt::format("{:.4g} s", seconds);
}

class Fitter {
public:
  explicit Fitter(const ClusterConfig &c) : result{c, {}, {}, {}} {}

  Calibration run(std::vector<Scalar> which) {
    load();
    physics();
    std::vector<size_t> rows;
    for (size_t i = 0; i < result.rows.size(); ++i)
      if (ObservedRow &r = result.rows[i]; r.seen > 0 && r.observation->fit && !r.impossible)
        rows.push_back(i);
    choose(std::move(which), rows);
    if (!result.fitted.empty() && !rows.empty())
      fitAll(rows);
    finish();
    return std::move(result);
  }

private:
  Calibration result;
  std::vector<std::unique_ptr<Forecaster>> forecasters;
  std::vector<Work> works;                           // one per row
  std::vector<std::pair<size_t, size_t>> conflicts;  // rows whose speeds cannot both be true
  bool robust = false;                               // with Huber's loss
  std::vector<double> theta;                         // logarithms of the fitted scalars; initially of the file's values
  std::vector<double> usual;                         // the second starting point

  void load() {
    for (const Observation &o : result.cluster.observations) {
      ObservedRow row;
      row.observation = &o;
      try {
        const Config config = readForForecast(o.model, o.settings, o.gpus, result.cluster, o.pipeline);
        forecasters.push_back(std::make_unique<Forecaster>(config, result.cluster));
      } catch (UserError &e) {
        for (Diagnostic &d : e.diagnostics)
          d.notes.push_back(o.model.empty() ? "asked for by " + o.name
                                            : fmt::format("asked for by [[observation]] \"{}\" of {}:{}", o.name,
                                                          result.cluster.file, o.where.line));
        throw UserError(e.diagnostics);
      }
      row.estimate = predict(forecasters.size() - 1);
      if (!row.estimate.problem.empty())
        throw UserError(Diagnostic{ErrorCode::Contradiction,
                                   fmt::format("observation \"{}\" cannot be: {}", o.name, row.estimate.problem),
                                   o.where,
                                   "",
                                   {row.estimate.remedy}});
      sayAssumed(row, forecasters.back()->config());
      row.seen = o.secondsPerStep > 0    ? o.secondsPerStep
                 : o.tokensPerSecond > 0 ? row.estimate.tokensPerStep / o.tokensPerSecond
                 : o.days > 0            ? o.days * 86400 * row.estimate.tokensPerStep / o.tokens
                                         : 0;
      works.emplace_back(forecasters.back()->config(), row.estimate, result.cluster.software.isGptc());
      result.rows.push_back(row);
    }
  }

  /// Notes what neither the row nor its model specifies.
  void sayAssumed(const ObservedRow &row, const Config &config) {
    const Strategy &s = row.estimate.strategy;
    std::vector<std::string> assumed;
    if (s.data() > 1 && !config.fixes("parallel.zero_stage"))
      assumed.push_back(fmt::format("zero_stage = {}", s.zeroStage));
    if (!config.fixes("train.micro_batch"))
      assumed.push_back(fmt::format("micro_batch = {}", s.microBatch));
    if (!config.fixes("train.global_batch_tokens"))
      assumed.push_back(fmt::format("accumulate = {}", s.accumulate));
    if (!config.fixes("compile.remat"))
      assumed.push_back(fmt::format("remat = \"{}\"", s.remat ? "full" : "none"));
    if (!assumed.empty())
      result.notes.push_back(
          fmt::format("\"{}\" does not say how it ran; assumed: {}", row.observation->name, llvm::join(assumed, ", ")));
  }

  Estimate predict(size_t i) const {
    forecasters[i]->setFitted(result.cluster.software.slowdown, result.cluster.software.stepOverhead,
                              result.cluster.network.effective);
    return forecastOf(i);
  }

  Estimate forecastOf(size_t i) const {
    const Observation &o = result.cluster.observations[i];
    return forecasters[i]->forecast(forecasters[i]->strategyFor(o.gpus, o.pipeline));
  }

  // Step 1.
  void physics() {
    const ClusterConfig &c = result.cluster;
    for (size_t i = 0; i < result.rows.size(); ++i) {
      ObservedRow &row = result.rows[i];
      if (!(row.seen > 0))
        continue;
      const Strategy &s = row.estimate.strategy;
      const Config &config = forecasters[i]->config();
      const double peak = c.device.peak(config.precision.compute);
      const double devices = double(s.gpus) / double(c.device.isCpu ? std::min(s.gpus, c.node.devices) : 1);
      const double needed = row.estimate.flops / row.seen / devices;
      if (needed > peak) {
        row.impossible = true;
        row.contradictions.push_back(fmt::format("faster than the device: {} per step are {} of each GPU, whose peak "
                                                 "is {}; the step must take {} or longer, "
                                                 "or have computed less",
                                                 stepOf(row, row.seen), formatFlops(needed), formatFlops(peak),
                                                 stepOf(row, row.seen * needed / peak)));
      }
      if (s.gpus > c.node.devices && c.network.nominal > 0) {
        const auto e = withScalars(i, 0.01, c.network.nominal, 0);
        const double wire = e.overNetwork > 0 ? e.overNetwork + e.hidden : 0;  // hidden behind computation, but not
                                                                               // faster
        if (wire > row.seen) {
          row.impossible = true;
          row.contradictions.push_back(fmt::format(
              "faster than the network: at {}, its nominal bandwidth, what ranks send takes {}, and the step {}; it "
              "must take as long or longer, or less have been sent",
              formatBandwidth(c.network.nominal), stepOf(row, wire), stepOf(row, row.seen)));
        }
      }
    }
    compareRows();
  }

  /// Compares rows that are equal, or differ only in the numbers of devices and passes. Either may be wrong: step 3
  /// decides which is fitted.
  void compareRows() {
    for (size_t i = 0; i < result.rows.size(); ++i)
      for (size_t j = i + 1; j < result.rows.size(); ++j) {
        ObservedRow &a = result.rows[i], &b = result.rows[j];
        if (!works[i].isSame(works[j]))
          continue;
        compareMemory(a, b);
        if (!(a.seen > 0 && b.seen > 0))
          continue;
        const Strategy &sa = a.estimate.strategy, &sb = b.estimate.strategy;
        if (sa.gpus != sb.gpus) {
          if (sa.gpus > sb.gpus ? compareSpeed(b, a) : compareSpeed(a, b))
            conflicts.push_back({i, j});
        } else if (sa.accumulate == sb.accumulate && differ(a.seen, b.seen, agreement)) {
          conflicts.push_back({i, j});
          b.contradictions.push_back(fmt::format(
              "\"{}\" is the same configuration and took {} per step, this one {}; one of them is wrong, or something "
              "else was different",
              a.observation->name, stepOf(a, a.seen), stepOf(b, b.seen)));
        }
      }
  }

  /// Memory does not depend on the number of passes, except whether it is one or several.
  static void compareMemory(ObservedRow &a, ObservedRow &b) {
    const Strategy &sa = a.estimate.strategy, &sb = b.estimate.strategy;
    if (sa.gpus != sb.gpus || (sa.accumulate > 1) != (sb.accumulate > 1))
      return;
    const double bytesA = a.observation->bytesPeak, bytesB = b.observation->bytesPeak;
    if (a.observation->outOfMemory != b.observation->outOfMemory) {
      ObservedRow &out = a.observation->outOfMemory ? a : b;
      const ObservedRow &ran = a.observation->outOfMemory ? b : a;
      out.contradictions.push_back(
          fmt::format("ran out of memory, and \"{}\" ran in the same configuration; one of them "
                      "is wrong, or something else held memory too",
                      ran.observation->name));
    } else if (bytesA > 0 && bytesB > 0 && differ(bytesA, bytesB, memoryAgreement)) {
      b.contradictions.push_back(
          fmt::format("\"{}\" is the same configuration and took {}, this one {}; one of them is "
                      "wrong, or something else was different",
                      a.observation->name, formatBytes(bytesA), formatBytes(bytesB)));
    }
  }

  /// Devices do the same work per pass; their number may differ, as it does at a fixed global batch. More devices
  /// exchange at least as much per pass and per step. So with at least as many passes, the run on more devices takes at
  /// least as long, and with fewer passes at least the proportional time. Only the optimizer and moments, of which each
  /// device owns a smaller part, may take less.
  /// True if the rows contradict each other.
  static bool compareSpeed(const ObservedRow &fewer, ObservedRow &more) {
    const Estimate &f = fewer.estimate, &m = more.estimate;
    const double passes = double(m.strategy.accumulate) / double(f.strategy.accumulate);
    const double owned = std::max(0.0, f.optimizer + f.host - m.optimizer - m.host);
    const double least = std::min(passes, 1.0) * fewer.seen - owned;
    if (!(least > more.seen * (1 + agreement)))
      return false;
    const double speed = m.tokensPerStep / more.seen / (f.tokensPerStep / fewer.seen);
    const double gpus = double(m.strategy.gpus) / double(f.strategy.gpus);
    const std::string work = passes == 1 ? "the same work for each"
                                         : fmt::format("{} instead of {} passes of the same work for each",
                                                       m.strategy.accumulate, f.strategy.accumulate);
    more.contradictions.push_back(
        fmt::format("{:.2f} x the GPUs of \"{}\" were {:.2f} x as fast; with {}, at most {:.2f} x can be, so that this "
                    "row would have to take {} per step or longer, or that one {} or less",
                    gpus, fewer.observation->name, speed, work, speed * more.seen / least, stepOf(more, least),
                    stepOf(fewer, (more.seen + owned) / std::min(passes, 1.0))));
    return true;
  }

  /// A larger micro-batch makes larger products and sends no more: with at least as many tokens in a step it is faster
  /// per token. Compares rows that differ in nothing else but the number of passes, after the fit, whose forecast tells
  /// what there was to gain. A doubt only: at the peak there is little.
  void compareMicroBatches() {
    for (size_t i = 0; i < result.rows.size(); ++i)
      for (size_t j = 0; j < result.rows.size(); ++j) {
        const ObservedRow &small = result.rows[i];
        ObservedRow &large = result.rows[j];
        const Estimate &s = small.estimate, &l = large.estimate;
        auto explained = [](const ObservedRow &r) { return !(r.seen > 0) || r.impossible || r.setAside; };
        if (works[i].microBatch >= works[j].microBatch || !works[i].isSameBesideMicroBatch(works[j]) ||
            s.strategy.gpus != l.strategy.gpus || explained(small) || explained(large) ||
            l.tokensPerStep < s.tokensPerStep)
          continue;
        const double tokens = l.tokensPerStep / s.tokensPerStep, gain = tokens * small.seen / large.seen,
                     expected = tokens * small.predicted / large.predicted;
        if (gain > 1 - sameSpeed)
          continue;
        large.contradictions.push_back(
            fmt::format("micro-batch {} was {:.2f} x as fast as {} in \"{}\", where {:.2f} x is forecast: the step "
                        "would have to take {}, or something else slowed it, such as data or another job",
                        l.strategy.microBatch, gain, s.strategy.microBatch, small.observation->name, expected,
                        stepOf(large, large.seen * gain / std::max(expected, 1.0))));
      }
  }

  Estimate withScalars(size_t i, double slowdown, double effective, double overhead) const {
    forecasters[i]->setFitted(Fitted(slowdown), Fitted(overhead), Fitted(effective));
    return forecastOf(i);
  }

  Fitted &valueOf(Scalar s) {
    return s == Scalar::slowdown    ? result.cluster.software.slowdown
           : s == Scalar::effective ? result.cluster.network.effective
                                    : result.cluster.software.stepOverhead;
  }

  void choose(std::vector<Scalar> which, const std::vector<size_t> &rows) {
    const bool asked = !which.empty();
    if (!asked)
      for (Scalar s : {Scalar::slowdown, Scalar::effective, Scalar::stepOverhead})
        if (const Fitted &f = valueOf(s); !f.known || f.low < f.high)
          which.push_back(s);
    for (Scalar s : which) {
      if (llvm::is_contained(result.fitted, s))
        continue;  // listed twice
      const bool network = llvm::any_of(
          rows, [&](size_t i) { return result.rows[i].estimate.strategy.gpus > result.cluster.node.devices; });
      if (s == Scalar::effective && !network)
        result.notes.push_back("network.effective is not fitted: no row to fit has several nodes");
      else if (result.fitted.size() >= std::min(rows.size(), mostScalars))
        result.notes.push_back(fmt::format("{} is not fitted: {} rows to fit are too few", nameOf(s), rows.size()));
      else
        result.fitted.push_back(s);
    }
    if (result.fitted.empty() && !asked && !rows.empty())
      result.notes.push_back("nothing is fitted: the scalars are written without an interval; --fit NAME fits one");
    for (Scalar s : result.fitted) {
      const Fitted &f = valueOf(s);
      usual.push_back(std::log(usualOf(s)));
      theta.push_back(f.known && f.value > 0 ? std::log(f.value) : usual.back());
    }
  }

  double usualOf(Scalar s) const {
    return s == Scalar::slowdown    ? (result.cluster.software.isGptc() ? 1.0 : 2.0)
           : s == Scalar::effective ? std::max(1e8, result.cluster.network.nominal / 4)
                                    : 0.1;
  }

  void set(const std::vector<double> &x) {
    for (size_t k = 0; k < x.size(); ++k)
      valueOf(result.fitted[k]) = Fitted(clamped(result.fitted[k], std::exp(x[k])));
  }

  /// Others' software is never faster than the peak, to which its slowdown refers.
  double clamped(Scalar s, double v) const {
    return s == Scalar::slowdown && !result.cluster.software.isGptc() ? std::max(v, 1.0) : v;
  }

  double residual(size_t i, const std::vector<double> &x) {
    set(x);
    return std::log(predict(i).step / result.rows[i].seen);
  }

  /// Of a residual: its square, and with `robust` Huber's loss. Its derivative is 2 weightOf(e) e.
  double lossOf(double e) const {
    e = std::abs(e);
    return robust && e > agreement ? agreement * (2 * e - agreement) : e * e;
  }
  double weightOf(double e) const { return robust && std::abs(e) > agreement ? agreement / std::abs(e) : 1; }

  double cost(const std::vector<size_t> &rows, const std::vector<double> &x) {
    double sum = 0;
    for (size_t i : rows)
      sum += lossOf(residual(i, x));
    return sum;
  }

  std::vector<std::vector<double>> jacobian(const std::vector<size_t> &rows, const std::vector<double> &x) {
    std::vector<std::vector<double>> j(rows.size(), std::vector<double>(x.size()));
    for (size_t k = 0; k < x.size(); ++k) {
      std::vector<double> up = x, down = x;
      up[k] += 1e-4;
      down[k] -= 1e-4;
      for (size_t r = 0; r < rows.size(); ++r)
        j[r][k] = (residual(rows[r], up) - residual(rows[r], down)) / 2e-4;
    }
    return j;
  }

  /// Sum over rows of weight x row x row'; `weights` empty: 1.
  static std::vector<std::vector<double>> normal(const std::vector<std::vector<double>> &j, size_t n,
                                                 const std::vector<double> &weights = {}) {
    std::vector<std::vector<double>> a(n, std::vector<double>(n, 0.0));
    for (size_t r = 0; r < j.size(); ++r)
      for (size_t p = 0; p < n; ++p)
        for (size_t q = 0; q < n; ++q)
          a[p][q] += (weights.empty() ? 1 : weights[r]) * j[r][p] * j[r][q];
    return a;
  }

  // Step 2.
  std::vector<double> fit(const std::vector<size_t> &rows, std::vector<double> x) {
    double damping = 1e-2, now = cost(rows, x);
    for (int round = 0; round < 200 && damping < 1e12; ++round) {
      const auto j = jacobian(rows, x);
      std::vector<double> g(x.size(), 0.0), step, weights;
      for (size_t r = 0; r < rows.size(); ++r) {
        const double e = residual(rows[r], x);
        weights.push_back(weightOf(e));
        for (size_t k = 0; k < x.size(); ++k)
          g[k] -= weights[r] * j[r][k] * e;
      }
      auto a = normal(j, x.size(), weights);
      for (size_t k = 0; k < x.size(); ++k)
        a[k][k] += damping * (a[k][k] + 1e-6);  // keeps a scalar that no row depends on
      if (!solve(a, g, step)) {
        damping *= 10;
        continue;
      }
      std::vector<double> next = x;
      for (size_t k = 0; k < x.size(); ++k)
        next[k] = std::clamp(next[k] + std::clamp(step[k], -1.0, 1.0), -12.0, 40.0);
      const double then = cost(rows, next);
      if (then < now) {
        const bool done = now - then < 1e-14;
        x = next;
        now = then;
        damping = std::max(damping / 5, 1e-12);
        if (done)
          break;
      } else {
        damping *= 5;
      }
    }
    return x;
  }

  double worst(const std::vector<size_t> &rows, const std::vector<double> &x) {
    double most = 0;
    for (size_t i : rows)
      most = std::max(most, std::abs(residual(i, x)));
    return most;
  }

  // Step 3. Removes rows that contradict the others from `rows`, and fits `x` to what remains.
  void setAside(std::vector<size_t> &rows, std::vector<double> &x) {
    const size_t most = rows.size() / 3;
    for (size_t gone = 0; gone < most && worst(rows, x) > agreement && rows.size() > theta.size() + 1; ++gone) {
      size_t bestRow = rows.size();
      double best = worst(rows, x) / 3;
      std::vector<double> bestX;
      for (size_t k = 0; k < rows.size(); ++k) {
        std::vector<size_t> others = rows;
        others.erase(others.begin() + long(k));
        const std::vector<double> y = fit(others, x);
        if (const double w = worst(others, y); w < best) {
          best = w;
          bestRow = k;
          bestX = y;
        }
      }
      if (bestRow == rows.size())
        break;
      const size_t out = rows[bestRow];
      rows.erase(rows.begin() + long(bestRow));
      x = bestX;
      contradict(out, x);
    }
    for (const auto &[i, j] : conflicts) {
      if (!llvm::is_contained(rows, i) || !llvm::is_contained(rows, j) || rows.size() < theta.size() + 2)
        continue;
      std::vector<size_t> others = rows;
      llvm::erase(others, i);
      llvm::erase(others, j);
      const std::vector<double> y = fit(others, x);
      const double ofI = std::abs(residual(i, y)), ofJ = std::abs(residual(j, y));
      if (std::abs(ofI - ofJ) < agreement / 2)
        continue;  // the others cannot tell
      const size_t out = ofI > ofJ ? i : j;
      llvm::erase(rows, out);
      x = fit(rows, x);
      contradict(out, y);
    }
    if (worst(rows, x) <= agreement)
      return;
    robust = true;
    x = fit(rows, x);
    result.notes.push_back(
        fmt::format("the rows that are fitted differ by more than {:.0f}%, and which are wrong is open: "
                    "fitted so that none draws the others far",
                    100 * agreement));
  }

  void fitAll(std::vector<size_t> rows) {
    std::vector<double> x = fit(rows, theta);
    if (const std::vector<double> y = fit(rows, usual); cost(rows, y) + 1e-9 < cost(rows, x))
      x = y;
    setAside(rows, x);
    theta = x;
    for (size_t i : rows)
      result.rows[i].fitted = true;
    if (const double most = worst(rows, x); most > std::log(1.5))
      result.notes.push_back(
          fmt::format("the rows do not agree with one another, nor with any scalars: one is {:.1f} x "
                      "off; what they say of how it ran is wrong, or the software is another",
                      std::exp(most)));
    // Step 5 comes before step 4, because predictions change the scalars.
    for (size_t k = 0; k < rows.size(); ++k) {
      std::vector<size_t> others = rows;
      others.erase(others.begin() + long(k));
      // With fewer rows than scalars, some scalars would keep values fitted to this row.
      result.rows[rows[k]].leftOut = others.size() < theta.size() ? std::numeric_limits<double>::quiet_NaN()
                                                                  : std::exp(residual(rows[k], fit(others, theta))) - 1;
    }
    // Step 4.
    const auto j = jacobian(rows, x), a = normal(j, x.size());
    const int freedom = int(rows.size()) - int(x.size());
    set(x);
    result.cluster.software.scatter.reset();  // of an earlier fit
    if (freedom < 1) {
      result.notes.push_back(
          "as many scalars as rows: neither their intervals are known, nor how far single runs scatter");
      return;
    }
    double sum = 0;
    for (size_t i : rows)
      sum += std::pow(residual(i, x), 2);
    set(x);
    const double sigma = std::sqrt(sum / freedom);
    if (const double run = studentT(freedom) * sigma; run <= std::log(widest))
      result.cluster.software.scatter = std::exp(run);
    else
      result.notes.push_back("these rows say nothing of how far single runs scatter: it may be any factor");
    for (size_t k = 0; k < x.size(); ++k) {
      std::vector<double> unit(x.size(), 0.0), column;
      unit[k] = 1;
      Fitted &f = valueOf(result.fitted[k]);
      const char *name = nameOf(result.fitted[k]);
      if (llvm::all_of(j, [&](const std::vector<double> &row) { return std::abs(row[k]) < 1e-9; })) {
        result.notes.push_back(fmt::format("{} makes no difference to any row", name));
        continue;
      }
      if (!solve(a, unit, column) || !(column[k] > 0)) {
        result.notes.push_back(fmt::format("these rows cannot tell {} from the other scalars", name));
        continue;
      }
      const double half = studentT(freedom) * sigma * std::sqrt(column[k]);
      if (half > std::log(widest)) {
        result.notes.push_back(fmt::format("these rows say nothing of {}: it may lie anywhere", name));
        continue;
      }
      f.low = std::exp(x[k] - half);
      f.high = std::exp(std::min(x[k] + half, 80.0));
    }
  }

  /// Says what would have to be true for a row that contradicts the others.
  void contradict(size_t i, const std::vector<double> &x) {
    ObservedRow &row = result.rows[i];
    row.setAside = true;
    const double e = std::exp(residual(i, x)) - 1;
    std::string text = fmt::format("contradicts the other rows: they say {} per step, {:+.0f}%",
                                   stepOf(row, row.seen * (1 + e)), 100 * e);
    std::vector<std::string> ways;
    for (size_t k = 0; k < x.size(); ++k) {
      std::vector<double> y = x;
      double low = x[k] - 6, high = x[k] + 6;
      y[k] = low;
      const double atLow = residual(i, y);
      y[k] = high;
      const double atHigh = residual(i, y);
      if (atLow * atHigh > 0)
        continue;
      for (int round = 0; round < 60; ++round) {
        y[k] = (low + high) / 2;
        ((residual(i, y) > 0) == (atHigh > 0) ? high : low) = y[k];
      }
      const double v = std::exp(y[k]), was = std::exp(x[k]);
      const Scalar s = result.fitted[k];
      ways.push_back(s == Scalar::effective
                         ? fmt::format("{} = {} instead of {}", nameOf(s), formatBandwidth(v), formatBandwidth(was))
                     : s == Scalar::slowdown
                         ? fmt::format("{} = {:.3g} instead of {:.3g}", nameOf(s), v, was)
                         : fmt::format("{} = {} instead of {}", nameOf(s), formatSeconds(v), formatSeconds(was)));
    }
    if (!ways.empty())
      text += "; for it to be true, " + llvm::join(ways, " or ");
    row.contradictions.push_back(text);
  }

  void finish() {
    if (!theta.empty()) {
      // Keep the intervals; residual() has changed the values.
      for (size_t k = 0; k < theta.size(); ++k) {
        Fitted &f = valueOf(result.fitted[k]);
        const double low = f.low, high = f.high;
        f = Fitted(clamped(result.fitted[k], std::exp(theta[k])));
        if (low < high && low <= f.value && f.value <= high) {
          f.low = low;
          f.high = high;
        }
      }
    }
    for (size_t i = 0; i < result.rows.size(); ++i) {
      ObservedRow &row = result.rows[i];
      row.estimate = predict(i);
      row.predicted = row.estimate.step;
      row.error = row.seen > 0 ? row.predicted / row.seen - 1 : 0;
      if (!row.fitted)
        row.leftOut = std::numeric_limits<double>::quiet_NaN();
      const Estimate &e = row.estimate;
      const DeviceSpec &d = result.cluster.device;
      const double seen = row.observation->bytesPeak;
      if (seen > d.memory)
        row.contradictions.push_back(fmt::format(
            "took {} of a device that has {}; it must be the memory of several, or of the host, or [device] "
            "memory be wrong",
            formatBytes(seen), formatBytes(d.memory)));
      else if (seen > 0 && differ(e.bytesPeak(), seen, memoryAgreement))
        row.contradictions.push_back(
            fmt::format("took {}, and is predicted to need {}", formatBytes(seen), formatBytes(e.bytesPeak())));
      if (row.observation->outOfMemory && !e.outOfMemory)
        row.contradictions.push_back(
            fmt::format("ran out of memory, and is predicted to need {} of {}; the software would "
                        "have to hold {} more",
                        formatBytes(e.bytesPeak()), formatBytes(d.memory), formatBytes(d.memory - e.bytesPeak())));
      else if (!row.observation->outOfMemory && row.seen > 0 && e.outOfMemory)
        row.contradictions.push_back(
            fmt::format("ran, and is predicted to need {} of {}", formatBytes(e.bytesPeak()), formatBytes(d.memory)));
    }
    compareMicroBatches();
  }
};

/// The largest error in `c` among the rows that are fitted in `of`.
double worstOf(const Calibration &c, const Calibration &of) {
  double most = 0;
  for (size_t i = 0; i < c.rows.size(); ++i)
    if (of.rows[i].fitted)
      most = std::max(most, std::abs(c.rows[i].error));
  return most;
}

/// Logs rarely tell how other software communicates: try the alternatives, and note how well the rows agree with each.
void compareAssumptions(Calibration &c, const std::vector<Scalar> &which) {
  const SoftwareSpec &now = c.cluster.software;
  const size_t rows = size_t(llvm::count_if(c.rows, [](const ObservedRow &r) { return r.fitted; }));
  if (now.isGptc() || rows <= c.fitted.size())
    return;
  for (const char *zero1 : {"reduce_scatter", "all_reduce"})
    for (const char *gradients : {"fp32", "compute"}) {
      if (now.zero1 == zero1 && now.gradients == gradients)
        continue;
      ClusterConfig other = c.cluster;
      other.software.zero1 = zero1;
      other.software.gradients = gradients;
      c.notes.push_back(fmt::format("with zero1 = \"{}\" and gradients = \"{}\" the rows would agree within {:.1f}%, "
                                    "as they are within {:.1f}%",
                                    zero1, gradients, 100 * worstOf(Fitter(other).run(which), c), 100 * worstOf(c, c)));
    }
}

}  // namespace

Calibration calibrate(const ClusterConfig &cluster, const std::vector<Scalar> &which) {
  if (llvm::none_of(cluster.observations,
                    [](const Observation &o) { return o.days > 0 || o.secondsPerStep > 0 || o.tokensPerSecond > 0; }))
    throw UserError(ErrorCode::MissingKey, fmt::format("{} has no [[observation]] with a speed", cluster.file),
                    "write one per run: model, gpus, settings such as zero_stage and micro_batch, and days, step or "
                    "tokens_per_s");
  Calibration c = Fitter(cluster).run(which);
  compareAssumptions(c, which);
  return c;
}

}  // namespace gptc
