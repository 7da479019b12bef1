#include "tools/study/explain_gpu.h"

#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace gptc {

using json = nlohmann::ordered_json;

const GpuSheet &gpuForPlan(const Target &target, const std::string &name) {
  if (!target.isCuda())
    throw UserError(ErrorCode::Usage, "the plan is for CPUs, and --target names a GPU",
                    "gptc compile MODEL.toml --target cuda:sm_90a makes one for GPUs");
  const GpuSheet *gpu = gpuSheet(name);
  if (!gpu) {
    std::vector<std::string> names;
    for (const GpuSheet &s : gpuSheets())
      names.push_back(s.name.str());
    throw UserError(ErrorCode::UnknownValue, fmt::format("no data sheet of a GPU named {}", name),
                    "there are " + llvm::join(names, ", "));
  }
  // Code with a letter runs on its architecture only, other code on later minor ones too.
  const llvm::StringRef code(target.cpu);
  const bool isExact = code.ends_with("a") || code.ends_with("f");
  const llvm::StringRef arch = code.rtrim("af");
  const bool runs = gpu->arch == arch || (!isExact && gpu->arch.drop_back() == arch.drop_back() && gpu->arch > arch);
  if (!runs)
    throw UserError(ErrorCode::Usage, fmt::format("the plan is for {}, and an {} is {}", code, gpu->name, gpu->arch),
                    fmt::format("gptc compile MODEL.toml --target cuda:{}", gpu->arch));
  return *gpu;
}

