#include "tools/estimate/gpu_step.h"

#include "codegen/codegen.h"
#include "codegen/cuda/jit.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "runtime/device/profile.h"
#include "support/diagnostics.h"
#include "support/thread_pool.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

namespace gptc {

GpuRates gpuRatesOf(const GpuSheet &gpu) {
  GpuRates r;
  r.name = gpu.name.str();
  r.peaks = ratesOf(gpu);
  r.copy = 4.3 / 4.8 * 1e9 * gpu.dram;  // as on an H200
  r.clock = gpu.clock();
  r.sms = gpu.sms;
  r.fp32Lanes = gpu.fp32Lanes();
  r.l2Bytes = double(1 << 20) * gpu.l2;
  return r;
}

const char *nameOf(StepClass c) {
  switch (c) {
  case StepClass::linear:
    return "linear";
  case StepClass::weight_grad:
    return "weight_grad";
  case StepClass::classifier:
    return "classifier";
  case StepClass::attention:
    return "attention";
  case StepClass::cross_entropy:
    return "cross_entropy";
  case StepClass::norm:
    return "norm";
  case StepClass::embedding_grad:
    return "embedding_grad";
  case StepClass::optimizer:
    return "optimizer";
  case StepClass::other:
    return "other";
  }
  GPTC_UNREACHABLE("class {}", int(c));
}

double GpuLaunch::seconds() const { return std::max({memorySeconds, latencySeconds, pipeSeconds}); }

const char *GpuLaunch::bound() const {
  return memorySeconds >= seconds() ? "memory" : latencySeconds >= seconds() ? "latency" : "pipes";
}

double GpuStep::seconds() const {
  double sum = 0;
  for (const GpuGroup &g : groups)
    sum += g.calls * g.seconds;
  return sum;
}

namespace {

bool isProduct(KernelClass c) {
  return c == KernelClass::matmul || c == KernelClass::attention || c == KernelClass::attention_grad;
}

bool touchesVocabulary(const Op &fused, int64_t vocabSize) {
  auto has = [&](const Type &t) { return llvm::any_of(t.dims, [&](const Dim &d) { return d.logical == vocabSize; }); };
  for (const Value *v : fused.operands())
    if (has(v->type))
      return true;
  for (unsigned i = 0; i < fused.numResults(); ++i)
    if (has(fused.result(i)->type))
      return true;
  return false;
}

StepClass stepClassOf(const Module &m, const Op &fused) {
  switch (classOf(fused)) {
  case KernelClass::matmul:
    if (touchesVocabulary(fused, fact<&ModelFacts::vocabSize>(m)))
      return StepClass::classifier;
    for (const Op &op : *fused.body)
      if (op.is(OpKind::matmul) && op.attrs.has("fold"))
        return StepClass::weight_grad;
    return StepClass::linear;
  case KernelClass::attention:
  case KernelClass::attention_grad:
    return StepClass::attention;
  case KernelClass::scatter:
    return StepClass::embedding_grad;
  case KernelClass::optimizer:
    return StepClass::optimizer;
  default:
    break;
  }
  for (const Op &op : *fused.body) {
    if (op.isOneOf(OpKind::cross_entropy, OpKind::cross_entropy_grad))
      return StepClass::cross_entropy;
    if (llvm::StringRef(op.def().name).contains("norm"))
      return StepClass::norm;
    if (op.is(OpKind::sum_squares))
      return StepClass::optimizer;
    if (op.is(OpKind::reduce_sum) && op.result()->type.rank() == 1)
      return StepClass::weight_grad;  // of a bias
  }
  return StepClass::other;
}

double libraryShare(StepClass kind, bool isBackward, const GpuRates &r) {
  switch (kind) {
  case StepClass::weight_grad:
    return r.weightGrad;
  case StepClass::classifier:
    return r.classifier;
  case StepClass::attention:
    return isBackward ? r.attentionGrad : r.attention;
  default:
    return r.linear;
  }
}

/// Bytes by which C and D of a linear layer are wider than its factors.
double extraBytes(const Op &fused, StepClass kind) {
  const std::optional<CublasLtMatmul> call = kind == StepClass::linear ? matchCublasLtMatmul(fused) : std::nullopt;
  if (!call)
    return 0;
  auto extra = [&](const CublasLtMatmul::Matrix &x) {
    return double(int(sizeOf(x.dtype)) - int(sizeOf(call->a.dtype))) * double(x.rows * x.cols * call->batch);
  };
  return extra(call->d) + (call->c ? extra(*call->c) : 0);
}

/// Blocks that fit on an SM: by warps, registers and shared memory of sm_80, sm_90 and sm_100 (CUDA's programming
/// guide, compute capabilities).
int blocksThatFit(int threads, int registers, int64_t sharedBytes) {
  constexpr int mostBlocks = 32, mostWarps = 64, allRegisters = 65536;
  constexpr int64_t shared = 228 << 10, reserved = 1 << 10;
  const int warps = (threads + 31) / 32;
  const int byRegisters = allRegisters / (std::max(8, (registers + 7) / 8 * 8) * 32) / warps;
  return std::max(1, std::min({mostBlocks, mostWarps / warps, byRegisters, int(shared / (sharedBytes + reserved))}));
}

/// The warps of a block: each by itself, or one that stands for all.
struct Warps {
  std::vector<WarpRun> runs;
  double each = 1;  // how many warps a run stands for

