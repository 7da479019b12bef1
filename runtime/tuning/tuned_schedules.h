// Chooses the schedule of each group from tuning records when a model is compiled.
#pragma once

#include "codegen/codegen.h"
#include "runtime/tuning/tuning_records.h"
#include "support/thread_pool.h"

#include <memory>

namespace gptc {

/// The records of a problem that count on a machine: those of its last race without records found wrong later, fastest
/// first. The default schedule is one of them.
std::vector<const TuningRecord *> lastRace(const TuningRecords &records, llvm::StringRef problem,
                                           llvm::StringRef machine);

/// Chooses a schedule: the winner of the problem's last race; else that of the nearest shape of its family; else the
/// default.
class TunedSchedules : public ScheduleSource {
public:
  /// `target`: that of the measurements that count. `pool`: checks records from elsewhere; null: makes its own when
  /// needed.
  TunedSchedules(TuningRecords &records, const Target &target, ThreadPool *pool = nullptr);
  std::optional<Schedule> find(const Op &fused, const Target &target) override;

  /// Number of kernels by origin of their schedules.
  struct Counts {
    int exact = 0;      // measured: the winner of a race, which may be the default
    int nearest = 0;    // the winner of a race of the nearest shape
    int byDefault = 0;  // no record
    int stale = 0;      // records whose kernel this version emits differently
    int rejected = 0;   // schedules outside their recipe's space, or with other bits
    int checked = 0;    // records from elsewhere, checked here
  } counts;

  /// The schedule of the nearest measured shape, for a shape that has not been measured.
  std::optional<Schedule> nearest(const Op &fused) const;
  /// Whether a race is on record, even one without rivals, for whose default and winner this version emits the same
  /// source.
  bool isKnown(const Op &fused);
  /// Trial::source of a schedule; "" if no kernel can be made of it.
  std::string sourceOf(const Op &fused, const Schedule &s);
  /// Runs a record's schedule and the default on this machine, and records a new result. A schedule that crashes the
  /// process does so only once, because the crash is recorded. Throws UserError(OutOfMemory).
  Trial::Outcome check(const TuningRecord &r, const Op &fused);

private:
  const Target target;
  TuningRecords &records;
  const std::string machine;
  ThreadPool *pool;
  std::unique_ptr<ThreadPool> own;
  std::optional<Jit> jit;

  enum class Trust { yes, stale, wrong, unknown };
  Trust trusted(const TuningRecord &r, const Op &fused);
  /// Whether the schedule is one that a tuner may choose.
  bool isCandidate(const Op &fused, const Schedule &s) const;
};

}  // namespace gptc
