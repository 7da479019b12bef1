// Ranks as threads of one program, which share its memory: for tests of what has several ranks. Small and exact rather
// than fast: its sums, element by element in SumOrder, are what every other engine is compared with.
#pragma once

#include "runtime/collectives/communicator.h"

namespace gptc {

class InProcess {
public:
  InProcess(int world, std::chrono::milliseconds timeout);
  /// Some of the threads: the i-th of the members joins as rank i.
  InProcess(Group group, std::chrono::milliseconds timeout);
  ~InProcess();
  /// A rank's part, each once, from any thread. May outlive this.
  std::unique_ptr<Communicator> join(int rank);

  struct Shared;

private:
  std::shared_ptr<Shared> shared;
};

}  // namespace gptc
