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
  /// For forecasts: by how much a workspace's elements typically grow from one to the next, where they are offsets into
  /// a list; below 0, or absent, for other content.
  std::vector<double> workspaceGrowth;
  /// Set if Schedule::library: the call that replaces the kernel if the library can do it. Its memory is the last
  /// workspace.
  std::optional<CublasLtMatmul> call;
  std::optional<CudnnAttention> attention;
  /// Collectives that an engine of the runtime executes. The kernel is empty, or adds the values that the engine
  /// delivers.
  std::optional<Collectives> collectives;
};

/// The members' attributes `stream`, each value once, in the members' order. The kernel takes them as arguments, not as
/// constants: so the dropout of all layers shares one kernel, and so does the stochastic rounding of all parameters of
/// one shape.
std::vector<int64_t> streamsOf(const Op &fused);

/// The recipe's default for this group on this target. It needs no measurement.
Schedule defaultSchedule(const Op &fused, const Target &target);
/// Every other schedule for this group on this target that a tuner may choose, without the default and without
/// duplicates. Their kernels give the same bits as the default's kernel.
std::vector<Schedule> scheduleSpace(const Op &fused, const Target &target);
/// Builds the kernel. `compute` f64 builds it in double precision over f64 buffers (tests). Throws InternalError for a
/// group that no recipe covers: the fuse pass must not make one.
LoweredGroup lowerGroup(const Op &fused, const Schedule &schedule, const Target &target, DType compute = DType::f32);
/// Why no kernel can be made of a group: its kind names no recipe, or a recipe that does not match. "" if one can.
std::string groupProblem(const Op &fused);
/// A text that is equal for groups that lower to equal kernels, so that the layers of a model are lowered once. It
/// covers kind, schedule, types and members, but not names, source locations and the numbers of random streams.
std::string groupKey(const Op &fused);
/// What a group computes, without its schedule. `family` is a text of kind, members and dtypes; `extents` lists the
/// extents of operands and results, one after the other. Groups of one family differ only in shapes.
struct GroupShape {
  std::string family;
  std::vector<int64_t> extents;
};
GroupShape groupShape(const Op &fused);
/// Sets `schedule` and `ws` of every fused op. A schedule that is already there stays; otherwise the op gets the one
/// that `measured` finds, else the recipe's default. Returns whether anything changed.
bool selectRecipes(Module &m, const Target &target, ScheduleSource *measured = nullptr);

/// The machine that this process runs on, or what one of so many `ranks` has of it. `threads` 0 means GPTC_THREADS,
/// else the CPUs that the process may use, divided by the ranks. GPTC_CPU_FEATURES masks features off ("-avx512f").
/// UserError(Usage) if either variable does not parse.
Target hostTarget(unsigned threads = 0, unsigned ranks = 1);
/// CPU model, instruction set, threads, ranks and caches: what a measured time depends on beside the code. `target` is
/// a target of this machine's CPU.
std::string cpuFingerprint(const Target &target);

/// The target of a name such as "cuda:sm_80". UserError(UnknownValue) if NVRTC 13 does not know the architecture.
Target cudaTarget(llvm::StringRef name);

/// Number of tasks of a kernel's top-level statement: the extent of a parallel loop, else 1. InternalError if the
/// extent is not constant.
int64_t taskCount(const kir::StmtNode &phase);

struct CompiledPhase {
  /// Runs tasks [begin, end); params as in Kernel::params.
  void (*run)(void *const *params, int64_t begin, int64_t end);
  int64_t tasks;
};
struct CompiledKernel {
  std::vector<CompiledPhase> phases;  // run in order, with a barrier between consecutive ones
};

/// Compiles kernels in parallel and keeps their code alive as long as the Jit lives. Equal kernels are compiled once.
/// Object code is cached in `cacheDir` (mode 0700; "" for no cache) under a hash of the emitted IR and the target.
class Jit {
public:
  Jit(const Target &target, const std::string &cacheDir);
  ~Jit();
  /// The compiled kernels, in the order of `kernels`. UserError(OutOfMemory) if no memory is left for their code.
  std::vector<CompiledKernel> compile(llvm::ArrayRef<const kir::Kernel *> kernels);
  /// For each kernel a hash of all that its code depends on: the emitted IR, the target, LLVM's version and passes.
  std::vector<std::string> sources(llvm::ArrayRef<const kir::Kernel *> kernels);
  struct Stats {
    int compiled = 0, reused = 0;  // distinct kernels: compiled, or found in the cache
    double seconds = 0;
  } stats;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// The kernel's LLVM IR as text, optimised or as emitted. For gptc-opt --emit=llvm and tests.
std::string emitLLVM(const kir::Kernel &k, const Target &target, bool optimise);

}  // namespace gptc
