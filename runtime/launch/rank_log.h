// What a rank writes, line by line: into OUT_DIR/ranks/rank-0003.log, one JSON object per line:
//
//   {"time": "2026-03-01T12:00:00.123Z", "rank": 3, "line": "..."}
#pragma once

#include "llvm/ADT/StringRef.h"

#include <string>

namespace gptc {

/// Cuts what comes through a pipe into lines and keeps the text of coded errors, which is the last that a program says.
class RankLines {
public:
  /// Where the log goes; "": nowhere. It is made by its first line, and goes on after an earlier run's.
  RankLines(int rank, const std::string &file) : rank(rank), file(file) {}
  ~RankLines();
  RankLines(const RankLines &) = delete;

  /// Returns those of the lines now complete that belong to no error.
  std::string take(llvm::StringRef bytes);
  /// The same with what is left of a line without an end.
  std::string finish();
  /// "error[GPTC0406]: ..." with all that followed it; "" where there was none.
  const std::string &error() const { return errorText; }

private:
  void line(llvm::StringRef text, std::string &plain);
  const int rank;
  const std::string file;
  int fd = -1;
  std::string rest, errorText;
};

/// ranks/rank-0003.log
std::string rankLogName(int rank);

/// From here on this process's standard output and error go to that log, by a small process that writes it and ends
/// with the last who holds them: what a crash says is kept too. For ranks that nobody of ours has started (under srun,
/// torchrun, mpirun). Before any thread is started. UserError(OutOfMemory, Unwritable).
void divertOutput(int rank, const std::string &outDir);

}  // namespace gptc
