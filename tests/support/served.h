// `gptrun serve` as a child process.
#pragma once

#include "tests/support/harness.h"

#include <csignal>

namespace e2e {

class Served {
public:
  /// Whether servers can run: the plug-in was built.
  static bool isBuilt();
  /// Starts `gptrun serve ARGS` on a port that is free, and waits until it listens. If it ends before, the test fails
  /// and port() is 0. What it prints goes to the file `output`.
  Served(std::vector<std::string> args, const std::string &output, std::map<std::string, std::string> env = {});
  int port() const { return boundPort; }
  Process &process() { return child; }
  /// What it has printed.
  std::string output() const { return readFile(outputFile); }
  /// Sends the signal and waits for its end.
  Result stop(int signal = SIGTERM);

private:
  const std::string outputFile;
  Process child;
  int boundPort = 0;
};

}  // namespace e2e
