#include "tools/planner/micro_batch.h"

#include "ir/facts.h"
#include "ir/gpu_sheets.h"
#include "runtime/cuda/gpu.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <map>
#include <vector>

namespace gptc {

namespace {

constexpr double share = 0.9;  // of the memory that plans may use
constexpr int mostPlannings = 6;
// Bytes besides the arena: the context with the plan's code and graphs, and the libraries' own memory.
constexpr int64_t MiB = 1 << 20, contextBytes = 768 * MiB, cublasLtBytes = 128 * MiB, cudnnBytes = 256 * MiB,
                  ncclBytes = 512 * MiB;

int libraryCalls(const Module &planned) {
  int calls = 0;
  for (const auto &f : planned.functions)
    for (const Op &op : f->body) {
      Schedule s;
      calls += op.is(OpKind::fused) && Schedule::parse(fact<&GroupFacts::schedule>(op), s) && s.library;
    }
  return calls;
}

}  // namespace

GpuMemory gpuMemoryOf(const Config &config, const Target &target, bool here) {
  auto sheet = [](const GpuSheet &s) { return int64_t(s.memory * 1e9); };
  const std::string &written = config.compile.gpuMemory;
  if (const std::optional<int64_t> bytes = parseBytes(written))
    return {*bytes, "compile.gpu_memory"};
  if (const GpuSheet *s = written == "auto" ? nullptr : gpuSheet(written))
    return {sheet(*s), fmt::format("an {} (compile.gpu_memory)", s->name.str())};
  if (here) {
    const cuda::Gpu gpu(target);
    return {int64_t(gpu.total()), gpu.name};
  }
  if (const GpuSheet *s = leastMemory(target.cpu))
    return {sheet(*s),
            fmt::format("an {}, the least of {}; compile.gpu_memory says another", s->name.str(), target.cpu)};
  return {};
}

int64_t arenaRoom(const GpuMemory &memory, const Target &target, int64_t ranks) {
  const llvm::StringRef libraries = target.features;
  int64_t beside = contextBytes;
  beside += libraries.contains("cublaslt") ? cublasLtBytes : 0;
  beside += libraries.contains("cudnn") ? cudnnBytes : 0;
  beside += ranks > 1 ? ncclBytes : 0;
  return int64_t(share * double(memory.bytes)) - std::min(beside, memory.bytes / 4);
}

std::optional<int64_t> largestThatFits(llvm::ArrayRef<int64_t> candidates, int64_t room, int most, int64_t first,
                                       const std::function<std::optional<int64_t>(int64_t)> &bytes) {
  const int64_t n = int64_t(candidates.size());
  int64_t fits = -1, tooLarge = n;   // indices
  std::map<int64_t, int64_t> known;  // candidate -> bytes
  auto below = [&](double value) {
    return int64_t(std::upper_bound(candidates.begin(), candidates.end(), value) - candidates.begin()) - 1;
  };
  for (int left = most; left > 0 && tooLarge - fits > 1; --left) {
    int64_t next = below(double(first));
    if (known.size() == 1) {
      const auto [at, of] = *known.begin();
      next = below(double(at) * double(room) / double(std::max<int64_t>(1, of)));
    } else if (known.size() > 1) {
      // The two known points next to the border, on both sides of it or else the last two.
      auto b = fits + 1 < n ? known.lower_bound(candidates[fits + 1]) : known.end();
      if (b == known.end())
        --b;
      if (b == known.begin())
        ++b;
      const auto a = std::prev(b);
      const double slope = double(b->second - a->second) / double(b->first - a->first);
      next = slope > 0 ? below(double(a->first) + double(room - a->second) / slope) : tooLarge - 1;
    }
    // With one call less, bisection can decide among 2^(left - 1) - 1 candidates.
    const int64_t reach = left < 40 ? int64_t(1) << (left - 1) : n;
    if (tooLarge - fits - 1 <= 2 * reach - 1)
      next = std::clamp(next, tooLarge - reach, fits + reach);
    next = std::clamp(next, fits + 1, tooLarge - 1);
    const std::optional<int64_t> of = bytes(candidates[next]);
    if (of)
      known[candidates[next]] = *of;
    (of && *of <= room ? fits : tooLarge) = next;
  }
  return fits < 0 ? std::nullopt : std::optional(candidates[fits]);
}

std::optional<MicroBatchChoice> chooseMicroBatch(Config &config, const Target &target, bool here,
                                                 const std::function<std::unique_ptr<Module>(const Config &)> &plan) {
  if (!target.isCuda() || config.fixes("train.micro_batch"))
    return std::nullopt;
  MicroBatchChoice choice;
  choice.memory = gpuMemoryOf(config, target, here);
  if (!choice.memory.bytes)
    return std::nullopt;
  const ParallelConfig &p = config.parallel;
  choice.room = arenaRoom(choice.memory, target, p.data * p.tensor);
  const int64_t block = config.model.blockSize,
                sequences = config.train.globalBatchTokens / (block * std::max(p.data, p.logicalShards));
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= sequences; ++d)
    if (sequences % d == 0)
      divisors.push_back(d);
  Config c = config;
  auto set = [&](Config &to, int64_t micro) {
    to.train.microBatch = micro;
    to.train.accumulate = to.train.globalBatchTokens / (micro * block * p.data);
  };
  int mostCalls = 0;
  std::map<int64_t, int64_t> arenas;
  auto bytes = [&](int64_t micro) -> std::optional<int64_t> {
    ++choice.plannings;
    set(c, micro);
    try {
      const std::unique_ptr<Module> planned = plan(c);
      const int calls = libraryCalls(*planned);
      if (calls < mostCalls)
        return std::nullopt;
      mostCalls = calls;
      return arenas[micro] = fact<&MemoryFacts::arenaBytes>(*planned);
    } catch (const UserError &) {
      return std::nullopt;  // too large for the compiler; for one sequence the plan itself reports it
    }
  };
  const std::optional<int64_t> best =
      largestThatFits(divisors, choice.room, mostPlannings, config.train.microBatch, bytes);
  choice.fits = best.has_value();
  choice.sequences = best.value_or(1);
  choice.arenaBytes = arenas[choice.sequences];
  set(config, choice.sequences);
  return choice;
}

}  // namespace gptc
