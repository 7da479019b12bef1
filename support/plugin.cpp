#include "support/plugin.h"

#include "llvm/ADT/StringRef.h"

#include <climits>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

namespace gptc {

Plugin loadPlugin(const PluginName &name) {
  Plugin p;
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
  const llvm::StringRef program(self, n > 0 ? size_t(n) : 0);
  const std::string beside = program.substr(0, program.rfind('/') + 1).str();
  std::string path = beside + name.file;
  if (const std::string installed = beside + "../lib/gptc/" + name.file;
      access(path.c_str(), R_OK) != 0 && access(installed.c_str(), R_OK) == 0)
    path = installed;
  if (access(path.c_str(), R_OK) != 0) {
    p.why = fmt::format("{} {}, which is missing", name.needing, path);
    p.help = fmt::format("install {} and build again (tools/setup does both); {}", name.package, name.without);
    return p;
  }
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    p.why = fmt::format("{} {}, which does not load: {}", name.needing, name.library, dlerror());
    p.help = fmt::format("apt-get install {} brings it; {}", name.runtime, name.without);
    return p;
  }
  p.entry = dlsym(library, name.entry);
  if (!p.entry) {
    p.why = fmt::format("{} is of another version of gptc", path);
    p.help = "build gptc and its plug-in together (tools/setup)";
  }
  return p;
}

}  // namespace gptc
