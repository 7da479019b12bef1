// Describes this machine: LLVM reports the CPU's features, Linux its caches and the CPUs that the process may use.
#include "codegen/codegen.h"
#include "codegen/object_cache.h"
#include "support/cpus.h"
#include "support/diagnostics.h"
#include "support/environment.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/TargetParser/Host.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace gptc {

namespace {

/// Bytes of CPU 0's data or unified cache of that level, from sysfs; 0 if sysfs does not say.
int64_t cacheBytes(int level) {
  for (int i = 0; i < 8; ++i) {
    std::string dir = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", i);
    int l = 0;
    std::string type, size;
    if (!(std::ifstream(dir + "level") >> l) || !(std::ifstream(dir + "type") >> type) ||
        !(std::ifstream(dir + "size") >> size))
      continue;
    if (l != level || type == "Instruction" || size.empty())
      continue;
    int64_t n = 0;
    llvm::StringRef(size).consumeInteger(10, n);
    return n * (size.back() == 'M' ? 1 << 20 : size.back() == 'K' ? 1 << 10 : 1);
  }
  return 0;
}

/// Whether `feature` needs `missing`. Such features must be disabled explicitly, or LLVM enables them for the CPU's
/// name.
bool dependsOn(llvm::StringRef feature, llvm::StringRef missing) {
  if (feature == missing)
    return true;
  bool wide = feature.starts_with("avx512") || feature.starts_with("avx10") || feature == "evex512";
  if (missing == "avx512f")
    return wide;
  if (missing == "avx512bw" || missing == "avx512vl" || missing == "avx512dq")
    return feature == "avx512bf16" || feature == "avx512fp16" || feature == "avx512vbmi" || feature == "avx512vbmi2" ||
           feature == "avx512bitalg";
  if (missing == "fma" || missing == "f16c")
    return wide;
  if (missing == "avx2")
    return wide || feature == "avxvnni" || feature == "avxifma" || feature.starts_with("avxne") || feature == "vaes" ||
           feature == "vpclmulqdq";
  if (missing == "avx")
    return wide || feature.starts_with("avx") || feature == "fma" || feature == "f16c" || feature == "vaes" ||
           feature == "vpclmulqdq";
  return false;
}

}  // namespace

Target hostTarget(unsigned threads, unsigned ranks) {
  Target t;
  t.cpu = llvm::sys::getHostCPUName().str();
  llvm::StringMap<bool> host = llvm::sys::getHostCPUFeatures();
  if (const char *mask = ownVariable("GPTC_CPU_FEATURES")) {
    llvm::SmallVector<llvm::StringRef, 4> parts;
    llvm::StringRef(mask).split(parts, ',', -1, false);
    for (llvm::StringRef p : parts) {
      p = p.trim();
      if (!p.consume_front("-"))
        throw UserError(ErrorCode::Usage, fmt::format("GPTC_CPU_FEATURES: `{}` does not begin with `-`", p.str()),
                        "features can only be masked off, for example GPTC_CPU_FEATURES=-avx512f");
      if (!host.count(p))
        throw UserError(ErrorCode::Usage, fmt::format("GPTC_CPU_FEATURES: `{}` is no CPU feature", p.str()),
                        "use LLVM's names, for example -avx512f or -avx2");
      for (auto &f : host)
        if (dependsOn(f.getKey(), p))
          f.second = false;
    }
  }
  const bool avx512 =
      host.lookup("avx512f") && host.lookup("avx512vl") && host.lookup("avx512bw") && host.lookup("avx512dq");
  if (!avx512)  // LLVM fails on wide vectors of f32 without wide vectors of narrow types
    for (auto &f : host)
      if (dependsOn(f.getKey(), "avx512f"))
        f.second = false;
  // Sorted, so that equal machines have equal strings: the features are part of cache keys.
  std::vector<std::string> list;
  for (auto &f : host)
    list.push_back((f.second ? "+" : "-") + f.getKey().str());
  std::sort(list.begin(), list.end(), [](auto &a, auto &b) { return a.substr(1) < b.substr(1); });
  t.features = fmt::format("{}", fmt::join(list, ","));

  t.bf16Dot = avx512 && host.lookup("avx512bf16");
  t.vectorBytes = avx512 ? 64 : host.lookup("avx") ? 32 : 16;
  t.vectorRegisters = avx512 ? 32 : 16;
  if (int64_t n = cacheBytes(1))
    t.l1Bytes = n;
  if (int64_t n = cacheBytes(2))
    t.l2Bytes = n;
  if (int64_t n = cacheBytes(3))
    t.l3Bytes = n;

  if (const char *env = ownVariable("GPTC_THREADS"); env && threads == 0) {
    char *end;
    long n = std::strtol(env, &end, 10);
    if (end == env || *end || n < 1 || n > 4096)
      throw UserError(ErrorCode::Usage, fmt::format("GPTC_THREADS: `{}` is no number of threads", env),
                      "give a number from 1 to 4096, or leave the variable unset");
    threads = unsigned(n);
  }
  t.threads = threads ? threads : std::max(1U, usableCpuCount() / ranks);
  t.ranks = ranks;
  return t;
}

std::string cpuFingerprint(const Target &target) {
  std::string model = target.cpu, line;
  for (std::ifstream in("/proc/cpuinfo"); std::getline(in, line);)
    if (llvm::StringRef(line).starts_with("model name")) {
      model = llvm::StringRef(line).split(':').second.trim().str();
      break;
    }
  const std::string features = contentHash({{target.features.data(), target.features.size()}}).substr(0, 8);
  return fmt::format("{} {} {}{} threads {} caches {}/{}/{}", model, target.cpu,
                     target.ranks > 1 ? fmt::format("{} ranks of ", target.ranks) : "", target.threads, features,
                     target.l1Bytes, target.l2Bytes, target.l3Bytes);
}

}  // namespace gptc
