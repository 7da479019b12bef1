#include "runtime/cuda/cuda_executor.h"

#include "codegen/cuda/libraries.h"
#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/plan_check.h"
#include "runtime/collectives/communicator.h"
#include "runtime/cuda/branches.h"
#include "runtime/cuda/gpu_kernel.h"
#include "runtime/cuda/host_part.h"
#include "runtime/cuda/kernel_fault.h"
#include "runtime/cuda/library_product.h"
#include "runtime/cuda/meeting.h"
#include "runtime/cuda/nvtx.h"
#include "runtime/device/profile.h"
#include "runtime/launch/pulse.h"
#include "runtime/plan/plan.h"
#include "support/diagnostics.h"
#include "support/stderr.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace gptc::cuda {

namespace {

constexpr size_t alignment = 16;                  // bytes; of the memory that kernel parameters point to
constexpr int branches = 4;                       // streams for branches of a graph, besides that of collectives
constexpr size_t ringSlots = 3;                   // calls whose arguments may be in flight
constexpr size_t contextRoom = 256 << 20;         // bytes left for code and for the driver's own allocations
constexpr int64_t copiedAlways = 16 << 10;        // bytes of a result; larger ones are copied when they are read
constexpr std::chrono::seconds joinTimeout{120};  // ranks arrive when they have compiled

size_t aligned(size_t n) { return (n + alignment - 1) / alignment * alignment; }

/// Bytes of the largest workspace, for each library and for generated kernels.
std::map<std::string, int64_t> workspaces(const Module &m) {
  std::map<std::string, int64_t> largest;
  for (const PlannedKernel &k : kernelsOf(m)) {
    Schedule s;
    const bool library = Schedule::parse(fact<&GroupFacts::schedule>(*k.op), s) && s.library;
    int64_t &bytes = largest[!library ? "a kernel" : s.recipe == RecipeKind::matmul ? "cuBLASLt" : "cuDNN"];
    for (int64_t ws : fact<&GroupFacts::ws>(*k.op))
      bytes = std::max(bytes, ws);
  }
  return largest;
}

/// "h.0.mlp 12.3 MB, ...": the largest tensors and workspaces.
std::string largestTensors(const Module &m) {
  std::vector<std::pair<int64_t, std::string>> all;
  for (const auto &s : m.states)
    if (!livesOnHost(*s) && !isInFiles(*s))
      all.push_back({s->type.bytes(), fmt::format("@{} {}", s->name, s->type.str())});
  for (const auto &f : m.functions)
    for (const Op &op : f->body)
      for (unsigned i = 0; op.is(OpKind::fused) && i < op.numResults(); ++i)
        all.push_back({op.result(i)->type.bytes(),
                       fmt::format("{} in @{}, {}", describe(op), f->name, op.result(i)->type.str())});
  for (const auto &[of, bytes] : workspaces(m))
    all.push_back({bytes, "workspace of " + of});
  std::stable_sort(all.begin(), all.end(), [](auto &a, auto &b) { return a.first > b.first; });
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(3, all.size()); ++i)
    text += fmt::format("{}{} ({})", i ? "; " : "", all[i].second, formatBytes(double(all[i].first)));
  return text;
}

size_t roomFor(const Gpu &gpu) {
  const size_t available = gpu.available();
  return available - std::min(available, contextRoom);
}

void requireMemory(const Gpu &gpu, const Module &m, int64_t bytes) {
  const size_t room = roomFor(gpu);
  if (size_t(bytes) <= room)
    return;
  throw UserError(ErrorCode::OutOfMemory,
                  fmt::format("the plan needs {} of GPU memory, and {} of the {} of {} are free for it; most take {}",
                              formatBytes(double(bytes)), formatBytes(double(room)), formatBytes(double(gpu.total())),
                              gpu.name, largestTensors(m)),
                  "compile with a smaller train.micro_batch (the global batch and the result stay the same), or end "
                  "other programs on the GPU (nvidia-smi)");
}

/// Checks the shared memory that a block needs: code for sm_80 also runs on sm_86, whose blocks have less.
void requireShared(const Gpu &gpu, const Target &target, const std::string &kernel, llvm::ArrayRef<CudaPhase> phases) {
  for (const CudaPhase &p : phases)
    if (p.sharedBytes > gpu.sharedBytes)
      throw UserError(ErrorCode::TargetUnavailable,
                      fmt::format("kernel {} of the plan, which is for {}, needs {} bytes of shared memory in a block, "
                                  "and {} ({}) has {}",
                                  kernel, target.name, p.sharedBytes, gpu.name, gpu.cpu, gpu.sharedBytes),
                      fmt::format("compile with --target cuda:{}",
                                  architectureOf(int(gpu.architecture) / 10, int(gpu.architecture) % 10)));
}

