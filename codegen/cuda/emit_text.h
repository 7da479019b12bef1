// How types, numbers and operators are written in CUDA C++, in terms of the device layer.
#pragma once

#include "ir/kernel/kernel.h"
#include "support/diagnostics.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <set>
#include <string>

namespace gptc {

/// The type of a buffer's elements, and of a value: an i64 that fits is an int.
const char *storedType(DType t);
const char *typeOf(DType t, bool narrow = false);
std::string literal(double v, DType t);

/// Variables keep their names, with a mark that nothing else in the text ends in (the device layer, CUDA's headers,
/// words of the language), and numbered where they would clash: i_, i_2.
class Names {
public:
  std::string fresh(const std::string &base) {
    std::string name = base + "_";
    for (int n = 2; !used.insert(name).second; ++n)
      name = fmt::format("{}_{}", base, n);
    return name;
  }

private:
  std::set<std::string> used;
};

/// exp, log, tanh, sin or cos; in f32 the text calls nameF32, which the emitter defines.
const char *functionOf(kir::UnaryOp op);
std::string unaryText(kir::UnaryOp op, DType t, const std::string &x);
/// Not for i64, whose width is the emitter's choice, but for its comparisons.
std::string binaryText(kir::BinaryOp op, DType t, const std::string &x, const std::string &y);
/// i64 where nothing is known: it wraps.
std::string wrapping64(kir::BinaryOp op, const std::string &x, const std::string &y);

/// The operands of a matmul statement as the text has them; aBase and bBase are multiples of so many elements (0: 0).
struct MatmulNames {
  std::string c, a, b, aBase, bBase, row, col;
  int64_t aMultiple = 1, bMultiple = 1;
};
std::string matmulCall(const kir::MatmulTile &t, const MatmulNames &names);

/// A function of scalars that text is to define.
struct CudaFunction {
  std::string name;
  llvm::SmallVector<kir::Var, 4> params;
  kir::Expr result;
};
/// What the constants of an attention statement call: of dropout and ALiBi. Their names begin with `name`.
std::vector<CudaFunction> attentionFunctions(const kir::AttentionTile &t, const std::string &name);
/// These constants, and whether text needs the polynomials of exp and log.
std::string attentionConstants(const kir::AttentionTile &t, const std::string &name, bool drops);
/// The statement: `places` are tile, sequence, head and the key of dropout; `head0` names the buffer, "" where these
/// are all heads.
std::string attentionCall(const kir::AttentionTile &t, const std::string &name, const std::string &room,
                          llvm::ArrayRef<std::string> operands, llvm::ArrayRef<std::string> places,
                          const std::string &head0);

}  // namespace gptc
