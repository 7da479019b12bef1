// Runs a plan on this machine's CPU: lists of compiled kernels at fixed addresses in one arena.
#pragma once

#include "runtime/collectives/background.h"
#include "runtime/device/arena.h"
#include "runtime/device/binding.h"
#include "runtime/device/executor.h"

namespace gptc {

class CpuKernel : public BoundKernel {
public:
  CompiledKernel code;
  std::vector<void *> params;    // operands, results, workspaces, streams
  std::vector<int64_t> streams;  // values that the last params point to
  /// Replaces the kernel of a collective group: its collectives and copies, with the addresses of its params.
  struct Meeting {
    Communicator *ranks = nullptr;
    SumOrder order = SumOrder::tree;
    std::vector<Collective> collectives;
    std::vector<std::pair<char *, size_t>> paddings;  // of the collectives' operands, zeroed before
    struct Copy {
      const void *from;
      void *to;
      size_t bytes;
    };
    std::vector<Copy> copies;
    void add(const Meeting &more);
    bool empty() const { return collectives.empty() && copies.empty(); }
  } meeting;
  const void *result(unsigned i) const override { return params[op->numOperands() + i]; }
};

class CpuExecutor : public Executor {
public:
  /// `arena`, of exactly the planned size, must outlive the executor.
  CpuExecutor(const Module &planned, const Target &target, const Target &host, Arena &arena, ThreadPool &pool,
              const std::string &cacheDir);
  ~CpuExecutor() override;

  void prepare(llvm::ArrayRef<llvm::StringRef> functions) override;
  /// Synchronous. Runs kernels in waves (runtime/device/waves.h) unless an observer is set.
  void run(llvm::StringRef function, llvm::ArrayRef<const void *> args) override;
  const void *result(llvm::StringRef function, unsigned i) override;
  bool intact() override { return arena.intact(); }
  PeakRecord peak(llvm::StringRef compute) override;
  /// Address of a state's elements, row-major over padded extents; null if there is no such state.
  void *state(llvm::StringRef name) const;

private:
  struct Bound;
  const Bound &bound(llvm::StringRef function) const;
  void *openView(const State &state, StateAccess) override { return this->state(state.name); }
  void closeView(const State &, StateAccess, void *) override {}
  /// Runs the collectives now, after all that are under way between the same ranks.
  void meet(const CpuKernel::Meeting &);
  static void prepareFor(const CpuKernel::Meeting &);
  void waitFor(int64_t bucket);
  CpuKernel::Meeting meetingOf(const CpuKernel &kernel, const Collectives &what);

  Arena &arena;
  Binder binder;
  llvm::StringMap<std::unique_ptr<Bound>> functions;
  llvm::StringMap<int64_t> places;         // this rank's place along each axis, for kernels that ask
  std::unique_ptr<Background> background;  // runs collectives beside computation
  int64_t underWay = 0;                    // the last bucket that was started there and not yet waited for; else 0
};

}  // namespace gptc
