// The uses of the contents that states have when a function begins. They decide whether new content may be computed in
// the memory of the state.
#pragma once

#include "ir/graph.h"

namespace gptc {

class StateUses {
public:
  /// The function must not read a state after writing it. A change of the function invalidates this object.
  explicit StateUses(Function &f);

  /// The index of an op in the body of its function, from 0.
  int position(const Op *op) const { return positions.lookup(op); }

  struct Use {
    Op *user;
    unsigned operand;
  };
  /// Every operand that is the initial content of the state or a reshape of it, in order of the users.
  std::vector<Use> usesOf(llvm::StringRef state) const;

  /// Whether the value of `write` may be computed in the memory of its state. It must be a result of a group, and no
  /// later op may use the old content. The group itself may use it if mayShare (ir/access.h) allows.
  bool inPlace(const Op &write) const;

private:
  llvm::DenseMap<const Op *, int> positions;
  llvm::StringMap<std::vector<Op *>> reads;  // by name of the state
};

}  // namespace gptc
