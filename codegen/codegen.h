// From a fused op to machine code.
//
//   fused op --recipe--> kir::Kernel --cpu/emit_llvm.cpp--> llvm::Module --cpu/jit.cpp (ORC)--> CompiledKernel   CPU
//                                    --cuda/emit.cpp-----> CUDA C++     --cuda/nvrtc.cpp-----> cubin            CUDA
#pragma once

#include "codegen/collectives.h"
#include "codegen/cublaslt_matmul.h"
#include "codegen/cudnn_attention.h"
#include "ir/graph.h"
#include "ir/kernel/kernel.h"
#include "ir/kernel/schedule.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// A kernel for one fused op. Its parameters are, in order: the op's operands, its results, its workspaces, and one i64
/// for each of its random streams.
struct LoweredGroup {
  kir::Kernel kernel;
  std::vector<int64_t> workspaceBytes;
  /// One of these takes the kernel's place where the library is able to (Schedule::library); its memory is the last
  /// workspace.
  std::optional<CublasLtMatmul> call;
  std::optional<CudnnAttention> attention;
  /// What ranks do together: an engine of the runtime does it. The kernel is empty, or adds what the engine brings.
  std::optional<Collectives> collectives;
};

/// The random streams that the members of a group name (none: 0), each once, in order: arguments and not constants of
/// the kernel, so that dropout of all layers and the stochastic rounding of all parameters of a shape share one.
std::vector<int64_t> streamsOf(const Op &fused);

/// The recipe's default for this group on this target: needs no measurement.
Schedule defaultSchedule(const Op &fused, const Target &target);
/// Every other schedule for this group on this target that a tuner may choose: no default among them, none twice. Their
/// kernels give the bits of the default's.
std::vector<Schedule> scheduleSpace(const Op &fused, const Target &target);
/// Builds the kernel. `compute` f64 builds it in double precision over f64 buffers (tests). Throws InternalError for a
/// group that no recipe covers: the fuse pass must not make one.
LoweredGroup lowerGroup(const Op &fused, const Schedule &schedule, const Target &target, DType compute = DType::f32);
/// Why no kernel can be made of a group: its kind is no recipe, or one for other ops. "" where one can.
std::string groupProblem(const Op &fused);
/// A text that is equal for groups that lower to equal kernels (same kind, schedule, types and members; names, places
/// and the numbers of random streams do not count), so that the layers of a model need lowering once.
std::string groupKey(const Op &fused);
/// What is to be computed, whatever the schedule, in two parts: a text of kind, members and dtypes, and the extents of
/// operands and results, one after the other. Groups with equal texts differ in nothing but shapes.
struct GroupShape {
  std::string family;
  std::vector<int64_t> extents;
};
GroupShape groupShape(const Op &fused);
/// Sets `schedule` and `ws` of every fused op; keeps a schedule that is already there. Others get what `measured` has,
/// else the recipe's default. Returns whether anything changed.
bool selectRecipes(Module &m, const Target &target, ScheduleSource *measured = nullptr);

/// The machine we run on. Honours GPTC_CPU_FEATURES ("-avx512f" and the like) and `threads` (0: hardware threads, or
/// GPTC_THREADS).
Target hostTarget(unsigned threads = 0);
/// CPU model, instruction set, threads and caches of a target that is this machine's CPU: what a time on it depends on
/// beside the code.
std::string cpuFingerprint(const Target &target);

/// "cuda:sm_80" and the like. UserError(UnknownValue) for an architecture that NVRTC 13 does not know.
Target cudaTarget(llvm::StringRef name);

struct CompiledPhase {
  /// Runs tasks [begin, end); params as in Kernel::params.
  void (*run)(void *const *params, int64_t begin, int64_t end);
  int64_t tasks;
};
struct CompiledKernel {
  std::vector<CompiledPhase> phases;  // with a barrier between one and the next
};

/// Compiles kernels in parallel and keeps their code alive. Equal kernels are compiled once. Object code is cached in
/// `cacheDir` (0700; "" for none) under a hash of the emitted IR and the target.
class Jit {
public:
  Jit(const Target &target, std::string cacheDir);
  ~Jit();
  /// Same order as `kernels`.
  std::vector<CompiledKernel> compile(llvm::ArrayRef<const kir::Kernel *> kernels);
  /// A hash of what is emitted for each, the target and the version of LLVM: of all that its code depends on.
  std::vector<std::string> sources(llvm::ArrayRef<const kir::Kernel *> kernels);
  struct Stats {
    int compiled = 0, reused = 0;  // distinct kernels, by whether the cache had them
    double seconds = 0;
  } stats;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// LLVM IR as text, optimised or as emitted; for gptc-opt --emit=llvm and tests.
std::string emitLLVM(const kir::Kernel &k, const Target &target, bool optimise);

}  // namespace gptc
