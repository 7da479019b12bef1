#include "runtime/launch/rank_watch.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace gptc {
namespace {

constexpr size_t kStepsKept = 8;
constexpr int kFewestLooks = 20;   // fewer do not suffice to compare ranks
constexpr double kMostly = 0.5;    // share of time that the others wait for a slow rank
constexpr double kComputes = 0.2;  // least share of a CPU that a spinning rank uses, even if ranks share one

double seconds(RankWatch::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

void RankWatch::look(const std::vector<RankStatus> &ranks, Clock::time_point now) {
  if (!last)
    windowAt = now;
  // The watching process may have been stopped too, with the machine or by Ctrl-Z: that time does not count.
  else if (const Clock::duration gap = now - *last; gap > limits.silence / 4)
    for (Seen &s : seen)
      for (Clock::time_point *at : {&s.startAt, &s.beatAt, &s.progressAt, &s.stepAt})
        *at += gap;
  last = now;
  for (size_t i = 0; i < seen.size(); ++i) {
    Seen &s = seen[i];
    const PulseView &p = ranks[i].pulse;
    const bool alive = ranks[i].pid > 0 && !ranks[i].end;
    if (alive && !s.alive)
      s.startAt = now;
    s.alive = alive;
    if (p.beats != s.pulse.beats)
      s.beatAt = now;
    if (p.progress != s.pulse.progress)
      s.progressAt = now, s.cpuAtProgress = p.cpuMs;
    if (p.step != s.pulse.step) {
      if (s.pulse.step >= 0 && p.step > s.pulse.step) {
        s.steps.push_back((now - s.stepAt) / (p.step - s.pulse.step));
        if (s.steps.size() > kStepsKept)
          s.steps.pop_front();
      }
      s.stepAt = now;
    }
    if (p.state == PulseView::State::busy || p.state == PulseView::State::paced)
      s.stepAt = now;  // saving and evaluating are not part of a step
    if (p.place != s.pulse.place)
      s.placeAt = now;
    s.pulse = p;
  }
  compare(ranks, now);
}

/// Counts a look at which exactly one rank is behind all others and one of these waits. A rank's own state does not
/// matter, because a rank short of CPU time may spend it anywhere, also in collectives. News of remote ranks is a
/// little old: a rank counts as waiting if it has waited for longer than that.
void RankWatch::compare(const std::vector<RankStatus> &ranks, Clock::time_point now) {
  std::chrono::milliseconds age{0};
  for (size_t i = 0; i < seen.size(); ++i) {
    const PulseView::State state = seen[i].pulse.state;
    if (!seen[i].alive || seen[i].pulse.place == 0 || state == PulseView::State::busy ||
        state == PulseView::State::paced)
      return;
    age = std::max(age, ranks[i].age);
  }
  ++looks;
  auto before = [](const Seen &a, const Seen &b) { return a.pulse.place < b.pulse.place; };
  const auto last = std::min_element(seen.begin(), seen.end(), before);
  bool waits = false;
  for (auto s = seen.begin(); s != seen.end(); ++s) {
    if (s != last && s->pulse.place == last->pulse.place)
      return;
    waits |= s != last && s->pulse.state == PulseView::State::collective && now - s->placeAt >= age;
  }
  last->behind += waits;
}

std::optional<RankWatch::Finding> RankWatch::stuck() const {
  if (auto found = silent(limits.silence))
    return found;
  for (size_t i = 0; i < seen.size(); ++i) {
    const Seen &s = seen[i];
    const bool paced = s.pulse.state == PulseView::State::paced;
    if (!s.alive || s.pulse.beats == 0 || !(paced || s.pulse.state == PulseView::State::stepping) || s.steps.empty())
      continue;
    const Clock::duration longest = longestStep(), still = *last - s.progressAt;
    const Clock::duration limit = std::max<Clock::duration>(limits.silence, limits.steps * longest);
    // A piece of a checkpoint or an evaluation takes less than a step, but a file system may be slow.
    if (still > limit && (!paced || computes(s)))
      return Finding{int(i), fmt::format("runs but gets nowhere for {:.1f} s; a step took {:.3g} s", seconds(still),
                                         seconds(longest))};
  }
  return standstill();
}

/// Whether it has used the CPU since its last progress, so it spins.
bool RankWatch::computes(const Seen &s) const {
  const std::chrono::milliseconds computed(s.pulse.cpuMs - s.cpuAtProgress);
  return computed > kComputes * (*last - s.progressAt);
}

/// Longest of the last steps. Ranks complete steps together, but a rank that waits for another one's save counts that
/// as its own step; so the smallest value of any rank is right.
RankWatch::Clock::duration RankWatch::longestStep() const {
  Clock::duration least = Clock::duration::max();
  for (const Seen &s : seen)
    if (!s.steps.empty())
      least = std::min(least, *std::max_element(s.steps.begin(), s.steps.end()));
  return least;
}

/// Finds the culprit if all ranks are in collectives and no message has arrived for as long as a hang takes. No single
/// heartbeat shows it: a rank hangs in its collective, or a link is broken. Follow from each waiting rank to the one it
/// waits for, until a rank that waits for nobody, or a circle. Waiting takes little CPU, spinning takes all.
std::optional<RankWatch::Finding> RankWatch::standstill() const {
  Clock::duration still = Clock::duration::max();
  bool stepsKnown = true;
  for (const Seen &s : seen) {
    if (!s.alive || s.pulse.state != PulseView::State::collective)
      return std::nullopt;
    stepsKnown &= !s.steps.empty();
    still = std::min(still, *last - s.progressAt);
  }
  const Clock::duration limit =
      stepsKnown ? std::max<Clock::duration>(limits.silence, limits.steps * longestStep()) : limits.start;
  if (seen.size() < 2 || still <= limit)
    return std::nullopt;
  int at = 0;
  for (size_t hops = 0; hops < seen.size(); ++hops) {
    const int next = seen[size_t(at)].pulse.waitsFor;
    if (next < 0 || next >= int(seen.size()))
      return Finding{at, fmt::format("hangs within a collective: no rank has got anything for {:.1f} s, and it waits "
                                     "for none",
                                     seconds(still))};
    at = next;
  }
  // After as many hops as there are ranks, the walk is in a circle.
  std::vector<int> circle = {at};
  for (int next; (next = seen[size_t(circle.back())].pulse.waitsFor) != at;)
    circle.push_back(next);
  std::vector<int> spin = circle;
  llvm::erase_if(spin, [&](int r) { return !computes(seen[size_t(r)]); });
  if (spin.size() == 1)
    return Finding{
        spin[0], fmt::format("spins within a collective, or a link to it is cut: no rank has got anything for {:.1f} s",
                             seconds(still))};
  return Finding{at, fmt::format("is one of those that wait for each other ({}), and no rank has got anything for "
                                 "{:.1f} s: one of them hangs, or a link between them is cut",
                                 fmt::join(circle, ", "), seconds(still))};
}

std::optional<RankWatch::Finding> RankWatch::silent(std::chrono::milliseconds least) const {
  std::optional<Finding> found;
  Clock::duration longest = least;
  for (size_t i = 0; i < seen.size(); ++i)
    if (const Seen &s = seen[i]; s.alive && s.pulse.beats == 0 && *last - s.startAt > limits.start) {
      return Finding{
          int(i), fmt::format("was started {:.0f} s ago and has given no heartbeat yet", seconds(*last - s.startAt))};
    } else if (s.alive && s.pulse.beats > 0 && *last - s.beatAt > longest) {
      longest = *last - s.beatAt;
      found = Finding{int(i), fmt::format("has given no heartbeat for {:.1f} s (it is stopped, or its machine is)",
                                          seconds(longest))};
    }
  return found;
}

std::optional<RankWatch::Finding> RankWatch::slow() {
  if (!last || *last - windowAt < limits.window)
    return std::nullopt;
  for (const Seen &s : seen)
    if (s.pulse.step < s.firstStep + 2)
      return std::nullopt;
  std::optional<Finding> found;
  for (size_t i = 0; i < seen.size(); ++i) {
    Seen &s = seen[i];
    const double share = looks ? double(s.behind) / looks : 0;
    const bool isSlow = looks >= kFewestLooks && share > kMostly;
    if (isSlow && !s.tolerated && !found)
      found = Finding{int(i), fmt::format("is slow: the others wait for it {:.0f}% of the time", 100 * share)};
    s.tolerated = isSlow;
    s.behind = 0;
    s.firstStep = s.pulse.step;
  }
  looks = 0;
  windowAt = *last;
  return found;
}

}  // namespace gptc
