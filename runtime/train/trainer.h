// The training loop and evaluation.
#pragma once

#include "runtime/data/training_data.h"
#include "runtime/train/label_measures.h"
#include "runtime/train/session.h"

#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>

namespace gptc {

enum class Resume { automatic, never, must };

/// Seconds of the steps of a run, without the first two, whose caches are cold, and without observed steps.
struct RunTimes {
  std::vector<float> seconds;
  int64_t watched = 0;  // number of steps that TrainOptions::watch has observed
  /// Outer steps are not part of `seconds`. These are the ones that nothing has observed:
  int64_t outer = 0;
  double outerSeconds = 0;
  int64_t outerWatched = 0;  // number of outer steps that TrainOptions::watchOuter has observed

  /// Whether TrainOptions::watch observes this step, counted from 0, of the run since it began or went on.
  bool watches(int64_t step) const { return isOneOfFew(step, watched, 3, 128); }
  /// Whether TrainOptions::watchOuter observes the next outer step.
  bool watchesOuter() const { return isOneOfFew(outer + outerWatched, outerWatched, 1, 16); }
  void addOuter(bool isWatched, double s) {
    if (isWatched)
      ++outerWatched;
    else
      ++outer, outerSeconds += s;
  }

private:
  /// Observed steps are slower than others: they are few. `already`: how many there have been.
  static bool isOneOfFew(int64_t step, int64_t already, int64_t first, int64_t between) {
    constexpr int64_t most = 8;
    return already < most && step % between == first;
  }
};

struct TrainOptions {
  int64_t steps = -1;  // stop after this many steps in total; -1: the plan's number
  Resume resume = Resume::automatic;
  int64_t resumeAtMost = -1;  // resume from no checkpoint after this step; -1: from the newest
  bool profile = false;       // print a table of kernels at the end
  /// Checks every kernel by itself: names the first that fails or gives a non-finite value, and ends the run.
  bool check = false;
  int64_t certifyEvery = 0;   // certify each such step and the last (runtime/train/certificate.h); 0: none
  RunTimes *times = nullptr;  // filled if not null
  /// Observes the kernels of a few steps one by one: the fourth step and then every 128th, at most 8.
  KernelObserver *watch = nullptr;
  KernelObserver *watchOuter = nullptr;  // the same for outer steps: the second and then every 16th, at most 8
  TextCodec *codec = nullptr;            // for samples during training; null: no samples
  std::string cacheDir;                  // cache for facts about the data; "": none
  bool hashesData = true;                // hash the data; one rank per machine does
  bool allowChangedData = false;         // continue although the data differs from the checkpoint's
  bool answersStops = true;              // answer a stop at once; not under a launcher that does
  FILE *out = stdout;
};

/// Trains until done, or until SIGTERM, SIGINT or SIGHUP (a closed terminal), which it answers at once
/// (runtime/train/stop_signals.h): it ends the current step and saves. It stops the same way when `out` is a pipe whose
/// reader has gone (SIGPIPE must be ignored). Writes only under run.outDir, which it locks against a second run. After
/// an error all older checkpoints are kept, whatever checkpoint.keep says. Throws the UserErrors of data and
/// checkpoints, Unwritable (also if another run holds the folder), DiskFull, and NonFinite. With several ranks all end
/// together, and the executor has left the others.
void train(Session &session, const TrainOptions &options);

/// Sequences of a global batch of @eval, of all ranks and micro-batches; 1 for a module without.
int64_t evalBatch(const Module &m);

struct Evaluation {
  double loss = NAN;  // mean per target
  // Of a model with labels:
  std::vector<Measure> measures = {};
  int64_t texts = 0;
};
/// "accuracy 0.8750  of 24 texts"; "" of a model of tokens.
std::string measuresInWords(const Evaluation &found);

/// Evaluates `batches` global batches spread evenly over the set (0: all of it), independent of the micro-batch. Runs
/// @eval. nullopt if `stop` returned true.
std::optional<Evaluation> evaluate(Executor &executor, const TrainingData &data, int64_t batches,
                                   const std::function<bool()> &stop = {});

}  // namespace gptc
