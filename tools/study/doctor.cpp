#include "tools/study/doctor.h"

#include "codegen/codegen.h"
#include "codegen/cuda/libraries.h"
#include "codegen/cuda/nvrtc.h"
#include "codegen/object_cache.h"
#include "runtime/cuda/cudnn.h"
#include "runtime/cuda/gpu.h"
#include "support/diagnostics.h"
#include "tools/planner/cache_dir.h"
#include "tools/study/gpus.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace gptc {

namespace {

using Grade = Finding::Grade;
constexpr double gib = double(1 << 30);

struct Examination {
  std::string arch;
  Diagnosis d;

  void add(const std::string &name, const std::string &found) {
    d.findings.push_back({name, Grade::fine, false, found});
  }
  Finding &add(Finding f) { return d.findings.emplace_back(std::move(f)); }

  void processor() {
    const Target t = hostTarget();
    auto has = [&](const char *f) { return (t.features + ",").find(fmt::format("+{},", f)) != std::string::npos; };
    std::string features;
    for (const char *f : {"avx2", "fma", "f16c", "avx512f", "avx512bf16", "amx-bf16"})
      if (has(f))
        features += fmt::format(" {}", f);
    const std::string found = t.cpu + "," + (features.empty() ? " none of the features that we use" : features);
    if (has("fma"))
      add("cpu", found);
    else
      add({"cpu", Grade::hampered, false, found + "; without fma kernels are many times slower", "fma",
           "use a CPU of 2013 or later"});
    add("vectors", fmt::format("{} of {} bits", t.vectorRegisters, 8 * t.vectorBytes));
    add("threads", fmt::format("{}", t.threads));
    add("caches", fmt::format("{} KiB, {} KiB, {} KiB", t.l1Bytes >> 10, t.l2Bytes >> 10, t.l3Bytes >> 10));
  }

