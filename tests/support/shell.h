// Running a command of a shell.
#pragma once

#include <cstdlib>
#include <string>
#include <sys/wait.h>

namespace gptc::test {

/// Runs a command to its end. Its exit code; 128 if a signal ended the shell.
inline int exitCodeOf(const std::string &command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

}  // namespace gptc::test
