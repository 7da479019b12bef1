// What jit.cpp and emit_llvm.cpp share. Only these two, with what emit_formats.h adds to the latter, see LLVM's IR and
// ORC headers, which cost seconds per file; so nothing here needs them.
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

/// A machine for the target: position-independent code for the JIT, contraction off, all optimisations on.
/// InternalError when LLVM does not know the CPU.
std::unique_ptr<llvm::TargetMachine> makeTargetMachine(const Target &target);

/// One function per top-level statement, `void SYMBOL_pN(void *const *params, i64 begin, i64 end)`, as emitted.
/// InternalError when the kernel breaks a rule of kir.
std::unique_ptr<llvm::Module> emitModule(const kir::Kernel &k, const std::string &symbol, const Target &target,
                                         llvm::TargetMachine &machine, llvm::LLVMContext &context);

/// LLVM's text of the passes that optimiseModule runs: the emitter has vectorised and unrolled already, so nothing here
/// does.
const char *optimiserPipeline();
void optimiseModule(llvm::Module &module, llvm::TargetMachine &machine);

/// Tasks of one top-level statement.
int64_t taskCount(const kir::StmtNode &phase);

}  // namespace gptc