/// Checks all generated kernels of the plan, but not those that back up a library call.
void requireShared(const Gpu &gpu, const Target &target, const Module &m, Binder &binder) {
  if (gpu.sharedBytes >= target.sharedBytes)
    return;
  for (const auto &f : m.functions) {
    const BoundFunction bound = binder.bind(*f);
    for (const BoundGroup &g : bound.groups)
      if (!g.lowered->call && !g.lowered->attention && !runsOnHost(*g.op))
        requireShared(gpu, target, g.name, emitCuda(g.lowered->kernel, "k").phases);
  }
}

}  // namespace

struct CudaExecutor::Kernel : GpuKernel {
  using Launch = std::function<void(Stream)>;
  const char *callOf = "";  // name of the library, if it is a library call
  bool host = false;        // runs on the host
  HostKernel onHost;        // its code, if so
  std::vector<LoadedPhase> phases;
  const Together *together = nullptr;  // those that it starts with, if any; replaces the phases
  size_t member = 0;                   // its number among them
  Launch call;                         // of a library; replaces the phases
  std::function<Launch(llvm::ArrayRef<DevicePtr>)> callElsewhere;
  std::optional<Meeting> meeting;                      // collectives around the phases
  mutable std::vector<std::vector<std::byte>> copies;  // of results, filled by result()

  const void *result(unsigned i) const override {
    if (host)
      return onHost.params[op->numOperands() + i];
    copies.resize(op->numResults());
    copies[i].resize(op->result(i)->type.bytes());
    gpu->d.check(gpu->d.copyToHost(copies[i].data(), params[op->numOperands() + i], copies[i].size(), gpu->stream),
                 "cuMemcpyDtoHAsync");
    gpu->wait();
    return copies[i].data();
  }
  std::string symbols() const override {
    if (call)
      return callOf;
    std::string all;
    for (const LoadedPhase &p : together ? together->phases() : phases)
      all += (all.empty() ? "" : " ") + p.symbol;
    return all;
  }
  /// Whether all that it enqueues is code of ours.
  bool isGenerated() const { return !host && !call && !meeting; }
  /// Launches the phases on memory at these addresses, without those that it starts with. `early`: see LoadedPhase.
  void launch(llvm::ArrayRef<DevicePtr> at, Stream stream, bool early = false) const {
    if (together)
      return together->launchAlone(member, stream);
    std::vector<void *> pointers;
    for (const DevicePtr &p : at)
      pointers.push_back(const_cast<DevicePtr *>(&p));
    for (const LoadedPhase &p : phases) {
      p.launch(*gpu, p.blocks, pointers.data(), stream, early);
      early = true;
    }
  }
  Launch elsewhere(llvm::ArrayRef<DevicePtr> at, std::string &why) const override {
    if (host || meeting) {
      why = host ? "runs on the host" : "meets other ranks";
      return {};
    }
    if (call) {
      Launch other = callElsewhere(at);
      if (!other)
        why = fmt::format("{} has no such call for other addresses", callOf);
      return other;
    }
    if (together)
      return together->elsewhere(member, at);
    return [this, at = at.vec()](Stream stream) { launch(at, stream); };
  }
};

struct CudaExecutor::Bound {
  const Function *function;
  std::vector<Kernel> kernels;
  std::vector<std::unique_ptr<Together>> launches;
  std::vector<Place> args, results;
  std::vector<size_t> argAt, resultAt;  // offsets in a ring slot and in `pinned`
  struct Slot {
    std::unique_ptr<PinnedMemory> memory;
    EventHandle copied;  // the GPU has copied this slot's arguments
    explicit Slot(const Gpu &gpu, size_t bytes)
        : memory(std::make_unique<PinnedMemory>(gpu, std::max(bytes, alignment))), copied(gpu) {}
  };
  std::vector<std::unique_ptr<Slot>> ring;
  size_t calls = 0;
  std::unique_ptr<PinnedMemory> pinned;  // results
  EventHandle ended;
  /// Consecutive kernels that run either on the GPU as one graph or on the host.
  struct Part {
    size_t begin, end;
    GraphExec graph = nullptr;
    std::unique_ptr<HostPart> host;
  };
  std::vector<Part> parts;
  const Gpu &gpu;

  Bound(const Gpu &gpu, const Function *f) : function(f), ended(gpu), gpu(gpu) {}
  ~Bound() {
    for (const Part &p : parts)
      if (p.graph)
        gpu.d.graphExecDestroy(p.graph);
  }
};

