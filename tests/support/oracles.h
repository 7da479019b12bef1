// Scripts of the tests that compare with other programs, which tools/oracles brings.
#pragma once

#include <string>
#include <vector>

namespace gptc::test {

struct Compared {
  int code = 128;  // of the script; 128 if a signal ended it
  std::string said;
  /// Whether what the script needs is missing; it says what.
  bool isMissing() const { return code == 77 || code == 126 || code == 127; }
};

/// Runs a script of the source tree with arguments as a shell takes them. `path`: its PYTHONPATH.
Compared compareBy(const std::string &script, const std::string &arguments, const std::string &path = "");

/// Values of PYTHONPATH, one for each version of transformers that a test asks: "" for the one that Python finds, and
/// the folder of transformers 4 that tools/oracles puts beside it. If that is not there, a line says so.
const std::vector<std::string> &transformersPaths();

/// Prints how far something is from another program's, as a line of its own: `tools/bench/parity tests` reads it.
void sayMeasured(const std::string &what, double value);

/// Where tools/oracles puts llama.cpp's vocabularies (ggml-vocab-*.gguf, with texts and ids), whether they are there or
/// not.
std::string ggmlVocabularies();

}  // namespace gptc::test
