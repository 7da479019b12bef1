// Which CPUs each rank of a machine may use.
#pragma once

#include <vector>

namespace gptc {

/// The CPUs of this process, neighbours first: those of one core side by side, then those of one socket.
std::vector<int> orderedCpus();

/// Shares `cpus` out among ranks, in order and as evenly as whole CPUs allow: no CPU belongs to two ranks, but where
/// there are more ranks than CPUs, each has one and some share it.
std::vector<std::vector<int>> shareCpus(const std::vector<int> &cpus, int ranks);

}  // namespace gptc
