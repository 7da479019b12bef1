// A run of gptrun with several ranks, as a test looks at it from outside: by what it prints, and by the processes there
// are.
#pragma once

#include "tests/support/harness.h"

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace faults {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double secondsSince(Clock::time_point t);

/// What the machine takes from whoever would run: how much later than asked for this one's short sleeps have ended, all
/// together. Time limits that hold for a machine that runs are longer by that.
class Stalls {
public:
  Stalls();
  double seconds() const { return 1e-6 * double(us.load()); }

private:
  std::atomic<int64_t> us{0};
  std::jthread looks;
};

/// Everything that a run could leave behind: processes that know a folder, what is in /dev/shm, temporary files.
std::vector<int> processesOf(const std::string &folder);
std::vector<std::string> sharedMemory();

/// A tiny model for four ranks, and what a run makes that nobody disturbs.
struct Place : e2e::Workplace {
  /// Fails the test where a process, shared memory or a temporary file is left.
  void expectNothingLeft(const std::string &when);
  /// Of every run started here: a folder for temporary files of its own.
  std::map<std::string, std::string> environment();
  std::vector<std::string> sharedBefore = sharedMemory();
};

class Supervised {
public:
  Supervised(Place &place, std::vector<std::string> args, const std::map<std::string, std::string> &env);
  int pid() const { return process->pid(); }
  /// What it has printed so far.
  const std::string &output();
  /// Waits for a text behind `from` in the output; where it begins there, or npos where the run ends without.
  size_t waitFor(const std::string &text, size_t from);
  /// The last step that was printed behind `from`, -1 for none.
  long lastStep(size_t from);
  /// Waits until that step, or a later one, is printed behind `from`; false where the run ends without.
  bool waitForStep(long step, size_t from);
  /// The processes of the ranks that run now.
  std::map<int, int> ranks() const;
  /// To the process of a rank; fails the test where there is none.
  void signal(int rank, int number) const;
  bool ended();
  e2e::Result wait() { return process->wait(); }

private:
  std::string file, text;
  std::unique_ptr<e2e::Process> process;
};

}  // namespace faults