CudaExecutor::CudaExecutor(const Module &planned, const Target &target, const Target &host, ThreadPool &pool,
                           const std::string &cacheDir, int device)
    : Executor(planned, target, host, pool, cacheDir), gpu(target, device), jit(target, cacheDir),
      binder(module, target, host) {
  branchStreams = {gpu.stream};
  if (Mesh::of(module).ranks() > 1)
    Nccl::get();  // all ranks report a missing NCCL now
  requireShared(gpu, target, module, binder);
  const int64_t bytes = fact<&MemoryFacts::arenaBytes>(module);
  requireMemory(gpu, module, bytes);
  arena = std::make_unique<DeviceMemory>(gpu, bytes);
  gpu.d.check(gpu.d.memsetBytes(arena->at, 0, bytes, gpu.stream), "cuMemsetD8Async");
  if (const int64_t of = fact<&MemoryFacts::hostBytes>(module)) {
    hostMemory = std::make_unique<PinnedMemory>(gpu, of);
    std::memset(hostMemory->at, 0, of);
  }
  for (int i = 1; i <= branches; ++i) {
    branchStreams.push_back(nullptr);
    gpu.d.check(gpu.d.streamCreate(&branchStreams.back(), streamNonBlocking), "cuStreamCreate");
  }
}

int64_t CudaExecutor::memoryForPlans(const Target &target) { return int64_t(roomFor(Gpu(target))); }

CudaExecutor::~CudaExecutor() {
  communicators.clear();  // aborts them unless leave() ran, so nothing on the GPU waits for another rank
  gpu.d.streamSynchronize(gpu.stream);
  functions.clear();
  cudnn.reset();
  for (size_t i = 1; i < branchStreams.size(); ++i)
    gpu.d.streamDestroy(branchStreams[i]);
  if (library)
    CublasLt::get().destroy(library);
  for (auto &[image, m] : modules)
    gpu.d.moduleUnload(m);
}

LoadedModule CudaExecutor::load(const std::shared_ptr<const std::string> &image) {
  LoadedModule &m = modules[image];
  if (!m)
    gpu.d.check(gpu.d.moduleLoadData(&m, image->data()), "cuModuleLoadData");
  return m;
}

DevicePtr CudaExecutor::streamNumber(int64_t stream) {
  constexpr size_t perChunk = 256;
  auto [it, isNew] = streamNumbers.try_emplace(stream, 0);
  if (!isNew)
    return it->second;
  const size_t n = streamNumbers.size() - 1;
  if (n % perChunk == 0)
    streamMemory.push_back(std::make_unique<DeviceMemory>(gpu, perChunk * alignment));
  it->second = streamMemory.back()->at + n % perChunk * alignment;
  gpu.d.check(gpu.d.copyToDevice(it->second, &stream, sizeof stream, gpu.stream), "cuMemcpyHtoDAsync");
  gpu.wait();
  return it->second;
}

/// Runs a call for the first time. That may load code, which the driver may refuse while a stream captures. Between
/// runs only states hold data in the arena; those that the call overwrites are restored afterwards.
void CudaExecutor::tryCall(const BoundGroup &g, llvm::function_ref<void()> call) {
  struct Part {
    DevicePtr at;
    std::vector<std::byte> bytes;
  };
  std::vector<Part> kept;
  for (const Place &p : llvm::drop_begin(g.memory, g.op->numOperands()))
    for (const auto &s : module.states) {
      const int64_t at = fact<&StateFacts::at>(*s), from = std::max(at, p.at),
                    to = std::min(at + s->type.bytes(), p.at + p.bytes);
      if (from >= to || isInFiles(*s))
        continue;
      Part &part = kept.emplace_back(Part{arena->at + from, std::vector<std::byte>(to - from)});
      gpu.d.check(gpu.d.copyToHost(part.bytes.data(), part.at, part.bytes.size(), gpu.stream), "cuMemcpyDtoHAsync");
    }
  gpu.wait();
  call();
  for (const Part &p : kept)
    gpu.d.check(gpu.d.copyToDevice(p.at, p.bytes.data(), p.bytes.size(), gpu.stream), "cuMemcpyHtoDAsync");
  gpu.wait();
}

/// Runs only this kernel and waits for it, so that a failure names it.
void CudaExecutor::alone(const Kernel &k, llvm::function_ref<void()> run) const {
  try {
    run();
  } catch (const KernelFault &f) {
    std::vector<std::string> code;
    for (const LoadedPhase &p : k.together ? k.together->phases() : k.phases)
      code.push_back(p.symbol);
    throw InternalError(__FILE__, __LINE__,
                        fmt::format("kernel {} failed on the GPU, which is {} of the model, by {}: {}", k.name,
                                    describe(*k.op), code.empty() ? "a call of a library" : llvm::join(code, ", "),
                                    f.error));
  }
}

