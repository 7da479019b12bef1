// Writes types, numbers, operators and calls of templates as CUDA C++ on top of the device layer.
#pragma once

#include "ir/kernel/kernel.h"
#include "support/diagnostics.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <set>
#include <string>

namespace gptc {

/// The C++ type of a buffer's elements.
const char *storedType(DType t);
/// The C++ type of a value. `narrow`: an i64 that fits 32 bits is an int.
const char *typeOf(DType t, bool narrow = false);
/// An f32 or f64 constant.
std::string literal(double v, DType t);

/// Unique names for variables. Each keeps its own name with a trailing `_`, which no name of the device layer, CUDA's
/// headers or the language has. Clashing names are numbered: i_, i_2.
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

/// The name of exp, exp2, log, tanh, sin or cos; InternalError for other operators. In f32 the text calls NAMEF32,
/// which the emitter defines.
const char *functionOf(kir::UnaryOp op);
std::string unaryText(kir::UnaryOp op, DType t, const std::string &x);
/// `x op y`. Of operators on i64 only comparisons: the emitter chooses the width of the others.
std::string binaryText(kir::BinaryOp op, DType t, const std::string &x, const std::string &y);
/// `x op y` in 64 bits, for i64 operands about which nothing is known. add, sub and mul wrap around.
std::string wrapping64(kir::BinaryOp op, const std::string &x, const std::string &y);

/// The operands of a matmul statement as text. aBase and bBase are multiples of aMultiple and bMultiple elements; a
/// multiple of 0 means that the base is 0.
struct MatmulNames {
  std::string c, a, b, aBase, bBase, row, col;
  int64_t aMultiple = 1, bMultiple = 1;
};
std::string matmulCall(const kir::MatmulTile &t, const MatmulNames &names);

/// A function of scalars for the text to define.
struct CudaFunction {
  std::string name;
  llvm::SmallVector<kir::Var, 4> params;
  kir::Expr result;
};
/// The functions for dropout and ALiBi that the constants of an attention statement call. Their names begin with
/// `name`.
std::vector<CudaFunction> attentionFunctions(const kir::AttentionTile &t, const std::string &name);
/// The struct `name`Constants, the template argument of an attention statement. `drops`: it has dropout.
std::string attentionConstants(const kir::AttentionTile &t, const std::string &name, bool drops);
/// The call of an attention template. `room` names its shared buffer, `operands` its parameters. `places` are tile,
/// sequence, head and the key of dropout. `head0` names the buffer of the first head; "" if the op has all heads.
std::string attentionCall(const kir::AttentionTile &t, const std::string &name, const std::string &room,
                          llvm::ArrayRef<std::string> operands, llvm::ArrayRef<std::string> places,
                          const std::string &head0);

}  // namespace gptc
