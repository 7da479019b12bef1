#include "tests/support/oracles.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sys/wait.h>

namespace gptc::test {

namespace {

/// What a shell's command writes to standard output.
Compared outputOf(const std::string &command) {
  Compared r;
  FILE *pipe = ::popen(command.c_str(), "r");
  if (!pipe)
    return r;
  std::array<char, 4096> part;
  for (size_t n; (n = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    r.said.append(part.data(), n);
  const int status = ::pclose(pipe);
  r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return r;
}

/// Of the environment in which tools/oracles puts what it brings.
std::string pythonsFolder() {
  return outputOf("python3 -c 'import sys; print(sys.prefix, end=\"\")' 2>/dev/null").said;
}

}  // namespace

Compared compareBy(const std::string &script, const std::string &arguments, const std::string &path) {
  const std::string with = path.empty() ? "" : "PYTHONPATH='" + path + "' ";
  return outputOf(with + "'" GPTC_SOURCE_DIR "/" + script + "' " + arguments + " 2>&1");
}

const std::vector<std::string> &transformersPaths() {
  static const std::vector<std::string> paths = [] {
    const std::string older = pythonsFolder() + "/transformers4";
    if (std::filesystem::is_directory(older + "/transformers"))
      return std::vector<std::string>{"", older};
    std::printf("no transformers 4 in %s: only the version that Python finds is asked\n", older.c_str());
    return std::vector<std::string>{""};
  }();
  return paths;
}

void sayMeasured(const std::string &what, double value) { std::printf("measured %s: %.2g\n", what.c_str(), value); }

std::string ggmlVocabularies() { return pythonsFolder() + "/ggml-vocab"; }

}  // namespace gptc::test
