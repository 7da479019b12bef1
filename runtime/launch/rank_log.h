// Logs a rank's output, one JSON object per line, in OUT_DIR/ranks/rank-0003.log:
//
//   {"time": "2026-03-01T12:00:00.123Z", "rank": 3, "line": "..."}
#pragma once

#include "llvm/ADT/StringRef.h"

#include <string>

namespace gptc {

/// Splits piped output into lines, and keeps the text of coded errors, which a program writes last.
class RankLines {
public:
  /// `file`: path of the log; "": none. The first line creates it; an existing log is continued.
  RankLines(int rank, const std::string &file) : rank(rank), file(file) {}
  ~RankLines();
  RankLines(const RankLines &) = delete;

  /// Takes output; returns the newly complete lines that are not part of an error.
  std::string take(llvm::StringRef bytes);
  /// Also takes the rest of an incomplete line.
  std::string finish();
  /// "error[GPTC0406]: ..." and everything after it; "" if there was none.
  const std::string &error() const { return errorText; }
  /// The last lines that are not part of an error, where no log has them.
  const std::string &unlogged() const { return lastLines; }

private:
  void line(llvm::StringRef text, std::string &plain);
  const int rank;
  const std::string file;
  int fd = -1;
  std::string rest, errorText, lastLines;
};

/// ranks/rank-0003.log
std::string rankLogName(int rank);

/// Redirects this process's standard output and error to that log, through a small process that ends when the last
/// holder of the descriptors does, so that the output of a crash is kept too. For ranks that another launcher started
/// (srun, torchrun, mpirun). Call it before any thread is started. Throws UserError(OutOfMemory, Unwritable).
void divertOutput(int rank, const std::string &outDir);

}  // namespace gptc
