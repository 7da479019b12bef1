#include "host_compile.h"

#include "tests/support/content.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <unistd.h>

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

using test::contentOf;

/// What the processes of one run of the tests have compiled: beside each library all that it was made of.
class Compiled {
public:
  explicit Compiled(std::string madeOf) : madeOf(std::move(madeOf)) {
    const char *shared = std::getenv("GPTC_TEST_SHARED");
    if (!shared || !*shared)
      return;
    folder = fs::path(shared) / "host-compiled";
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    name = std::to_string(std::hash<std::string>{}(this->madeOf));
  }

  /// A copy, as a process may load the same text twice.
  bool copyTo(const fs::path &library) const {
    std::error_code e;
    return !folder.empty() && contentOf(folder / (name + ".text")) == madeOf &&
           fs::copy_file(folder / (name + ".so"), library, e);
  }

  void keep(const fs::path &library) const {
    if (folder.empty())
      return;
    const fs::path mine = folder / (name + "." + std::to_string(getpid()));
    std::error_code e;
    if (!fs::copy_file(library, mine, fs::copy_options::overwrite_existing, e))
      return;
    fs::rename(mine, folder / (name + ".so"), e);
    std::ofstream(mine, std::ios::binary) << madeOf;
    fs::rename(mine, folder / (name + ".text"), e);
  }

private:
  std::string madeOf, name;
  fs::path folder;  // empty: nothing is kept
};

/// A folder with the device layer as the compiler has parsed it, once for all kernels of a run; "" without a shared
/// folder. A compiler that cannot use it reads the text.
static std::string parsedLayer(const std::string &common, const std::string &flags) {
  const char *shared = std::getenv("GPTC_TEST_SHARED");
  if (!shared || !*shared)
    return "";
  static std::mutex lock;
  const std::lock_guard guard(lock);
  static std::map<size_t, std::string> known;
  const size_t number = std::hash<std::string>{}(flags + "\n" + common);
  auto [it, isNew] = known.try_emplace(number);
  const fs::path folder = fs::path(shared) / ("device-layer-" + std::to_string(number));
  if (!isNew || fs::exists(folder))
    return it->second = folder.string();
  const fs::path mine = folder.string() + "." + std::to_string(getpid());
  std::error_code e;
  fs::create_directories(mine, e);
  std::ofstream(mine / "gptc_common.h") << common;
  // For a second #include, which passes over it.
  fs::copy_file(GPTC_SOURCE_DIR "/tests/simt/shim/gptc_device.h", mine / "gptc_device.h", e);
  const std::string command = flags + " -I" + mine.string() + " -x c++-header -o " + mine.string() +
                              "/gptc_device.h.gch " GPTC_SOURCE_DIR "/tests/simt/shim/gptc_device.h > /dev/null 2>&1";
  if (std::system(command.c_str()) != 0)
    fs::remove(mine / "gptc_device.h.gch", e);
  fs::rename(mine, folder, e);
  if (e)  // another process was first
    fs::remove_all(mine, e);
  return it->second = folder.string();
}

std::string compileForHost(const std::string &folder, const std::string &common, const std::string &source,
                           const std::string &options) {
  const Compiled compiled(compiler() + "\n" + options + "\n" + common + "\n" + source);
  if (compiled.copyTo(folder + "/kernels.so"))
    return "";
  std::ofstream(folder + "/gptc_common.h") << common;
  std::ofstream(folder + "/kernels.cpp") << source;
  // Not optimised: most of the time goes into compiling. No function of the C library is computed by the compiler,
  // whose results may differ from it in the last place.
  const std::string flags =
      compiler() + " -std=c++20 -O0 -w -fPIC -ffp-contract=off -fno-builtin -fno-strict-aliasing " + options;
  const std::string layer = parsedLayer(common, flags);
  // Linked with what it calls only: to look into the library of C++ and its start takes a fifth of a small kernel's
  // time.
  const std::string command = flags + " -shared -nostdlib " + (layer.empty() ? "" : "-I" + layer) + " -I" + folder +
                              " -I" GPTC_SOURCE_DIR "/tests/simt/shim -o " + folder + "/kernels.so " + folder +
                              "/kernels.cpp -lm -lc > " + folder + "/log 2>&1";
  if (std::system(command.c_str()) == 0) {
    compiled.keep(folder + "/kernels.so");
    return "";
  }
  return "the text does not compile:\n" + contentOf(folder + "/log").substr(0, 4000);
}

}  // namespace gptc::simt
