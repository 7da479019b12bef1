// Runs the functions of a planned module on some device. What there is to a device stands here; cpu_executor.h and
// cuda/cuda_executor.h are the two.
#pragma once

#include "codegen/codegen.h"
#include "ir/graph.h"
#include "runtime/device/peak.h"
#include "support/thread_pool.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gptc {

class Communicator;

/// One kernel of a function, bound to its memory.
class BoundKernel {
public:
  virtual ~BoundKernel() = default;
  std::string name;  // as in kernelsOf(): "train_step.17"
  const Op *op;      // the fused op
  /// Where the host can read result i; valid until the next kernel runs.
  virtual const void *result(unsigned i) const = 0;
};

/// Nanoseconds of a monotonic clock.
int64_t monotonicNow();

/// Told about every kernel that has run; times are nanoseconds of a monotonic clock. Throwing stops the function.
class KernelObserver {
public:
  virtual ~KernelObserver() = default;
  /// About every kernel before it runs, when all before it have ended.
  virtual void willRun(const BoundKernel &) {}
  virtual void ran(const BoundKernel &kernel, int64_t begin, int64_t end) = 0;
};

class Executor;

/// What the host will do with a state's elements.
enum class StateAccess { read, write, readAndWrite };

/// A state's elements, row-major over padded extents, where the host can reach them: the state itself, or a copy that
/// goes back to the device with the end of this.
class StateView {
public:
  StateView(Executor &executor, const State &state, StateAccess access);
  ~StateView();
  StateView(const StateView &) = delete;
  template <class T> T *as() const { return static_cast<T *>(data); }
  void *const data;

private:
  Executor &executor;
  const State &state;
  const StateAccess access;
};

class Executor {
public:
  virtual ~Executor() = default;
  Executor(const Executor &) = delete;

  /// Compiles the kernels of these functions, all at once; functions already prepared, or not in the module, are
  /// skipped. UserError(PlanDamaged) where the plan asks for a kernel that this version builds otherwise.
  virtual void prepare(llvm::ArrayRef<llvm::StringRef> functions) = 0;
  /// Copies the arguments to their planned places (each as its type says, padding included) and runs: on return the
  /// arguments may change, the function need not have ended. Prepares where needed.
  virtual void run(llvm::StringRef function, llvm::ArrayRef<const void *> args) = 0;
  /// Where the host finds result i of a function that ran, and has ended by then; valid until another function runs.
  virtual const void *result(llvm::StringRef function, unsigned i) = 0;
  /// Leaves the other ranks in good order, when all do. Nothing runs afterwards.
  virtual void leave() {}
  /// Whether nothing wrote past the end of the arena, as far as can be told.
  virtual bool intact() = 0;
  /// FLOP/s of this device at best with operands in "fp32", "bf16", "fp16" or "tf32": measured where that has not been
  /// done before. It must not outlive the executor.
  virtual PeakRecord peak(llvm::StringRef compute) = 0;
  /// The same as a data sheet says it.
  virtual SheetPeak sheetPeak(llvm::StringRef) const { return {}; }

  bool has(llvm::StringRef function) const { return module.function(function); }
  const Type &argType(llvm::StringRef function, unsigned i) const;
  StateView view(const State &state, StateAccess access) { return {*this, state, access}; }
  /// A kernel for the host that belongs to no function (initial values).
  CompiledKernel compile(const kir::Kernel &kernel) { return std::move(jit.compile(&kernel)[0]); }
  /// Lanes of vectors in such a kernel.
  int lanes(DType t) const { return (target.isCuda() ? host : target).lanes(t); }
  const Module &planned() const { return module; }
  ThreadPool &threads() const { return pool; }

  /// All ranks of the module's mesh, null where there is one. Every rank then calls the same functions in the same
  /// order.
  Communicator *ranks = nullptr;
  /// Those along one axis that this rank meets; not needed where `ranks` are.
  Communicator *dataRanks = nullptr, *tensorRanks = nullptr;
  /// The ranks along an axis of the mesh; null where there is one.
  Communicator *along(llvm::StringRef axis) const;
  /// How long a rank waits for another one that may be saving or compiling, where `ranks` do not say so themselves.
  std::chrono::milliseconds patience{120000};
  /// This rank's place along it.
  int64_t index(llvm::StringRef axis) const;

  /// With an observer kernels run one by one.
  KernelObserver *observer = nullptr;

protected:
  /// `planned` (verified, checked) must outlive the executor. Kernels are lowered for `target`, which their schedules
  /// were chosen for; object code is cached in `cacheDir` ("" for none).
  Executor(const Module &planned, const Target &target, const Target &host, ThreadPool &pool,
           const std::string &cacheDir);

  const Module &module;
  const Target target, host;
  ThreadPool &pool;
  const std::string cacheDir;
  Jit jit;  // for the host

private:
  friend StateView;
  /// Memory of the host for a view, filled where it will be read; and its end.
  virtual void *openView(const State &state, StateAccess access) = 0;
  virtual void closeView(const State &state, StateAccess access, void *data) = 0;
};

}  // namespace gptc
