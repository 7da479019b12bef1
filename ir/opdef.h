// The definition of an op: operands, results, gradient, cost, fusion, meaning in float64, and the expression it lowers
// to. Ops are listed in ops.def; each has one function `OpDef define_NAME()` under ir/ops/. The conformance suite
// (tests/conformance) covers every op in the list.
//
// Every field of OpDef must be given: Rule has no default, so that a definition without one does not compile. If a
// field does not apply to an op, it gives the reason: NotApplicable{"reason"}.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/kernel.h"
#include "ir/kernel/recipe_kind.h"

#include <functional>
#include <optional>
#include <span>

namespace gptc {

struct NotApplicable {
  const char *why;
};

/// A callable that a std::function<F> can hold.
template <typename L, typename F>
concept HeldBy = std::is_invocable_v<L> || std::is_constructible_v<std::function<F>, L>;

/// A function, or the reason why there is none. Calling an absent function throws std::bad_function_call.
template <typename F> class Rule {
public:
  Rule(std::function<F> f) : fn(std::move(f)) {}
  template <HeldBy<F> L> Rule(L f) : fn(std::move(f)) {}
  Rule(NotApplicable n) : reason(n.why) {}
  explicit operator bool() const { return bool(fn); }
  template <typename... A> std::invoke_result_t<const std::function<F> &, A...> operator()(A &&...a) const {
    return fn(std::forward<A>(a)...);
  }
  const char *why() const { return reason; }

private:
  std::function<F> fn;
  const char *reason = nullptr;
};

/// The precision that an op needs of its float operands in a model that computes in bf16 or fp16
/// (passes/precision.cpp).
enum class AutocastClass {
  low,   // may read low precision: products are exact, sums are f32 (contractions, attention)
  high,  // computes in f32 and yields f32; the pass rounds stored results if that is safe
};
/// A class, or the reason why there is none.
class Autocast {
public:
  Autocast(AutocastClass c, std::initializer_list<unsigned> lowOperands = {}) : lowOperands(lowOperands), given(c) {}
  Autocast(NotApplicable n) : reason(n.why) {}
  explicit operator bool() const { return given.has_value(); }
  bool operator==(AutocastClass c) const { return given == c; }
  const char *why() const { return reason; }
  /// Class low: the operands that may have low precision, all or none of them. The others (sums to continue,
  /// statistics) stay f32.
  std::vector<unsigned> lowOperands;

private:
  std::optional<AutocastClass> given;
  const char *reason = nullptr;
};

/// Whether an op works on a part of the tokens: on x[:, a:b, ..] instead of x[sequences, tokens, ..].
class Tokens {
public:
  enum Reach {
    elements,   // each element by itself: works on any part, also of the features
    rows,       // each token by itself: a part of the tokens of some operands yields that part of the results
    sequences,  // needs whole sequences: tokens are combined, or their positions matter
  };
  /// For reach `rows`: the operands that are given in part (the others are whole), and a condition on the op (null:
  /// always).
  Tokens(Reach r, std::initializer_list<unsigned> parts = {}, bool (*when)(const Op &) = nullptr)
      : parts(parts), given(r), when(when) {}
  Tokens(NotApplicable n) : reason(n.why) {}
  explicit operator bool() const { return given.has_value(); }
  bool operator==(Reach r) const { return given == r; }
  const char *why() const { return reason; }
  /// Whether the op computes each token by itself, given a part of the tokens of the operands `parts`.
  bool byRows(const Op &op) const { return given == rows && (!when || when(op)); }
  std::vector<unsigned> parts;

private:
  std::optional<Reach> given;
  bool (*when)(const Op &) = nullptr;
  const char *reason = nullptr;
};

/// The operand whose integers, 0 to `count` - 1, are indices of rows or classes; or the reason why there is none.
class Indices {
public:
  Indices(unsigned operand, int64_t (*count)(const Op &)) : operand(operand), count(count) {}
  Indices(NotApplicable n) : reason(n.why) {}
  explicit operator bool() const { return count; }
  const char *why() const { return reason; }
  unsigned operand = 0;
  int64_t (*count)(const Op &) = nullptr;

private:
  const char *reason = nullptr;
};

struct OperandSpec {
  std::string name;
  bool optional = false;   // optional operands come last
  bool begins = optional;  // the first such operand begins the sum that is result 0, the next that of result 1
};
struct AttrSpec {
  enum Kind { Bool, Int, Float, String, Ints } kind;
  std::string name;
  bool required = false;
  Attr otherwise = false;  // the value that absence stands for
};

/// A tensor of the interpreter. Integers are exact (|x| < 2^53). `data` is row-major over *logical* extents.
struct Tensor {
  Type type;
  std::vector<double> data;
  Tensor() = default;
  explicit Tensor(Type t) : type(std::move(t)), data(type.elements(), 0.0) {}
  Tensor(Type t, std::vector<double> d) : type(std::move(t)), data(std::move(d)) {}
  static Tensor scalar(double v, DType t = DType::f32) { return Tensor(Type::scalar(t), {v}); }
};

/// The input of a gradient rule. The rule inserts ops with `b` and returns one gradient per operand, null for none.
struct GradCtx {
  Builder &b;
  const Op &op;
  llvm::ArrayRef<Value *> dresults;  // one per result, null when nothing depends on it
};

struct Cost {
  double flops = 0;
  double bytesRead = 0;
  double bytesWritten = 0;
};

/// How an op may be part of a fused group.
enum class FusionKind {
  /// Each result element depends on one element of each full-shape operand; other operands are suffix- or
  /// scalar-broadcast.
  pointwise,
  gather,      // pointwise over its result, with loads at computed indices
  row,         // may also reduce over the last dimension of its domain; results are full-shape or one per row
  fold,        // sums over leading dimensions in the order of attribute `fold`; optional `init` operands continue a sum
  reduce_all,  // sums every element into a scalar, in fixed blocks
  matmul,      // anchor with prologue and epilogue
  pack,        // a matrix in panels; never fused with other ops
  attention,   // anchor with a recipe of its own
  scatter,     // embedding gradient
  choice,      // of the next token; never fused with other ops
  collective,  // communication of several ranks, by the runtime's collective engine
  view,        // no code: the result aliases operand 0 (reshape)
  structure,   // read, write, return, yield, fused: not fusable
};

/// The input of OpDef::lower: symbolic elements at the current point of the group's domain, which is the shape of its
/// full-shape values. Index expressions are i64 and count logical elements.
class LowerCtx {
public:
  virtual ~LowerCtx() = default;
  const Op &op;
  explicit LowerCtx(const Op &op) : op(op) {}

