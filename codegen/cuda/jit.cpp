#include "codegen/cuda/jit.h"

#include "codegen/codegen.h"
#include "codegen/cuda/device_text.h"
#include "codegen/cuda/libraries.h"
#include "codegen/cuda/nvrtc.h"
#include "codegen/cuda/plain_kernel.h"
#include "support/diagnostics.h"
#include "support/helper_threads.h"
#include "support/stderr.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <set>

namespace gptc {

namespace {

// Programs per thread: enough that all threads end at about the same time, few enough that each is worth its start-up.
// With hundreds of kernels, `kernelsPerProgram` bounds the size of a program for the same reason.
constexpr size_t programsPerThread = 2, kernelsPerProgram = 20;

llvm::ArrayRef<char> bytes(llvm::StringRef s) { return {s.data(), s.size()}; }

/// A symbol made from a kernel's print alone. Kernels with equal prints and different names get equal texts under it.
std::string namelessSymbol(const std::string &printed) { return "k" + contentHash({bytes(printed)}).substr(0, 16); }

void rename(std::string &text, const std::string &from, const std::string &to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// The beginning of a kernel's symbol: its name, without its kind if that repeats in the first op's name, and cut
/// between two words if it is too long.
std::string readableName(llvm::StringRef name) {
  constexpr size_t most = 48;
  for (size_t n = 1; 2 * n < name.size(); ++n)
    if (name[n] == '_' && name.substr(n + 1).starts_with(name.substr(0, n)) &&
        (name.size() == 2 * n + 1 || name[2 * n + 1] == '_')) {
      name = name.substr(n + 1);
      break;
    }
  if (name.size() > most) {
    const size_t end = name.substr(0, most + 1).rfind('_');
    name = name.substr(0, end == llvm::StringRef::npos ? most : end);
  }
  std::string out = name.str();
  for (char &c : out)
    if (!llvm::isAlnum(c))
      c = '_';
  return out.empty() || llvm::isDigit(out[0]) ? "k" + out : out;
}

std::string symbolOf(const kir::Kernel &k, const std::string &printed) {
  return readableName(k.name) + "_" + contentHash({bytes(printed)}).substr(0, 8);
}

std::string joined(llvm::ArrayRef<std::string> texts) {
  std::string all;
  for (const std::string &t : texts)
    all += t + "\n";
  return all;
}

}  // namespace

std::string cudaSymbol(const kir::Kernel &k) { return symbolOf(k, kir::print(k)); }

struct CudaJit::Text {
  std::string printed;  // kir::print of the kernel
  CudaKernel cuda;
  std::string name;
  const kir::Kernel *kernel = nullptr;  // from which the text was emitted; null for handwritten text and loop trees
  std::string symbol, key;              // the text's symbol, and the key of its cache entry
  bool isPlain = false;
  std::exception_ptr refused;
  std::shared_ptr<const std::string> image;
};

struct CudaJit::Program {
  std::vector<Text *> texts;
  size_t size = 0;
  std::exception_ptr error;
};

CudaJit::CudaJit(const Target &target, const std::string &cacheDir) : target(target), cache(cacheDir) {
  Nvrtc::get();
  salt = fmt::format("cuda 2 {} {} {}", target.cpu, CudaLibrary::get(CudaLibraryId::nvrtc).version.str(),
                     cudaDeviceLayer());
}

std::string CudaJit::keyOf(llvm::StringRef kind, llvm::StringRef text) const {
  return contentHash({bytes(salt), bytes(kind), bytes(text)});
}

/// Emits the text of a kernel under its readable symbol. The key is of the text under its nameless symbol.
void CudaJit::emit(Text &t, const kir::Kernel &k, const std::string &printed) const {
  const std::string nameless = namelessSymbol(printed);
  t.symbol = symbolOf(k, printed);
  t.cuda = emitCuda(k, nameless);
  t.key = keyOf("kernel", t.cuda.text);
  rename(t.cuda.text, nameless, t.symbol);
  for (CudaPhase &p : t.cuda.phases)
    rename(p.symbol, nameless, t.symbol);
}

/// Gives each text that the cache has its image and renames it to its symbol there. Returns the other texts.
std::vector<CudaJit::Text *> CudaJit::withoutCached(llvm::ArrayRef<Text *> texts) const {
  std::map<std::string, std::shared_ptr<const std::string>> images;
  std::vector<Text *> missing;
  for (Text *t : texts) {
    if (std::optional<std::vector<char>> entry = cache.read(t->key)) {
      const auto [key, symbol] = llvm::StringRef(entry->data(), entry->size()).split(' ');
      auto [it, isNew] = images.try_emplace(key.str());
      if (isNew)
        if (std::optional<std::vector<char>> image = cache.read(key.str()))
          it->second = std::make_shared<const std::string>(image->begin(), image->end());
      t->image = it->second;
      if (t->image && !t->symbol.empty())
        for (CudaPhase &p : t->cuda.phases)
          rename(p.symbol, t->symbol, symbol.str());
    }
    if (!t->image)
      missing.push_back(t);
  }
  return missing;
}

void CudaJit::compile(Program &p) const {
  std::vector<std::string> parts;
  for (Text *t : p.texts)
    parts.push_back(t->cuda.text);
  const std::string text = joined(parts), key = keyOf("program", text);
  auto image = std::make_shared<const std::string>(Nvrtc::get().compile(text, target).cubin);
  cache.write(key, bytes(*image));
  for (Text *t : p.texts) {
    t->image = image;
    cache.write(t->key, bytes(key + " " + t->symbol));
  }
}

/// Compiles all programs in parallel. Each keeps its own error.
void CudaJit::compile(std::vector<Program> &programs) {
  std::atomic<size_t> next = 0;
  withHelpers(std::min<size_t>(hostTarget().threads, programs.size()), [&](size_t) {
    for (size_t i; (i = next++) < programs.size();)
      try {
        compile(programs[i]);
      } catch (...) {
        programs[i].error = std::current_exception();
      }
  });
  stats.programs += int(programs.size());
}

/// Writes the text of a refused kernel to a file, with the device layer before it so that it compiles by itself, and
/// with line numbers as in the log. Returns a sentence that names the file.
std::string CudaJit::keep(const Text &t) {
  std::string whole = t.cuda.text;
  const std::string include = "#include \"gptc_device.h\"\n";
  if (size_t at = whole.find(include); at != std::string::npos)
    whole.replace(at, include.size(), cudaDeviceLayer() + "\n#line 2 \"kernels.cu\"\n");
  const int n = ++kept[t.name];
  std::string why;
  const std::string path =
      cache.keep(fmt::format("rejected-{}{}.cu", t.name, n > 1 ? fmt::format("-{}", n) : ""), whole, why);
  return path.empty() ? fmt::format("its text could not be kept ({})", why) : "its text is in " + path;
}

/// The first lines of a log, each indented.
static std::string indented(llvm::StringRef log) {
  constexpr size_t most = 3;
  llvm::SmallVector<llvm::StringRef, 8> lines;
  log.trim().split(lines, '\n');
  std::string text;
  for (size_t i = 0; i < std::min(most, lines.size()); ++i)
    text += fmt::format("  {}\n", lines[i].rtrim().str());
  return lines.size() > most ? text + fmt::format("  and {} more lines\n", lines.size() - most) : text;
}

// 1. Joins the texts to a few programs: the longest text first, each to the program that is shortest so far.
// 2. If a program does not compile, compiles each of its kernels by itself.
// 3. If NVRTC refuses a kernel with templates, loop trees replace it; any other refused kernel keeps the error.
void CudaJit::build(llvm::ArrayRef<Text *> texts) {
  std::vector<Text *> longest = texts.vec();
  llvm::stable_sort(longest, [](Text *a, Text *b) { return a->cuda.text.size() > b->cuda.text.size(); });
  std::vector<Program> programs(std::min(texts.size(), std::max(programsPerThread * std::max(1u, hostTarget().threads),
                                                                llvm::divideCeil(texts.size(), kernelsPerProgram))));
  for (Text *t : longest) {
    Program &p = *std::min_element(programs.begin(), programs.end(), [](auto &a, auto &b) { return a.size < b.size; });
    p.texts.push_back(t);
    p.size += t->cuda.text.size();
  }
  compile(programs);
  std::set<const Text *> suspects;
  for (const Program &p : programs)
    if (p.error)
      suspects.insert(p.texts.begin(), p.texts.end());
  std::vector<Program> alone;
  for (Text *t : texts)
    if (suspects.count(t))
      alone.push_back({{t}});
  compile(alone);

  const std::string nvrtc = CudaLibrary::get(CudaLibraryId::nvrtc).version.str();
  std::vector<Text *> plain;
  for (const Program &p : alone)
    try {
      if (p.error)
        std::rethrow_exception(p.error);
    } catch (const CudaRejected &e) {
      Text &t = *p.texts[0];
      const std::string place = keep(t);
      std::optional<kir::Kernel> loops = t.kernel ? withoutTemplates(*t.kernel) : std::nullopt;
      Text other;
      if (loops && kir::verify(*loops).empty())
        emit(other, *loops, kir::print(*loops));
      if (other.cuda.text.empty() ||
          llvm::any_of(other.cuda.phases, [&](const CudaPhase &f) { return f.sharedBytes > target.sharedBytes; })) {
        t.refused =
            std::make_exception_ptr(UserError(ErrorCode::KernelRejected,
                                              fmt::format("NVRTC {} does not compile the kernel {} for {}:\n{}", nvrtc,
                                                          t.name, target.cpu, llvm::StringRef(e.log).trim().str()),
                                              place + "; plans of --target cpu need no NVRTC"));
        continue;
      }
      printError("warning: NVRTC {} does not compile the kernel {} for {}:\n{}"
                 "  {}; plain loops take its place, which are many times slower\n",
                 nvrtc, t.name, target.cpu, indented(e.log), place);
      t.cuda = std::move(other.cuda);
      t.symbol = std::move(other.symbol);
      t.key = std::move(other.key);
      t.kernel = nullptr;  // it has no other form
      t.isPlain = true;
      plain.push_back(&t);
    }
  stats.plain += int(plain.size());
  if (std::vector<Text *> missing = withoutCached(plain); !missing.empty())
    build(missing);
}

void CudaJit::makeAll(std::vector<Text> &texts) {
  std::vector<Text *> all;
  for (Text &t : texts)
    all.push_back(&t);
  const std::vector<Text *> missing = withoutCached(all);
  stats.reused += int(texts.size() - missing.size());
  stats.compiled += int(missing.size());
  if (!missing.empty())
    build(missing);
}

CudaCode CudaJit::compile(const CudaKernel &text, const std::string &name) {
  std::vector<Text> one(1);
  one[0].cuda = text;
  one[0].name = name;
  one[0].key = keyOf("kernel", text.text);
  makeAll(one);
  if (one[0].refused)
    std::rethrow_exception(one[0].refused);
  return {one[0].image, text.phases};
}

std::vector<CudaCode> CudaJit::compile(llvm::ArrayRef<const kir::Kernel *> kernels) {
  std::vector<CudaCode> code = compileEach(kernels);
  for (const CudaCode &c : code)
    if (c.refused)
      std::rethrow_exception(c.refused);
  return code;
}

std::vector<CudaCode> CudaJit::compileEach(llvm::ArrayRef<const kir::Kernel *> kernels) {
  std::vector<std::string> printed;
  std::vector<Text> texts;
  llvm::StringMap<bool> taken;
  for (const kir::Kernel *k : kernels) {
    const std::string &p = printed.emplace_back(kir::print(*k));
    if (known.count(p) || !taken.try_emplace(p, true).second)
      continue;
    Text &t = texts.emplace_back();
    t.printed = p;
    t.name = k->name;
    t.kernel = k;
    emit(t, *k, p);
  }
  makeAll(texts);
  for (Text &t : texts)
    known[t.printed] = {t.image, t.cuda.phases, t.isPlain, t.refused};
  std::vector<CudaCode> result;
  for (const std::string &p : printed)
    result.push_back(known[p]);
  for (const Text &t : texts)
    if (t.refused)  // to be tried again
      known.erase(t.printed);
  return result;
}

}  // namespace gptc
