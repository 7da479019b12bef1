#include "runtime/launch/pulse.h"

#include "runtime/launch/host_list.h"
#include "support/diagnostics.h"
#include "support/environment.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <time.h>
#include <unistd.h>

namespace gptc {

/// Written by one process and read by another. `writing` is odd while `doing` changes.
struct PulsePage {
  static constexpr uint64_t mark = 0x6770746370756c31;  // "gptcpul1"
  static constexpr size_t words = 12;
  std::atomic<uint64_t> magic{mark}, beats{0}, progress{0};
  std::atomic<int64_t> step{-1}, begin{-1}, cpuMs{0};
  std::atomic<uint32_t> state{0}, writing{0};
  std::atomic<int32_t> waitsFor{-1};
  std::atomic<uint64_t> place{0};  // collectives << 32 | messages in the current one
  std::array<std::atomic<uint64_t>, words> doing{};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::is_trivially_destructible_v<PulsePage>);

namespace {

constexpr auto kBetweenBeats = std::chrono::milliseconds(250);

PulsePage *mapPage(int fd) {
  void *p = ::mmap(nullptr, sizeof(PulsePage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<PulsePage *>(p);
}

/// The page that GPTC_PULSE names; null if it names none.
PulsePage *inheritedPage() {
  const char *text = ownVariable("GPTC_PULSE");
  const std::optional<long> fd = text ? parseNumber(text, 3, 1 << 20) : std::nullopt;
  struct stat s{};
  if (!fd || ::fstat(int(*fd), &s) != 0 || !S_ISREG(s.st_mode) || size_t(s.st_size) != sizeof(PulsePage))
    return nullptr;
  PulsePage *page = mapPage(int(*fd));
  if (page && page->magic.load() != PulsePage::mark) {
    ::munmap(page, sizeof(PulsePage));
    return nullptr;
  }
  ::close(int(*fd));  // children of this rank must not inherit it
  ::unsetenv("GPTC_PULSE");
  return page;
}

}  // namespace

PulseReader::PulseReader() : file(::memfd_create("gptc-pulse", MFD_CLOEXEC)) {
  if (file < 0 || ::ftruncate(file, sizeof(PulsePage)) != 0 || !(page = mapPage(file))) {
    const std::string why = strerror(errno);
    if (file >= 0)
      ::close(file);
    throw UserError(ErrorCode::OutOfMemory, fmt::format("no memory for a rank's heartbeat: {}", why),
                    "close other programs");
  }
  new (page) PulsePage;
}

PulseReader::~PulseReader() {
  ::munmap(page, sizeof(PulsePage));
  ::close(file);
}

PulseView PulseReader::read() const {
  PulseView v;
  v.beats = page->beats.load(std::memory_order_relaxed);
  v.progress = page->progress.load(std::memory_order_relaxed);
  v.cpuMs = page->cpuMs.load(std::memory_order_relaxed);
  v.step = page->step.load(std::memory_order_acquire);
  v.begin = page->begin.load(std::memory_order_relaxed);
  v.waitsFor = page->waitsFor.load(std::memory_order_relaxed);
  v.place = page->place.load(std::memory_order_relaxed);
  // A rank that was stopped while writing leaves an odd number forever.
  for (int tries = 0; tries < 100; ++tries) {
    const uint32_t before = page->writing.load(std::memory_order_acquire);
    std::array<uint64_t, PulsePage::words> text;
    for (size_t i = 0; i < text.size(); ++i)
      text[i] = page->doing[i].load(std::memory_order_relaxed);
    const uint32_t state = page->state.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 || before != page->writing.load(std::memory_order_relaxed))
      continue;
    std::array<char, sizeof text + 1> chars{};
    std::memcpy(chars.data(), text.data(), sizeof text);
    v.doing = chars.data();
    v.state = state <= uint32_t(PulseView::State::paced) ? PulseView::State(state) : PulseView::State::busy;
    break;
  }
  return v;
}

Pulse::Pulse() : page(inheritedPage()) {
  if (!page) {
    page = new PulsePage;  // until the process ends
    return;
  }
  show();
  // The training thread handles signals.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  try {
    std::thread([p = page] {
      for (;;) {
        timespec used{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        p->cpuMs.store(int64_t(used.tv_sec) * 1000 + used.tv_nsec / 1'000'000, std::memory_order_relaxed);
        p->beats.fetch_add(1, std::memory_order_relaxed);
        std::this_thread::sleep_for(kBetweenBeats);
      }
    }).detach();  // until the process ends
  } catch (const std::system_error &) {
    // Without a thread there are no beats, and nobody expects any.
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

Pulse &Pulse::get() {
  static Pulse *pulse = new Pulse;  // never destroyed, because its thread may still beat during exit
  return *pulse;
}

static thread_local bool besideTraining = false;

Pulse::Beside::Beside() { besideTraining = true; }
Pulse::Beside::~Beside() { besideTraining = false; }
Pulse::Awaits::Awaits() { Pulse::get().await(true); }
Pulse::Awaits::~Awaits() { Pulse::get().await(false); }

Pulse::Voice &Pulse::own() { return besideTraining ? beside : training; }

void Pulse::say(PulseView::State state, const std::string &what) {
  std::lock_guard lock(mutex);
  own() = {state, what};
  show();
}

void Pulse::await(bool yes) {
  std::lock_guard lock(mutex);
  awaits = yes;
  show();
}

void Pulse::show() {
  // Between collectives the thread beside has nothing to report.
  const Voice &voice = awaits && beside.state == PulseView::State::collective ? beside : training;
  std::array<uint64_t, PulsePage::words> text{};
  std::memcpy(text.data(), voice.doing.data(), std::min(voice.doing.size(), sizeof text));
  const uint32_t before = page->writing.load(std::memory_order_relaxed);
  page->writing.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < text.size(); ++i)
    page->doing[i].store(text[i], std::memory_order_relaxed);
  page->state.store(uint32_t(voice.state), std::memory_order_relaxed);
  page->writing.store(before + 2, std::memory_order_release);
  page->progress.fetch_add(1, std::memory_order_relaxed);
}

void Pulse::step(int64_t done) {
  if (page->begin.load(std::memory_order_relaxed) < 0)
    page->begin.store(done, std::memory_order_relaxed);
  page->step.store(done, std::memory_order_release);
  page->progress.fetch_add(1, std::memory_order_relaxed);
  if (training.state != PulseView::State::stepping)
    say(PulseView::State::stepping, "a step");
}

void Pulse::goesOn() {
  // A thread that saves beside steps must not make a stuck step look alive.
  if (page->state.load(std::memory_order_relaxed) == uint32_t(PulseView::State::paced))
    page->progress.fetch_add(1, std::memory_order_relaxed);
}

void Pulse::waits(int rank) { page->waitsFor.store(rank, std::memory_order_relaxed); }

void Pulse::moved() {
  page->waitsFor.store(-1, std::memory_order_relaxed);
  page->place.fetch_add(1, std::memory_order_relaxed);
  page->progress.fetch_add(1, std::memory_order_relaxed);
}

Pulse::Doing::Doing(PulseView::State state, llvm::StringRef what)
    : stateBefore(Pulse::get().own().state), before(Pulse::get().own().doing) {
  Pulse &pulse = Pulse::get();
  if (state == PulseView::State::collective)
    pulse.page->place.store(((pulse.page->place.load(std::memory_order_relaxed) >> 32) + 1) << 32,
                            std::memory_order_relaxed);
  pulse.say(state, what.str());
}

Pulse::Doing::~Doing() { Pulse::get().say(stateBefore, before); }

}  // namespace gptc
