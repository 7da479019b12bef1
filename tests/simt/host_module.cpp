#include "simt.h"

#include "codegen/cuda/device_text.h"
#include "host_compile.h"

#include <dlfcn.h>
#include <filesystem>
#include <stdexcept>

namespace fs = std::filesystem;

namespace gptc::simt {

bool HostModule::possible() { return hasHostCompiler(); }

HostModule::HostModule(const std::string &text, const std::vector<std::string> &kernels, const std::string &options)
    : folder(temporaryFolder()) {
  std::string source = text + "\n";
  for (const std::string &k : kernels)
    source += "GPTC_HOST_ENTRY(" + k + ")\n";
  if (std::string problem = compileForHost(folder, device_text::common, source, options); !problem.empty())
    throw std::runtime_error(problem);
  library = dlopen((folder + "/kernels.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw std::runtime_error(dlerror());
}

HostModule::~HostModule() {
  if (library)
    dlclose(library);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

HostModule::Thread HostModule::find(const std::string &kernel) const {
  void *f = dlsym(library, (kernel + "_host").c_str());
  if (!f)
    throw std::runtime_error("no kernel is called " + kernel);
  return reinterpret_cast<Thread>(f);
}

}  // namespace gptc::simt
