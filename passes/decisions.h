// Decisions of passes, with their predicted effects and the rejected alternatives. `gptc explain` prints them.
//
// A decision is a string attribute `decision.PASS.NAME` of the module, so that the plan and its text form contain it.
// It must depend on the module, the options and the target alone. A value that differs between two compiles (a measured
// time, free memory) would make the plans differ.
#pragma once

#include "ir/graph.h"

#include <string>
#include <vector>

namespace gptc {

/// The predicted change of one training step: with the choice minus without it. Negative numbers are savings.
struct Effect {
  double memory = 0;   // bytes of the arena
  double traffic = 0;  // bytes moved to and from memory
  double ms = 0;       // milliseconds
  bool operator==(const Effect &) const = default;
};

/// A rejected alternative. Its effect is relative to the choice: with the alternative minus with the choice.
struct Alternative {
  std::string choice;
  Effect effect;
  std::string why;  // the reason for the rejection
  bool operator==(const Alternative &) const = default;
};

struct Decision {
  std::string pass;    // name in passes.def
  std::string name;    // one word, unique within the pass: "epilogue"
  std::string choice;  // a few words: "12 layers", "bf16", "50257 -> 50304"
  Effect effect;       // relative to not applying the choice
  std::string note;    // one line: the reason, or the parts of the choice; may be empty
  std::vector<Alternative> rejected;
  bool operator==(const Decision &) const = default;
};

/// Adds a decision. It replaces an earlier one of the same pass and name. In texts, '|' and '\n' become ' '.
void record(Module &m, const Decision &d);
/// Whether the decision `name` of `pass` is recorded. A pass uses this to see that it has already run.
bool isDecided(const Module &m, llvm::StringRef pass, llvm::StringRef name);
/// A copy of the module without its decisions.
std::unique_ptr<Module> withoutDecisions(const Module &m);
/// All decisions, sorted by pass and name. Attributes whose text is not a decision are skipped.
std::vector<Decision> decisionsOf(const Module &m);

}  // namespace gptc
