// Runs the functions of a planned module on a device. This is the interface of a device; cpu_executor.h and
// cuda/cuda_executor.h implement it.
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

/// A kernel of a function, bound to its memory.
class BoundKernel {
public:
  virtual ~BoundKernel() = default;
  std::string name;  // as in kernelsOf(): "train_step.17"
  const Op *op;      // the fused op
  /// Host address of the data of result i; valid until the next kernel runs.
  virtual const void *result(unsigned i) const = 0;
};

/// Nanoseconds of a monotonic clock.
int64_t monotonicNow();

/// Observes every kernel that runs; times are nanoseconds of a monotonic clock. An exception from it stops the
/// function.
class KernelObserver {
public:
  virtual ~KernelObserver() = default;
  /// Called before a kernel runs, when all earlier ones have ended.
  virtual void willRun(const BoundKernel &) {}
  virtual void ran(const BoundKernel &kernel, int64_t begin, int64_t end) = 0;
};

class Executor;

/// How the host will use a state's elements.
enum class StateAccess { read, write, readAndWrite };

/// A state's elements, row-major over padded extents, as host memory: the state itself, or a copy that the destructor
/// writes back to the device.
class StateView {
public:
  StateView(Executor &executor, const State &state, StateAccess access);
  ~StateView();
  StateView(const StateView &) = delete;
  template <class T> T *as() const { return static_cast<T *>(data); }
  void *const data;

private:
  static void *openView(Executor &executor, const State &state, StateAccess access);
  Executor &executor;
  const State &state;
  const StateAccess access;
};

class Executor {
public:
  virtual ~Executor() = default;
  Executor(const Executor &) = delete;

  /// Compiles the kernels of these functions together. Skips functions that are prepared already or not in the module.
  /// Throws UserError(PlanDamaged) if the plan asks for a kernel that this version builds differently.
  virtual void prepare(llvm::ArrayRef<llvm::StringRef> functions) = 0;
  /// Copies the arguments, laid out as their types say with padding, to their planned places and runs the function,
  /// preparing it if needed. Afterwards the arguments may change; the function may still be running.
  virtual void run(llvm::StringRef function, llvm::ArrayRef<const void *> args) = 0;
  /// Host address of result i of a function that was run, after waiting for its end; valid until another function runs.
  virtual const void *result(llvm::StringRef function, unsigned i) = 0;
  /// Leaves the communicators in good order. All ranks must call it; nothing may run afterwards.
  virtual void leave() {}
  /// Whether the memory behind the arena is unchanged, as far as the device can tell.
  virtual bool intact() = 0;
  /// The device's peak in FLOP/s with operands in "fp32", "bf16", "fp16" or "tf32"; measured if no record exists. The
  /// record must not outlive the executor.
  virtual PeakRecord peak(llvm::StringRef compute) = 0;
  /// The peak according to a data sheet.
  virtual SheetPeak sheetPeak(llvm::StringRef) const { return {}; }

  bool has(llvm::StringRef function) const { return module.function(function); }
  const Type &argType(llvm::StringRef function, unsigned i) const;
  /// Not of a parameter that is in files alone.
  StateView view(const State &state, StateAccess access) { return {*this, state, access}; }
  /// Compiles a host kernel that belongs to no function (for initial values).
  CompiledKernel compile(const kir::Kernel &kernel) { return std::move(jit.compile(&kernel)[0]); }
  /// Vector lanes in such a kernel.
  int lanes(DType t) const { return (target.isCuda() ? host : target).lanes(t); }
  const Module &planned() const { return module; }
  ThreadPool &threads() const { return pool; }

  /// All ranks of the module's mesh; null if there is only one. All of them must call the same functions in the same
  /// order.
  Communicator *ranks = nullptr;
  /// This rank's groups along the axes of the mesh; not needed if the mesh has one axis.
  Communicator *dataRanks = nullptr, *tensorRanks = nullptr;
  /// The ranks along an axis of the mesh; null if there is only one.
  Communicator *along(llvm::StringRef axis) const;
  /// How long to wait for a rank that may be saving or compiling, if `ranks` does not report that itself.
  std::chrono::milliseconds patience{120000};
  /// This rank's index along the axis.
  int64_t index(llvm::StringRef axis) const;

  /// If an observer is set, kernels run one by one.
  KernelObserver *observer = nullptr;

protected:
  /// `planned` (verified, checked) must outlive the executor. Kernels are lowered for `target`, for which their
  /// schedules were chosen. Object code is cached in `cacheDir` ("" for no cache).
  Executor(const Module &planned, const Target &target, const Target &host, ThreadPool &pool,
           const std::string &cacheDir);

  const Module &module;
  const Target target, host;
  ThreadPool &pool;
  const std::string cacheDir;
  Jit jit;  // for kernels on the host

private:
  friend StateView;
  /// Opens host memory for a view, filled if `access` reads; closeView ends it.
  virtual void *openView(const State &state, StateAccess access) = 0;
  virtual void closeView(const State &state, StateAccess access, void *data) = 0;
};

}  // namespace gptc
