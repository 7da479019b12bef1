#include "runtime/launch/cores.h"

#include "support/cpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <tuple>

namespace gptc {
namespace {

int topology(const std::string &sysfs, int cpu, const char *name) {
  int value = -1;
  std::ifstream(fmt::format("{}/devices/system/cpu/cpu{}/topology/{}", sysfs, cpu, name)) >> value;
  return value;
}

}  // namespace

std::vector<int> orderedCpus(const std::string &sysfs) {
  std::vector<int> cpus = usableCpus();
  const std::vector<int> nodes = nodesOf(cpus, sysfs);
  std::vector<std::tuple<int, int, int, int>> places;
  for (size_t i = 0; i < cpus.size(); ++i)
    places.emplace_back(nodes[i], topology(sysfs, cpus[i], "physical_package_id"), topology(sysfs, cpus[i], "core_id"),
                        cpus[i]);
  std::sort(places.begin(), places.end());
  for (size_t i = 0; i < cpus.size(); ++i)
    cpus[i] = std::get<3>(places[i]);
  return cpus;
}

std::vector<std::vector<int>> shareCpus(const std::vector<int> &cpus, int ranks) {
  std::vector<std::vector<int>> shares(ranks);
  const size_t n = cpus.size();
  for (int r = 0; r < ranks && n > 0; ++r) {
    if (size_t(ranks) > n)
      shares[r] = {cpus[r % n]};
    else
      shares[r].assign(cpus.begin() + n * r / ranks, cpus.begin() + n * (r + 1) / ranks);
  }
  return shares;
}

std::string noteOfNodes(size_t nodes, int ranks) {
  if (nodes <= 1)
    return "";
  return fmt::format("the threads of a rank are on {} memory nodes (NUMA), over which its arena is spread; with "
                     "--ranks-per-node {} each rank keeps to one",
                     nodes, nodes * size_t(ranks));
}

}  // namespace gptc
