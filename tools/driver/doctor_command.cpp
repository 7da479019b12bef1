// gptc doctor: what this machine offers, and what is in the way.
#include "codegen/codegen.h"
#include "codegen/cuda_libraries.h"
#include "codegen/object_cache.h"
#include "tools/driver/cache_dir.h"
#include "tools/driver/command_line.h"
#include "tools/driver/commands.h"

#include <cerrno>
#include <cstdlib>
#include <unistd.h>

namespace gptc {

namespace {

int problems;

void row(const char *name, const std::string &text) { fmt::print("{:<10} {}\n", name, text); }

void problem(const char *name, const std::string &text, const std::string &remedy) {
  ++problems;
  fmt::print("{:<10} problem: {}\n{:<10} remedy:  {}\n", name, text, "", remedy);
}

/// Says of the cache what the runtime will think of it.
void cache() {
  const std::string dir = defaultCacheDir();
  if (dir.empty())
    return problem("cache", "none: neither HOME nor XDG_CACHE_HOME nor GPTC_CACHE names a folder",
                   "set GPTC_CACHE, or kernels are compiled anew in every run");
  std::string why;
  const int fd = openPrivateFolder(dir, why);
  if (fd < 0 && errno == ENOENT)
    return row("cache", dir + " (made on first use)");
  if (fd < 0)
    return problem("cache", why + "; kernels are compiled anew in every run",
                   "chmod 700 " + dir + ", or set GPTC_CACHE to a folder of yours that is no link");
  ::close(fd);
  if (::access(dir.c_str(), W_OK) != 0)
    return problem("cache", dir + " is not writable", "chmod 700 " + dir);
  row("cache", dir);
}

/// What of CUDA's libraries is here. Their absence is a problem only where one is asked for or unfit.
void cuda() {
  for (CudaLibraryId id : allCudaLibraries()) {
    const CudaLibrary &l = CudaLibrary::find(id);
    if (l)
      row(l.name, fmt::format("{}, {}", l.version.str(), l.path));
    else if (l.unfit)
      problem(l.name, l.why, l.remedy);
    else
      row(l.name, "none: " + l.why);
  }
}

void doctor() {
  const Target t = hostTarget();
  auto has = [&](const char *f) { return (t.features + ",").find(fmt::format("+{},", f)) != std::string::npos; };
  std::string found;
  for (const char *f : {"avx2", "fma", "avx512f", "avx512bf16", "amx-bf16"})
    if (has(f))
      found += fmt::format(" {}", f);
  row("gptc", GPTC_VERSION);
  row("cpu", fmt::format("{},{}", t.cpu, found));
  row("vectors", fmt::format("{} of {} bits", t.vectorRegisters, 8 * t.vectorBytes));
  row("threads", fmt::format("{}", t.threads));
  row("caches", fmt::format("{} KiB, {} KiB, {} KiB", t.l1Bytes >> 10, t.l2Bytes >> 10, t.l3Bytes >> 10));
  row("memory", fmt::format("{:.1f} GiB", double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE)) / (1 << 30)));
  if (!has("fma"))
    problem("cpu", "no fused multiply-add: kernels are many times slower", "use a CPU of 2013 or later");
  cache();
  cuda();
  if (!problems)
    row("result", "no problem found");
}

}  // namespace

void addDoctorCommand(CLI::App &app) {
  app.add_subcommand("doctor", "Says what this machine offers, and names what is missing")->callback([] {
    problems = 0;
    doctor();
  });
}

}  // namespace gptc
