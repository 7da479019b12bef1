// Runs a plan on a GPU. Each function is one CUDA graph, or two around a host part (host_part.h). A graph runs the
// kernels at fixed addresses in one arena of exactly the planned bytes, then copies small results to the host; large
// ones, such as logits, are copied when they are read. Arguments pass through a ring of pinned memory, so that the host
// can prepare the next ones while the GPU works; only a reader of results waits.
#pragma once

#include "codegen/cuda/jit.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/cudnn.h"
#include "runtime/cuda/gpu.h"
#include "runtime/cuda/nccl.h"
#include "runtime/cuda/peak.h"
#include "runtime/cuda/together.h"
#include "runtime/device/binding.h"
#include "runtime/device/executor.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>

namespace gptc::cuda {

class CudaExecutor : public Executor {
public:
  /// Allocates the zeroed arena on visible GPU `device`. Throws UserError(TargetUnavailable) if no GPU runs the plan's
  /// code, and UserError(OutOfMemory), naming the largest tensors and workspaces, before it allocates anything.
  CudaExecutor(const Module &planned, const Target &target, const Target &host, ThreadPool &pool,
               const std::string &cacheDir, int device = 0);
  ~CudaExecutor() override;

  /// If there are several ranks, all must prepare the same functions: they join at the first function with collectives.
  void prepare(llvm::ArrayRef<llvm::StringRef> functions) override;
  /// Asynchronous unless an observer is set.
  void run(llvm::StringRef function, llvm::ArrayRef<const void *> args) override;
  const void *result(llvm::StringRef function, unsigned i) override;
  void leave() override;
  bool intact() override { return true; }  // no guard memory to check
  PeakRecord peak(llvm::StringRef compute) override { return peakOfGpu(gpu, compute, cacheDir); }
  SheetPeak sheetPeak(llvm::StringRef compute) const override { return cuda::sheetPeak(gpu.name, compute); }
  const Gpu &hardware() const { return gpu; }
  /// Bytes available for an arena on this machine's GPU. Throws like the constructor.
  static int64_t memoryForPlans(const Target &target);

private:
  struct Kernel;
  struct Bound;

  void *openView(const State &state, StateAccess access) override;
  void closeView(const State &state, StateAccess access, void *data) override;
  LoadedModule load(const std::shared_ptr<const std::string> &image);
  LoadedPhase load(const std::string &kernel, const std::shared_ptr<const std::string> &image, const CudaPhase &phase);
  void loadLaunches(Bound &f, const BoundFunction &bound);
  DevicePtr streamNumber(int64_t stream);
  static bool hasCode(const Kernel &kernel, const LoweredGroup &lowered);
  NcclCommunicator *joined(llvm::StringRef axis);
  void await(Event event, llvm::StringRef what);
  void settle(llvm::StringRef what);
  void tryCall(const BoundGroup &g, llvm::function_ref<void()> call);
  void alone(const Kernel &kernel, llvm::function_ref<void()> run) const;
  void setLibraryCall(const BoundGroup &g, Kernel &k, std::string &why);
  void launch(const Kernel &kernel, Stream stream, bool early = false);
  void copyResult(const Bound &f, size_t i);
  void copySmallResults(const Bound &f);
  void divide(Bound &f, const BoundFunction &bound);
  void capture(Bound &f, size_t part);
  void observe(Bound &f);

  Gpu gpu;
  // The GPU's own stream, the streams of captured branches, and last the stream of collectives.
  std::vector<Stream> branchStreams;
  CudaJit jit;
  Binder binder;
  LtHandle library = nullptr;  // created on first use, like cudnn
  std::unique_ptr<Cudnn> cudnn;
  /// The algorithm that runs a product, or the reason why there is none.
  struct Algorithm {
    std::optional<unsigned> number;
    std::string why;
  };
  std::map<std::string, Algorithm> algorithms;
  int unknownAlgorithms = 0;  // calls for which the plan names an algorithm that cuBLASLt does not propose or run here
  std::string firstUnknown;   // the first of these, with the reason
  int replacedCalls = 0;      // library calls replaced by generated kernels
  std::string firstReplaced;  // the first of these, with the reason
  bool saidUnknown = false, saidReplaced = false;
  std::unique_ptr<DeviceMemory> arena;
  std::unique_ptr<PinnedMemory> hostMemory;  // the host's arena, if the plan has one
  std::map<std::shared_ptr<const std::string>, LoadedModule> modules;
  // Numbers of random streams. Kernels read them from memory, 16 bytes each because parameters are aligned so.
  std::map<int64_t, DevicePtr> streamNumbers;
  std::vector<std::unique_ptr<DeviceMemory>> streamMemory;
  llvm::StringMap<std::unique_ptr<Bound>> functions;
  std::map<std::string, std::unique_ptr<NcclCommunicator>> communicators;  // by mesh axes
};

}  // namespace gptc::cuda
