#include "runtime/train/stop_signals.h"

#include "runtime/launch/stops.h"

#include <atomic>
#include <cerrno>
#include <unistd.h>

namespace gptc {
namespace {

Stops gStops;
bool gAnswers = false;
/// Progress of the run: 2 n + 1 during step n, 2 n after it.
constexpr int64_t kStarting = -1;
std::atomic<int64_t> gPlace{kStarting};
static_assert(std::atomic<int64_t>::is_always_lock_free);

/// A line of text on the stack, because a signal handler must not allocate.
class Line {
public:
  void add(const char *text) {
    while (*text && used < sizeof bytes)
      bytes[used++] = *text++;
  }
  void add(int64_t number) {
    char digits[20];
    size_t n = 0;
    do
      digits[n++] = char('0' + number % 10);
    while ((number /= 10) > 0);
    while (n > 0 && used < sizeof bytes)
      bytes[used++] = digits[--n];
  }
  void write() const { (void)!::write(STDERR_FILENO, bytes, used); }

private:
  char bytes[160];
  size_t used = 0;
};

void answer() {
  Line line;
  if (::isatty(STDERR_FILENO) && ::isatty(STDOUT_FILENO))
    line.add("\n");  // the live line may be on the terminal
  const int64_t place = gPlace;
  if (place == kStarting) {
    line.add("stopping: the run is starting and ends as soon as it can");
  } else {
    line.add(place % 2 ? "finishing step " : "stopping after step ");
    line.add(place / 2);
    line.add(", saving");
  }
  line.add("; once more to end at once\n");
  line.write();
}

void onSignal(int number) {
  const int before = errno;
  const bool first = gStops.count() == 0;
  gStops.note(number);
  if (gStops.count() > 1)
    ::_exit(130);
  if (first && gAnswers)
    answer();
  errno = before;
}

}  // namespace

StopSignals::StopSignals(bool answers) {
  gStops.clear();
  gAnswers = answers;
  gPlace = kStarting;
  struct sigaction a{};
  a.sa_handler = onSignal;
  // One at a time: of two concurrent handlers both could count as the first.
  for (int number : {SIGTERM, SIGINT, SIGHUP})
    sigaddset(&a.sa_mask, number);
  ::sigaction(SIGTERM, &a, &oldTerm);
  ::sigaction(SIGINT, &a, &oldInt);
  ::sigaction(SIGHUP, nullptr, &oldHup);
  if (oldHup.sa_handler != SIG_IGN)  // nohup stays in force
    ::sigaction(SIGHUP, &a, nullptr);
}

StopSignals::~StopSignals() {
  // One stop may arrive as two signals, the second after the save: keep catching it until the process ends.
  if (asked())
    return;
  ::sigaction(SIGTERM, &oldTerm, nullptr);
  ::sigaction(SIGINT, &oldInt, nullptr);
  ::sigaction(SIGHUP, &oldHup, nullptr);
}

bool StopSignals::asked() { return gStops.count() != 0; }

void StopSignals::inStep(int64_t number) { gPlace = 2 * number + 1; }
void StopSignals::after(int64_t step) { gPlace = 2 * step; }

}  // namespace gptc
