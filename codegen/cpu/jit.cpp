// Runs LLVM's passes, code generator and linker on emitted IR.
//
// Kernels are compiled on several threads, one object each, and linked by ORC's linking layer. LLJIT is not used: it
// would add a platform, an IR layer and all symbols of the process. Kernels may only see the few symbols below.
#include "codegen/codegen.h"
#include "codegen/cpu/llvm_internal.h"
#include "codegen/object_cache.h"
#include "support/diagnostics.h"
#include "support/helper_threads.h"
#include "support/out_of_memory.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h"
#include "llvm/ExecutionEngine/Orc/Core.h"
#include "llvm/ExecutionEngine/Orc/ExecutorProcessControl.h"
#include "llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>

// libgcc's conversions of f16, for CPUs without F16C. Only their addresses are needed; C++ has no name for the type in
// GCC 12.
extern "C" void __extendhfsf2();  // NOLINT(bugprone-reserved-identifier)
extern "C" void __truncsfhf2();   // NOLINT(bugprone-reserved-identifier)

namespace gptc {

namespace orc = llvm::orc;

namespace {

/// Throws UserError(OutOfMemory) if LLVM is out of memory, else InternalError. `said`: errors reported before `e`.
[[noreturn]] void fail(llvm::Error e, const std::string &said = "") {
  const std::string text = said + llvm::toString(std::move(e));
  if (llvm::StringRef(text).contains(std::make_error_code(std::errc::not_enough_memory).message()))
    throw UserError(ErrorCode::OutOfMemory, "no memory is left for compiled kernels", outOfMemoryHelp);
  GPTC_UNREACHABLE("LLVM: {}", text);
}
template <typename T> T valueOf(llvm::Expected<T> e, const std::string &said = "") {
  if (!e)
    fail(e.takeError(), said);
  return std::move(*e);
}
void check(llvm::Error e) {
  if (e)
    fail(std::move(e));
}

llvm::ArrayRef<char> bytes(llvm::StringRef s) { return {s.data(), s.size()}; }

llvm::SmallVector<char, 0> objectCode(llvm::Module &module, llvm::TargetMachine &machine) {
  llvm::SmallVector<char, 0> out;
  llvm::raw_svector_ostream stream(out);
  llvm::legacy::PassManager passes;
  llvm::MCContext *mc = nullptr;
  GPTC_CHECK(!machine.addPassesToEmitMC(passes, mc, stream), "no object code for this target");
  passes.run(module);
  return out;
}

void initialiseTarget() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
}

/// One distinct kernel of a batch.
struct Job {
  const kir::Kernel *kernel;
  std::string symbol;
  llvm::SmallVector<char, 0> object;
  bool reused = false;
  std::exception_ptr error;
};

}  // namespace

int64_t taskCount(const kir::StmtNode &phase) {
  int64_t n = 1;
  if (phase.kind == kir::StmtKind::For && phase.loop == kir::LoopKind::parallel)
    GPTC_CHECK(kir::isImm(phase.extent, &n), "a parallel loop without constant extent");
  return n;
}

