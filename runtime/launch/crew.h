// The ranks of one machine, as who started them sees them. A crew is here (this process forks) or on another machine
// (remote_crew.h); the launcher treats both alike.
#pragma once

#include "runtime/launch/pulse.h"
#include "runtime/launch/rank_log.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace gptc {

/// What is to run on one machine.
struct CrewPlan {
  std::vector<std::string> command;      // of every rank; the first word is a program's path
  std::vector<std::string> environment;  // NAME=VALUE, beside what the machine has and what a rank is told
  std::string folder;                    // the current one
  std::string outDir;                    // for the ranks' logs
  std::string rendezvous, token;
  int world = 1, nodes = 1, node = 0, ranks = 1;
  int64_t resumeAtMost = -1;
  int restarts = 0;

  int first() const { return node * ranks; }
  std::string json() const;
  /// nullopt where the text is no such plan.
  static std::optional<CrewPlan> parse(const std::string &json);
};

/// How a process ended.
struct RankEnd {
  int code = 0;
  int signal = 0;     // 0: it exited with `code`
  std::string error;  // the coded errors that it wrote last
  bool good() const { return code == 0 && signal == 0; }
};

struct RankStatus {
  int rank = 0;
  std::string host;
  pid_t pid = 0;  // 0: not started yet
  PulseView pulse;
  std::optional<RankEnd> end;
  std::chrono::milliseconds age{0};  // of `pulse`, at most
};

/// "rank 3 on node2 (pid 712)"; " after step 120, in all_reduce of 1024 f32 (its collective 5312)": counted
/// from the start of the process, which all ranks do alike.
std::string nameOf(const RankStatus &r);
std::string placeOf(const RankStatus &r);

class Crew {
public:
  virtual ~Crew() = default;
  /// To poll for reading. What is ready is read by update().
  virtual void addDescriptors(std::vector<int> &fds) const = 0;
  /// Reads what there is to read, passes rank 0's words on, and brings `ranks` up to date.
  virtual void update() = 0;
  /// To the processes of all ranks of this crew, or of one, that have not ended.
  virtual void signal(int number, std::optional<int> rank = std::nullopt) = 0;
  /// Whether all ranks have ended and all they wrote has been read.
  virtual bool done() const = 0;
  /// Why this machine cannot be reached any more; "" while it can.
  virtual std::string lost() const { return ""; }

  std::vector<RankStatus> ranks;
};

/// Where rank 0's words go, should it be in this crew.
struct Voice {
  /// Rank 0 has this file, and so perhaps the terminal, itself: its live line works. -1: `out` gets what it writes.
  int direct = -1;
  std::function<void(llvm::StringRef)> out, err;
};

/// The ranks on this machine. Their processes lead groups of their own, so that a terminal's Ctrl-C reaches only who
/// started them, and die with the thread that started them. Their standard input is empty.
/// UserError(RankFailed) where the program cannot be started.
std::unique_ptr<Crew> startCrewHere(const CrewPlan &plan, const Voice &voice);

/// Writes all of it; false where the reader is gone.
bool writeAll(int fd, llvm::StringRef text);
}  // namespace gptc
