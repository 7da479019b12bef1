// Libraries of ours that stand on libraries from elsewhere, and are loaded when they are first needed.
#pragma once

#include <string>

namespace gptc {

struct PluginName {
  const char *file;     // beside the programs, or in ../lib/gptc as they are installed: "libgptc_gloo.so"
  const char *entry;    // the function it has
  const char *needing;  // what needs it, as "ranks on several machines need"
  const char *library;  // what it stands on, as "Gloo"
  const char *package;  // Debian's, with that library's headers: "libgloo-dev"
  const char *runtime;  // Debian's, with that library
  const char *without;  // what goes without it
};

struct Plugin {
  void *entry = nullptr;
  std::string why, help;  // if there is none
};

Plugin loadPlugin(const PluginName &name);

}  // namespace gptc