namespace {

struct Sum {
  double launches = 0, bytes = 0, floor = 0, seconds = 0;
  void add(const GpuGroup &g) {
    launches += g.calls * double(std::max<size_t>(1, g.launches.size()));
    bytes += g.calls * g.bytes, floor += g.calls * g.floor, seconds += g.calls * g.seconds;
  }
};

Sum sumOf(const GpuStep &step, std::optional<StepClass> kind) {
  Sum sum;
  for (const GpuGroup &g : step.groups)
    if (!kind || g.kind == *kind)
      sum.add(g);
  return sum;
}

/// Launches of generated kernels with their groups, the dearest first.
std::vector<std::pair<const GpuGroup *, const GpuLaunch *>> dearest(const GpuStep &step) {
  std::vector<std::pair<const GpuGroup *, const GpuLaunch *>> all;
  for (const GpuGroup &g : step.groups)
    for (const GpuLaunch &l : g.launches)
      all.push_back({&g, &l});
  llvm::stable_sort(all, [](auto &a, auto &b) {
    return a.first->calls * a.second->seconds() > b.first->calls * b.second->seconds();
  });
  return all;
}

/// Bytes of a lane that an access of global memory moves on average.
double bytesPerAccess(const WarpRun &w) {
  double bytes = 0, times = 0;
  for (const WarpAccess &a : w.accesses)
    bytes += double(a.bytes) * double(a.times), times += double(a.times);
  return times > 0 ? bytes / times : 0;
}

/// The parts of what `what` names, and its dearest kernels.
std::string tablesOf(const GpuStep &step, llvm::StringRef what) {
  std::string text = fmt::format("{:<16} {:>8} {:>9} {:>10} {:>12}\n", fmt::format("part of a {}", what.str()),
                                 "launches", "GB", "floor ms", "expected ms");
  const int digits = step.seconds() < 0.01 ? 3 : 2;
  auto row = [&](const std::string &name, const Sum &s) {
    text += fmt::format("{:<16} {:>8.0f} {:>9.{}f} {:>10.{}f} {:>12.{}f}\n", name, s.launches, 1e-9 * s.bytes, digits,
                        1e3 * s.floor, digits, 1e3 * s.seconds, digits);
  };
  for (StepClass c : stepClasses)
    if (const Sum s = sumOf(step, c); s.launches > 0)
      row(nameOf(c), s);
  row("all", sumOf(step, std::nullopt));
  text +=
      fmt::format("\n{:<36} {:>5} {:>8} {:>14} {:>5} {:>8} {:>7} {:>6} {:>6}  {}\n", "generated kernels, the dearest",
                  "calls", "ms", "blocks x width", "regs", "waves", "B/access", "loads", "spills", "bound by");
  const auto all = dearest(step);
  for (const auto &[g, l] : llvm::ArrayRef(all).take_front(12))
    text +=
        fmt::format("{:<36.36} {:>5.0f} {:>8.3f} {:>14} {:>5} {:>8.2f} {:>8.1f} {:>6.1f} {:>6}  {}\n", g->place,
                    g->calls, 1e3 * g->calls * l->seconds(), fmt::format("{} x {}", l->blocks, l->threads),
                    l->registers, l->waves, bytesPerAccess(l->warp), l->warp.loadsInFlight, l->warp.spills, l->bound());
  return text;
}

json partsOf(const GpuStep &step) {
  json parts = json::array();
  for (StepClass c : stepClasses)
    if (const Sum s = sumOf(step, c); s.launches > 0)
      parts.push_back({{"class", nameOf(c)},
                       {"launches", s.launches},
                       {"bytes", s.bytes},
                       {"floor_ms", 1e3 * s.floor},
                       {"expected_ms", 1e3 * s.seconds}});
  return parts;
}

json kernelsOf(const GpuStep &step) {
  json kernels = json::array();
  for (const auto &[g, l] : dearest(step)) {
    const WarpPipes &p = l->warp.pipes;
    kernels.push_back({{"place", g->place},
                       {"class", nameOf(g->kind)},
                       {"symbol", l->symbol},
                       {"calls", g->calls},
                       {"blocks", l->blocks},
                       {"threads", l->threads},
                       {"registers", l->registers},
                       {"blocks_per_sm", l->blocksPerSm},
                       {"waves", l->waves},
                       {"bytes", l->bytes},
                       {"bytes_per_access", bytesPerAccess(l->warp)},
                       {"loads_in_flight", l->warp.loadsInFlight},
                       {"instructions", l->warp.instructions},
                       {"spills", l->warp.spills},
                       {"cycles", l->warp.cycles},
                       {"pipe_cycles",
                        {{"issue", p.issue},
                         {"alu", p.alu},
                         {"fma", p.fma},
                         {"fp64", p.fp64},
                         {"xu", p.xu},
                         {"memory", p.memory},
                         {"tensor", p.tensor}}},
                       {"memory_ms", 1e3 * l->memorySeconds},
                       {"latency_ms", 1e3 * l->latencySeconds},
                       {"pipes_ms", 1e3 * l->pipeSeconds}});
  }
  return kernels;
}

}  // namespace

std::string tableOf(const GpuStep &step, const GpuStep &token, const GpuRates &r) {
  std::string text = fmt::format("GPU         {}: {} SMs at {:.2f} GHz, copies at {:.2f} TB/s; shares of libraries as "
                                 "measured on an H200, all else assumed\n\n{}",
                                 r.name, r.sms, 1e-9 * r.clock, 1e-12 * r.copy, tablesOf(step, "step"));
  if (!token.groups.empty())
    text += "\n" + tablesOf(token, "token");
  return text;
}

json jsonOf(const GpuStep &step, const GpuStep &token, const GpuRates &r) {
  json all = {{"gpu", r.name},          {"copy_bytes_per_s", r.copy}, {"clock_hz", r.clock},
              {"sms", r.sms},           {"measured", false},          {"step_ms", 1e3 * step.seconds()},
              {"parts", partsOf(step)}, {"kernels", kernelsOf(step)}};
  if (!token.groups.empty())
    all["token"] = {{"token_ms", 1e3 * token.seconds()}, {"parts", partsOf(token)}, {"kernels", kernelsOf(token)}};
  return all;
}

}  // namespace gptc
