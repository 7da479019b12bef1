#include "runtime/launch/rank_watch.h"

#include "ir/diagnostics.h"

#include <algorithm>

namespace gptc {
namespace {

constexpr size_t kStepsKept = 8;
constexpr int kFewestLooks = 20;      // to compare ranks by
constexpr double kWaits = 0.5;        // of the time, most others
constexpr double kHardlyWaits = 0.1;  // the slow one

double seconds(RankWatch::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

void RankWatch::look(const std::vector<RankStatus> &ranks, Clock::time_point now) {
  if (!last)
    windowAt = now;
  // Who looks may have been stopped too, with the whole machine or by Ctrl-Z: that time counts for nobody.
  else if (const Clock::duration gap = now - *last; gap > limits.silence / 4)
    for (Seen &s : seen)
      for (Clock::time_point *at : {&s.beatAt, &s.progressAt, &s.stepAt})
        *at += gap;
  last = now;
  for (size_t i = 0; i < seen.size(); ++i) {
    Seen &s = seen[i];
    const PulseView &p = ranks[i].pulse;
    s.alive = ranks[i].pid > 0 && !ranks[i].end;
    if (p.beats != s.pulse.beats)
      s.beatAt = now;
    if (p.progress != s.pulse.progress)
      s.progressAt = now;
    if (p.step != s.pulse.step) {
      if (s.pulse.step >= 0 && p.step > s.pulse.step) {
        s.steps.push_back((now - s.stepAt) / (p.step - s.pulse.step));
        if (s.steps.size() > kStepsKept)
          s.steps.pop_front();
      }
      s.stepAt = now;
    }
    if (p.state != PulseView::State::busy) {
      if (s.looks++ == 0)
        s.firstStep = p.step;
      s.waiting += p.state == PulseView::State::collective;
    }
    s.pulse = p;
  }
}

std::optional<RankWatch::Finding> RankWatch::stuck() const {
  if (auto found = silent(limits.silence))
    return found;
  for (size_t i = 0; i < seen.size(); ++i) {
    const Seen &s = seen[i];
    if (!s.alive || s.pulse.beats == 0 || s.pulse.state != PulseView::State::stepping || s.steps.empty())
      continue;
    const Clock::duration longest = *std::max_element(s.steps.begin(), s.steps.end());
    const Clock::duration limit = std::max<Clock::duration>(limits.silence, limits.steps * longest);
    if (*last - s.progressAt > limit)
      return Finding{int(i), fmt::format("runs but gets nowhere for {:.1f} s; a step took {:.3g} s",
                                         seconds(*last - s.progressAt), seconds(longest))};
  }
  return std::nullopt;
}

std::optional<RankWatch::Finding> RankWatch::silent(std::chrono::milliseconds least) const {
  std::optional<Finding> found;
  Clock::duration longest = least;
  for (size_t i = 0; i < seen.size(); ++i)
    if (const Seen &s = seen[i]; s.alive && s.pulse.beats > 0 && *last - s.beatAt > longest) {
      longest = *last - s.beatAt;
      found = Finding{int(i), fmt::format("has given no heartbeat for {:.1f} s: it is stopped, or its machine is",
                                          seconds(longest))};
    }
  return found;
}

std::optional<RankWatch::Finding> RankWatch::slow() {
  if (!last || *last - windowAt < limits.window)
    return std::nullopt;
  windowAt = *last;
  std::vector<double> shares;
  for (const Seen &s : seen)
    if (s.looks >= kFewestLooks && s.pulse.step > s.firstStep)
      shares.push_back(double(s.waiting) / s.looks);
  std::optional<Finding> found;
  if (seen.size() > 1 && shares.size() == seen.size()) {
    for (size_t i = 0; i < seen.size(); ++i) {
      std::vector<double> others = shares;
      others.erase(others.begin() + long(i));
      std::nth_element(others.begin(), others.begin() + long(others.size() / 2), others.end());
      const double typical = others[others.size() / 2];
      const bool isSlow = shares[i] < kHardlyWaits && typical > kWaits;
      if (isSlow && !seen[i].tolerated && !found)
        found = Finding{int(i), fmt::format("is slow: the others wait {:.0f}% of the time, it waits {:.0f}%",
                                            100 * typical, 100 * shares[i])};
      seen[i].tolerated = isSlow;
    }
  }
  for (Seen &s : seen)
    s.looks = s.waiting = 0;
  return found;
}

}  // namespace gptc
