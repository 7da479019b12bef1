#include "runtime/tuning/tuning_log.h"

#include <atomic>
#include <csignal>
#include <iterator>
#include <unistd.h>

namespace gptc {

namespace {

/// What a fault handler writes; it may only use async-signal-safe calls.
struct FaultNote {
  int fd = -1;
  std::string text;  // records, one per line
} note;
std::atomic<bool> noteIsThere = false;
constexpr int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
struct sigaction handlers[std::size(faults)];  // the previous handlers

void onFault(int signal) {
  if (noteIsThere.exchange(false)) {
    (void)!::write(note.fd, note.text.data(), note.text.size());
    constexpr char text[] = "the candidate under way ended this process by a fault; it is left out from now on\n";
    (void)!::write(STDERR_FILENO, text, sizeof text - 1);
  }
  for (size_t i = 0; i < std::size(faults); ++i)
    if (faults[i] == signal)
      sigaction(signal, &handlers[i], nullptr);
  raise(signal);  // with the default or previous handler
}

int watchers = 0;

void watchFaults() {
  struct sigaction a{};
  a.sa_handler = onFault;
  a.sa_flags = SA_ONSTACK | SA_NODEFER;
  if (!watchers++)
    for (size_t i = 0; i < std::size(faults); ++i)
      sigaction(faults[i], &a, &handlers[i]);
}

void unwatchFaults() {
  if (!--watchers)
    for (size_t i = 0; i < std::size(faults); ++i)
      sigaction(faults[i], &handlers[i], nullptr);
}

}  // namespace

RecordingLog::RecordingLog(TuningRecords &records, TuningRecord p, const std::string &session, bool again)
    : records(records), problem(std::move(p)), session(session) {
  for (const TuningRecord &r : records.all()) {
    if (r.problem != problem.problem || r.machine != problem.machine || r.fromElsewhere)
      continue;
    using enum Trial::Outcome;
    if (again && r.outcome != crashed && r.outcome != suspect)
      continue;
    Trial t;
    t.schedule = r.schedule, t.source = r.source, t.outcome = r.outcome, t.time = r.time;
    t.compileSeconds = r.compileSeconds, t.known = true;
    // The latest record counts, but a failure stays one. A suspect stays one until its outcome is known.
    Trial &old = before[{r.schedule.str(), r.source}];
    if (!old.known || old.outcome == timed || old.outcome == suspect)
      old = std::move(t);
  }
  watchFaults();
}

RecordingLog::~RecordingLog() {
  begin({});
  unwatchFaults();
  if (fd >= 0)
    close(fd);
}

std::optional<Trial> RecordingLog::find(const Trial &t) {
  auto it = before.find({t.schedule.str(), t.source});
  if (it == before.end())
    return std::nullopt;
  known += it->second.outcome != Trial::Outcome::suspect;
  return it->second;
}

void RecordingLog::begin(llvm::ArrayRef<const Trial *> trials) {
  noteIsThere = false;
  if (fd < 0)
    fd = records.openForAppending();
  if (fd < 0 || trials.empty())
    return;
  note.fd = fd;
  note.text = "\n";
  for (const Trial *t : trials) {
    Trial ended = *t;
    ended.outcome = trials.size() > 1 ? Trial::Outcome::suspect : Trial::Outcome::crashed;
    note.text += recordOf(problem, ended, session).str(records.mark()) + "\n";
  }
  noteIsThere = true;
}

void RecordingLog::add(const Trial &t) {
  noteIsThere = false;
  ++added;
  if (t.source.empty())  // no code was emitted, so there is nothing to record
    return;
  records.append({recordOf(problem, t, session)});
}

}  // namespace gptc
