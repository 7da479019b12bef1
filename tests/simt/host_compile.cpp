#include "host_compile.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace fs = std::filesystem;

namespace gptc::simt {

static std::string compiler() {
  const char *cxx = std::getenv("CXX");
  return cxx && *cxx ? cxx : "c++";
}

bool hasHostCompiler() {
  static const bool found = std::system((compiler() + " --version > /dev/null 2>&1").c_str()) == 0;
  return found;
}

std::string temporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "gptc-simt-XXXXXX").string();
  if (!mkdtemp(pattern.data()))
    throw std::runtime_error("no folder for temporary files");
  return pattern;
}

std::string compileForHost(const std::string &folder, const std::string &common, const std::string &source,
                           const std::string &options) {
  std::ofstream(folder + "/gptc_common.h") << common;
  std::ofstream(folder + "/kernels.cpp") << source;
  // Not optimised: most of the time goes into compiling. No function of the C library is computed by the compiler,
  // whose results may differ from it in the last place.
  const std::string command = compiler() +
                              " -std=c++20 -O0 -w -fPIC -shared -ffp-contract=off -fno-builtin -fno-strict-aliasing " +
                              options + " -I" + folder + " -I" GPTC_SOURCE_DIR "/tests/simt/shim -o " + folder +
                              "/kernels.so " + folder + "/kernels.cpp > " + folder + "/log 2>&1";
  if (std::system(command.c_str()) == 0)
    return "";
  std::ostringstream log;
  log << std::ifstream(folder + "/log").rdbuf();
  return "the text does not compile:\n" + log.str().substr(0, 4000);
}

}  // namespace gptc::simt
