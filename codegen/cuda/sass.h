// Machine code of NVIDIA's GPUs (SASS), as their disassembler prints the code of a cubin. Its instructions and their
// operands are documented in "CUDA Binary Utilities"; what they do is known from that list, PTX, and experiments.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

struct SassOperand {
  enum class Kind {
    reg,               // R5; RZ is number 255
    uniform,           // UR5; URZ is number 255
    predicate,         // P0; PT is number 7
    uniformPredicate,  // UP0; UPT is number 7
    integer,           // 0x1f, -0x800000
    floating,          // 1.5, +INF
    constant,          // c[0x0][0x210]
    address,           // [R2.64+0x80], desc[UR4][R2.64], [R5+UR6+0x80]
    special,           // SR_TID.X
    other
  };
  Kind kind = Kind::other;
  int number = 0;        // of a register, -1 if an address has none; the bank of a constant
  int plusUniform = -1;  // address: a second register, UR
  bool isPair = false;   // address: the register holds the low half
  bool minus = false, isNot = false, magnitude = false;  // -R5; !P0 or ~R5; |R5|
  int64_t value = 0;                                     // integer; the offset of a constant or an address
  double floating = 0;                                   // value of a floating number
  std::string text;                                      // of special and other
};

struct SassInstruction {
  std::string opcode;                  // "LDG"
  std::vector<std::string> modifiers;  // {"E", "128"}
  bool isGuarded = false;
  SassOperand guard;  // the predicate under which it runs, if isGuarded
  std::vector<SassOperand> operands;
  int target = -1;  // the index of the instruction to which it may branch

  bool has(llvm::StringRef modifier) const;
};

/// One kernel. An instruction takes 16 bytes.
struct SassFunction {
  std::string name;
  std::vector<SassInstruction> code;
  int registers = 0;        // of a thread
  int64_t sharedBytes = 0;  // of a block, without what its launch adds
};

/// The path of nvdisasm, or "": in the folders of GPTC_CUDA, CUDA_HOME and CUDA_PATH, /usr/local/cuda, the folder that
/// `tools/setup --cuda` fills, or PATH.
std::string findDisassembler();

/// The kernels of a cubin. UserError(TargetUnavailable) if there is no disassembler or it does not know the cubin.
std::vector<SassFunction> disassemble(const std::string &cubin);

/// The kernels in JSON that `nvdisasm -json` has printed. UserError(TargetUnavailable) for anything else.
std::vector<SassFunction> parseSass(llvm::StringRef json);

}  // namespace gptc
