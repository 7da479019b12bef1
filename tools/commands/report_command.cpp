// gptc report: what runs did, as one HTML file.
#include "support/diagnostics.h"
#include "support/files.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/report/run_report.h"

#include "llvm/ADT/StringRef.h"

#include <filesystem>

namespace gptc {

namespace {

constexpr size_t mostRuns = 64;

struct ReportOptions {
  std::vector<std::string> runs;
  std::string out = "report.html";
};

/// Throws UserError(Usage) for a file that is no report: a log that is named by mistake must not be lost.
void requireReplaceable(const std::string &file) {
  std::error_code e;
  if (std::filesystem::symlink_status(file, e).type() == std::filesystem::file_type::not_found)
    return;
  constexpr size_t largest = size_t(1) << 30;
  const FileText old = readTextFile(file, largest);
  if (!old.ok || (!old.text.empty() && !llvm::StringRef(old.text).starts_with(kReportMark)))
    throw UserError(ErrorCode::Usage, fmt::format("{} is there, and no report", file),
                    "choose another file by --out, or remove it");
}

void report(const ReportOptions &o) {
  if (o.runs.size() > mostRuns)
    throw UserError(ErrorCode::Usage, fmt::format("{} runs are too many for a report", o.runs.size()),
                    fmt::format("{} at most", mostRuns));
  requireReplaceable(o.out);
  std::vector<RunRecord> runs;
  for (const std::string &folder : o.runs)
    runs.push_back(readRun(folder));
  writeFileAtomically(o.out, reportOf(runs));
  for (const RunRecord &run : runs)
    for (const std::string &note : run.notes)
      fmt::print("note: {}: {}\n", run.folder, note);
  fmt::print("{}: {} run{}\n", o.out, runs.size(), runs.size() == 1 ? "" : "s");
}

}  // namespace

void addReportCommand(Command &app) {
  auto o = std::make_shared<ReportOptions>();
  Command c = app.command("report", "Writes one HTML file with curves and differences of runs");
  c.option("RUN", o->runs, "Folders of runs: out_dir of model.toml").type("FOLDER").required();
  c.option("-o,--out", o->out, "File to write").type("FILE.html").showDefault();
  c.run([o] { report(*o); });
}

}  // namespace gptc
