#include "support/out_of_memory.h"

#include "support/diagnostics.h"

#include "llvm/Support/ErrorHandling.h"

#include <atomic>
#include <cstring>
#include <new>
#include <unistd.h>
#include <utility>

namespace gptc {
namespace {

std::atomic<int> gNoExceptions{0};

void onNoMemory() {
  if (gNoExceptions > 0)
    endOutOfMemory();
  throw std::bad_alloc();
}

}  // namespace

const char *const outOfMemoryText = "out of memory";
const char *const outOfMemoryHelp =
    "close other programs, use a smaller model or batch, or raise the limits that `ulimit -a` shows";

NoExceptions::NoExceptions() { ++gNoExceptions; }
NoExceptions::~NoExceptions() { --gNoExceptions; }

void endOutOfMemory() {
  static_assert(int(ErrorCode::OutOfMemory) == 403);
  for (const char *part : {"error[GPTC0403]: ", outOfMemoryText, "\n  = help: ", outOfMemoryHelp, "\n"})
    (void)!::write(STDERR_FILENO, part, std::strlen(part));
  constexpr int resources = 4;  // exitCodeOf(ErrorCode::OutOfMemory)
  ::_exit(resources);
}

void catchOutOfMemory() {
  std::set_new_handler(onNoMemory);
  static bool installed = false;  // LLVM takes one handler
  if (!std::exchange(installed, true))
    llvm::install_bad_alloc_error_handler([](void *, const char *, bool) { endOutOfMemory(); });
}

}  // namespace gptc
