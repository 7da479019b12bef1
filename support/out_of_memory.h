// Running out of memory inside libraries that were built without exceptions.
#pragma once

namespace gptc {

/// While an object of this class lives, an allocation that fails in any thread ends the process by endOutOfMemory().
/// For calls of libraries without exceptions (LLVM): std::bad_alloc would leave their data half changed, and destroying
/// that data would corrupt memory.
class NoExceptions {
public:
  NoExceptions();
  ~NoExceptions();
  NoExceptions(const NoExceptions &) = delete;
};

/// Prints the text of UserError(OutOfMemory), as guardedMain does for std::bad_alloc, and ends the process with exit
/// code 4. It allocates nothing and may be called from a signal handler.
[[noreturn]] void endOutOfMemory();

/// Message and help text of guardedMain and endOutOfMemory.
extern const char *const outOfMemoryText, *const outOfMemoryHelp;

/// Installs the new-handler that NoExceptions needs, and LLVM's handler for failed mallocs, which calls
/// endOutOfMemory().
void catchOutOfMemory();

}  // namespace gptc
