// gptc bench cluster: measures this machine as a cluster.toml.
#pragma once

namespace gptc {

/// Speed of collectives between ranks on this machine.
struct LinkSpeed {
  double bandwidth = 0;  // bus bandwidth of a large all_reduce, bytes/s, as NCCL's tests count
  double latency = 0;    // seconds of an all_reduce of one number
};
/// Measures `ranks` >= 2 ranks, run as threads that communicate like processes.
LinkSpeed measureLinks(int ranks);

}  // namespace gptc
