// An op is defined once, completely: what it takes, what it yields, how it is differentiated, what it costs, how it
// fuses, what it means (in float64) and the expression it lowers to. Ops are listed in ops.def; each is one function
// `OpDef define_NAME()` under ir/ops/. The conformance suite (tests/conformance) covers every op in the list by itself.
//
// Every field of OpDef must be given: Rule has no default, so that leaving one out does not compile. An op to which a
// field does not apply says why: NotApplicable{"reason"}.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/kernel.h"

#include <functional>
#include <optional>
#include <span>

namespace gptc {

struct NotApplicable {
  const char *why;
};

/// What a std::function<F> can hold.
template <typename L, typename F>
concept HeldBy = std::is_invocable_v<L> || std::is_constructible_v<std::function<F>, L>;

/// A function, or the reason why there is none.
template <typename F> class Rule {
public:
  Rule(std::function<F> f) : fn(std::move(f)) {}
  template <HeldBy<F> L> Rule(L f) : fn(std::move(f)) {}
  Rule(NotApplicable n) : reason(n.why) {}
  explicit operator bool() const { return bool(fn); }
  template <typename... A> auto operator()(A &&...a) const { return fn(std::forward<A>(a)...); }
  const char *why() const { return reason; }

private:
  std::function<F> fn;
  const char *reason = nullptr;
};

/// Which precision an op asks of its float operands when a model computes in bf16 or fp16 (passes/precision.cpp).
enum class AutocastClass {
  low,   // loses little by reading low precision: products are exact, sums held in f32 (contractions, attention)
  high,  // computes in f32 and yields f32; what it stores between kernels is rounded where the pass finds that safe
};
/// A class, or the reason why there is none.
class Autocast {
public:
  Autocast(AutocastClass c, std::initializer_list<unsigned> lowOperands = {}) : lowOperands(lowOperands), given(c) {}
  Autocast(NotApplicable n) : reason(n.why) {}
  explicit operator bool() const { return given.has_value(); }
  bool operator==(AutocastClass c) const { return given == c; }
  const char *why() const { return reason; }
  /// Class low: the operands that may be of low precision, all together. The others (sums to continue, statistics) stay
  /// f32.
  std::vector<unsigned> lowOperands;

private:
  std::optional<AutocastClass> given;
  const char *reason = nullptr;
};

/// What an op makes of a part of the tokens: of x[:, a:b, ..] in the place of x[sequences, tokens, ..].
class Tokens {
public:
  enum Reach {
    elements,   // computes each element by itself, wherever it stands: a part of the features does, too
    rows,       // computes each token by itself: given its part of some operands, it yields its part of the results
    sequences,  // tokens of a sequence meet, or their places count: takes whole sequences only
  };
  /// Of reach `rows`: the operands of which a part is given, while the others are whole, and for which ops of the kind
  /// that holds (all).
  Tokens(Reach r, std::initializer_list<unsigned> parts = {}, bool (*when)(const Op &) = nullptr)
      : parts(parts), given(r), when(when) {}
  Tokens(NotApplicable n) : reason(n.why) {}
  explicit operator bool() const { return given.has_value(); }
  bool operator==(Reach r) const { return given == r; }
  const char *why() const { return reason; }
  /// Whether the op computes each token by itself, given a part of the operands `parts`.
  bool byRows(const Op &op) const { return given == rows && (!when || when(op)); }
  std::vector<unsigned> parts;

private:
  std::optional<Reach> given;
  bool (*when)(const Op &) = nullptr;
  const char *reason = nullptr;
};

/// An operand whose integers choose among rows or classes, 0 to `count` - 1 of them; or the reason why there is none.
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
  bool optional = false;  // optional operands come last
};
struct AttrSpec {
  enum Kind { Bool, Int, Float, String, Ints } kind;
  std::string name;
  bool required = false;
  Attr otherwise = false;  // value meant when absent
};

/// A tensor of the interpreter. Integers are held exactly (|x| < 2^53). `data` is row-major over *logical* extents.
struct Tensor {
  Type type;
  std::vector<double> data;
  Tensor() = default;
  explicit Tensor(Type t) : type(std::move(t)), data(type.elements(), 0.0) {}
  Tensor(Type t, std::vector<double> d) : type(std::move(t)), data(std::move(d)) {}
  static Tensor scalar(double v, DType t = DType::f32) { return Tensor(Type::scalar(t), {v}); }
};

