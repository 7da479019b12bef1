// A plan on a GPU. Each function is one CUDA graph (two around a part for the host, host_part.h): its kernels at fixed
// addresses in one arena of exactly the planned bytes, and copies of its results to the host. Arguments come through a
// ring of pinned memory, so that the host may prepare the next ones while the GPU works; only who asks for a result
// waits.
#pragma once

#include "codegen/cuda/jit.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/cudnn_attention.h"
#include "runtime/cuda/gpu.h"
#include "runtime/cuda/nccl.h"
#include "runtime/cuda/peak.h"
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
  /// Allocates the arena, which is zero then, on the visible GPU of this number. UserErrors: TargetUnavailable where no
  /// GPU runs the plan's code; OutOfMemory, before anything is allocated, with the largest tensors and workspaces.
  CudaExecutor(const Module &planned, const Target &target, const Target &host, ThreadPool &pool,
               const std::string &cacheDir, int device = 0);
  ~CudaExecutor() override;

  /// With several ranks all prepare alike: they meet where the first function has collectives.
  void prepare(llvm::ArrayRef<llvm::StringRef> functions) override;
  /// Has not ended on return, but with an observer.
  void run(llvm::StringRef function, llvm::ArrayRef<const void *> args) override;
  const void *result(llvm::StringRef function, unsigned i) override;
  void leave() override;
  bool intact() override { return true; }  // nothing lies behind it
  PeakRecord peak(llvm::StringRef compute) override { return peakOfGpu(gpu, compute, cacheDir); }
  SheetPeak sheetPeak(llvm::StringRef compute) const override { return cuda::sheetPeak(gpu.name, compute); }
  const Gpu &hardware() const { return gpu; }
  /// Bytes that an arena may have on the GPU of this machine. UserError as the constructor's.
  static int64_t memoryForPlans(const Target &target);

private:
  struct Kernel;
  struct Bound;

  void *openView(const State &state, StateAccess access) override;
  void closeView(const State &state, StateAccess access, void *data) override;
  LoadedModule load(const std::shared_ptr<const std::string> &image);
  DevicePtr streamNumber(int64_t stream);
  static bool hasCode(const Kernel &kernel, const LoweredGroup &lowered);
  NcclCommunicator *joined(llvm::StringRef axis);
  void await(Event event, llvm::StringRef what);
  void settle(llvm::StringRef what);
  void tryCall(const BoundGroup &g, llvm::function_ref<void()> call);
  void alone(const Kernel &kernel, llvm::function_ref<void()> run) const;
  void setLibraryCall(const BoundGroup &g, Kernel &k, std::string &why);
  void launch(const Kernel &kernel, Stream stream);
  void copyResults(const Bound &f);
  void divide(Bound &f, const BoundFunction &bound);
  void capture(Bound &f, size_t part);
  void observe(Bound &f);

  Gpu gpu;
  // The GPU's own, those in which branches of graphs are captured, and that of what meets other ranks.
  std::vector<Stream> branchStreams;
  CudaJit jit;
  Binder binder;
  LtHandle library = nullptr;  // with the first call of it, and so is
  std::unique_ptr<Cudnn> cudnn;
  /// What a product by one algorithm is run by, or why by none.
  struct Algorithm {
    std::optional<unsigned> number;
    std::string why;
  };
  std::map<std::string, Algorithm> algorithms;
  int strangers = 0;  // calls for which the plan names an algorithm that the library does not propose or run here
  int generated = 0;  // calls in whose place generated kernels stand
  std::string firstGenerated;
  bool saidStrangers = false, saidGenerated = false;
  std::unique_ptr<DeviceMemory> arena;
  std::unique_ptr<PinnedMemory> hostMemory;  // the host's arena, where the plan has one
  std::map<std::shared_ptr<const std::string>, LoadedModule> modules;
  // Numbers of random streams, which kernels read from memory: 16 bytes each, as parameters are aligned.
  std::map<int64_t, DevicePtr> streamNumbers;
  std::vector<std::unique_ptr<DeviceMemory>> streamMemory;
  llvm::StringMap<std::unique_ptr<Bound>> functions;
  std::map<std::string, std::unique_ptr<NcclCommunicator>> communicators;  // by the axes of the mesh
};

}  // namespace gptc::cuda
