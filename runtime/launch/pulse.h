// A rank's heartbeat: a page of memory that the rank writes and its launcher reads, even after the rank's death.
//
// Writing needs no system call, so a rank can report its state as often as it likes. A separate thread beats four times
// a second and shows that the process is running; steps and current work show progress. If nobody listens (a run of one
// process), the page is private.
//
//   Pulse::get().step(120);                              120 steps are done
//   Pulse::Busy compiling("compiling");                  until the end of the block; may take any time
//   Pulse::Paced saving("saving a checkpoint");          until the end of the block; goesOn() reports progress
//   Pulse::Collective waiting("all_reduce of 1024 f32"); until the end of the block; may wait for other ranks
//   Pulse::get().waits(3); Pulse::get().moved();         within it: waits for a message of rank 3; it has come
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <mutex>
#include <string>

namespace gptc {

/// The content of the page at one moment.
struct PulseView {
  enum class State : uint32_t {
    busy,        // starting, compiling: may take any time
    stepping,    // computing a step
    collective,  // may be waiting for other ranks
    paced,       // saving, evaluating: reports progress piece by piece
  };
  uint64_t beats = 0;     // number of beats; 0: the thread has not begun
  uint64_t progress = 0;  // number of reports, except those of waiting
  int64_t cpuMs = 0;      // CPU milliseconds of the process; does not grow while it waits for a disk or a file server
  int64_t step = -1;      // steps done; -1: unknown yet
  int64_t begin = -1;     // the first step reported, where this process began; -1: unknown yet
  State state = State::busy;
  int waitsFor = -1;   // the rank whose message it needs now; -1: none
  uint64_t place = 0;  // position in the sequence of all collectives and their messages, equal on all ranks; 0: before
                       // the first
  std::string doing;
};

struct PulsePage;

/// The reader's end. Makes the page for one rank.
class PulseReader {
public:
  PulseReader();
  ~PulseReader();
  PulseReader(const PulseReader &) = delete;
  /// Descriptor for the rank, whose variable GPTC_PULSE must hold its number. Closed on exec unless the launcher
  /// prevents it.
  int fd() const { return file; }
  PulseView read() const;

private:
  int file = -1;
  PulsePage *page = nullptr;
};

/// The rank's end, for the training thread and one thread beside it that runs collectives. The state of the latter
/// shows while the former waits for it.
class Pulse {
public:
  /// This process's heartbeat. The first call finds the page by GPTC_PULSE and starts to beat.
  static Pulse &get();
  void step(int64_t done);
  /// Reports that a piece of a paced activity is done; from any thread.
  void goesOn();
  /// This rank cannot go on before rank `rank` has sent a message, or has received one.
  void waits(int rank);
  /// The message has come, or has been received.
  void moved();

  /// Sets what the rank does until the end of a block; then restores what it did before.
  class Doing {
  public:
    Doing(PulseView::State state, llvm::StringRef what);
    ~Doing();
    Doing(const Doing &) = delete;

  private:
    const PulseView::State stateBefore;
    const std::string before;
  };
  /// An activity that the launcher waits for even when the run has failed.
  static constexpr const char *saving = "saving a checkpoint";
  struct Busy : Doing {
    explicit Busy(llvm::StringRef what) : Doing(PulseView::State::busy, what) {}
  };
  struct Paced : Doing {
    explicit Paced(llvm::StringRef what) : Doing(PulseView::State::paced, what) {}
  };
  struct Collective : Doing {
    explicit Collective(llvm::StringRef what) : Doing(PulseView::State::collective, what) {}
  };

  /// Marks this thread as the one that runs collectives beside the training thread, until the end of a block.
  struct Beside {
    Beside();
    ~Beside();
  };
  /// Says that the training thread waits for the thread of collectives, until the end of a block.
  struct Awaits {
    Awaits();
    ~Awaits();
  };

private:
  struct Voice {
    PulseView::State state = PulseView::State::busy;
    std::string doing;
  };
  Pulse();
  Voice &own();
  void say(PulseView::State state, const std::string &what);
  void await(bool yes);
  void show();
  PulsePage *page;
  std::mutex mutex;
  Voice training{PulseView::State::busy, "starting"}, beside;
  bool awaits = false;
};

}  // namespace gptc
