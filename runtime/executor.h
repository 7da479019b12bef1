// Runs the functions of a planned module: each is a list of compiled kernels over fixed addresses in one arena.
#pragma once

#include "codegen/codegen.h"
#include "codegen/thread_pool.h"
#include "ir/graph.h"
#include "runtime/arena.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// One kernel of a function, bound to its memory.
struct BoundKernel {
  std::string name;  // as in kernelsOf(): "train_step.17"
  const Op *op;      // the fused op
  CompiledKernel code;
  std::vector<void *> params;    // operands, results, workspaces, streams
  std::vector<int64_t> streams;  // content of the last params
  void *result(unsigned i) const { return params[op->numOperands() + i]; }
};

/// Nanoseconds of a monotonic clock.
int64_t monotonicNow();

/// Told about every kernel that has run; times are nanoseconds of a monotonic clock. Throwing stops the function.
class KernelObserver {
public:
  virtual ~KernelObserver() = default;
  virtual void ran(const BoundKernel &kernel, int64_t begin, int64_t end) = 0;
};

class Executor {
public:
  /// `planned` (verified, checked) and the arena must outlive the executor. Kernels are lowered for `planTarget`, which
  /// their schedules were chosen for, and compiled for `host`; object code is cached in `cacheDir` ("" for none).
  Executor(const Module &planned, const Target &planTarget, const Target &host, Arena &arena, ThreadPool &pool,
           const std::string &cacheDir);
  ~Executor();

  /// Compiles the kernels of these functions, all at once; functions already prepared, or not in the module, are
  /// skipped. UserError(PlanDamaged) where the plan asks for a kernel that this version builds otherwise.
  void prepare(llvm::ArrayRef<llvm::StringRef> functions);
  bool has(llvm::StringRef function) const { return module.function(function); }
  /// Copies the arguments to their planned places (each as its type says, padding included) and runs. Prepares where
  /// needed.
  void run(llvm::StringRef function, llvm::ArrayRef<const void *> args);
  /// Where result i of a function lies; valid until another function runs.
  const void *result(llvm::StringRef function, unsigned i) const;
  const Type &argType(llvm::StringRef function, unsigned i) const;
  /// Address of a state's elements, row-major over padded extents; null where there is no such state.
  void *state(llvm::StringRef name) const;
  /// A kernel that belongs to no function (initial values).
  CompiledKernel compile(const kir::Kernel &kernel);
  int lanes(DType t) const { return planTarget.lanes(t); }
  const Module &planned() const { return module; }
  ThreadPool &threads() const { return pool; }

  /// With an observer kernels run one by one; without, in waves (runtime/waves.h).
  KernelObserver *observer = nullptr;

private:
  struct Bound;
  const Bound &bound(llvm::StringRef function) const;
  std::byte *place(const Function &f, const Value *v) const;

  const Module &module;
  Target planTarget;
  Arena &arena;
  ThreadPool &pool;
  Jit jit;
  llvm::StringMap<std::unique_ptr<Bound>> functions;
};

}  // namespace gptc