  void memory() {
    const double all = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
    // A container's limit, if it is lower.
    double limit = all;
    for (const char *file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
      if (double bytes; std::ifstream(file) >> bytes)
        limit = std::min(limit, bytes);
    add("memory", fmt::format("{:.1f} GiB", limit / gib) +
                      (limit < all ? fmt::format(" of {:.1f} (limit of the container)", all / gib) : ""));
  }

  void cache() {
    const std::string dir = defaultCacheDir();
    const std::string anew = "kernels are compiled anew in every run";
    if (dir.empty()) {
      add({"cache", Grade::hampered, false, "none, so " + anew + ": HOME, XDG_CACHE_HOME and GPTC_CACHE name no folder",
           "a folder", "set GPTC_CACHE"});
      return;
    }
    std::string why;
    const int fd = openPrivateFolder(dir, why);
    if (fd < 0 && errno == ENOENT) {
      // The folder is created on first use, which needs a writable parent.
      std::filesystem::path parent = dir;
      std::error_code ec;
      while (!std::filesystem::exists(parent, ec) && parent.has_relative_path())
        parent = parent.parent_path();
      if (::access(parent.c_str(), W_OK) == 0)
        return add("cache", dir + " (made on first use)");
      add({"cache", Grade::hampered, false, fmt::format("{} cannot be made in {}; {}", dir, parent.string(), anew),
           "mode 0700", "set GPTC_CACHE to a folder that you may write to"});
      return;
    }
    if (fd < 0) {
      add({"cache", Grade::hampered, false, why + "; " + anew, "mode 0700, yours",
           "mend that, or set GPTC_CACHE to a folder of yours that is no link"});
      return;
    }
    ::close(fd);
    if (::access(dir.c_str(), W_OK) != 0)
      add({"cache", Grade::hampered, false, dir + " is not writable", "mode 0700", "chmod 700 " + dir});
    else
      add("cache", dir);
  }

  void disk() {
    std::error_code ec;
    const std::filesystem::path here = std::filesystem::current_path(ec);
    const auto space = std::filesystem::space(here, ec);
    if (ec) {
      add({"disk", Grade::hampered, false, "the current folder cannot be examined: " + ec.message(), "",
           "go to a folder that exists"});
      return;
    }
    const double free = double(space.available) / gib;
    const std::string found = fmt::format("{:.1f} GiB free in {}", free, here.string());
    if (free < 1)
      add({"disk", Grade::hampered, false, found, "1 GiB; a checkpoint takes 12 bytes for each parameter",
           "make room, or keep checkpoints elsewhere (--out-dir)"});
    else
      add("disk", found);
  }

  /// Checks one of CUDA's libraries. `without`: the consequence if it is missing; null if nothing can run then.
  bool library(CudaLibraryId id, const char *without) {
    const CudaLibrary &l = CudaLibrary::find(id);
    llvm::StringRef name = l.name;
    name.consume_front("the NVIDIA ");
    Finding &f = add({name.str(), Grade::fine, true});
    f.needed = l.range;
    if (l) {
      f.version = l.version > CudaVersion{} ? l.version.str() : "";
      f.path = l.path;
      f.found = l.version > CudaVersion{} ? l.version.str() + ", " + l.path : l.path;
      return true;
    }
    f.grade = !without ? Grade::blocking : l.unfit ? Grade::hampered : Grade::absent;
    f.found = l.why + (without ? fmt::format("; {}", without) : "");
    f.remedy = l.remedy;
    return false;
  }

  /// NVRTC may be found and still not work, because its own libraries may be missing.
  void nvrtc(const Gpus &g) {
    if (!library(CudaLibraryId::nvrtc, nullptr))
      return;
    std::string why;
    const Nvrtc *compiler = Nvrtc::find(why);
    if (compiler) {
      // An old GPU is reported as such, and is no fault of the compiler.
      const bool able = !g.visible.empty() && cuda::isSupported(g.visible[0].major, g.visible[0].minor);
      const std::string target = !arch.empty() ? arch
                                 : able        ? cuda::architectureOf(g.visible[0].major, g.visible[0].minor)
                                               : "sm_80";
      try {
        const std::string text = "#include \"gptc_device.h\"\nGPTC_KERNEL(nothing, 32)(Global<float> x) {\n"
                                 "  store(x, threadIndex(), 0.0f);\n}\n";
        compiler->compile(text, cudaTarget("cuda:" + target));
        return;
      } catch (const std::exception &e) {
        llvm::StringRef text = e.what();
        why = fmt::format("it cannot compile for {}: {}", target, text.take_front(text.find("#include")).trim().str());
      }
    }
    Finding &f = d.findings.back();
    f.grade = Grade::blocking;
    f.found += "; " + why;
    f.remedy = "install the whole of NVRTC 13 in one folder, libnvrtc-builtins too";
  }

  void gpus(const Gpus &g, const CudaLibrary &driver) {
    const char *shown = std::getenv("CUDA_VISIBLE_DEVICES");
    const std::string variable = shown ? fmt::format("CUDA_VISIBLE_DEVICES={}", shown) : "";
    const std::string present = g.present >= 0 ? fmt::format("{} present", g.present) : "";
    const std::string needed = arch.empty() ? "sm_75 or later" : "one that runs " + arch;
    if (!driver || !g.why.empty()) {
      std::string found = !driver ? "they cannot be asked without a driver" : g.why;
      for (const std::string &more : {present, variable})
        if (!more.empty())
          found += ", " + more;
      add({"GPUs", Grade::blocking, true, found, needed, driver ? g.remedy : driver.remedy});
      return;
    }
    const int visible = int(g.visible.size());
    Finding &f = add({"GPUs", Grade::fine, true, fmt::format("{} visible", visible), needed});
    if (!present.empty())
      f.found += fmt::format(", {}", present);
    if (shown) {
      f.found += ", " + variable;
      const int named = *shown ? 1 + int(llvm::StringRef(shown).count(',')) : 0;
      if (named > visible) {
        f.grade = Grade::hampered;
        f.found += fmt::format(", which names {}", named);
        f.remedy = "CUDA ignores what follows the first name that it does not know; mend CUDA_VISIBLE_DEVICES";
      }
    }
    std::vector<int> able;
    for (int i = 0; i < visible; ++i) {
      const Gpu &gpu = g.visible[i];
      Finding &one = add({fmt::format("GPU {}", i), Grade::fine, true,
                          fmt::format("{}, {}, {:.1f} GiB, {} multiprocessors", gpu.name, gpu.arch(),
                                      double(gpu.bytes) / gib, gpu.multiprocessors)});
      if (!cuda::isSupported(gpu.major, gpu.minor)) {
        one.grade = Grade::hampered;
        one.needed = needed;
        one.remedy = "NVRTC 13 starts at sm_75: hide this one with CUDA_VISIBLE_DEVICES";
      } else if (!arch.empty() && !cuda::runsOn(arch, gpu.major, gpu.minor)) {
        one.grade = Grade::hampered;
        one.needed = "one that runs " + arch;
        one.remedy = "compile with --target cuda:" + cuda::architectureOf(gpu.major, gpu.minor);
      } else {
        able.push_back(i);
      }
    }
    // A run takes the first GPU, whatever the others can do.
    if (able.empty() || able[0] != 0) {
      Finding &all = *llvm::find_if(d.findings, [](const Finding &x) { return x.name == "GPUs"; });
      all.grade = Grade::blocking;
      if (able.empty()) {
        all.found += ", none of which can run";
        all.remedy = arch.empty() ? "use a GPU of sm_75 or later" : "see the GPUs below";
      } else {
        llvm::SmallVector<llvm::StringRef, 8> names;
        llvm::StringRef(shown ? shown : "").split(names, ',');
        const size_t first = size_t(able[0]);
        all.found += fmt::format(", of which a run takes GPU 0, which cannot; GPU {} can", first);
        all.remedy = fmt::format("set CUDA_VISIBLE_DEVICES={}",
                                 shown && first < names.size() ? names[first].str() : fmt::format("{}", first));
      }
    }
    if (visible > 1 && g.withoutPeerAccess.empty()) {
      add({"peers", Grade::fine, true, "all reach each other's memory"});
    } else if (visible > 1) {
      std::string pairs;
      for (auto [a, b] : g.withoutPeerAccess)
        pairs += fmt::format("{}{}-{}", pairs.empty() ? "" : ", ", a, b);
      add({"peers", Grade::hampered, true, fmt::format("no access between {}: copies go through the host", pairs),
           "access between all",
           "see `nvidia-smi topo -p2p r`; in virtual machines and with IOMMU or ACS it may be off"});
    }
  }

  void cuda() {
    const CudaLibrary &driver = CudaLibrary::find(CudaLibraryId::driver);
    library(CudaLibraryId::driver, nullptr);
    const size_t at = d.findings.size() - 1;
    const Gpus g = driver ? listGpus(driver) : Gpus{};
    if (!g.release.empty())
      d.findings[at].found += ", release " + g.release;
    gpus(g, driver);
    nvrtc(g);
    library(CudaLibraryId::cublasLt, "matmuls are generated");
    library(CudaLibraryId::cudnn, "attention is generated");
    if (const std::string frontend = cuda::cudnnFrontend(); frontend.empty())
      add({"cuDNN use", Grade::absent, true, "this gptc was built without cuDNN's headers; attention is generated",
           "cudnn.h and cudnn_frontend.h", "run `tools/setup --cuda` where gptc is built: it brings them and builds"});
    else
      add({"cuDNN use", Grade::fine, true, "attention, by cudnn-frontend " + frontend});
    library(CudaLibraryId::nccl, "only one GPU can be used");
    library(CudaLibraryId::nvml, "GPUs are counted by /proc");
    library(CudaLibraryId::nvtx, "profiles have no names of ours");
  }
};

}  // namespace

std::vector<std::string> Diagnosis::blocking(bool cuda) const {
  std::vector<std::string> names;
  for (const Finding &f : findings)
    if (f.grade == Finding::blocking && (cuda || !f.cuda))
      names.push_back(f.name);
  return names;
}

Diagnosis examine(const std::string &arch) {
  Examination e{arch, {}};
  e.add("gptc", GPTC_VERSION);
  e.processor();
  e.memory();
  e.cache();
  e.disk();
  e.cuda();
  return std::move(e.d);
}

}  // namespace gptc
