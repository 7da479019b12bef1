#include "codegen/tuner/tuner.h"

#include "codegen/tuner/group_bench.h"
#include "support/diagnostics.h"
#include "support/median.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace gptc {

namespace {

using Outcome = Trial::Outcome;

constexpr double slower = 1.25;     // times the best time so far: slower candidates are dropped early
constexpr double hopeless = 10;     // times the default's time, plus firstCall: a check is stopped then
constexpr double firstCall = 0.05;  // seconds that a first call may cost
constexpr size_t finalists = 4;
constexpr size_t batch = 8;
constexpr int runs = 5, rounds = 9;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr std::pair<Outcome, const char *> names[] = {
    {Outcome::timed, "timed"},     {Outcome::wrongBits, "wrong_bits"},     {Outcome::wroteOutside, "wrote_outside"},
    {Outcome::spills, "spills"},   {Outcome::notCompiled, "not_compiled"}, {Outcome::tooSlow, "too_slow"},
    {Outcome::suspect, "suspect"}, {Outcome::crashed, "crashed"}};

class Search {
public:
  Search(CandidateBench &bench, std::vector<Schedule> space, const SearchLimits &limits)
      : bench(bench), space(std::move(space)), limits(limits), log(limits.log ? *limits.log : none),
        end(now() + limits.seconds) {
    result.candidates = this->space.size();
    if (limits.proposed) {  // to the front
      auto at = llvm::find(this->space, *limits.proposed);
      if (at != this->space.end())
        std::rotate(this->space.begin(), at, at + 1);
    }
  }

  SearchResult run() {
    Trial base = bench.base();
    base.time = bench.time(base, runs, limits.seconds / 10, HUGE_VAL);
    best = base.time.median;
    if (!log.find(base))
      log.add(base);
    trials.push_back(std::move(base));
    tryAll();
    race();
    return std::move(result);
  }

private:
  CandidateBench &bench;
  std::vector<Schedule> space;
  const SearchLimits &limits;
  TrialLog none;
  TrialLog &log;
  const double end;
  SearchResult result;
  std::vector<Trial> &trials = result.trials;
  double best = 0;

  bool over(double until) const { return now() > until; }
  double patience() const { return firstCall + hopeless * trials[0].time.median; }

  void tryAll() {
    // Leaves time for the race.
    const double until = end - std::min(limits.seconds / 3, 2.0 * finalists * rounds * best);
    // The first batch is tried even if the time is over, so that a search compares more than the default.
    for (size_t at = 0; at < space.size() && !(at && over(until)); at += batch) {
      std::vector<Trial> some = bench.propose(llvm::ArrayRef(space).slice(at, std::min(batch, space.size() - at)));
      std::vector<Trial *> fresh, suspects;
      for (Trial &t : some)
        if (std::optional<Trial> before = log.find(t); before && before->outcome == Outcome::suspect)
          suspects.push_back(&t);
        else if (before)
          t = *before;
        else if (t.outcome == Outcome::timed)
          fresh.push_back(&t);
      build(fresh);
      for (Trial *t : suspects)
        build({t});
      for (Trial &t : some) {
        if (!t.known) {
          if (at && over(until))
            return;
          if (t.outcome == Outcome::timed)
            tryOne(t);
          log.add(t);
        }
        if (t.outcome == Outcome::timed)
          best = std::min(best, t.time.median);
        trials.push_back(std::move(t));
      }
    }
  }

  void build(llvm::ArrayRef<Trial *> some) {
    if (some.empty())
      return;
    log.begin(llvm::ArrayRef<const Trial *>(some.begin(), some.size()));
    bench.build(some);
  }

  /// Checks a second time after `tooSlow`: a single stall of the machine must not go on record as the outcome.
  Outcome check(const Trial &t) {
    const Outcome first = bench.check(t, patience());
    return first == Outcome::tooSlow ? bench.check(t, patience()) : first;
  }

