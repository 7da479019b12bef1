// Reports of a run: log.jsonl for programs, a live line for people.
#pragma once

#include "runtime/train/label_measures.h"

#include "llvm/ADT/ArrayRef.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace gptc {

/// A logged training step. `step` counts optimizer steps from 1. Times are means over the steps since the last logged
/// one.
struct StepMetrics {
  int64_t step = 0;
  float loss = 0, lr = 0, gradNorm = 0;
  double ms = 0, tokensPerSecond = 0, mfu = 0;  // ms: per step; mfu: a fraction
  float lossScale = 0;                          // scale used in the step; 0 if the loss is not scaled
  double mfuMeasured = NAN;                     // share of the measured peak, if `mfu` has another base
  const char *mfuOf = "given";                  // base of `mfu` (Utilization::of)
};

/// OUT_DIR/log.jsonl: one object per line, each written by one call. A step has `step, loss, lr, grad_norm, ms,
/// tokens_per_s, mfu`; also `mfu_measured`, a share of the measured peak, if `mfu` is a share of a data sheet's; and
/// `loss_scale` with fp16. An evaluation has `step, val_loss`, and of a model with labels its measures, as
/// `val_accuracy` (LabelMeasures). Both have `time`, when the line was written (timeNow). Numbers read back to the same
/// value; non-finite ones are null.
class MetricsLog {
public:
  /// Opens the log for a run at `step`: drops later lines and an incomplete last line. Throws UserError(Unwritable,
  /// DiskFull).
  MetricsLog(const std::string &outDir, int64_t step);
  ~MetricsLog();
  MetricsLog(const MetricsLog &) = delete;
  void step(const StepMetrics &m);
  void evaluation(int64_t step, double valLoss, const std::vector<Measure> &measures = {});
  /// Step of the last evaluation in the log; -1 if there is none.
  int64_t lastEvaluation() const { return evaluated; }

private:
  void line(const std::string &text);
  std::string path;
  int fd = -1;
  int64_t evaluated = -1;
};

/// What log.jsonl has of a step; NaN for what is not finite.
struct LoggedStep {
  float loss = 0, gradNorm = 0;
};
/// The training steps in OUT_DIR/log.jsonl. Lines that are none are ignored.
std::map<int64_t, LoggedStep> readLoggedSteps(const std::string &outDir);

/// A part of the live line. If not all parts fit, those of the lowest priority are left out.
struct LineField {
  std::string text;
  int priority = 0;
};
/// The fields in their order, separated by two blanks. Leaves out fields, lowest priority first, until the line fits
/// `columns`; cuts a single field that is too long.
std::string fitLine(llvm::ArrayRef<LineField> fields, size_t columns);

/// The progress line. On a terminal it is one line, rewritten in place and fitted to the terminal's current width; else
/// every logged step is a full line.
class ProgressLine {
public:
  ProgressLine(FILE *out, int64_t steps);
  ~ProgressLine() { end(); }
  /// `msLeft`: expected milliseconds to the end of the run.
  void show(const StepMetrics &m, double msLeft, int64_t memoryBytes, bool logged);
  /// Prints a line of its own; the next show() puts the live line below it.
  void say(const std::string &text);
  /// Ends the live line, so that others can print.
  void end();
  bool live() const { return terminal; }
  /// Prints text unchanged.
  void print(const std::string &text);
  /// Whether the reader of `out` has gone away. Later prints are dropped without an error (SIGPIPE must be ignored).
  bool closed() const { return readerGone; }

private:
  FILE *out;
  int64_t steps;
  bool terminal, readerGone = false;
  size_t shown = 0;  // columns of the live line on the screen
  size_t columns() const;
};

/// "1:02:03", "2:03", "0:07".
std::string formatDuration(double seconds);

}  // namespace gptc