/// What gradient rules see. Missing gradients (operand not differentiable, or result gradient absent) are null.
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

/// How an op may take part in a fused group.
enum class FusionKind {
  /// Each result element depends on one element of each full-shape operand; others are suffix- or scalar-broadcast.
  pointwise,
  gather,      // pointwise over its result, with loads at computed indices
  row,         // may also reduce over the last dimension of its domain; results are full-shape or one per row
  fold,        // sums over leading dimensions, in order (see `fold` attribute); optional `init` operands continue a sum
  reduce_all,  // sums every element into a scalar, in fixed blocks
  matmul,      // anchor with prologue and epilogue
  pack,        // a matrix in panels, by itself
  attention,   // anchor with a recipe of its own
  scatter,     // embedding gradient
  collective,  // computed by several ranks together, by an engine of the runtime
  view,        // no code: the result aliases operand 0 (reshape)
  structure,   // read, write, return, yield, fused: not fusable
};

/// What OpDef::lower sees: symbolic elements at the current point of the group's domain. The domain of a group is the
/// shape of its full-shape values; Index expressions are i64 and logical.
class LowerCtx {
public:
  virtual ~LowerCtx() = default;
  const Op &op;
  explicit LowerCtx(const Op &op) : op(op) {}

  /// One index per dimension of the domain of this op.
  virtual std::vector<kir::Expr> index() = 0;
  /// Element of operand i at this point: scalar, suffix-broadcast or full shape, found from its type's rank. f32 (f64
  /// in f64 kernels) for float operands whatever their storage; the stored dtype for integers.
  virtual kir::Expr operand(unsigned i) = 0;
  /// Element of operand i that has one element per row of the domain (shape = domain without its last dimension).
  virtual kir::Expr rowOperand(unsigned i) = 0;
  /// Element of operand i at explicit indices, one per dimension of operand i.
  virtual kir::Expr operandAt(unsigned i, llvm::ArrayRef<kir::Expr> index) = 0;
  /// The attribute `stream` of this op, i64. An argument of the kernel, so that ops that differ in it share one.
  virtual kir::Expr stream() = 0;
  /// The dtype in which floats are computed: f32, or f64 where kernels are emitted in f64 for tests.
  virtual DType compute() = 0;

  /// Sum or max over the last dimension; uniform over it.
  kir::Expr rowSum(kir::Expr e) { return kir::reduce(kir::BinaryOp::add, kir::ReduceAxis::row, std::move(e)); }
  kir::Expr rowMax(kir::Expr e) { return kir::reduce(kir::BinaryOp::max, kir::ReduceAxis::row, std::move(e)); }
  /// Sum over the leading dimensions in blocks of `fold` rows, continuing `init` when given (see
  /// kir::ReduceAxis::fold).
  kir::Expr foldSum(kir::Expr e, int64_t fold, kir::Expr init = nullptr) {
    return kir::reduce(kir::BinaryOp::add, kir::ReduceAxis::fold, std::move(e), fold, std::move(init));
  }
  /// Sum of every element, in blocks of `block` elements of the flattened logical tensor.
  kir::Expr allSum(kir::Expr e, int64_t block) {
    return kir::reduce(kir::BinaryOp::add, kir::ReduceAxis::all, std::move(e), block);
  }
  kir::Expr f(double v) { return kir::fimm(v, compute()); }
};

struct OpDef {
  OpKind kind;
  std::string name;
  std::string summary;                // one line, for docs/ops.md and error messages
  std::string shapes;                 // of operands and results, for docs/ops.md: "x [..,C], g [C] -> y [..,C]"
  std::vector<OperandSpec> operands;  // a last operand named "...": any number
  std::vector<AttrSpec> attrs;        // attributes not listed are rejected
  std::vector<std::string> results;   // names; empty for write/return
  FusionKind fusion;
  Autocast autocast;
  Tokens tokens;
  /// Over how many leading dimensions of operand 0, which are tokens, the op sums; 0 where this one does not. Sums of
  /// floats in the order of `fold`, where the op has that attribute, else in one chain; optional operands begin them.
  Rule<unsigned(const Op &)> tokenSum;
  Indices indices;