std::unique_ptr<llvm::TargetMachine> makeTargetMachine(const Target &target) {
  initialiseTarget();
  const std::string triple = "x86_64-unknown-linux-gnu";
  std::string error;
  const llvm::Target *t = llvm::TargetRegistry::lookupTarget(triple, error);
  GPTC_CHECK(t, "{}", error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  std::unique_ptr<llvm::TargetMachine> m(t->createTargetMachine(triple, target.cpu, target.features, options,
                                                                llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                                                llvm::CodeGenOptLevel::Aggressive, /*JIT=*/true));
  GPTC_CHECK(m, "no code generator for {}", target.cpu);
  return m;
}

const char *optimiserPipeline() {
  return "sroa<preserve-cfg>,"  // reg buffers become registers
         "early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,"
         "loop-mssa(licm),"  // uniform subexpressions leave their loops
         "gvn,instcombine<no-verify-fixpoint>,dce";
}

void optimiseModule(llvm::Module &module, llvm::TargetMachine &machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager sccs;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(sccs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, sccs, modules);
  llvm::FunctionPassManager p;
  if (llvm::Error e = builder.parsePassPipeline(p, optimiserPipeline()))
    GPTC_UNREACHABLE("pass pipeline: {}", llvm::toString(std::move(e)));
  for (llvm::Function &f : module)
    if (!f.isDeclaration())
      p.run(f, functions);
}

std::string emitLLVM(const kir::Kernel &k, const Target &target, bool optimise) {
  llvm::LLVMContext context;
  auto machine = makeTargetMachine(target);
  auto module = emitModule(k, k.name, target, *machine, context);
  std::string text;
  llvm::raw_string_ostream out(text);
  if (llvm::verifyModule(*module, &out))
    GPTC_UNREACHABLE("emitted IR of {} is invalid: {}", k.name, out.str());
  if (optimise)
    optimiseModule(*module, *machine);
  module->print(out, nullptr);
  return out.str();
}

struct Jit::Impl {
  Target target;
  ObjectCache cache;
  orc::ExecutionSession session;
  orc::ObjectLinkingLayer linker;
  orc::JITDylib &dylib;
  llvm::StringMap<CompiledKernel> known;  // by canonical text
  std::mutex reporting;
  std::string reported;  // errors of the linker, line by line

  Impl(const Target &t, const std::string &dir)
      : target(t), cache(dir), session(valueOf(orc::SelfExecutorProcessControl::Create())),
        linker(session, valueOf(llvm::jitlink::InProcessMemoryManager::Create())),
        dylib(session.createBareJITDylib("kernels")) {
    // All functions that generated code may call. Functions of f64 come from the machine's libm, and so do the bits of
    // the optimizer's scalars, which use them in every step. LLVM lowers some loops and intrinsics to the others.
    orc::SymbolMap symbols;
    auto add = [&](const char *name, auto *f) {
      symbols[session.intern(name)] = {orc::ExecutorAddr::fromPtr(f), llvm::JITSymbolFlags::Exported};
    };
    using D = double(double);
    add("exp", static_cast<D *>(std::exp));
    add("exp2", static_cast<D *>(std::exp2));
    add("log", static_cast<D *>(std::log));
    add("tanh", static_cast<D *>(std::tanh));
    add("sin", static_cast<D *>(std::sin));
    add("cos", static_cast<D *>(std::cos));
    add("floor", static_cast<D *>(std::floor));
    add("floorf", static_cast<float (*)(float)>(std::floor));
    add("fma", static_cast<double (*)(double, double, double)>(std::fma));
    add("fmaf", static_cast<float (*)(float, float, float)>(std::fma));
    add("memset", static_cast<void *(*)(void *, int, size_t)>(std::memset));
    add("memcpy", static_cast<void *(*)(void *, const void *, size_t)>(std::memcpy));
    add("memmove", static_cast<void *(*)(void *, const void *, size_t)>(std::memmove));
    add("__extendhfsf2", &__extendhfsf2);
    add("__truncsfhf2", &__truncsfhf2);
    check(dylib.define(orc::absoluteSymbols(std::move(symbols))));
    session.setErrorReporter([this](llvm::Error e) {
      std::lock_guard lock(reporting);
      reported += llvm::toString(std::move(e)) + "\n";
    });
  }
  ~Impl() { check(session.endSession()); }

  std::unique_ptr<llvm::Module> emit(const Job &job, llvm::TargetMachine &machine, llvm::LLVMContext &context) const {
    std::vector<std::string> errors = kir::verify(*job.kernel);
    GPTC_CHECK(errors.empty(), "kernel {}: {}", job.kernel->name, errors[0]);
    return emitModule(*job.kernel, job.symbol, target, machine, context);
  }

  /// A hash of all that the object code depends on.
  std::string sourceOf(const llvm::Module &module) const {
    llvm::SmallVector<char, 0> bitcode;
    llvm::raw_svector_ostream stream(bitcode);
    llvm::WriteBitcodeToFile(module, stream);
    return contentHash(
        {bitcode, bytes(target.cpu), bytes(target.features), bytes(LLVM_VERSION_STRING), bytes(optimiserPipeline())});
  }

  void build(Job &job, llvm::TargetMachine &machine) {
    llvm::LLVMContext context;
    auto module = emit(job, machine, context);
    std::string key;
    if (cache.enabled()) {
      key = sourceOf(*module) + ".o";
      if (auto object = cache.read(key)) {
        job.object.assign(object->begin(), object->end());
        job.reused = true;
        return;
      }
    }
    optimiseModule(*module, machine);
    job.object = objectCode(*module, machine);
    if (cache.enabled())
      cache.write(key, job.object);
  }

  /// Calls each(job, machine) for all jobs, on several threads. Rethrows the error of the first job that has one.
  template <typename F> void forAll(std::vector<Job> &jobs, F each) {
    std::atomic<size_t> next = 0;
    withHelpers(std::min<size_t>(target.threads, jobs.size()), [&](size_t) {
      std::unique_ptr<llvm::TargetMachine> machine;  // one per thread: it is not thread-safe
      for (size_t i; (i = next++) < jobs.size();) {
        try {
          if (!machine)
            machine = makeTargetMachine(target);
          each(jobs[i], *machine);
        } catch (...) {
          jobs[i].error = std::current_exception();
        }
      }
    });
    for (Job &job : jobs)
      if (job.error)
        std::rethrow_exception(job.error);
  }

  void link(std::vector<Job> &jobs) {
    orc::SymbolLookupSet names;
    for (Job &job : jobs) {
      for (size_t i = 0; i < job.kernel->body.size(); ++i)
        names.add(session.intern(fmt::format("{}_p{}", job.symbol, i)));
      if (!job.kernel->body.empty())
        check(linker.add(dylib, llvm::MemoryBuffer::getMemBufferCopy(
                                    llvm::StringRef(job.object.data(), job.object.size()), job.symbol)));
    }
    auto symbols = session.lookup(orc::makeJITDylibSearchOrder(&dylib), std::move(names));
    std::lock_guard lock(reporting);
    orc::SymbolMap found = valueOf(std::move(symbols), reported);
    for (Job &job : jobs) {
      CompiledKernel c;
      for (size_t i = 0; i < job.kernel->body.size(); ++i) {
        auto address = found.lookup(session.intern(fmt::format("{}_p{}", job.symbol, i))).getAddress();
        c.phases.push_back(
            {address.toPtr<void (*)(void *const *, int64_t, int64_t)>(), taskCount(*job.kernel->body[i])});
      }
      known[kir::print(*job.kernel)] = std::move(c);
    }
  }
};

/// A symbol made from the kernel's text, so that cached code does not depend on the other kernels of its batch.
static std::string symbolOf(const std::string &text) { return "k" + contentHash({bytes(text)}).substr(0, 16); }

std::vector<std::string> Jit::sources(llvm::ArrayRef<const kir::Kernel *> kernels) {
  std::vector<Job> jobs;
  for (const kir::Kernel *k : kernels)
    jobs.push_back({k, symbolOf(kir::print(*k))});
  const NoExceptions llvmHasNone;
  impl->forAll(jobs, [&](Job &job, llvm::TargetMachine &machine) {
    llvm::LLVMContext context;
    job.symbol = impl->sourceOf(*impl->emit(job, machine, context));
  });
  std::vector<std::string> result;
  for (Job &job : jobs)
    result.push_back(std::move(job.symbol));
  return result;
}

Jit::Jit(const Target &target, const std::string &cacheDir) : impl(std::make_unique<Impl>(target, cacheDir)) {}
Jit::~Jit() = default;

std::vector<CompiledKernel> Jit::compile(llvm::ArrayRef<const kir::Kernel *> kernels) {
  auto start = std::chrono::steady_clock::now();
  std::vector<std::string> texts;
  std::vector<Job> jobs;
  llvm::StringMap<bool> planned;
  for (const kir::Kernel *k : kernels) {
    const std::string &text = texts.emplace_back(kir::print(*k));
    if (!impl->known.count(text) && planned.try_emplace(text, true).second)
      jobs.push_back({k, symbolOf(text)});
  }
  {
    const NoExceptions llvmHasNone;
    impl->forAll(jobs, [&](Job &job, llvm::TargetMachine &machine) { impl->build(job, machine); });
    impl->link(jobs);
  }
  for (const Job &job : jobs)
    ++(job.reused ? stats.reused : stats.compiled);
  std::vector<CompiledKernel> result;
  for (const std::string &text : texts)
    result.push_back(impl->known[text]);
  stats.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace gptc
