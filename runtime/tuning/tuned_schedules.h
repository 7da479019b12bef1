// What a compile makes of records: which schedule a group gets.
#pragma once

#include "codegen/codegen.h"
#include "runtime/tuning/tuning_records.h"
#include "support/thread_pool.h"

#include <memory>

namespace gptc {

/// What counts of a problem's records on a machine: those of its last race, the fastest first, without what has turned
/// out wrong. The default is one of them.
std::vector<const TuningRecord *> lastRace(const TuningRecords &records, llvm::StringRef problem,
                                           llvm::StringRef machine);

/// Chooses schedules from records: the winner of a problem's last race; else that of the nearest shape of its family;
/// else the default.
class TunedSchedules : public ScheduleSource {
public:
  /// Records from elsewhere are checked on `pool`; null: one of its own, made when there is something to check.
  TunedSchedules(TuningRecords &records, const Target &target, ThreadPool *pool = nullptr);
  std::optional<Schedule> find(const Op &fused, const Target &target) override;

  /// Kernels, by where their schedules are from.
  struct Counts {
    int exact = 0;      // measured: the winner of a race, be it the default
    int nearest = 0;    // the winner of a race of the nearest shape
    int byDefault = 0;  // nothing is known
    int stale = 0;      // records whose kernel is emitted otherwise today
    int rejected = 0;   // schedules that are none of their recipe's space, or give other bits
    int checked = 0;    // records from elsewhere, checked here
  } counts;

  /// What is taken of the nearest shape as long as this one has not been measured.
  std::optional<Schedule> nearest(const Op &fused) const;
  /// Whether a race is on record, be it without a rival, whose default and whose best are emitted as they were.
  bool isKnown(const Op &fused);
  /// Trial::source of a schedule; "" where no kernel can be made of it.
  std::string sourceOf(const Op &fused, const Schedule &s);
  /// Runs a record's schedule and the default here. What comes of it goes on record where it is news; one that ends
  /// the process by a fault does so once. UserError(OutOfMemory) where there is no memory for it.
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
  /// Whether a tuner may choose it.
  bool isCandidate(const Op &fused, const Schedule &s) const;
};

}  // namespace gptc
