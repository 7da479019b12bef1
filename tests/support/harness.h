// Runs the built programs on a tiny model and generated tokens.
#pragma once

#include "tests/support/whole_run.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace e2e {

struct Result {
  int code = -1;  // exit code, -1 when a signal ended it
  int signal = 0;
  std::string output;      // stdout and stderr
  int64_t peakMemory = 0;  // bytes resident at most
};

/// A child process; output goes to a file.
class Process {
public:
  Process(std::vector<std::string> args, const std::map<std::string, std::string> &env, const std::string &outputFile);
  ~Process();  // kills it if it still runs
  Process(const Process &) = delete;
  int pid() const { return child; }
  Result wait();

private:
  int child;
  std::string outputFile;
};

/// A folder with train.bin, val.bin (a noisy but learnable sequence), and what the programs make in it.
class Workplace {
public:
  Workplace();
  ~Workplace();
  std::string path(const std::string &name) const { return dir + "/" + name; }

  Result gptc(std::vector<std::string> args) { return run("gptc", std::move(args)); }
  Result gptrun(std::vector<std::string> args, const std::map<std::string, std::string> &env = {}) {
    return run("gptrun", std::move(args), env);
  }
  Process start(const std::string &program, std::vector<std::string> args,
                const std::map<std::string, std::string> &env = {});
  Result run(const std::string &program, std::vector<std::string> args,
             const std::map<std::string, std::string> &env = {});

  /// Compiles the tiny model with further settings ("train.steps=5") into path(name); fails the test when that fails.
  std::string compile(const std::string &name, const std::vector<std::string> &settings = {});
  /// Writes the tiny model's file and returns its path.
  std::string modelFile() const { return path("tiny.toml"); }

  /// Runs a plan into path(out) with further options; the test fails where that fails. Returns finalState.
  std::string train(const std::string &plan, const std::string &out, const std::vector<std::string> &more = {},
                    const std::map<std::string, std::string> &env = {});

  /// The newest checkpoint of a run folder, as names and bytes of all tensors, in whatever files they lie; "" where
  /// there is none.
  std::string finalState(const std::string &outDir) const;
  std::vector<std::string> checkpoints(const std::string &outDir) const;

private:
  std::string dir;
  int runs = 0;
};

/// Where the programs keep compiled kernels during the tests.
const std::string &cacheDir();
std::string readFile(const std::string &path);
void writeFile(const std::string &path, const std::string &content);
/// `step loss lr grad_norm` or `step val_loss` of each line of a log, without what depends on time.
std::vector<std::string> logLines(const std::string &outDir);

}  // namespace e2e