/// Gives the kernel its library call, which has run once. Leaves it without a call if the plan asks for none or the
/// library has none that runs; `why` then gives the library's reason.
void CudaExecutor::setLibraryCall(const BoundGroup &g, Kernel &k, std::string &why) {
  if (!g.lowered->attention && !g.lowered->call)
    return;
  // Libraries want aligned workspaces, which older plans do not provide: skip to the first aligned address.
  const Place &planned = g.memory.back();
  const int64_t skipped =
      std::min(planned.bytes, int64_t(llvm::alignTo(uint64_t(planned.at), cudaPlanAlignment)) - planned.at);
  const DevicePtr workspace = arena->at + planned.at + skipped;
  const int64_t workspaceBytes = planned.bytes - skipped;
  if (const std::optional<CudnnAttention> &a = g.lowered->attention) {
    if (!cudnn)
      cudnn = Cudnn::make(gpu);
    std::shared_ptr<AttentionCall> call;
    alone(k, [&] { tryCall(g, [&] { call = cudnn->attention(*a, k.params, workspace, workspaceBytes, why); }); });
    if (!call)
      return;
    k.call = [call](Stream stream) { call->enqueue(stream); };
    k.callOf = "cuDNN";
    k.callElsewhere = [this, a, last = g.memory.size() - 1, workspaceBytes](llvm::ArrayRef<DevicePtr> at) {
      std::string none;
      const std::shared_ptr<AttentionCall> other = cudnn->attention(*a, at, at[last], workspaceBytes, none);
      return other ? Kernel::Launch([other](Stream stream) { other->enqueue(stream); }) : Kernel::Launch();
    };
    return;
  }
  const CublasLt &lt = CublasLt::get();
  if (!library)
    lt.check(lt.create(&library), "cublasLtCreate");
  auto call = std::make_shared<MatmulCall>(library, *g.lowered->call, k.params, workspace, size_t(workspaceBytes));
  Schedule s;
  GPTC_CHECK(Schedule::parse(fact<&GroupFacts::schedule>(*g.op), s), "schedule of {}", g.name);
  const std::optional<unsigned> pinned = s.algorithm ? call->find(s.algorithm) : 0;
  // Try the pinned algorithm, then the others in the library's order.
  auto [known, isNew] = algorithms.try_emplace(
      fmt::format("{} by {}", productText(*g.lowered->call, g.memory), pinned.value_or(0)), Algorithm{});
  if (isNew) {
    std::vector<unsigned> order = {pinned.value_or(0)};
    for (unsigned i = 0; i < call->algorithms(); ++i)
      if (i != order[0])
        order.push_back(i);
    known->second.why = "cuBLASLt proposes no algorithm";
    for (unsigned i = 0; i < call->algorithms() && !known->second.number; ++i)
      alone(k, [&] {
        tryCall(g, [&] {
          if (const LtStatus status = call->tryEnqueue(gpu.stream, order[i]); status == ltSuccess)
            known->second.number = order[i];
          else
            known->second.why = fmt::format("cuBLASLt refuses to run it (cublasStatus_t {})", int(status));
        });
      });
  }
  if (!known->second.number) {
    why = known->second.why;
    return;
  }
  k.call = [call, algorithm = *known->second.number](Stream stream) { call->enqueue(stream, algorithm); };
  k.callOf = "cuBLASLt";
  k.callElsewhere = [this, &matmul = *g.lowered->call, last = g.memory.size() - 1, workspaceBytes,
                     algorithm = call->nameOf(*known->second.number)](llvm::ArrayRef<DevicePtr> at) {
    const auto other = std::make_shared<MatmulCall>(library, matmul, at, at[last], size_t(workspaceBytes));
    const std::optional<unsigned> number = other->find(algorithm);
    return number ? Kernel::Launch([other, number](Stream stream) { other->enqueue(stream, *number); })
                  : Kernel::Launch();
  };
  if (s.algorithm && pinned != known->second.number && unknownAlgorithms++ == 0)
    firstUnknown = fmt::format(
        "{} ({}): {}", k.name, describe(*k.op),
        pinned ? known->second.why : fmt::format("it is none of the {} that the library proposes", call->algorithms()));
}

/// Whether the kernel needs generated code.
bool CudaExecutor::hasCode(const Kernel &k, const LoweredGroup &g) {
  return !k.call && !k.host && !fact<&GroupFacts::launch>(*k.op) && !(g.collectives && g.kernel.body.empty());
}

