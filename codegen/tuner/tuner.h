// The search for the fastest schedule of a group, by measuring candidates on the machine that this process runs on.
//
// What a candidate must be is settled before it is timed: it must give the bits that the recipe's default gives, which
// the conformance suite holds against the interpreter in float64, and write nowhere else. So a choice by measurement,
// which differs from run to run, never shows in a result.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

#include "llvm/ADT/ArrayRef.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

class ThreadPool;

/// Wall time of one call, in seconds.
struct Timing {
  double median = 0, least = 0, most = 0;
  int runs = 0;
  bool operator==(const Timing &) const = default;
};
Timing timingOf(std::vector<double> seconds);

/// One measured schedule of a group.
struct Trial {
  enum class Outcome {
    timed,
    wrongBits,     // not those of the default
    wroteOutside,  // of its buffers, or to an operand
    notCompiled,   // the recipe, the emitter or the compiler gave up
    spills,        // needs more registers than a thread of the GPU has
    tooSlow,       // given up before it ended, at many times the default's time
    suspect,       // one of several that were compiled when the process ended by a fault
    crashed,       // the process ended by a fault in it
  };
  Schedule schedule;
  Outcome outcome = Outcome::timed;
  Timing time;         // of timed ones; few runs where the first ones were hopeless
  double raced = 0;    // time over that of the default, alternating with it; 0: did not come that far; 1: the default
  std::string source;  // hash of the code that is emitted, Jit::sources on the CPU
  double compileSeconds = 0;
  int registers = 0;   // of a thread of a GPU
  bool known = false;  // from an earlier search
  std::string why;     // of one that was not compiled
};
/// "wrong_bits" and the like; and back, false where there is none of that name.
const char *nameOf(Trial::Outcome outcome);
bool parseOutcome(llvm::StringRef name, Trial::Outcome &outcome);

/// What earlier searches of a group found, and where this one's trials go as soon as they are made, so that a search
/// that ends early loses no more than the trial under way.
class TrialLog {
public:
  virtual ~TrialLog() = default;
  /// What is on record of a schedule for which this source is emitted.
  virtual std::optional<Trial> find(const Trial &) { return std::nullopt; }
  /// The process is about to compile these, or to run one of them for the first time: it may end there by a fault.
  virtual void begin(llvm::ArrayRef<const Trial *>) {}
  /// What has become of one that is not from an earlier search.
  virtual void add(const Trial &) {}
};

/// Kernels of one fused op, in memory of their own on the shapes that it has, of any schedule. One for each kind of
/// machine: GroupBench (group_bench.h) on the CPU, cuda::GroupBench on a GPU.
class CandidateBench {
public:
  virtual ~CandidateBench() = default;
  /// The default, compiled and run: its results are what others must give.
  virtual const Trial &base() const = 0;
  /// A trial for each schedule whose kernel has not been proposed before, with its source; not compiled yet. One of
  /// which no kernel can be made says so.
  virtual std::vector<Trial> propose(llvm::ArrayRef<Schedule> candidates) = 0;
  /// Compiles them side by side; those that do not compile say so.
  virtual void build(llvm::ArrayRef<Trial *> trials) = 0;
  /// Runs it once, for `seconds` at most, and looks at what it wrote.
  virtual Trial::Outcome check(const Trial &trial, double seconds) = 0;
  /// Up to `runs` calls, fewer once `seconds` are over or two were beyond `hopeless` seconds each.
  virtual Timing time(const Trial &trial, int runs, double seconds, double hopeless) = 0;

  /// The steps before time, of one schedule; `timed` where its bits are those of the default.
  Trial::Outcome verdict(const Schedule &schedule);
};

struct SearchLimits {
  double seconds = 1;  // to be spent on this group, the race of the best included; but eight are tried at least
  bool cold = false;   // caches are emptied before each call, as a step does whose memory no cache can hold
  /// One that is tried first and raced in any case: what a compile takes as long as nothing is measured.
  std::optional<Schedule> proposed = std::nullopt;
  TrialLog *log = nullptr;
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
///    times, with early stopping: one that is a quarter slower than the best so far is not timed again. What is on
///    record is neither compiled nor timed.
/// 2. The best few race: each in turn with the default, in several rounds, as a machine is not equally fast at all
///    times. The least median of ratios wins.
SearchResult searchSchedules(CandidateBench &bench, std::vector<Schedule> space, const SearchLimits &limits);
/// On the CPU, over the space of the group's recipe.
SearchResult searchSchedules(const Op &fused, const Target &target, ThreadPool &pool, const SearchLimits &limits);

}  // namespace gptc
