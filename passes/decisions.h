// What passes decided, what each decision costs and saves, and what they rejected: the material of `gptc explain`.
//
// A decision is a string attribute `decision.PASS.NAME` of the module, so that it travels with the plan and shows in
// text. It must be a function of the module, the options and the target alone: what differs from one compile to the
// next (times, free memory) would make a different plan of it each time.
#pragma once

#include "ir/graph.h"

#include <string>
#include <vector>

namespace gptc {

/// Predicted for one training step: with the choice minus without it. Negative numbers are savings.
struct Effect {
  double memory = 0;   // bytes of the arena
  double traffic = 0;  // bytes moved to and from memory
  double ms = 0;
  bool operator==(const Effect &) const = default;
};

/// What was not chosen, and what it would have done instead of the choice: its effect is relative to the choice.
struct Alternative {
  std::string choice;
  Effect effect;
  std::string why;  // it was rejected
  bool operator==(const Alternative &) const = default;
};

struct Decision {
  std::string pass;    // as in passes.def
  std::string name;    // one word, unique within the pass: "epilogue"
  std::string choice;  // a few words: "12 layers", "bf16", "50257 -> 50304"
  Effect effect;       // against doing without
  std::string note;    // one line: the reason, or what it consists of; may be empty
  std::vector<Alternative> rejected;
  bool operator==(const Decision &) const = default;
};

/// Adds a decision, in place of an earlier one of the same pass and name. In texts, '|' and line ends become ' '.
void record(Module &m, const Decision &d);
/// Whether the decision `name` of `pass` is recorded: such a pass has run.
bool isDecided(const Module &m, llvm::StringRef pass, llvm::StringRef name);
/// The module without its decisions.
std::unique_ptr<Module> withoutDecisions(const Module &m);
/// All decisions, sorted by pass and name. Attributes that are no decision's text are passed over.
std::vector<Decision> decisionsOf(const Module &m);

}  // namespace gptc
