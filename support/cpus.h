// The CPUs that this process may use, and the memory nodes (NUMA) they belong to, as Linux describes them.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <sched.h>
#include <string>
#include <vector>

namespace gptc {

/// The numbers of the CPUs that the calling thread may use, ascending; none if the system does not say.
std::vector<int> usableCpus();
/// How many there are; if the system does not say, as many as the machine has, and at least 1.
unsigned usableCpuCount();
/// The set of these, as the system takes it. Allocates nothing.
cpu_set_t setOf(llvm::ArrayRef<int> cpus);
/// Restricts the calling thread, and those that it starts from now on, to `cpus`. If the system refuses, they stay as
/// they are: where a thread runs changes no result.
void bindTo(const std::vector<int> &cpus);
/// The memory node of each of `cpus`. All are on node 0 if the machine has one node or `sysfs` does not tell nodes
/// apart, as in some containers. `sysfs`: where that file system is mounted; tests have others.
std::vector<int> nodesOf(const std::vector<int> &cpus, const std::string &sysfs = "/sys");
/// Places the pages of [begin, begin + bytes), which nobody may have touched yet, on `nodes` in turn. `begin` is the
/// start of a page. False if the system refuses, as containers may: whoever touches a page first then places it.
bool spreadOverNodes(void *begin, int64_t bytes, const std::vector<int> &nodes);

}  // namespace gptc
