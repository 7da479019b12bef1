// gptc report: what runs did, as one HTML file.
#include "runtime/train/stop_signals.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/report/run_report.h"

#include "llvm/ADT/StringRef.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

namespace gptc {

namespace {

constexpr size_t mostRuns = 64;
constexpr std::chrono::milliseconds betweenLooks{500};
constexpr int refreshSeconds = 5;

struct ReportOptions {
  std::vector<std::string> runs;
  std::string out = "report.html";
  bool watch = false;
};

/// Throws UserError(Usage) for a file that is no report: a log that is named by mistake must not be lost.
void requireReplaceable(const std::string &file) {
  std::error_code e;
  if (std::filesystem::symlink_status(file, e).type() == std::filesystem::file_type::not_found)
    return;
  constexpr size_t largest = size_t(1) << 30;
  const FileText old = readTextFile(file, largest);
  if (!old.ok || !llvm::StringRef(old.text).starts_with(kReportMark))
    throw UserError(ErrorCode::Usage, fmt::format("{} is there, and no report", file),
                    "choose another file by --out, or remove it");
}

std::vector<RunRecord> readAll(const std::vector<std::string> &folders) {
  std::vector<RunRecord> runs;
  for (const std::string &folder : folders)
    runs.push_back(readRun(folder));
  return runs;
}

/// What changes when a run writes.
std::string signOf(const std::vector<std::string> &folders) {
  namespace fs = std::filesystem;
  std::string sign;
  for (const std::string &folder : folders)
    for (const char *name : {"log.jsonl", "forecast.jsonl", "checkpoints"}) {
      std::error_code e;
      const auto time = fs::last_write_time(folder + "/" + name, e).time_since_epoch().count();
      const auto size = fs::file_size(folder + "/" + name, e);
      sign += fmt::format("{} {} ", time, size);
    }
  return sign;
}

/// Reads runs again. A run whose log cannot be read, or is empty, stays as it was: one that starts over moves its log
/// aside, and has no line for a moment.
void readAgain(const std::vector<std::string> &folders, std::vector<RunRecord> &runs) {
  for (size_t i = 0; i < folders.size(); ++i)
    try {
      RunRecord now = readRun(folders[i]);
      if (!now.values.empty() || runs[i].values.empty())
        runs[i] = std::move(now);
    } catch (const UserError &e) {
      if (e.diagnostics[0].code != ErrorCode::FileMissing && e.diagnostics[0].code != ErrorCode::DataInvalid)
        throw;
    }
}

/// Writes the report on `runs` again whenever `sign`, which was taken before they were read, changes, until a signal
/// asks to stop; then once more, as one that stays.
void watch(const ReportOptions &o, std::string sign, std::vector<RunRecord> runs) {
  const StopSignals signals(false);
  for (bool isLast = false; !isLast;) {
    isLast = StopSignals::asked();
    if (const std::string now = signOf(o.runs); now != sign || isLast) {
      sign = now;
      readAgain(o.runs, runs);
      writeFileAtomically(o.out, reportOf(runs, isLast ? 0 : refreshSeconds));
    }
    if (!isLast)
      std::this_thread::sleep_for(betweenLooks);
  }
}

void report(const ReportOptions &o) {
  if (o.runs.size() > mostRuns)
    throw UserError(ErrorCode::Usage, fmt::format("{} runs are too many for a report", o.runs.size()),
                    fmt::format("{} at most", mostRuns));
  requireReplaceable(o.out);
  const std::string sign = signOf(o.runs);
  const std::vector<RunRecord> runs = readAll(o.runs);
  writeFileAtomically(o.out, reportOf(runs, o.watch ? refreshSeconds : 0));
  for (const RunRecord &run : runs)
    for (const std::string &note : run.notes)
      fmt::print("note: {}: {}\n", run.folder, note);
  fmt::print("{}: {} run{}{}\n", o.out, runs.size(), runs.size() == 1 ? "" : "s",
             o.watch ? ", written again when they change; Ctrl-C ends that" : "");
  std::fflush(stdout);
  if (o.watch)
    watch(o, sign, runs);
}

}  // namespace

void addReportCommand(Command &app) {
  auto o = std::make_shared<ReportOptions>();
  Command c = app.command("report", "Writes one HTML file with curves and differences of runs");
  c.option("RUN", o->runs, "Folders of runs: out_dir of model.toml").type("FOLDER").required();
  c.option("-o,--out", o->out, "File to write").type("FILE.html").showDefault();
  c.flag("--watch", o->watch, "Writes it again whenever a run has logged more, until Ctrl-C; a browser follows");
  c.run([o] { report(*o); });
}

}  // namespace gptc