/// Loads a function of a kernel's image.
LoadedPhase CudaExecutor::load(const std::string &kernel, const std::shared_ptr<const std::string> &image,
                               const CudaPhase &p) {
  LoadedPhase phase{nullptr,  unsigned(p.blocks),       unsigned(p.threads), unsigned(p.sharedBytes),
                    p.symbol, target.architecture >= 90};
  gpu.d.check(gpu.d.moduleGetFunction(&phase.function, load(image), p.symbol.c_str()), "cuModuleGetFunction");
  // Asking also loads the function, which the driver may refuse while a stream captures.
  int most = 0;
  gpu.d.check(gpu.d.functionGetAttribute(&most, functionMaxThreads, phase.function), "cuFuncGetAttribute");
  GPTC_CHECK(int64_t(most) >= p.threads, "{} takes {} threads of {}", kernel, most, p.threads);
  if (phase.sharedBytes)
    gpu.d.check(gpu.d.functionSetAttribute(phase.function, functionMaxDynamicShared, int(phase.sharedBytes)),
                "cuFuncSetAttribute");
  return phase;
}

/// Makes the launches of several kernels.
void CudaExecutor::loadLaunches(Bound &f, const BoundFunction &bound) {
  for (size_t i = 0; i < f.kernels.size(); ++i) {
    const int64_t launch = fact<&GroupFacts::launch>(*f.kernels[i].op);
    if (!launch || f.kernels[i].together)
      continue;
    size_t end = i;
    std::vector<const kir::Kernel *> kernels;
    std::vector<std::vector<uint64_t>> params;
    for (; end < f.kernels.size() && fact<&GroupFacts::launch>(*f.kernels[end].op) == launch; ++end) {
      kernels.push_back(&bound.groups[end].lowered->kernel);
      params.push_back({f.kernels[end].params.begin(), f.kernels[end].params.end()});
    }
    Together &t = *f.launches.emplace_back(std::make_unique<Together>(gpu, kernels, std::move(params)));
    const CudaCode code = jit.compile(t.code.cuda(), t.code.name());
    requireShared(gpu, target, t.code.name(), code.phases);
    std::vector<LoadedPhase> phases;
    for (const CudaPhase &p : code.phases)
      phases.push_back(load(t.code.name(), code.image, p));
    t.load(std::move(phases));
    for (size_t k = i; k < end; ++k) {
      f.kernels[k].together = &t;
      f.kernels[k].member = k - i;
    }
  }
}

/// The NCCL communicator along an axis; null if the axis has one rank. The first call joins it, so all ranks must make
/// that call in the same order.
NcclCommunicator *CudaExecutor::joined(llvm::StringRef axis) {
  Communicator *const hosts = along(axis);
  if (!hosts)
    return nullptr;
  if (auto it = communicators.find(axis.str()); it != communicators.end())
    return it->second.get();
  NcclId id;
  if (hosts->rank == 0)
    id = NcclId::make();
  hosts->run({{Collective::Kind::broadcast, id.bytes.data(), id.bytes.data(), id.bytes.size() / 4, DType::u32, 0}},
             SumOrder::fast);
  auto joining = std::make_unique<NcclCommunicator>(gpu, id, hosts->rank, hosts->world, joinTimeout, patience);
  return communicators.emplace(axis.str(), std::move(joining)).first->second.get();
}

void CudaExecutor::leave() {
  if (communicators.empty())
    return;
  settle("the last step");
  functions.clear();  // NCCL requires graphs to be destroyed before finish()
  for (auto &[axis, c] : communicators)
    c->finish();
  communicators.clear();
}

/// Waits for an event that may depend on another rank.
void CudaExecutor::await(Event event, llvm::StringRef what) {
  if (communicators.empty())
    return gpu.d.check(gpu.d.eventSynchronize(event), "cuEventSynchronize");
  const Pulse::Collective waiting(what);
  NcclCommunicator &first = *communicators.begin()->second;
  first.wait(event, what, [&] {
    for (auto &[axis, c] : communicators)
      if (c.get() != &first)
        c->requireWell(what);
    if (ranks)
      ranks->requireWell();
  });
}

/// Waits for all work on the GPU's stream.
void CudaExecutor::settle(llvm::StringRef what) {
  if (communicators.empty())
    return gpu.wait();
  EventHandle e(gpu);
  gpu.d.check(gpu.d.eventRecord(e.event, gpu.stream), "cuEventRecord");
  await(e.event, what);
}

/// Where each of these begins, one behind the other, and how many bytes they take.
static size_t layOut(const std::vector<Place> &places, std::vector<size_t> &at) {
  size_t end = 0;
  for (const Place &p : places) {
    at.push_back(end);
    end += aligned(p.bytes);
  }
  return end;
}