  /// Result types from operands and attributes, or an error message when they do not fit together. Not applicable to
  /// ops whose type is given (const, read, reshape, ...): those give `check` its work.
  Rule<bool(const Op &, std::vector<Type> &types, std::string &error)> infer;
  /// Further rules on a complete op; returns an error message or "".
  Rule<std::string(const Op &)> check;
  /// One gradient per operand (null: none). Reverse mode, Griewank & Walther 2008.
  Rule<std::vector<Value *>(GradCtx &)> grad;
  /// Arithmetic and traffic of one execution by itself.
  Rule<Cost(const Op &)> cost;
  /// What the op means, in float64. Results in order. Of a collective: operands of all ranks of its group, rank by
  /// rank, and all their results likewise.
  Rule<std::vector<Tensor>(const Op &, std::span<const Tensor *const> operands)> reference;
  /// Element expression of each result at a point of the domain (for fold and reduce_all: the expression holds Reduce
  /// nodes).
  Rule<std::vector<kir::Expr>(LowerCtx &)> lower;
  /// Small random instances for the conformance suite, as functions of one op; `seed` varies shapes and values.
  struct Sample {
    std::vector<Type> operandTypes;
    AttrMap attrs;
    std::vector<Type> resultTypes;      // only for ops without `infer`
    std::vector<Tensor> operandValues;  // empty entries: standard normal values
  };
  Rule<std::vector<Sample>(unsigned seed)> samples;

  /// Where the operand of that name stands; nullopt where there is none.
  std::optional<unsigned> operandIndex(llvm::StringRef operand) const;
  /// How many operands every op of the kind has: optional ones come behind them.
  unsigned requiredOperands() const;
  bool hasAttr(llvm::StringRef attr) const;
};

const OpDef &opDef(OpKind kind);
/// Leading dimensions of operand 0 over which the op sums, tokens all of them; 0: it sums over no tokens.
unsigned summedTokenDims(const Op &op);
/// The name of the kind, which is also that of its recipe if it has one of its own.
const char *nameOf(FusionKind kind);
/// The recipe of a group made of this one op, which its attribute `kind` names; null for ops that are never in a group.
const char *recipeOf(OpKind kind);
/// Whether the op is a step of an optimizer: operand 0 is a parameter, operand 1 its gradient, result 0 the parameter's
/// new content and, where the attribute `low` names a dtype, the last result a copy of that.
bool updatesParameter(const Op &op);
/// Whether such an op rounds moments stochastically, by a seed, behind which index0 may follow.
bool takesSeed(const Op &update);
/// The dtype of the copy that such an op also yields.
std::optional<DType> lowCopyOf(const Op &update);
/// The type of a matrix in panels of so many columns (ir/ops/pack.cpp); nullopt where it has none.
std::optional<Type> panelsOf(const Type &b, int64_t cols, bool tb);
constexpr int64_t maxPanelColumns = 1024;
/// Neighbours of k that lie together in panels.
inline int64_t stepOfPanels(DType t) { return t == DType::bf16 ? 2 : 1; }
/// Null when there is no such op.
const OpDef *findOpDef(llvm::StringRef name);
llvm::ArrayRef<const OpDef *> allOpDefs();
/// What is wrong with the number of operands or with the names and kinds of the attributes of an op; "" when nothing
/// is. `infer`, `check` and everything after them may rely on it.
std::string checkSignature(const Op &op);

// ---- interpreter (interp.cpp) ---------------------------------------------------------------------------------------
/// State contents by name.
using StateMap = llvm::StringMap<Tensor>;
/// Called after each op, those of fused bodies included, with its results: with several ranks those of the first.
using InterpretObserver = std::function<void(const Op &, llvm::ArrayRef<Tensor>)>;
/// Runs a function in float64, op by op, `fused` bodies included. Updates `state` on write. Results of dtype bf16 and
/// f16 are rounded to it, to nearest even by way of f32: that is part of what an op means.
std::vector<Tensor> interpret(const Function &f, std::span<const Tensor> args, StateMap &state,
                              const InterpretObserver &observe = nullptr);
/// Runs a function on all ranks of its module's mesh (ir/mesh.h), op by op: arguments, states and results by rank.
std::vector<std::vector<Tensor>> interpretRanks(const Function &f, std::span<const std::vector<Tensor>> args,
                                                std::span<StateMap> states);
/// Runs the body of one fused op, which must not hold collectives.
std::vector<Tensor> interpretFused(const Op &fused, std::span<const Tensor> operands);
/// Initial content of a state by its init attributes (default zeros), rounded to its dtype: a pure function of (seed,
/// stream, logical index). "normal" is std * randomNormal(randomKey(seed, 0, stream, 0), index).
Tensor initialValue(const State &s, uint64_t seed);

}  // namespace gptc
