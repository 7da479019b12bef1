// What a run tells: log.jsonl for programs, a live line for people.
#pragma once

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
  float lossScale = 0;  // of the step; 0 where the loss is not scaled
};

/// OUT_DIR/log.jsonl: one object per line, written in one piece. Steps: `step, loss, lr, grad_norm, ms, tokens_per_s,
/// mfu`, with fp16 `loss_scale`; evaluations: `step, val_loss`. Numbers print so that they read back to the same value;
/// what is not finite is null.
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

/// The live line: rewritten in place on a terminal, else a plain line per logged step.
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
};

/// "1:02:03", "2:03", "0:07".
std::string formatDuration(double seconds);

}  // namespace gptc
