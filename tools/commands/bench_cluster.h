// gptc bench cluster: this machine as a cluster.toml, measured.
#pragma once

namespace gptc {

/// Collectives of ranks on this machine.
struct LinkSpeed {
  double bandwidth = 0;  // bus bandwidth of a large all_reduce, bytes/s, as NCCL's tests count
  double latency = 0;    // seconds of one of a single number
};
/// `ranks` >= 2, each a thread with a processor's place of its own.
LinkSpeed measureLinks(int ranks);

}  // namespace gptc
