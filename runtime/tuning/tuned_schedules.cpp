#include "runtime/tuning/tuned_schedules.h"

#include "codegen/tuner/group_bench.h"
#include "runtime/cuda/group_bench.h"
#include "runtime/tuning/tuning_log.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <map>

namespace gptc {

std::vector<const TuningRecord *> lastRace(const TuningRecords &records, llvm::StringRef problem,
                                           llvm::StringRef machine) {
  std::string own, any;
  std::vector<const TuningRecord *> wrong, race;
  for (const TuningRecord &r : records.all())
    if (r.problem == problem && r.machine == machine) {
      if (r.raced > 0) {
        any = std::max(any, r.session);
        // A race that was run here includes its default. A checked winner from elsewhere comes without its default and
        // bears the name of its race, which does not tell when that was by this machine's clock.
        if (!r.fromElsewhere && r.isDefault)
          own = std::max(own, r.session);
      }
      if (r.isWrong())
        wrong.push_back(&r);
    }
  const std::string &session = own.empty() ? any : own;  // measurements made here come first
  for (const TuningRecord &r : records.all())
    if (r.raced > 0 && r.session == session && r.problem == problem && r.machine == machine &&
        llvm::none_of(wrong, [&](auto *w) { return w->schedule == r.schedule && w->source == r.source; }))
      race.push_back(&r);
  llvm::stable_sort(race, [](auto *a, auto *b) {
    return std::pair(a->raced, a->fromElsewhere) < std::pair(b->raced, b->fromElsewhere);
  });
  return race;
}

TunedSchedules::TunedSchedules(TuningRecords &records, const Target &target, ThreadPool *pool)
    : target(target), records(records), machine(records.all().empty() && target.isCuda() ? "" : fingerprintOf(target)),
      pool(pool) {
  if (!target.isCuda())
    jit.emplace(target, "");
}

std::string TunedSchedules::sourceOf(const Op &fused, const Schedule &s) {
  try {
    const LoweredGroup lowered = lowerGroup(fused, s, target);
    return jit ? jit->sources({&lowered.kernel})[0] : cuda::sourceOf(lowered, s, target, machine);
  } catch (const InternalError &) {
    return "";
  }
}

// Only the library knows the names of its algorithms, and refuses unknown ones.
bool TunedSchedules::isCandidate(const Op &fused, const Schedule &s) const {
  Schedule call = s;
  call.algorithm = 0;
  return (s.library && s.algorithm && call == defaultSchedule(fused, target)) ||
         llvm::is_contained(scheduleSpace(fused, target), s);
}

bool TunedSchedules::isKnown(const Op &fused) {
  const std::vector<const TuningRecord *> race = lastRace(records, problemOf(fused, target).problem, machine);
  auto base = llvm::find_if(race, [](const TuningRecord *r) { return r->isDefault; });
  if (base == race.end())
    return false;
  for (const TuningRecord *r : {*base, race[0]}) {
    if (!r->isDefault && (r->fromElsewhere || !isCandidate(fused, r->schedule)))
      return false;
    if (sourceOf(fused, r->schedule) != r->source)
      return false;
  }
  return true;
}

TunedSchedules::Trust TunedSchedules::trusted(const TuningRecord &r, const Op &fused) {
  if (sourceOf(fused, r.schedule) != r.source)
    return Trust::stale;
  if (!r.fromElsewhere)
    return Trust::yes;
  try {
    return check(r, fused) == Trial::Outcome::timed ? Trust::yes : Trust::wrong;
  } catch (const UserError &) {  // out of memory: as if there were no record
    return Trust::unknown;
  }
}

Trial::Outcome TunedSchedules::check(const TuningRecord &r, const Op &fused) {
  if (!pool)
    pool = (own = std::make_unique<ThreadPool>(target.isCuda() ? hostTarget().threads : target.threads)).get();
  TuningRecord checked = r;
  checked.fromElsewhere = false;
  Trial trial;
  trial.schedule = r.schedule, trial.source = r.source;
  {
    RecordingLog log(records, problemOf(fused, target), r.session);
    log.begin({&trial});
    try {
      if (target.isCuda()) {
        const cuda::Gpu gpu(target);
        checked.outcome = cuda::GroupBench(gpu, fused, target, *pool, false).verdict(r.schedule);
      } else {
        checked.outcome = GroupBench(fused, target, *pool, false).verdict(r.schedule);
      }
    } catch (const InternalError &) {  // a fault on a GPU, which ends its context
      trial.outcome = Trial::Outcome::crashed;
      log.add(trial);
      throw;
    }
  }
  ++counts.checked;
  const bool good = checked.outcome == Trial::Outcome::timed;
  if (!good)
    checked.raced = 0, checked.time = {};
  if (!good || r.fromElsewhere)
    records.append({checked});
  records.keepGroup(fused, target);
  return checked.outcome;
}

/// The distance of two sizes, in powers of two.
static double distance(int64_t a, int64_t b) {
  return a == b ? 0 : a <= 0 || b <= 0 ? HUGE_VAL : std::abs(std::log2(double(a) / double(b)));
}

/// The schedule in the space with the same register tile as `like` and the closest other sizes; null if none has that
/// tile.
static const Schedule *closest(const std::vector<Schedule> &space, const Schedule &like) {
  const Schedule *best = nullptr;
  double least = HUGE_VAL;
  for (const Schedule &s : space) {
    if (s.vec != like.vec || s.mr != like.mr || s.nr != like.nr || s.packB != like.packB || s.unroll != like.unroll)
      continue;
    const double d = distance(s.kc, like.kc) + distance(s.mc, like.mc) + distance(s.nc, like.nc) +
                     distance(s.task, like.task) + distance(s.qb, like.qb) + distance(s.kb, like.kb);
    if (d < least) {
      least = d;
      best = &s;
    }
  }
  return best;
}

// A shape is near if each of its extents is within a factor of two. Because this shape has not been measured, the
// winner counts only if it won clearly, and only its register tile is taken: how much memory a task uses suits one size
// only.
std::optional<Schedule> TunedSchedules::nearest(const Op &fused) const {
  constexpr double clearly = 0.97;
  const TuningRecord p = problemOf(fused, target);
  std::map<std::string, double> near;  // problem -> distance
  for (const TuningRecord &r : records.all()) {
    if (r.raced <= 0 || r.family != p.family || r.machine != machine || r.extents.size() != p.extents.size() ||
        r.fromElsewhere)
      continue;
    double d = 0;
    for (size_t i = 0; i < r.extents.size(); ++i) {
      const double one = distance(r.extents[i], p.extents[i]);
      d = one > 1 ? HUGE_VAL : d + one;
    }
    if (d < HUGE_VAL)
      near.try_emplace(r.problem, d);
  }
  std::string best;
  double least = HUGE_VAL;
  for (const auto &[problem, d] : near)
    if (d < least) {
      least = d;
      best = problem;
    }
  if (best.empty())
    return std::nullopt;
  const std::vector<const TuningRecord *> race = lastRace(records, best, machine);
  if (race.empty() || race[0]->isDefault || race[0]->fromElsewhere || race[0]->raced > clearly ||
      race[0]->schedule.library || !race[0]->schedule.mr)
    return std::nullopt;
  const std::vector<Schedule> space = scheduleSpace(fused, target);
  const Schedule *s = closest(space, race[0]->schedule);
  return s ? std::optional(*s) : std::nullopt;
}

std::optional<Schedule> TunedSchedules::find(const Op &fused, const Target &planned) {
  auto byDefault = [&] {
    ++counts.byDefault;
    return std::nullopt;
  };
  if (machine.empty())  // the GPU is not in this machine
    return byDefault();
  const TuningRecord p = problemOf(fused, target);
  std::vector<const TuningRecord *> race = lastRace(records, p.problem, machine);
  if (race.empty()) {
    std::optional<Schedule> s = nearest(fused);
    if (!s)
      return byDefault();
    ++counts.nearest;
    return s;
  }
  for (size_t i = 0; i < race.size(); ++i) {
    const TuningRecord r = *race[i];
    if (r.isDefault || r.raced >= 1 - r.noise) {  // otherwise no faster than the default
      ++counts.exact;
      // What won is the default with the threads measured with.
      const Schedule base = defaultSchedule(fused, target);
      return base == defaultSchedule(fused, planned) ? std::nullopt : std::optional(base);
    }
    if (!isCandidate(fused, r.schedule)) {
      ++counts.rejected;
      continue;
    }
    switch (trusted(r, fused)) {
    case Trust::yes:
      ++counts.exact;
      return r.schedule;
    case Trust::wrong:  // which is on record now
      ++counts.rejected;
      race = lastRace(records, p.problem, machine);
      i = size_t(-1);
      continue;
    case Trust::stale:
      ++counts.stale;
      return byDefault();
    case Trust::unknown:
      return byDefault();
    }
  }
  return byDefault();
}

}  // namespace gptc