  void tryOne(Trial &t) {
    log.begin({&t});
    try {
      t.outcome = check(t);
    } catch (const InternalError &) {  // a fault on a GPU ends all work of the process there
      t.outcome = Outcome::crashed;
      log.add(t);
      throw;
    }
    if (t.outcome == Outcome::timed)
      t.time = bench.time(t, runs, 0.1, slower * best);
  }

  /// Indices of the trials that race: the fastest few, and the proposed schedule if it was timed. Compiles and checks
  /// those of earlier searches, which have no code yet, and omits those that fail.
  std::vector<size_t> chosen() {
    std::vector<size_t> order;
    for (size_t i = 1; i < trials.size(); ++i)
      if (trials[i].outcome == Outcome::timed && trials[i].time.median < slower * best)
        order.push_back(i);
    llvm::stable_sort(order, [&](size_t a, size_t b) { return trials[a].time.median < trials[b].time.median; });
    if (order.size() > finalists)
      order.resize(finalists);
    for (size_t i = 1; limits.proposed && i < trials.size(); ++i)
      if (trials[i].outcome == Outcome::timed && trials[i].schedule == *limits.proposed &&
          !llvm::is_contained(order, i))
        order.push_back(i);
    std::vector<Trial *> some;
    for (size_t i : order)
      if (trials[i].known)
        some.push_back(&trials[i]);
    build(some);
    llvm::erase_if(order, [&](size_t i) {
      Trial &t = trials[i];
      if (t.known && t.outcome == Outcome::timed) {
        log.begin({&t});
        t.outcome = check(t);
      }
      return t.outcome != Outcome::timed;
    });
    return order;
  }

  /// Each round times the default, every finalist and the default again. The difference of its two times is the noise.
  void race() {
    const std::vector<size_t> order = chosen();
    log.begin({});
    trials[0].raced = 1;
    if (order.empty())
      return;
    std::vector<std::vector<double>> ratios(order.size());
    std::vector<double> same;
    for (int round = 0; round < rounds && (round < 3 || !over(end)); ++round) {
      auto once = [&](size_t i) { return bench.time(trials[i], 1, 0, HUGE_VAL).median; };
      const double before = once(0);
      std::vector<double> times;
      for (size_t i : order)
        times.push_back(once(i));
      const double after = once(0), base = (before + after) / 2;
      same.push_back(std::abs(after - before) / (2 * base));
      for (size_t i = 0; i < order.size(); ++i)
        ratios[i].push_back(times[i] / base);
    }
    result.noise = medianOf(same);
    for (size_t i = 0; i < order.size(); ++i) {
      Trial &t = trials[order[i]];
      t.raced = medianOf(ratios[i]);
      if (t.raced < trials[result.best].raced && t.raced < 1 - result.noise)
        result.best = order[i];
    }
  }
};

}  // namespace

Timing timingOf(std::vector<double> seconds) {
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  return {medianOf(seconds), *least, *most, int(seconds.size())};
}

const char *nameOf(Outcome outcome) {
  return llvm::find_if(names, [&](const auto &n) { return n.first == outcome; })->second;
}

bool parseOutcome(llvm::StringRef name, Outcome &outcome) {
  auto *at = llvm::find_if(names, [&](const auto &n) { return name == n.second; });
  if (at == std::end(names))
    return false;
  outcome = at->first;
  return true;
}

Outcome CandidateBench::verdict(const Schedule &schedule) {
  std::vector<Trial> trial = propose({schedule});
  if (trial.empty())
    return Outcome::timed;  // the kernel equals the default's
  if (trial[0].outcome == Outcome::timed)
    build({&trial[0]});
  return trial[0].outcome == Outcome::timed ? check(trial[0], HUGE_VAL) : trial[0].outcome;
}

SearchResult searchSchedules(CandidateBench &bench, std::vector<Schedule> space, const SearchLimits &limits) {
  return Search(bench, std::move(space), limits).run();
}

SearchResult searchSchedules(const Op &fused, const Target &target, ThreadPool &pool, const SearchLimits &limits) {
  GroupBench bench(fused, target, pool, limits.cold);
  return searchSchedules(bench, scheduleSpace(fused, target), limits);
}

}  // namespace gptc
