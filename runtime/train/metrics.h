// What a run tells: log.jsonl for programs, a live line for people.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace gptc {

/// One logged training step. `step` counts optimizer steps from 1; times are means over the steps since the line
/// before.
struct StepMetrics {
  int64_t step = 0;
  float loss = 0, lr = 0, gradNorm = 0;
  double ms = 0, tokensPerSecond = 0, mfu = 0;
  float lossScale = 0;          // of the step; 0 where the loss is not scaled
  double mfuMeasured = NAN;     // of the measured peak, where `mfu` is of another one
  const char *mfuOf = "given";  // what `mfu` is of (Utilization::of)
};

/// OUT_DIR/log.jsonl: one object per line, written in one piece. Steps: `step, loss, lr, grad_norm, ms, tokens_per_s,
/// mfu`, where that is of a data sheet's peak `mfu_measured`, of the measured one, and with fp16 `loss_scale`;
/// evaluations: `step, val_loss`. Both have `time`, when the line was written (timeNow). Numbers print so that they
/// read back to the same value; what is not finite is null.
class MetricsLog {
public:
  /// Opens the log for a run that stands at `step`: later lines, and a half-written last one, are dropped.
  /// Throws UserError(Unwritable, DiskFull).
  MetricsLog(const std::string &outDir, int64_t step);
  ~MetricsLog();
  MetricsLog(const MetricsLog &) = delete;
  void step(const StepMetrics &m);
  void evaluation(int64_t step, double valLoss);
  /// Step of the last evaluation in the log, or -1.
  int64_t lastEvaluation() const { return evaluated; }

private:
  void line(const std::string &text);
  std::string path;
  int fd = -1;
  int64_t evaluated = -1;
};

/// A part of the live line. Of two that do not both fit, the one of the greater rank stays.
struct LineField {
  std::string text;
  int rank = 0;
};
/// The fields in their order with two blanks between them, without those of the least ranks as far as the line would
/// be longer than `columns`. What alone is too long is cut.
std::string fitLine(llvm::ArrayRef<LineField> fields, size_t columns);

/// The live line: one line that is rewritten in place on a terminal, where it has what fits into the terminal's width
/// at that moment; else a plain line per logged step, whole.
class ProgressLine {
public:
  ProgressLine(FILE *out, int64_t steps);
  ~ProgressLine() { end(); }
  /// `msLeft`: expected time to the end of the run.
  void show(const StepMetrics &m, double msLeft, int64_t memoryBytes, bool logged);
  /// Prints a line of its own; the live line stands below it again after the next show().
  void say(const std::string &text);
  /// Ends the live line, so that others may print.
  void end();
  bool live() const { return terminal; }
  /// Prints lines as they are.
  void print(const std::string &text);
  /// Whether who read it has gone away; nothing that is printed is an error, then or ever. (With SIGPIPE ignored.)
  bool closed() const { return readerGone; }

private:
  FILE *out;
  int64_t steps;
  bool terminal, readerGone = false;
  size_t shown = 0;  // columns of the live line now on the screen
  size_t columns() const;
};

/// Now, in UTC: "2026-03-01T09:30:05.123Z".
std::string timeNow();
/// "1:02:03", "2:03", "0:07".
std::string formatDuration(double seconds);

}  // namespace gptc
