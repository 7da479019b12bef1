// --nodes and --ranks-per-node of commands that plan for several ranks.
#pragma once

#include "tools/commands/command_line.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

struct RankOptions {
  int64_t nodes = 0, perNode = 0;  // 0: not given

  void addTo(Command &c);
  /// If they are given, appends to `settings` the parallel.data that they ask for. `target`: --target of a module.
  /// Throws UserErrors ShapeMismatch and Contradiction if other settings do not allow it, and TargetUnavailable if this
  /// machine lacks the GPUs.
  void set(const std::string &modelFile, const std::string &target, std::vector<std::string> &settings) const;
  /// Ranks of one machine; 0 if neither is given.
  int64_t ofMachine() const { return nodes || perNode ? std::max<int64_t>(1, perNode) : 0; }
};

}  // namespace gptc
