// Memory that runs out where no exception can tell of it.
#pragma once

namespace gptc {

/// While one of these lives, in whatever thread, memory that cannot be had ends the process: endOutOfMemory(). For work
/// of libraries that were built without exceptions (LLVM): one that passes through them leaves what they were changing
/// half changed, and destroying that is a fault of memory.
class NoExceptions {
public:
  NoExceptions();
  ~NoExceptions();
  NoExceptions(const NoExceptions &) = delete;
};

/// Says UserError(OutOfMemory) on standard error, as guardedMain says std::bad_alloc, and ends the process with its
/// exit code. Takes no memory; may be called by a signal handler.
[[noreturn]] void endOutOfMemory();

/// How both say it.
extern const char *const outOfMemoryText, *const outOfMemoryHelp;

/// Makes NoExceptions work in this process, and does the same for what LLVM takes from malloc.
void catchOutOfMemory();

}  // namespace gptc