  double cycles() const {
    double most = 0;
    for (const WarpRun &w : runs)
      most = std::max(most, w.cycles);
    return most;
  }
  WarpPipes pipes() const {
    WarpPipes sum;
    for (const WarpRun &w : runs)
      sum += w.pipes;
    return sum;
  }
};

Warps runWarps(const SassFunction &code, WarpLaunch launch) {
  const int count = (launch.threads + 31) / 32;
  Warps all;
  all.runs.push_back(runWarp(code, launch));
  launch.warp = count - 1;
  WarpRun last = runWarp(code, launch);
  // What a single thread does besides, such as storing the row's results, makes no difference.
  const bool alike =
      double(std::abs(last.instructions - all.runs[0].instructions)) <= 0.02 * double(last.instructions) + 16;
  if (count == 1 || alike) {
    all.each = count;
    return all;
  }
  for (launch.warp = 1; launch.warp + 1 < count; ++launch.warp)
    all.runs.push_back(runWarp(code, launch));
  all.runs.push_back(std::move(last));
  return all;
}

/// Bytes that a launch moves from and to memory. Of a parameter that half of L2 holds, each byte moves once; of a
/// larger one too, if that half holds what the blocks that run at a time load.
double movedBytes(const GpuLaunch &l, const Warps &warps, const GpuKernelShape &shape, const GpuRates &rates) {
  std::map<std::pair<int, bool>, double> moved;  // by parameter, apart for loads and stores
  double ofBlock = 0;
  for (const WarpRun &w : warps.runs)
    for (const WarpAccess &a : w.accesses) {
      const double bytes =
          warps.each * double(a.isStore ? a.times : a.missed) * std::max(double(a.bytes) * a.lanes, 32.0 * a.sectors);
      moved[{a.parameter, a.isStore}] += bytes * double(l.blocks);
      ofBlock += bytes;
    }
  const double atATime = ofBlock * rates.sms * l.blocksPerSm;
  double sum = 0;
  for (const auto &[of, bytes] : moved) {
    const bool isKnown = of.first >= 0 && size_t(of.first) < shape.parameters.size();
    const double whole = isKnown ? double(shape.parameters[size_t(of.first)].bytes) : bytes;
    sum += std::min(whole, atATime) <= rates.l2Bytes / 2 ? std::min(bytes, whole) : bytes;
  }
  return sum;
}

}  // namespace

GpuLaunch gpuLaunchOf(const SassFunction &code, const GpuKernelShape &shape, const GpuRates &rates, int sm) {
  GpuLaunch l;
  l.symbol = code.name;
  l.blocks = shape.blocks, l.threads = shape.threads, l.registers = code.registers;
  l.blocksPerSm = blocksThatFit(shape.threads, code.registers, code.sharedBytes + shape.sharedBytes);
  const double blocks = std::min<double>(l.blocksPerSm, std::ceil(double(l.blocks) / rates.sms));
  WarpLaunch launch;
  launch.block = shape.blocks / 2, launch.threads = shape.threads, launch.sm = sm;
  launch.fp32Lanes = rates.fp32Lanes;
  launch.memoryLatency = rates.memoryLatency, launch.l2Latency = rates.l2Latency;
  constexpr double l1Bytes = 192 << 10;
  launch.cacheBytes = int64_t(l1Bytes / std::max(1.0, blocks * shape.threads / 32));
  for (const GpuKernelShape::Parameter &p : shape.parameters)
    launch.parameters.push_back({p.dtype, double(p.bytes) <= rates.l2Bytes / 4, p.growth});
  Warps warps = runWarps(code, launch);
  l.waves = double(l.blocks) / (double(rates.sms) * l.blocksPerSm);
  l.bytes = movedBytes(l, warps, shape, rates);
  // A part of a round takes as long as a whole one only where it is the only one.
  const double rounds = std::max(1.0, l.waves), quarters = 4;
  l.memorySeconds = l.bytes / (rates.ofCopy * rates.copy);
  l.latencySeconds = rounds * warps.cycles() / rates.clock;
  l.pipeSeconds = rounds * std::max(warps.runs[0].pipes.most(), blocks * warps.each * warps.pipes().most() / quarters) /
                  (rates.ofPipe * rates.clock);
  l.warp = std::move(warps.runs[0]);
  return l;
}

namespace {

/// The groups of a step, equal ones once, with what the cost model says.
struct Listed {
  std::vector<GpuGroup> groups;
  std::vector<std::map<size_t, double>> kernelsOf;  // by group: how many of each kernel; none for calls of libraries
  struct Kernel {
    std::unique_ptr<LoweredGroup> lowered;
    size_t workspacesAt;  // the parameter that is the first workspace
  };
  std::vector<Kernel> kernels;  // each once
};

/// `callsOf`: how often a function runs in what is forecast.
Listed listGroups(const Module &m, const Target &target, const GpuRates &rates,
                  llvm::function_ref<double(llvm::StringRef)> callsOf) {
  Listed all;
  std::map<std::string, size_t> known, knownKernels;  // by groupKey, or by function and launch
  for (const auto &f : m.functions) {
    const double calls = callsOf(f->name);
    for (const Op &op : f->body) {
      if (calls == 0 || !op.is(OpKind::fused) || runsOnHost(op) || classOf(op) == KernelClass::communication)
        continue;
      const int64_t launch = fact<&GroupFacts::launch>(op);
      const std::string key = groupKey(op);
      const auto [it, isNew] =
          known.try_emplace(launch ? fmt::format("@{} {}", f->name, launch) : key, all.groups.size());
      if (!isNew && !launch) {
        all.groups[it->second].calls += calls;
        continue;
      }
      if (isNew) {
        GpuGroup &g = all.groups.emplace_back();
        all.kernelsOf.emplace_back();
        g.place = describe(op), g.kind = stepClassOf(m, op);
        g.calls = calls;
      }
      GpuGroup &g = all.groups[it->second];
      const KernelCost cost = costOf(op, rates.peaks);
      const double peak = isProduct(classOf(op)) ? contractionPeak(op, rates.peaks) : 0;
      g.flops += cost.flops, g.bytes += cost.bytes;
      g.floor += std::max(cost.bytes / rates.copy, peak > 0 ? cost.flops / (rates.ofPeak * peak) : 0);
      Schedule schedule;
      GPTC_CHECK(Schedule::parse(fact<&GroupFacts::schedule>(op), schedule), "schedule of {}", op.loc);
      g.isLibrary = schedule.library;
      if (g.isLibrary) {
        const double share = libraryShare(g.kind, classOf(op) == KernelClass::attention_grad, rates);
        const double rate = rates.ofCopy * rates.copy;
        g.seconds = std::max(g.flops / (share * peak) + extraBytes(op, g.kind) / rate, g.bytes / rate) + rates.edge;
        continue;
      }
      const auto [kernel, isNewKernel] = knownKernels.try_emplace(key, all.kernels.size());
      if (isNewKernel)
        all.kernels.push_back(
            {std::make_unique<LoweredGroup>(lowerGroup(op, schedule, target)), op.numOperands() + op.numResults()});
      ++all.kernelsOf[it->second][kernel->second];
    }
  }
  return all;
}

/// A launch of several kernels (codegen/cuda/launch.h), each with how many of it start together. Blocks of all fill the
/// GPU side by side, after each has searched a table.
GpuLaunch together(llvm::ArrayRef<std::pair<GpuLaunch, double>> parts, const GpuRates &rates) {
  GpuLaunch all = parts.front().first;
  if (parts.size() == 1 && parts.front().second == 1)
    return all;
  all.blocks = 0, all.bytes = all.memorySeconds = all.pipeSeconds = 0;
  double members = 0, cycles = 0, most = 0;
  for (const auto &[l, count] : parts) {
    const double own = l.latencySeconds / std::max(1.0, l.waves);  // of a round
    // A kernel of few blocks leaves most SMs idle.
    const double atATime = std::min<double>(l.blocksPerSm, std::ceil(double(l.blocks) / rates.sms));
    members += count;
    most = std::max(most, own);
    cycles += own * count * double(l.blocks);
    all.blocks += int64_t(count) * l.blocks;
    all.bytes += count * l.bytes;
    all.memorySeconds += count * l.memorySeconds;
    all.pipeSeconds += count * l.pipeSeconds * std::min(1.0, double(l.blocks) / (rates.sms * atATime));
    all.threads = std::max(all.threads, l.threads);
    all.registers = std::max(all.registers, l.registers);
    all.blocksPerSm = std::min(all.blocksPerSm, l.blocksPerSm);
  }
  all.waves = double(all.blocks) / (double(rates.sms) * all.blocksPerSm);
  const double search = (2 + std::ceil(std::log2(members))) * rates.l2Latency / rates.clock;
  all.latencySeconds = std::max(most + search, all.waves * (cycles / double(all.blocks) + search));
  return all;
}

GpuStep forecast(const Module &planned, const Target &target, const GpuRates &rates, const std::string &cacheDir,
                 llvm::function_ref<double(llvm::StringRef)> callsOf) {
  Listed all = listGroups(planned, target, rates, callsOf);
  std::vector<const kir::Kernel *> kernels;
  for (const Listed::Kernel &k : all.kernels)
    kernels.push_back(&k.lowered->kernel);
  const std::vector<CudaCode> code = CudaJit(target, cacheDir).compile(kernels);
  int sm = 0;
  llvm::StringRef(target.cpu).drop_front(strlen("sm_")).take_while(llvm::isDigit).getAsInteger(10, sm);
  std::map<const std::string *, std::vector<SassFunction>> images;  // several kernels share one
  for (const CudaCode &c : code)
    images[c.image.get()];
  {
    std::vector<std::pair<const std::string *const, std::vector<SassFunction>> *> all;
    for (auto &image : images)
      all.push_back(&image);
    ThreadPool(hostTarget().threads).each(int64_t(all.size()), [&](int64_t i) {
      all[size_t(i)]->second = disassemble(*all[size_t(i)]->first);
    });
  }
  std::vector<std::vector<GpuLaunch>> launches;  // of each kernel, by phase
  for (size_t n = 0; n < all.kernels.size(); ++n) {
    const Listed::Kernel &k = all.kernels[n];
    const std::vector<SassFunction> &functions = images.at(code[n].image.get());
    GpuKernelShape shape;
    for (const kir::Buffer &b : k.lowered->kernel.params)
      shape.parameters.push_back({b->dtype, b->size * int64_t(sizeOf(b->dtype))});
    for (const auto &[w, growth] : llvm::enumerate(k.lowered->workspaceGrowth))
      shape.parameters[k.workspacesAt + w].growth = growth;
    launches.emplace_back();
    for (const CudaPhase &p : code[n].phases) {
      const auto f = llvm::find_if(functions, [&](const SassFunction &f) { return f.name == p.symbol; });
      GPTC_CHECK(f != functions.end(), "no code of {}", p.symbol);
      shape.blocks = p.blocks, shape.threads = p.threads, shape.sharedBytes = p.sharedBytes;
      launches.back().push_back(gpuLaunchOf(*f, shape, rates, sm));
    }
  }
  for (size_t n = 0; n < all.groups.size(); ++n) {
    GpuGroup &g = all.groups[n];
    for (size_t phase = 0;; ++phase) {
      std::vector<std::pair<GpuLaunch, double>> parts;
      for (const auto &[kernel, count] : all.kernelsOf[n])
        if (phase < launches[kernel].size())
          parts.push_back({launches[kernel][phase], count});
      if (parts.empty())
        break;
      g.launches.push_back(together(parts, rates));
      g.seconds += g.launches.back().seconds() + rates.edge;
    }
    g.seconds = std::max(g.seconds, g.floor);
  }
  return {std::move(all.groups)};
}

}  // namespace

GpuStep gpuStepOf(const Module &planned, const Target &target, const GpuRates &rates, const std::string &cacheDir) {
  return forecast(planned, target, rates, cacheDir, [&](llvm::StringRef f) { return callsPerStep(planned, f); });
}

GpuStep gpuTokenOf(const Module &planned, const Target &target, const GpuRates &rates, const std::string &cacheDir) {
  return forecast(planned, target, rates, cacheDir, [](llvm::StringRef f) { return f == "decode" ? 1.0 : 0.0; });
}

}  // namespace gptc
