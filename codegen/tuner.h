// The search for the fastest schedule of a group: by measuring candidates on the CPU that this process runs on.
//
// What a candidate must be is settled before it is timed: it must give the bits that the recipe's default gives, which
// the conformance suite holds against the interpreter in float64, and write nowhere else. So a choice by measurement,
// which differs from run to run, never shows in a result.
#pragma once

#include "codegen/codegen.h"
#include "codegen/thread_pool.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// Wall time of one call, in seconds.
struct Timing {
  double median = 0, least = 0, most = 0;
  int runs = 0;
  bool operator==(const Timing &) const = default;
};

/// One measured schedule of a group.
struct Trial {
  enum class Outcome {
    timed,
    wrongBits,     // not those of the default
    wroteOutside,  // of its buffers
  };
  Schedule schedule;
  Outcome outcome = Outcome::timed;
  Timing time;         // of timed ones; few runs where the first ones were hopeless
  double raced = 0;    // time over that of the default, alternating with it; 0: did not come that far
  std::string source;  // Jit::sources
  double compileSeconds = 0;
};

/// The kernels of one fused op in memory of their own, on the shapes that it has: operands hold random numbers, and
/// indices that are within their table.
class GroupBench {
public:
  /// Compiles and runs the default schedule, whose results are what others must give. `cold`: caches are emptied before
  /// each call that is timed, as a step does whose memory no cache can hold. UserError(OutOfMemory) where buffers do
  /// not fit.
  GroupBench(const Op &fused, const Target &target, ThreadPool &pool, bool cold);
  ~GroupBench();

  /// Compiled side by side. Candidates whose kernel is one that is there already are left out.
  std::vector<Trial> compile(llvm::ArrayRef<Schedule> candidates);
  /// Runs it once and looks at what it wrote.
  Trial::Outcome check(const Trial &trial);
  /// Up to `runs` calls, fewer once `seconds` are over or two were beyond `hopeless` seconds each.
  Timing time(const Trial &trial, int runs, double seconds, double hopeless);
  /// The default, as the first trial.
  const Trial &base() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

struct SearchLimits {
  double seconds =
      1;  // to be spent on this group, the race of the best included; but eight candidates are tried at least
  bool cold = false;
};

/// What became of a search; trials in the order tried, the default first. `best` is among them: the winner of a race in
/// turn with the default, or the default where none wins by more than `noise` of that race.
struct SearchResult {
  std::vector<Trial> trials;
  size_t best = 0;
  size_t candidates = 0;  // in the space
  double noise = 0;       // half the spread of the default against itself, relative
};

/// 1. The space, in the order of the recipe's estimate, is compiled in batches, each candidate checked and timed a few
///    times, with early stopping: one that is a quarter slower than the best so far is not timed again.
/// 2. The best few race: each in turn with the default, in several rounds, as a machine is not equally fast at all
///    times. The least median of ratios wins.
SearchResult searchSchedules(const Op &fused, const Target &target, ThreadPool &pool, const SearchLimits &limits);

}  // namespace gptc
