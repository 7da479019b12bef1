// A crew: the ranks of one machine, as their launcher sees them. It is local (this process forks) or on another machine
// (remote_crew.h); the launcher treats both alike.
#pragma once

#include "runtime/launch/pulse.h"
#include "runtime/launch/rank_log.h"

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace gptc {

/// What to run on one machine.
struct CrewPlan {
  std::vector<std::string> command;      // of every rank; the first word is the program's path
  std::vector<std::string> environment;  // NAME=VALUE, besides the machine's environment and each rank's variables
  std::string folder;                    // working directory
  std::string outDir;                    // for the ranks' logs; "": none
  std::string rendezvous, token;         // host:port and secret of the meeting place
  int world = 1, nodes = 1, node = 0, ranks = 1;  // ranks in total; machines; this machine's number; its ranks
  int64_t resumeAtMost = -1;                      // as in World
  int restarts = 0;                               // as in World

  int first() const { return node * ranks; }
  std::string json() const;
  /// nullopt if the text is no CrewPlan.
  static std::optional<CrewPlan> parse(const std::string &json);
};

/// How a process ended.
struct RankEnd {
  int code = 0;
  int signal = 0;     // 0: it exited with `code`
  std::string error;  // the last coded errors that it wrote
  std::string said;   // the last other lines, of a rank whose output goes nowhere
  bool good() const { return code == 0 && signal == 0; }
};

struct RankStatus {
  int rank = 0;
  std::string host;
  pid_t pid = 0;  // 0: not started yet
  PulseView pulse;
  std::optional<RankEnd> end;
  std::chrono::milliseconds age{0};  // upper bound on the age of `pulse`
};

/// "rank 3 on node2 (pid 712)"; " after step 120, in all_reduce of 1024 f32 (its collective 5312)". Collectives are
/// counted from the start of the process, equally on all ranks.
std::string nameOf(const RankStatus &r);
std::string placeOf(const RankStatus &r);

class Crew {
public:
  virtual ~Crew() = default;
  /// Adds the descriptors to poll for reading; update() reads them.
  virtual void addDescriptors(std::vector<int> &fds) const = 0;
  /// Reads all available input, forwards rank 0's output, and updates `ranks`.
  virtual void update() = 0;
  /// Lets another machine know that this process lives, if it is time to. update() does it too.
  virtual void greet() {}
  /// Sends a signal to the running processes of all ranks of this crew, or of one.
  virtual void signal(int number, std::optional<int> rank = std::nullopt) = 0;
  /// Whether all ranks have ended and all their output has been read.
  virtual bool done() const = 0;
  /// Why this machine can no longer be reached; "" while it can.
  virtual std::string lost() const { return ""; }

  std::vector<RankStatus> ranks;
};

/// Where rank 0's output goes, if rank 0 is in this crew.
struct Voice {
  /// A file that rank 0 inherits as its output, perhaps a terminal, so that its live line works. -1: its output goes to
  /// `out`.
  int direct = -1;
  std::function<void(llvm::StringRef)> out, err;
  /// A file that rank 0 inherits as its standard input, and finds as World::input. -1: it is empty.
  int input = -1;
};

/// Starts the ranks on this machine. Each process leads its own process group, so that a terminal's Ctrl-C reaches only
/// the launcher, and dies with the thread that started it. Its standard input is empty, but for Voice::input. Throws
/// UserError(RankFailed) if the program cannot be started.
std::unique_ptr<Crew> startCrewHere(const CrewPlan &plan, const Voice &voice);

/// Writes all of `text`; false if the reader is gone.
bool writeAll(int fd, llvm::StringRef text);
/// The same by a thread of its own, as no poll() says of a terminal how much it takes, and a reader may pause. Gives
/// the error's number, 0 if there is none. Who does not wait for it leaves the thread behind, with its copy of the
/// text.
std::future<int> writeAside(int fd, std::string text);

}  // namespace gptc
