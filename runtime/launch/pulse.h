// A rank's heartbeat: a page of memory that the rank writes and whoever started it reads, also after the rank's death.
//
// Writing costs no call to the system, so a rank may tell as often as it likes where it is. A thread of its own beats
// four times a second and shows that the process runs at all; steps and what it is doing show whether it gets anywhere.
// Where nobody listens (a run of one process) all of it goes to a page that nobody reads.
//
//   Pulse::get().step(120);                              120 steps are done
//   Pulse::Busy compiling("compiling");                  until the end of the block; may take as long as it likes
//   Pulse::Paced saving("saving a checkpoint");          the same, but Pulse::get().goesOn() tells of each piece of it
//   Pulse::Collective waiting("all_reduce of 1024 f32"); until the end of the block; others may be what is waited for
//   Pulse::get().waits(3); Pulse::get().moved();         within it: nothing goes on without rank 3; rank 3 has come
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <mutex>
#include <string>

namespace gptc {

/// What the page says at one moment.
struct PulseView {
  enum class State : uint32_t {
    busy,        // starting, compiling: what takes the time it takes
    stepping,    // within a step, in this rank's own work
    collective,  // where it may wait for others
    paced,       // saving, evaluating: what tells of each piece that it has done
  };
  uint64_t beats = 0;     // of the thread; 0: it has not begun
  uint64_t progress = 0;  // counts whatever the rank tells, but for whom it waits
  int64_t cpuMs = 0;      // time that the process has computed; what waits for a disk or a file server does not
  int64_t step = -1;      // steps done; -1: not known yet
  int64_t begin = -1;     // the first that was told: where this process has begun
  State state = State::busy;
  int waitsFor = -1;   // the rank whose message it needs now; -1: none
  uint64_t place = 0;  // in the order of all collectives and their messages, which ranks go through alike; 0: before
  std::string doing;
};

struct PulsePage;

/// The reader's end: makes the page, for one rank.
class PulseReader {
public:
  PulseReader();
  ~PulseReader();
  PulseReader(const PulseReader &) = delete;
  /// For the rank, whose variable GPTC_PULSE must hold its number; closed on exec unless the rank's starter keeps it.
  int fd() const { return file; }
  PulseView read() const;

private:
  int file = -1;
  PulsePage *page = nullptr;
};

/// The rank's end, for the thread that trains, and for one beside it that carries collectives out meanwhile: what that
/// one does shows while the first waits for it.
class Pulse {
public:
  /// Of this process. The first call finds the page by GPTC_PULSE and starts to beat.
  static Pulse &get();
  void step(int64_t done);
  /// In what is paced, from any thread: a piece is done.
  void goesOn();
  /// Nothing goes on before this rank's message is here, or has been taken; and it has been.
  void waits(int rank);
  void moved();

  /// Says what the rank does until the end of a block, and then what it did before.
  class Doing {
  public:
    Doing(PulseView::State state, llvm::StringRef what);
    ~Doing();
    Doing(const Doing &) = delete;

  private:
    const PulseView::State stateBefore;
    const std::string before;
  };
  /// What is worth waiting for, even where the run has failed.
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

  /// Until the end of a block this thread is the one beside.
  struct Beside {
    Beside();
    ~Beside();
  };
  /// Until the end of a block the thread that trains waits for the one beside.
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