  /// One index per dimension of the domain of this op.
  virtual std::vector<kir::Expr> index() = 0;
  /// Element of operand i at this point; its rank says whether it is a scalar, suffix-broadcast or of full shape. Float
  /// operands yield compute() whatever their storage; integers yield the stored dtype.
  virtual kir::Expr operand(unsigned i) = 0;
  /// Element of operand i that has one element per row of the domain (shape = domain without its last dimension).
  virtual kir::Expr rowOperand(unsigned i) = 0;
  /// Element of operand i at explicit indices, one per dimension of operand i.
  virtual kir::Expr operandAt(unsigned i, llvm::ArrayRef<kir::Expr> index) = 0;
  /// The attribute `stream` of this op, i64: an argument of the kernel, so that ops with different streams share a
  /// kernel.
  virtual kir::Expr stream() = 0;
  /// The dtype of float arithmetic: f32, or f64 in kernels emitted for tests in f64.
  virtual DType compute() = 0;

  /// Sum or max over the last dimension; the same for the whole row.
  kir::Expr rowSum(kir::Expr e) { return kir::reduce(kir::BinaryOp::add, kir::ReduceAxis::row, std::move(e)); }
  kir::Expr rowMax(kir::Expr e) { return kir::reduce(kir::BinaryOp::max, kir::ReduceAxis::row, std::move(e)); }
  /// Sum over the leading dimensions in blocks of `fold` rows, beginning with `init` if given (kir::ReduceAxis::fold).
  kir::Expr foldSum(kir::Expr e, int64_t fold, kir::Expr init = nullptr) {
    return kir::reduce(kir::BinaryOp::add, kir::ReduceAxis::fold, std::move(e), fold, std::move(init));
  }
  /// Sum of every element, in blocks of `block` elements of the flattened logical tensor.
  kir::Expr allSum(kir::Expr e, int64_t block) {
    return kir::reduce(kir::BinaryOp::add, kir::ReduceAxis::all, std::move(e), block);
  }
  /// exp of an element of a row, for ops that take it of at most about 0 and add the row up: as GPUs compute it, small
  /// results have a larger relative error (kir::UnaryOp::exp_approx).
  virtual kir::Expr rowExp(kir::Expr x) { return kir::unary(kir::UnaryOp::exp, std::move(x)); }
  kir::Expr f(double v) { return kir::fimm(v, compute()); }
};

struct OpDef {
  OpKind kind;
  std::string name;
  std::string summary;                // one line, for docs/ops.md and error messages
  std::string shapes;                 // of operands and results, for docs/ops.md: "x [..,C], g [C] -> y [..,C]"
  std::vector<OperandSpec> operands;  // a last operand "..." stands for any number
  std::vector<AttrSpec> attrs;        // attributes not listed are rejected
  std::vector<std::string> results;   // names; none for write and return
  FusionKind fusion;
  Autocast autocast;
  Tokens tokens;
  /// The number of leading dimensions of operand 0, all of them tokens, that this op sums over; 0 for none. Sums of
  /// floats have the order of the attribute `fold`, if the op has it, else are one chain; optional operands begin them.
  Rule<unsigned(const Op &)> tokenSum;
  Indices indices;