void CudaExecutor::prepare(llvm::ArrayRef<llvm::StringRef> names) {
  gpu.enterThread();
  std::vector<std::pair<Bound *, BoundFunction>> pending;
  std::vector<const kir::Kernel *> kernels, hostKernels;
  const bool meetFirst = communicators.empty();
  const size_t availableBefore = gpu.available();
  for (llvm::StringRef name : names) {
    const Function *f = module.function(name);
    if (!f || functions.count(name))
      continue;
    BoundFunction b = binder.bind(*f);
    auto bound = std::make_unique<Bound>(gpu, f);
    bound->kernels.reserve(b.groups.size());  // pointers into it are kept
    for (const BoundGroup &g : b.groups) {
      Kernel &k = bound->kernels.emplace_back();
      k.name = g.name;
      k.op = g.op;
      k.gpu = &gpu;
      k.memory = g.memory;
      if (runsOnHost(*g.op)) {
        k.host = true;
        k.onHost.streams = g.streams;
        hostKernels.push_back(&g.lowered->kernel);
        continue;
      }
      for (const Place &p : g.memory)
        k.params.push_back(arena->at + p.at);
      for (int64_t stream : g.streams)
        k.params.push_back(streamNumber(stream));
      std::string why;
      setLibraryCall(g, k, why);
      if (hasCode(k, *g.lowered))
        kernels.push_back(&g.lowered->kernel);
      if (!why.empty() && replacedCalls++ == 0)
        firstReplaced = fmt::format("{} ({}): {}", k.name, describe(*k.op), why);
    }
    pending.push_back({bound.get(), std::move(b)});
    functions[name] = std::move(bound);
  }
  if (unknownAlgorithms && !std::exchange(saidUnknown, true))
    printError("warning: cuBLASLt {} on {} does not run what the plan chose for {} of its calls: its own choice "
               "takes their place, and bits and speed may differ; `gptc compile` here chooses anew; the first is {}\n",
               CudaLibrary::get(CudaLibraryId::cublasLt).version.str(), gpu.name, unknownAlgorithms, firstUnknown);
  if (replacedCalls && !std::exchange(saidReplaced, true))
    printError("warning: generated kernels take the place of {} of the plan's library calls on {}, and bits and speed "
               "may differ; the first is {}\n",
               replacedCalls, gpu.name, firstReplaced);
  const std::vector<CudaCode> code = jit.compile(kernels);
  std::vector<CompiledKernel> hostCode = Executor::jit.compile(hostKernels);
  size_t next = 0, nextOnHost = 0;
  for (auto &[bound, b] : pending) {
    for (size_t i = 0; i < b.groups.size(); ++i) {
      Kernel &k = bound->kernels[i];
      if (k.host)
        k.onHost.code = std::move(hostCode[nextOnHost++]);
      if (const std::optional<Collectives> &c = b.groups[i].lowered->collectives)
        k.meeting.emplace(gpu, *c, k.params, k.op->numOperands(), k.op->numResults(), joined(c->axis), index(c->axis),
                          streamNumber(index(c->axis)));
      if (!hasCode(k, *b.groups[i].lowered))
        continue;
      const CudaCode &c = code[next++];
      requireShared(gpu, target, k.name, c.phases);
      for (const CudaPhase &p : c.phases)
        k.phases.push_back(load(k.name, c.image, p));
    }
    loadLaunches(*bound, b);
    bound->args = b.args;
    bound->results = b.results;
    const size_t argBytes = layOut(bound->args, bound->argAt), resultBytes = layOut(bound->results, bound->resultAt);
    for (size_t i = 0; i < ringSlots; ++i)
      bound->ring.push_back(std::make_unique<Bound::Slot>(gpu, argBytes));
    bound->pinned = std::make_unique<PinnedMemory>(gpu, std::max(resultBytes, alignment));
    divide(*bound, b);
    for (size_t part = 0; part < bound->parts.size(); ++part)
      if (!bound->parts[part].host)
        capture(*bound, part);
  }
  if (meetFirst && !communicators.empty() && ranks && ranks->rank == 0) {
    const size_t available = gpu.available();
    fmt::print("NCCL {} joins {} GPUs; beside the plan's memory it takes {} of each, with code and graphs\n",
               CudaLibrary::get(CudaLibraryId::nccl).version.str(), ranks->world,
               formatBytes(double(availableBefore - std::min(availableBefore, available))));
    std::fflush(stdout);
  }
}

void CudaExecutor::launch(const Kernel &k, Stream stream, bool early) {
  if (k.call)
    return k.call(stream);
  if (k.meeting)
    k.meeting->before(stream);
  k.launch(k.params, stream, early);
  if (k.meeting)
    k.meeting->after(stream);
}

