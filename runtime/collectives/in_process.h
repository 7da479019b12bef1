// Ranks as threads of one program, for tests with several ranks. Simple and exact rather than fast: it adds element by
// element in SumOrder, as the reference for every other engine.
#pragma once

#include "runtime/collectives/communicator.h"

namespace gptc {

class InProcess {
public:
  InProcess(int world, std::chrono::milliseconds timeout);
  /// A subset of the threads: member i joins as rank i.
  InProcess(Group group, std::chrono::milliseconds timeout);
  ~InProcess();
  /// Makes a rank's communicator, once per rank, from any thread. It may outlive this object.
  std::unique_ptr<Communicator> join(int rank);

  struct Shared;

private:
  std::shared_ptr<Shared> shared;
};

}  // namespace gptc
