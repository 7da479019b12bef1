// Runs an experiment in a folder, one run after the other: each is compiled by `gptc compile` and trained by gptrun.
//
//   DIR/experiment.json   the file, its hash
//   DIR/results.jsonl     a line for each run that has ended (experiment_results.h)
//   DIR/NAME/             out_dir of a run: log.jsonl, checkpoints; and its plan/, run.json, and the output of both
//                         programs, compile.log and run.log
//
// A run that has ended is not done again, one that was interrupted goes on from its checkpoint. run.json has a hash of
// what decides over the run: its keys as they are written in all files and settings, and its budget. A run of the same
// name that has another is refused before anything runs. But if it has failed, or done no step, it was corrected: it
// begins again, and files of its earlier steps go to DIR/NAME/old-N.
#pragma once

#include "tools/study/experiment.h"
#include "tools/study/experiment_results.h"

#include <functional>
#include <string>
#include <vector>

namespace gptc {

struct ExperimentRequest {
  Experiment experiment;
  std::string dir;  // absolute
  unsigned threads = 0;
  bool retryFailed = false, stopOnFailure = false;
  std::function<void(const std::string &)> say;  // a line for people
};

struct ExperimentReport {
  std::vector<RunResult> results;  // of the experiment's runs that have ended, in its order
  int64_t left = 0;                // runs that have not ended
  int signal = 0;                  // that stopped it; 0: none did
};

/// Changes the working folder to that of the experiment's file, from which paths in settings count. SIGINT, SIGTERM and
/// SIGHUP go to the program that runs, once each, and end the experiment with it. A run that fails is recorded, unless
/// its folder cannot be written. While another gptrun writes in it, it waits. Throws UserErrors: Contradiction for runs
/// that were made by other settings; Unwritable for folders that cannot be written, or for one that holds something
/// else or that another experiment writes in; and of the first run if no run has a valid model.
ExperimentReport runExperiment(const ExperimentRequest &request);

}  // namespace gptc
