// A plan on this machine's CPU: lists of compiled kernels over fixed addresses in one arena.
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
  std::vector<int64_t> streams;  // content of the last params
  /// What takes the place of a kernel where ranks meet or differ, with the places of params.
  struct Meeting {
    Communicator *ranks = nullptr;
    SumOrder order = SumOrder::tree;
    std::vector<Collective> collectives;
    std::vector<std::pair<char *, size_t>> paddings;  // of their operands, to be zero before
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
  /// The arena, of exactly the planned size, must outlive the executor.
  CpuExecutor(const Module &planned, const Target &target, const Target &host, Arena &arena, ThreadPool &pool,
              const std::string &cacheDir);
  ~CpuExecutor() override;

  void prepare(llvm::ArrayRef<llvm::StringRef> functions) override;
  /// Has ended on return. Kernels run in waves (runtime/device/waves.h), without an observer.
  void run(llvm::StringRef function, llvm::ArrayRef<const void *> args) override;
  const void *result(llvm::StringRef function, unsigned i) override;
  bool intact() override { return arena.intact(); }
  PeakRecord peak(llvm::StringRef compute) override;
  /// Address of a state's elements, row-major over padded extents; null where there is no such state.
  void *state(llvm::StringRef name) const;

private:
  struct Bound;
  const Bound &bound(llvm::StringRef function) const;
  void *openView(const State &state, StateAccess) override { return this->state(state.name); }
  void closeView(const State &, StateAccess, void *) override {}
  /// Runs them now, behind all that is under way between the same ranks.
  void meet(const CpuKernel::Meeting &);
  static void prepareFor(const CpuKernel::Meeting &);
  void waitFor(int64_t bucket);
  CpuKernel::Meeting meetingOf(const CpuKernel &kernel, const Collectives &what);

  Arena &arena;
  Binder binder;
  llvm::StringMap<std::unique_ptr<Bound>> functions;
  llvm::StringMap<int64_t> places;         // of this rank along axes, for those who ask
  std::unique_ptr<Background> background;  // where collectives run beside computation
  int64_t underWay = 0;                    // the last bucket that was started there and not waited for; else 0
};

}  // namespace gptc
