// Where the kernels of a planned function find their memory: offsets in the arena, whatever device that is on.
#pragma once

#include "codegen/codegen.h"
#include "ir/graph.h"

#include "llvm/ADT/StringMap.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// A part of the arena, or from hostArena on (ir/plan_check.h) of that of the host.
struct Place {
  int64_t at, bytes;
};

struct BoundGroup {
  std::string name;  // as in kernelsOf(): "train_step.17"
  const Op *op;      // the fused op
  const LoweredGroup *lowered;
  bool beside = false;  // collectives that go on until one of `waitsFor` names them
  std::vector<const Op *> waitsFor;
  std::vector<Place> memory;     // operands, results, workspaces; the first numOperands are only read
  std::vector<int64_t> streams;  // the kernel's last parameters, one i64 each
};

struct BoundFunction {
  const Function *function;
  std::vector<BoundGroup> groups;  // in order
  std::vector<Place> args, results;
};

/// Lowers the groups of a plan, equal ones once, and binds them to their places.
class Binder {
public:
  /// `planned` (verified, checked) must outlive this; `target` is what its schedules were chosen for, those of groups
  /// of the host (runsOnHost) for `host`.
  Binder(const Module &planned, const Target &target, const Target &host)
      : module(planned), target(target), host(host) {}
  /// UserError(PlanDamaged) where the plan asks for a kernel that this version builds otherwise. What it points to
  /// lives as long as the binder.
  BoundFunction bind(const Function &f);

private:
  const Module &module;
  const Target target, host;
  llvm::StringMap<std::unique_ptr<LoweredGroup>> lowered;

  Place place(const Function &f, const Value *v) const;
  const LoweredGroup &lower(const Op &op, const std::string &name);
};

}  // namespace gptc