  /// Result types from operands and attributes, or an error message if they do not fit together. Not applicable if the
  /// type is given with the op (const, read, reshape, ...): then `check` checks it.
  Rule<bool(const Op &, std::vector<Type> &types, std::string &error)> infer;
  /// Further rules for a complete op; returns an error message or "".
  Rule<std::string(const Op &)> check;
  /// One gradient per operand (null: none). Reverse mode, Griewank & Walther 2008.
  Rule<std::vector<Value *>(GradCtx &)> grad;
  /// Arithmetic and memory traffic of one execution, unfused.
  Rule<Cost(const Op &)> cost;
  /// The meaning of the op, in float64; returns the results in order. A collective takes the operands of all ranks of
  /// its group, rank by rank, and returns the results of all of them in the same way.
  Rule<std::vector<Tensor>(const Op &, std::span<const Tensor *const> operands)> reference;
  /// Element expression of each result at a point of the domain (for fold and reduce_all: the expression holds Reduce
  /// nodes).
  Rule<std::vector<kir::Expr>(LowerCtx &)> lower;
  /// Small random instances for the conformance suite; `seed` varies shapes and values.
  struct Sample {
    std::vector<Type> operandTypes;
    AttrMap attrs;
    std::vector<Type> resultTypes;      // only for ops without `infer`
    std::vector<Tensor> operandValues;  // empty entries: standard normal values
  };
  Rule<std::vector<Sample>(unsigned seed)> samples;

  /// The index of the operand of that name; nullopt if there is none.
  std::optional<unsigned> operandIndex(llvm::StringRef operand) const;
  /// The number of operands without the optional ones, which come last.
  unsigned requiredOperands() const;
  /// The index of the operand that begins the sum of a result; nullopt if none does.
  std::optional<unsigned> beginningOf(unsigned result) const;
  bool hasAttr(llvm::StringRef attr) const;
};

const OpDef &opDef(OpKind kind);
/// The leading dimensions of operand 0, all tokens, that the op sums over (OpDef::tokenSum); 0 if not applicable.
unsigned summedTokenDims(const Op &op);
const char *nameOf(FusionKind kind);
/// The recipe of a group of this op alone; nullopt for ops that are never in a group.
std::optional<RecipeKind> recipeOf(OpKind kind);
/// Whether the op is an optimizer's update. Operand 0 is a parameter, operand 1 its gradient, result 0 the new
/// parameter. If the attribute `low` names a dtype, the last result is a copy of the new parameter in it.
bool updatesParameter(const Op &op);
/// Whether an update has the operand `seed` (index0 may follow), with which it rounds bf16 moments stochastically.
bool takesSeed(const Op &update);
/// The dtype of the copy that an update also yields; nullopt if it yields none.
std::optional<DType> lowCopyOf(const Op &update);
/// The type of matrix `b` ([K,N], with tb [N,K]) in panels of `cols` columns (ir/ops/pack.cpp); nullopt if impossible.
std::optional<Type> panelsOf(const Type &b, int64_t cols, bool tb);
constexpr int64_t maxPanelColumns = 1024;
/// The number of neighbours along K that are adjacent in panels.
inline int64_t stepOfPanels(DType t) { return t == DType::bf16 ? 2 : 1; }
llvm::ArrayRef<const OpDef *> allOpDefs();
/// The error in the number of operands or in the names and kinds of attributes; "" if there is none. `infer`, `check`
/// and all later rules rely on a correct signature.
std::string checkSignature(const Op &op);

// ---- interpreter (interp.cpp) ---------------------------------------------------------------------------------------
/// Contents of states by name.
using StateMap = llvm::StringMap<Tensor>;
/// Called with the results of each op, also in fused bodies; with several ranks those of rank 0.
using InterpretObserver = std::function<void(const Op &, llvm::ArrayRef<Tensor>)>;
/// Runs a function in float64, op by op, also in `fused` bodies. `write` updates `state`. Results of narrow dtypes
/// are rounded to nearest even by way of f32, as part of an op's meaning.
std::vector<Tensor> interpret(const Function &f, std::span<const Tensor> args, StateMap &state,
                              const InterpretObserver &observe = nullptr);
/// Runs a function on all ranks of its module's mesh (ir/mesh.h), op by op. Arguments, states and results are by rank.
std::vector<std::vector<Tensor>> interpretRanks(const Function &f, std::span<const std::vector<Tensor>> args,
                                                std::span<StateMap> states);
/// Runs the body of one fused op, which must not hold collectives.
std::vector<Tensor> interpretFused(const Op &fused, std::span<const Tensor> operands);
/// Initial content of a state by its InitialFacts (default zeros), rounded to its dtype: a pure function of (seed,
/// stream, logical index). "normal" is std * randomNormal(randomKey(seed, 0, stream, 0), index).
Tensor initialValue(const State &s, uint64_t seed);

}  // namespace gptc
