// Runs the built programs on a tiny model with generated tokens.
#pragma once

#include "tests/support/whole_run.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace e2e {

struct Result {
  int code = -1;  // exit code; -1 if a signal ended it
  int signal = 0;
  std::string output;      // stdout and stderr
  int64_t peakMemory = 0;  // largest resident size in bytes
};

/// A child process whose output goes to a file.
class Process {
public:
  Process(std::vector<std::string> args, const std::map<std::string, std::string> &env, const std::string &outputFile);
  ~Process();  // kills it if it is still running
  Process(const Process &) = delete;
  int pid() const { return child; }
  Result wait();
  /// Whether it has ended; wait() still says how.
  bool hasEnded() const;

private:
  int child;
  std::string outputFile;
};

/// A folder with train.bin and val.bin (a noisy but learnable sequence) for the programs' files.
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

  /// Compiles the tiny model with more settings ("train.steps=5") into path(name). A failure fails the test.
  std::string compile(const std::string &name, const std::vector<std::string> &settings = {});
  /// Prepares a text: path("data") then has train.bin, val.bin and tokenizer.json. `more`: options of `gptc data
  /// prepare`. A failure fails the test.
  void prepare(const std::string &text, const std::string &tokenizer, const std::vector<std::string> &more = {});
  /// The settings that give a model what prepare() has made.
  std::vector<std::string> prepared() const;
  /// Lets the tiny model learn a text, by its characters. `more`: options of `gptc data prepare`.
  void useText(const std::string &text, const std::vector<std::string> &more = {});
  /// The same of two sentences about a cat, which stand there again and again.
  void useCats();
  /// Path of the tiny model's file.
  std::string modelFile() const { return path("tiny.toml"); }

  /// Runs a plan into path(out) with more options. A failure fails the test. Returns finalState.
  std::string train(const std::string &plan, const std::string &out, const std::vector<std::string> &more = {},
                    const std::map<std::string, std::string> &env = {});

  /// Names and bytes of all tensors in the newest checkpoint of a run, independent of their distribution over files; ""
  /// if there is none.
  std::string finalState(const std::string &outDir) const;
  /// Names in its folder of checkpoints, without the links `best` and `latest`.
  std::vector<std::string> checkpoints(const std::string &outDir) const;

private:
  std::string dir;
  int runs = 0;
};

/// The library that makes the last-level cache small for a program (shim/cache_shim.cpp), to be preloaded.
std::string cacheShim();
/// Folder of compiled kernels during the tests.
const std::string &cacheDir();
std::string readFile(const std::string &path);
void writeFile(const std::string &path, const std::string &content);
/// "the 0 cats sat on the mats. the 1 cats ...": 300 sentences, whose numbers give byte pairs something to merge.
std::string numberedCats();
/// "the cat sat on the mats.\nit was a fat cat number 0. the cat ...": the same, whose beginnings are learned by heart.
std::string catsWithNumbers();
/// `step loss lr grad_norm` or `step val_loss` of each log line, without timings.
std::vector<std::string> logLines(const std::string &outDir);
/// val_loss of the last evaluation in a run's log; NaN if there is none.
double lastValLoss(const std::string &outDir);

}  // namespace e2e
