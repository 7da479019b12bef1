// Supervision among ranks that another launcher started (srun, torchrun, mpirun). Each rank sends its heartbeat to the
// rendezvous on rank 0, which judges the ranks as gptrun's launcher does (rank_watch.h). If rank 0 itself stops, the
// others notice its silence (RendezvousClient::Options::silence).
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
  /// This rank's heartbeat as text, for the rendezvous.
  std::string news() const;
  /// Starts a thread that judges all ranks' heartbeats and fails the job at the first stuck rank. The server must
  /// outlive it.
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
