// The error of the pass `remat`.
#pragma once

#include "support/diagnostics.h"

namespace gptc {

/// No plan fits into the budget. The error has no source location; a caller that knows where the budget was written
/// may add it.
class RematBudgetError : public UserError {
public:
  using UserError::UserError;
};

}  // namespace gptc
