// Ranks that no launcher of ours watches (srun, torchrun and mpirun have started them) watch each other: each sends its
// heartbeat to the rendezvous, and rank 0, which has that, judges them as the launcher does (rank_watch.h). Of rank 0
// itself the others hear nothing any more where it is stopped (RendezvousClient::Options::silence).
//
//   MutualWatch watch;                              // before the first Pulse::get() of the process
//   RendezvousClient client({..., .news = [&] { return watch.news(); }});
//   watch.judge(server, world);                     // rank 0
#pragma once

#include "runtime/launch/rank_watch.h"
#include "runtime/rendezvous/rendezvous.h"

#include <condition_variable>
#include <mutex>
#include <thread>

namespace gptc {

class MutualWatch {
public:
  MutualWatch();
  ~MutualWatch() { stop(); }
  MutualWatch(const MutualWatch &) = delete;
  /// What this rank tells of itself.
  std::string news() const;
  /// Begins to look at what all ranks tell, on a thread; fails the job at the first that is stuck. The server must
  /// outlive that.
  void judge(RendezvousServer &server, int world);
  void stop();

private:
  PulseReader own;
  std::string host;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  std::thread judging;
};

}  // namespace gptc
