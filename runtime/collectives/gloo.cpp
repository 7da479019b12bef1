#include "runtime/collectives/gloo.h"
#include "runtime/collectives/communicator.h"
#include "support/diagnostics.h"

#include <climits>
#include <dlfcn.h>
#include <unistd.h>

namespace gptc {

namespace {

struct Plugin {
  MakeLinks *make = nullptr;
  std::string why;  // why there is none
  std::string help;
};

Plugin load() {
  Plugin p;
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
  const llvm::StringRef program(self, n > 0 ? size_t(n) : 0);
  const std::string beside = program.substr(0, program.rfind('/') + 1).str();
  // Beside the programs as they are built, in a folder of its own as they are installed.
  std::string path = beside + "libgptc_gloo.so";
  if (const std::string installed = beside + "../lib/gptc/libgptc_gloo.so";
      access(path.c_str(), R_OK) != 0 && access(installed.c_str(), R_OK) == 0)
    path = installed;
  if (access(path.c_str(), R_OK) != 0) {
    p.why = fmt::format("ranks on several machines, or over TCP, need {}, which is missing", path);
    p.help = "install libgloo-dev and build again (tools/setup does both); ranks of one machine need none of it";
    return p;
  }
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    p.why = fmt::format("ranks on several machines, or over TCP, need Gloo, which does not load: {}", dlerror());
    p.help = "apt-get install libgloo0 brings it; ranks of one machine need none of it";
    return p;
  }
  p.make = reinterpret_cast<MakeLinks *>(dlsym(library, linksEntry));
  if (!p.make) {
    p.why = fmt::format("{} is of another version of gptc", path);
    p.help = "build gptc and its plug-in together (tools/setup)";
  }
  return p;
}

const Plugin &plugin() {
  static const Plugin p = load();
  return p;
}

}  // namespace

std::string whyNoGloo() { return plugin().why; }

std::unique_ptr<Links> makeGlooLinks(const LinksOptions &options, LinkError &e) {
  const Plugin &p = plugin();
  if (!p.make)
    throw UserError(ErrorCode::TargetUnavailable, p.why, p.help);
  return std::unique_ptr<Links>(p.make(options, e));
}

}  // namespace gptc