void CudaExecutor::copyResult(const Bound &f, size_t i) {
  gpu.d.check(
      gpu.d.copyToHost(f.pinned->at + f.resultAt[i], arena->at + f.results[i].at, f.results[i].bytes, gpu.stream),
      "cuMemcpyDtoHAsync");
}

void CudaExecutor::copySmallResults(const Bound &f) {
  for (size_t i = 0; i < f.results.size(); ++i)
    if (f.results[i].bytes <= copiedAlways)
      copyResult(f, i);
}

/// Divides the kernels into parts. The last part runs on the GPU, because it also copies the results.
void CudaExecutor::divide(Bound &f, const BoundFunction &bound) {
  f.parts.push_back({0, 0});
  for (size_t i = 0; i < f.kernels.size(); ++i) {
    if (f.kernels[i].host != bool(f.parts.back().host)) {
      f.parts.push_back({i, i});
      if (f.kernels[i].host) {
        const int64_t of = fact<&MemoryFacts::hostBytes>(module), slot = hostSlotBytes(module);
        f.parts.back().host = std::make_unique<HostPart>(
            gpu, HostPart::Memory{arena->at, hostMemory->at, of - 2 * slot, slot}, pool.size());
      }
    }
    if (f.kernels[i].host)
      f.parts.back().host->add(f.kernels[i].onHost, bound.groups[i]);
    f.parts.back().end = i + 1;
  }
  if (f.parts.back().host)
    f.parts.push_back({f.kernels.size(), f.kernels.size()});
}

/// Captures the kernels of a part, in branches as their memory allows. The last part also copies the results to the
/// host.
void CudaExecutor::capture(Bound &f, size_t part) {
  const Driver &d = gpu.d;
  const size_t first = f.parts[part].begin;
  std::vector<Touches> touches;
  std::vector<const Kernel *> nodes;  // of kernels that start together the first
  for (const Kernel &k : llvm::ArrayRef(f.kernels).slice(first, f.parts[part].end - first)) {
    addKernel(touches, *k.op, k.memory, k.meeting && k.meeting->meets());
    if (touches.size() > nodes.size())
      nodes.push_back(&k);
  }
  const std::vector<Branch> plan = branchesOf(touches, branches);
  d.check(d.streamBeginCapture(gpu.stream, captureThreadLocal), "cuStreamBeginCapture");
  std::vector<std::unique_ptr<EventHandle>> ended(plan.size());
  auto record = [&](Stream stream) {
    auto e = std::make_unique<EventHandle>(gpu);
    d.check(d.eventRecord(e->event, stream), "cuEventRecord");
    return e;
  };
  auto wait = [&](Stream stream, const EventHandle &e) {
    d.check(d.streamWaitEvent(stream, e.event, 0), "cuStreamWaitEvent");
  };
  std::vector<std::unique_ptr<EventHandle>> others;  // must live until the capture ends
  const EventHandle &begin = *others.emplace_back(record(gpu.stream));
  std::vector<bool> used(branchStreams.size());
  std::vector<const Kernel *> lastOn(branchStreams.size());  // by stream
  for (size_t i = 0; i < plan.size(); ++i) {
    const Branch &b = plan[i];
    const Stream stream = branchStreams[b.stream];
    if (b.stream != 0 && !used[b.stream])
      wait(stream, begin);
    used[b.stream] = true;
    for (int before : b.waits)
      wait(stream, *ended[before]);
    const Kernel &k = *nodes[i], *last = std::exchange(lastOn[b.stream], &k);
    // Behind nothing but a kernel of ours.
    const bool early = last && last->isGenerated() && k.isGenerated() && b.waits.empty();
    NvtxRange range(describe(*k.op));
    if (k.together)
      k.together->launch(stream, early);
    else
      launch(k, stream, early);
    if (b.awaited)
      ended[i] = record(stream);
  }
  for (size_t s = 1; s < branchStreams.size(); ++s)
    if (used[s])
      wait(gpu.stream, *others.emplace_back(record(branchStreams[s])));
  if (part + 1 == f.parts.size())
    copySmallResults(f);
  Graph graph = nullptr;
  d.check(d.streamEndCapture(gpu.stream, &graph), "cuStreamEndCapture");
  const auto instantiated = d.graphInstantiate(&f.parts[part].graph, graph, 0);
  const auto destroyed = d.graphDestroy(graph);
  d.check(instantiated, "cuGraphInstantiate");
  d.check(destroyed, "cuGraphDestroy");
}

