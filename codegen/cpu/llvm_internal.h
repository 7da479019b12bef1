// Functions that jit.cpp and emit_llvm.cpp share. This header includes none of LLVM's IR and ORC headers, which cost
// seconds per file: only jit.cpp, emit_llvm.cpp and emit_formats.h include those.
#pragma once

#include "ir/kernel/kernel.h"
#include "ir/kernel/schedule.h"

#include <memory>
#include <string>

namespace llvm {
class LLVMContext;
class Module;
class TargetMachine;
}  // namespace llvm

namespace gptc {

/// LLVM's code generator for the target: position-independent code for the JIT, contraction off, all optimisations on.
/// InternalError if LLVM makes none for the CPU.
std::unique_ptr<llvm::TargetMachine> makeTargetMachine(const Target &target);

/// Emits one function per top-level statement, `void SYMBOL_pN(void *const *params, i64 begin, i64 end)`, which runs
/// tasks [begin, end). No pass has run on the result. InternalError if the kernel breaks a rule of kir.
std::unique_ptr<llvm::Module> emitModule(const kir::Kernel &k, const std::string &symbol, const Target &target,
                                         llvm::TargetMachine &machine, llvm::LLVMContext &context);

/// The passes that optimiseModule runs, in LLVM's pipeline syntax. None vectorises or unrolls: the emitter has done so.
const char *optimiserPipeline();
void optimiseModule(llvm::Module &module, llvm::TargetMachine &machine);

}  // namespace gptc
