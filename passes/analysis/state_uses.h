// Who uses the content that states have when a function begins, and whether new content may be computed in its place.
#pragma once

#include "ir/graph.h"

namespace gptc {

class StateUses {
public:
  /// The function must read no state behind a write of it. After a change to the function, make a new one.
  explicit StateUses(Function &f);

  /// The number of an op in its function.
  int position(const Op *op) const { return positions.lookup(op); }

  struct Use {
    Op *user;
    unsigned operand;
  };
  /// Every operand slot that shows the first content of a state, also through reshapes; in order of the users.
  std::vector<Use> usesOf(llvm::StringRef state) const;

  /// Whether the value of a write may lie where the state lies from the moment when it is computed: it is a result of a
  /// group, and no later op uses the old content; the group itself may where mayShare (ir/access.h) allows.
  bool inPlace(const Op &write) const;

private:
  llvm::DenseMap<const Op *, int> positions;
  llvm::StringMap<std::vector<Op *>> reads;  // by state
};

}  // namespace gptc
