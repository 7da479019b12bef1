// What every program's main does around its work: turns exceptions into messages on stderr and exit codes.
#pragma once

#include "support/diagnostics.h"

#include <functional>

namespace gptc {

/// Runs `work` and returns its exit code. UserError: its text (coloured on a terminal) and its exit code; out of
/// memory, threads, or stack from the beginning: as UserError(OutOfMemory), in whatever thread; InternalError and any
/// other exception: a request to report it, and 70. Output that could not be written in full (a full disk) is
/// UserError(DiskFull or Unwritable); a reader that went away ends the program quietly. A fault of memory (SIGSEGV,
/// SIGBUS), where a guard page of the arena stops a wrong kernel, is reported as a bug too, and 70.
int guardedMain(const std::function<int()> &work);

/// Within a handler: what guardedMain would show, the first error of several.
Diagnostic currentError();

}  // namespace gptc
