#include "support/cpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <linux/mempolicy.h>
#include <map>
#include <optional>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace gptc {

namespace {

constexpr int kMostNodes = 1024;  // more than Linux can have

/// The numbers of a list such as "0-3,8"; empty if it is none.
std::vector<int> parseList(const std::string &text) {
  std::vector<int> all;
  const char *at = text.data(), *const end = at + text.size();
  auto number = [&]() -> std::optional<int> {
    int n = 0;
    const auto [rest, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 0 || n >= CPU_SETSIZE)
      return std::nullopt;
    at = rest;
    return n;
  };
  while (at != end) {
    const std::optional<int> first = number();
    std::optional<int> last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
    }
    if (!first || !last || (at != end && *at != ','))
      return {};
    if (at != end)
      ++at;
    for (int n = *first; n <= *last; ++n)
      all.push_back(n);
  }
  return all;
}

std::string lineOf(const std::string &path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

}  // namespace

std::vector<int> usableCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set))
        cpus.push_back(i);
  return cpus;
}

unsigned usableCpuCount() {
  const size_t usable = usableCpus().size();
  return usable ? unsigned(usable) : std::max(1u, std::thread::hardware_concurrency());
}

cpu_set_t setOf(llvm::ArrayRef<int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus)
    CPU_SET(cpu, &set);
  return set;
}

void bindTo(const std::vector<int> &cpus) {
  const cpu_set_t set = setOf(cpus);
  ::sched_setaffinity(0, sizeof set, &set);
}

std::vector<int> nodesOf(const std::vector<int> &cpus, const std::string &sysfs) {
  const std::string folder = sysfs + "/devices/system/node";
  std::map<int, int> nodeOf;
  for (int node : parseList(lineOf(folder + "/online")))
    for (int cpu : parseList(lineOf(fmt::format("{}/node{}/cpulist", folder, node))))
      nodeOf.emplace(cpu, node);
  std::vector<int> nodes;
  for (int cpu : cpus) {
    const auto at = nodeOf.find(cpu);
    if (at == nodeOf.end())
      return std::vector<int>(cpus.size(), 0);
    nodes.push_back(at->second);
  }
  return nodes;
}

bool spreadOverNodes(void *begin, int64_t bytes, const std::vector<int> &nodes) {
  constexpr int bits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMostNodes / bits> mask{};
  for (int node : nodes)
    if (node >= 0 && node < kMostNodes)
      mask[size_t(node / bits)] |= 1UL << (node % bits);
  const unsigned long most = kMostNodes + 1, flags = 0;  // the kernel reads one bit less than it is told
  return ::syscall(SYS_mbind, begin, static_cast<unsigned long>(bytes), long(MPOL_INTERLEAVE), mask.data(), most,
                   flags) == 0;
}

}  // namespace gptc
