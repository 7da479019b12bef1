// Binds the kernels of a planned function to offsets in the arena, whatever the device.
#pragma once

#include "codegen/codegen.h"
#include "ir/graph.h"

#include "llvm/ADT/StringMap.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// A range of bytes in the device's arena or, from hostArena on (ir/plan_check.h), in the host's arena.
struct Place {
  int64_t at, bytes;  // offset and size
};

struct BoundGroup {
  std::string name;  // as in kernelsOf(): "train_step.17"
  const Op *op;      // the fused op
  const LoweredGroup *lowered;
  bool beside = false;  // an asynchronous collective; ends when a group's `waitsFor` names it
  std::vector<const Op *> waitsFor;
  std::vector<Place> memory;     // operands, results, workspaces; the first numOperands are read-only
  std::vector<int64_t> streams;  // numbers of random streams: the kernel's last parameters, one i64 each
};

struct BoundFunction {
  const Function *function;
  std::vector<BoundGroup> groups;  // in execution order
  std::vector<Place> args, results;
};

/// Lowers the groups of a plan, equal ones once, and binds them to their places.
class Binder {
public:
  /// `planned` (verified, checked) must outlive this. Its schedules were chosen for `target`, those of groups on the
  /// host (runsOnHost) for `host`.
  Binder(const Module &planned, const Target &target, const Target &host)
      : module(planned), target(target), host(host) {}
  /// Throws UserError(PlanDamaged) if the plan asks for a kernel that this version builds differently. Pointers in the
  /// result are valid as long as the binder.
  BoundFunction bind(const Function &f);

private:
  const Module &module;
  const Target target, host;
  llvm::StringMap<std::unique_ptr<LoweredGroup>> lowered;

  Place place(const Function &f, const Value *v) const;
  const LoweredGroup &lower(const Op &op, const std::string &name);
};

}  // namespace gptc
