// The ops of one optimizer step.
#pragma once

#include "ir/graph.h"
#include "passes/analysis/cost.h"

namespace gptc {

/// Calls visit(op, calls) for each op of the functions that a step calls, with how often it does. Groups are one op.
template <typename Visit> void forEachOpOfStep(const Module &m, const Visit &visit) {
  for (const auto &f : m.functions)
    if (const double calls = callsPerStep(m, f->name); calls > 0)
      for (const Op &op : f->body)
        visit(op, calls);
}

}  // namespace gptc
