// The search for the fastest schedule of a group. It measures candidates on the machine that this process runs on.
//
// A candidate is timed only after a check: it must give the same bits as the recipe's default schedule and write to its
// results and workspaces alone. So results do not depend on the choice, which may differ from run to run. The
// conformance suite compares the default with the interpreter in float64.
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
/// `seconds` of each run; must not be empty.
Timing timingOf(std::vector<double> seconds);

/// One measured schedule of a group.
struct Trial {
  enum class Outcome {
    timed,
    wrongBits,     // its results differ from those of the default
    wroteOutside,  // it wrote outside of its buffers, or to an operand
    notCompiled,   // the recipe, the emitter or the compiler failed
    spills,        // it needs more registers than a thread of the GPU has
    tooSlow,       // it was stopped, at many times the time of the default
    suspect,       // a fault ended the process while this one and others were being compiled
    crashed,       // a fault in this one ended the process, or all work on the GPU
  };
  Schedule schedule;
  Outcome outcome = Outcome::timed;
  Timing time;         // if the outcome is `timed`; fewer runs if the first ones were slow
  double raced = 0;    // time in the race relative to the default; 0: not in the race; 1: the default itself
  std::string source;  // hash of the emitted code; on the CPU Jit::sources
  double compileSeconds = 0;
  int registers = 0;   // per thread of a GPU
  bool known = false;  // found by an earlier search
  std::string why;     // the error, if the outcome is `notCompiled` or `spills`
};
/// The outcome's name, such as "wrong_bits". parseOutcome is the inverse; it returns false for an unknown name.
const char *nameOf(Trial::Outcome outcome);
bool parseOutcome(llvm::StringRef name, Trial::Outcome &outcome);

/// The trials of earlier searches of a group, and a sink for the trials of this one. The search adds each trial as soon
/// as it is made, so a search that ends early loses only the trial in progress.
class TrialLog {
public:
  virtual ~TrialLog() = default;
  /// The earlier trial with the same schedule and source; nullopt if there is none.
  virtual std::optional<Trial> find(const Trial &) { return std::nullopt; }
  /// Called before the search compiles these trials or runs one of them for the first time. Either may end the process
  /// by a fault. An empty list: no trial can end the process now.
  virtual void begin(llvm::ArrayRef<const Trial *>) {}
  /// Called with each trial that no earlier search has made, once its outcome is known.
  virtual void add(const Trial &) {}
};

/// Compiles, checks and times kernels of one fused op, in buffers of its own. Implementations: GroupBench
/// (group_bench.h) on the CPU, cuda::GroupBench on a GPU.
class CandidateBench {
public:
  virtual ~CandidateBench() = default;
  /// The default schedule, compiled and run. Its results are the reference.
  virtual const Trial &base() const = 0;
  /// A trial, with its source but not compiled, for each schedule whose kernel has not been proposed before. If no
  /// kernel can be made of the schedule, the outcome is `notCompiled`.
  virtual std::vector<Trial> propose(llvm::ArrayRef<Schedule> candidates) = 0;
  /// Compiles the trials together. Sets the outcome of a trial that does not compile.
  virtual void build(llvm::ArrayRef<Trial *> trials) = 0;
  /// Runs the trial once, for at most `seconds`, and checks what it wrote. `timed` means that it passed.
  virtual Trial::Outcome check(const Trial &trial, double seconds) = 0;
  /// Times up to `runs` calls. Stops after `seconds`, or after two calls that took more than `hopeless` seconds each.
  virtual Timing time(const Trial &trial, int runs, double seconds, double hopeless) = 0;

  /// Proposes, builds and checks one schedule. Returns `timed` if it passes.
  Trial::Outcome verdict(const Schedule &schedule);
};

struct SearchLimits {
  double seconds = 1;  // budget of the whole search, race included; the first batch of eight is tried in any case
  bool cold = false;   // empty the caches before each call, like a step whose memory exceeds them
  /// A schedule that is tried first and takes part in the race: the one that a compile uses without measurements.
  std::optional<Schedule> proposed = std::nullopt;
  TrialLog *log = nullptr;
};

/// The outcome of a search. `best` is the winner of the race, or the default if no trial beats it by more than `noise`.
struct SearchResult {
  std::vector<Trial> trials;  // in the order tried, the default first
  size_t best = 0;            // index into trials
  size_t candidates = 0;      // schedules in the space
  double noise = 0;           // median over rounds of |a - b| / (a + b), the default's two times in a round
};

/// 1. Compiles the space in batches, in its order, and checks and times each candidate a few times. Timing stops early
///    after two calls that are a quarter slower than the best so far. Trials of earlier searches are not repeated.
/// 2. The fastest few race: each round times all of them between two calls of the default, as the speed of the machine
///    varies over time. The least median of the ratios to the default wins.
SearchResult searchSchedules(CandidateBench &bench, std::vector<Schedule> space, const SearchLimits &limits);
/// The same on the CPU, over the space of the group's recipe.
SearchResult searchSchedules(const Op &fused, const Target &target, ThreadPool &pool, const SearchLimits &limits);

}  // namespace gptc
