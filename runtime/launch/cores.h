// Assigns CPUs to the ranks of a machine.
#pragma once

#include <vector>

namespace gptc {

/// The CPUs of this process, ordered such that those of one core are adjacent, then those of one socket.
std::vector<int> orderedCpus();

/// Divides `cpus` among ranks, in order and as evenly as whole CPUs allow. No CPU belongs to two ranks unless there are
/// more ranks than CPUs; then each rank has one CPU.
std::vector<std::vector<int>> shareCpus(const std::vector<int> &cpus, int ranks);

}  // namespace gptc
