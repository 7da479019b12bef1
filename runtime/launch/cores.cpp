#include "runtime/launch/cores.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <tuple>

namespace gptc {
namespace {

int topology(int cpu, const char *name) {
  int value = -1;
  std::ifstream(fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", cpu, name)) >> value;
  return value;
}

}  // namespace

std::vector<int> orderedCpus() {
  std::vector<std::tuple<int, int, int>> places;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set))
        places.emplace_back(topology(i, "physical_package_id"), topology(i, "core_id"), i);
  std::sort(places.begin(), places.end());
  std::vector<int> cpus;
  for (auto &[socket, core, cpu] : places)
    cpus.push_back(cpu);
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

}  // namespace gptc
