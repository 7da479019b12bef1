// Replays a span of a run: computes its steps again from an earlier state, and compares them with what the run has
// left, its certificate, log and checkpoints. Writes nothing.
#pragma once

#include "runtime/train/certificate.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct ReplayRequest {
  std::string outDir;  // the run's folder
  /// Where the steps come from: the states after `since` steps are those of a checkpoint, or initial ones if it is 0.
  CertifiedOrigin origin;
  bool comparesData = true;                         // with the origin's
  std::vector<CertifiedStep> certified;             // to be compared, in order
  int64_t from = 1, to = 0;                         // steps, counted from 1; it begins with a state before `from`
  int64_t every = 0;                                // certify each such step and the last; 0: none
  std::function<void(const CertifiedStep &)> keep;  // gets these
  std::function<void(const std::string &)> say;     // a line for people: where the replay begins
};

struct ReplayReport {
  int64_t begin = 0, end = 0;                          // steps done before and after the replay
  int64_t certified = 0, logged = 0, checkpoints = 0;  // compared
  /// What differs, or keeps the steps from being replayed. A replay ends with the first step that differs.
  std::vector<std::string> differences;
};

/// The plan of the session must be for one rank, and give the bits of the origin's plan. Throws the UserErrors of the
/// data and of weights that a run begins with.
ReplayReport replay(Session &session, const ReplayRequest &request);

/// The last step that a run's checkpoints or its log tell of; 0 if they tell of none.
int64_t lastStepOf(const std::string &outDir);

}  // namespace gptc