/// Runs the kernels one by one.
void CudaExecutor::observe(Bound &f) {
  settle("a step");
  EventHandle begin(gpu, eventDefault), end(gpu, eventDefault);
  for (size_t i = 0, n = 0; i < f.kernels.size(); ++i) {
    const Kernel &k = f.kernels[i];
    alone(k, [&] { observer->willRun(k); });
    const int64_t from = monotonicNow();
    while (i >= f.parts[n].end)
      ++n;
    if (const Bound::Part &part = f.parts[n]; part.host) {
      part.host->runAlone(i - part.begin, pool, [&] { settle(k.name); });
      observer->ran(k, from, monotonicNow());
      continue;
    }
    {
      NvtxRange range(describe(*k.op));
      alone(k, [&] {
        gpu.d.check(gpu.d.eventRecord(begin.event, gpu.stream), "cuEventRecord");
        launch(k, gpu.stream);
        gpu.d.check(gpu.d.eventRecord(end.event, gpu.stream), "cuEventRecord");
        await(end.event, k.name);
      });
    }
    float ms = 0;
    gpu.d.check(gpu.d.eventElapsedTime(&ms, begin.event, end.event), "cuEventElapsedTime");
    observer->ran(k, from, from + int64_t(double(ms) * 1e6));
  }
  copySmallResults(f);
}

void CudaExecutor::run(llvm::StringRef function, llvm::ArrayRef<const void *> args) {
  gpu.enterThread();  // servers run functions in threads of their own
  if (!functions.count(function))
    prepare(function);
  Bound &f = *functions.find(function)->second;
  GPTC_CHECK(args.size() == f.args.size(), "@{} takes {} arguments, given {}", function.str(), f.args.size(),
             args.size());
  NvtxRange range(function.str());
  Bound::Slot &slot = *f.ring[f.calls++ % f.ring.size()];
  await(slot.copied.event, "a step before");
  for (size_t i = 0; i < args.size(); ++i) {
    std::byte *at = slot.memory->at + f.argAt[i];
    std::memcpy(at, args[i], f.args[i].bytes);
    gpu.d.check(gpu.d.copyToDevice(arena->at + f.args[i].at, at, f.args[i].bytes, gpu.stream), "cuMemcpyHtoDAsync");
  }
  gpu.d.check(gpu.d.eventRecord(slot.copied.event, gpu.stream), "cuEventRecord");
  if (observer)
    observe(f);
  else
    for (const Bound::Part &part : f.parts)
      if (part.host)
        part.host->run(pool, [&](Event arrived) { await(arrived, "what the host updates"); });
      else
        gpu.d.check(gpu.d.graphLaunch(part.graph, gpu.stream), "cuGraphLaunch");
  gpu.d.check(gpu.d.eventRecord(f.ended.event, gpu.stream), "cuEventRecord");
}

const void *CudaExecutor::result(llvm::StringRef function, unsigned i) {
  gpu.enterThread();
  auto it = functions.find(function);
  GPTC_CHECK(it != functions.end(), "@{} is not prepared", function.str());
  const Bound &f = *it->second;
  await(f.ended.event, fmt::format("@{}", function.str()));
  if (f.results[i].bytes > copiedAlways) {
    copyResult(f, i);
    settle("a result");
  }
  return f.pinned->at + f.resultAt.at(i);
}

void *CudaExecutor::openView(const State &state, StateAccess access) {
  gpu.enterThread();
  const State *s = module.state(state.name);
  GPTC_CHECK(s, "no state {}", state.name);
  if (livesOnHost(*s)) {
    GPTC_CHECK(hostMemory, "no memory of the host for state {}", s->name);
    return hostMemory->at + (fact<&StateFacts::at>(*s) - hostArena);
  }
  settle("a step");  // the driver's copies of pageable memory would wait without a time-out
  auto *data = new std::byte[s->type.bytes()];
  if (access == StateAccess::write) {
    std::memset(data, 0, s->type.bytes());  // zeroes padding, which a writer of the elements leaves alone
  } else {
    gpu.d.check(gpu.d.copyToHost(data, arena->at + fact<&StateFacts::at>(*s), s->type.bytes(), gpu.stream),
                "cuMemcpyDtoHAsync");
    gpu.wait();
  }
  return data;
}

void CudaExecutor::closeView(const State &state, StateAccess access, void *data) {
  const State *s = module.state(state.name);
  if (livesOnHost(*s))
    return;
  // Must not throw: the driver keeps an error, and the next call reports it.
  if (access != StateAccess::read) {
    gpu.d.copyToDevice(arena->at + fact<&StateFacts::at>(*s), data, s->type.bytes(), gpu.stream);
    gpu.d.streamSynchronize(gpu.stream);
  }
  delete[] static_cast<std::byte *>(data);
}

}  // namespace gptc::cuda
