#include "codegen/cuda_jit.h"

#include "codegen/codegen.h"
#include "codegen/cuda_libraries.h"
#include "codegen/nvrtc.h"
#include "ir/diagnostics.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <system_error>
#include <thread>

namespace gptc {

namespace fs = std::filesystem;

namespace {

// Programs per thread: enough that threads end together, few enough that each is worth its start.
constexpr size_t programsPerThread = 2;

llvm::ArrayRef<char> bytes(llvm::StringRef s) { return {s.data(), s.size()}; }

std::string joined(llvm::ArrayRef<std::string> texts) {
  std::string all;
  for (const std::string &t : texts)
    all += t + "\n";
  return all;
}

}  // namespace

struct CudaJit::Text {
  std::string printed;  // of the kernel
  CudaKernel cuda;
  std::string name;
  std::shared_ptr<const std::string> image;
};

CudaJit::CudaJit(const Target &target, const std::string &cacheDir)
    : target(target), cacheDir(cacheDir), cache(cacheDir) {
  Nvrtc::get();
  salt = fmt::format("cuda 1 {} {} {}", target.cpu, CudaLibrary::get(CudaLibraryId::nvrtc).version.str(),
                     cudaDeviceLayer());
}

std::string CudaJit::keyOf(llvm::StringRef kind, llvm::StringRef text) const {
  return contentHash({bytes(salt), bytes(kind), bytes(text)});
}

void CudaJit::findCached(std::vector<Text> &texts) const {
  std::map<std::string, std::shared_ptr<const std::string>> images;
  for (Text &t : texts) {
    std::optional<std::vector<char>> entry = cache.read(keyOf("kernel", t.cuda.text));
    if (!entry)
      continue;
    const std::string key(entry->begin(), entry->end());
    auto [it, isNew] = images.try_emplace(key);
    if (isNew)
      if (std::optional<std::vector<char>> image = cache.read(key))
        it->second = std::make_shared<const std::string>(image->begin(), image->end());
    t.image = it->second;
  }
}

/// Where the text is kept for who looks into it: the device layer stands before it, so that it compiles by itself.
static std::string keep(const std::string &text, const std::string &cacheDir, const std::string &name) {
  std::error_code ignored;
  const fs::path folder = cacheDir.empty() ? fs::temp_directory_path() : fs::path(cacheDir);
  const fs::path file = folder / ("rejected-" + name + ".cu");
  std::string whole = text;
  const std::string include = "#include \"gptc_device.h\"\n";
  if (size_t at = whole.find(include); at != std::string::npos)
    whole.replace(at, include.size(), cudaDeviceLayer());
  std::ofstream out(file);
  out << whole;
  return out ? file.string() : "";
}

void CudaJit::build(std::vector<Text *> texts) {
  const std::vector<Text *> inOrder = texts;
  const unsigned threads = std::max(1u, hostTarget().threads);
  const size_t count = std::min(texts.size(), programsPerThread * threads);
  // The longest first, each to the program that is shortest so far.
  std::stable_sort(texts.begin(), texts.end(),
                   [](Text *a, Text *b) { return a->cuda.text.size() > b->cuda.text.size(); });
  struct Program {
    std::vector<Text *> texts;
    size_t size = 0;
    std::exception_ptr error;
  };
  std::vector<Program> programs(count);
  for (Text *t : texts) {
    Program &p = *std::min_element(programs.begin(), programs.end(), [](auto &a, auto &b) { return a.size < b.size; });
    p.texts.push_back(t);
    p.size += t->cuda.text.size();
  }
  auto compile = [&](Program &p) {
    std::vector<std::string> parts;
    for (Text *t : p.texts)
      parts.push_back(t->cuda.text);
    const std::string text = joined(parts), key = keyOf("program", text);
    auto image = std::make_shared<const std::string>(Nvrtc::get().compile(text, target).cubin);
    cache.write(key, bytes(*image));
    for (Text *t : p.texts) {
      t->image = image;
      cache.write(keyOf("kernel", t->cuda.text), bytes(key));
    }
  };
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i; (i = next++) < programs.size();)
      try {
        compile(programs[i]);
      } catch (...) {
        programs[i].error = std::current_exception();
      }
  };
  std::vector<std::thread> workers;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i)
    try {
      workers.emplace_back(work);
    } catch (const std::system_error &) {
      break;  // those that run do all the work
    }
  work();
  for (std::thread &t : workers)
    t.join();
  stats.programs += int(count);
  std::exception_ptr error;
  std::set<const Text *> suspects;
  for (const Program &p : programs)
    if (p.error) {
      error = error ? error : p.error;
      suspects.insert(p.texts.begin(), p.texts.end());
    }
  if (!error)
    return;
  // Which of them is it? The first, whatever program it was in.
  for (const Text *t : inOrder)
    if (suspects.count(t))
      try {
        Nvrtc::get().compile(t->cuda.text, target);
      } catch (const CudaRejected &e) {
        const std::string kept = keep(t->cuda.text, cacheDir, t->name);
        throw UserError(ErrorCode::KernelRejected,
                        fmt::format("NVRTC {} does not compile the kernel {} for {}:\n{}",
                                    CudaLibrary::get(CudaLibraryId::nvrtc).version.str(), t->name, target.cpu,
                                    llvm::StringRef(e.log).trim().str()),
                        fmt::format("{}plans of --target cpu need no NVRTC",
                                    kept.empty() ? "" : fmt::format("its text is in {}; ", kept)));
      }
  std::rethrow_exception(error);
}

void CudaJit::makeAll(std::vector<Text> &texts) {
  findCached(texts);
  std::vector<Text *> missing;
  for (Text &t : texts)
    if (!t.image)
      missing.push_back(&t);
  stats.reused += int(texts.size() - missing.size());
  stats.compiled += int(missing.size());
  if (!missing.empty())
    build(missing);
}

CudaCode CudaJit::compile(const CudaKernel &text, const std::string &name) {
  std::vector<Text> one{{"", text, name, nullptr}};
  makeAll(one);
  return {one[0].image, text.phases};
}

std::vector<CudaCode> CudaJit::compile(llvm::ArrayRef<const kir::Kernel *> kernels) {
  std::vector<std::string> printed;
  std::vector<Text> texts;
  llvm::StringMap<bool> taken;
  for (const kir::Kernel *k : kernels) {
    const std::string &p = printed.emplace_back(kir::print(*k));
    if (known.count(p) || !taken.try_emplace(p, true).second)
      continue;
    texts.push_back({p, emitCuda(*k, "k" + contentHash({bytes(p)}).substr(0, 16)), k->name, nullptr});
  }
  makeAll(texts);
  for (Text &t : texts)
    known[t.printed] = {t.image, t.cuda.phases};
  std::vector<CudaCode> result;
  for (const std::string &p : printed)
    result.push_back(known[p]);
  return result;
}

}  // namespace gptc
