// The training loop and evaluation.
#pragma once

#include "runtime/data/data.h"
#include "runtime/train/session.h"

#include <cstdio>
#include <functional>
#include <optional>

namespace gptc {

enum class Resume { automatic, never, must };

/// What steps of a run took: all but the first two, which meet cold caches, and those at which someone looked.
struct RunTimes {
  std::vector<float> seconds;
  int64_t watched = 0;  // steps that TrainOptions::watch saw
};

struct TrainOptions {
  int64_t steps = -1;  // stop once this many steps are done in all; -1: those of the plan
  Resume resume = Resume::automatic;
  int64_t resumeAtMost = -1;  // from no checkpoint beyond this step; -1: from the newest
  bool profile = false;       // print a table of kernels at the end
  /// Every kernel by itself: the first that fails, or leaves what is not finite, is named and ends the run.
  bool check = false;
  RunTimes *times = nullptr;  // filled, where wanted
  /// Sees the kernels of a few steps, one by one: the fourth and then every 128th, 8 at most.
  KernelObserver *watch = nullptr;
  TextCodec *codec = nullptr;     // for samples during training; null: none
  std::string cacheDir;           // keeps what is known of the data; "": none
  bool hashesData = true;         // one rank of each machine does
  bool allowChangedData = false;  // goes on with other data than the checkpoint's
  bool answersStops = true;       // says at once that it was asked to stop; not under a launcher that does
  FILE *out = stdout;
};

/// Trains until done, or until SIGTERM, SIGINT or SIGHUP (a closed terminal), which are answered at once
/// (runtime/train/stop_signals.h), end the current step and save; and so does an `out` that is a pipe nobody reads any
/// more (SIGPIPE must be ignored). Writes only under run.outDir, which it locks against a second run. After an error
/// the older checkpoints are all there, whatever checkpoint.keep says. UserErrors: those of data and checkpoints,
/// Unwritable (also: another run holds the folder), DiskFull, NonFinite. With several ranks all end together, and the
/// executor has left the others.
void train(Session &session, const TrainOptions &options);

/// Mean loss per target over `batches` global batches spread evenly over the set (0: every window), the same whatever
/// the micro-batch. Runs @eval. nullopt when `stop` said so.
std::optional<double> evaluate(Executor &executor, const TokenData &data, int64_t batches,
                               const std::function<bool()> &stop = {});

}  // namespace gptc
