// Assigns CPUs to the ranks of a machine.
#pragma once

#include <string>
#include <vector>

namespace gptc {

/// The CPUs of this process, ordered such that those of one core are adjacent, then those of one socket, then those of
/// one memory node. `sysfs`: as for nodesOf (support/cpus.h).
std::vector<int> orderedCpus(const std::string &sysfs = "/sys");

/// Divides `cpus` among ranks, in order and as evenly as whole CPUs allow. No CPU belongs to two ranks unless there are
/// more ranks than CPUs; then each rank has one CPU.
std::vector<std::vector<int>> shareCpus(const std::vector<int> &cpus, int ranks);

/// What a user should hear if the threads of each of `ranks` ranks of a machine are on `nodes` memory nodes; "" if
/// these are one.
std::string noteOfNodes(size_t nodes, int ranks);

}  // namespace gptc
