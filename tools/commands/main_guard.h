// The frame of every program's main: turns exceptions into messages on stderr and exit codes.
#pragma once

#include "support/diagnostics.h"

#include <functional>

namespace gptc {

/// Runs `work` and returns its exit code. A UserError prints its text (coloured on a terminal) and gives its own code.
/// Lack of memory, threads or initial stack, in any thread, is UserError(OutOfMemory). InternalError and other
/// exceptions print a request to report them and give 70, and so does a memory fault (SIGSEGV, SIGBUS), for example
/// when a wrong kernel hits a guard page of the arena. Incomplete output (a full disk) is UserError(DiskFull or
/// Unwritable); if the reader went away, the program ends quietly.
int guardedMain(const std::function<int()> &work);

/// That standard output could not be written, by the error's number: DiskFull or Unwritable.
UserError outputError(int error);

/// Within a catch block: what guardedMain would print, the first of several errors.
Diagnostic currentError();

}  // namespace gptc
