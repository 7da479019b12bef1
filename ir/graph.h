// The graph IR: modules of straight-line SSA functions over tensors.
//
//   module {
//     state @wte : f32[50257,768] {kind="param", init="normal", std=0.02, decay=true}
//     func @train_step(%x: i32[8,1024], %y: i32[8,1024]) -> (f32[]) {
//       %0 = read @wte : f32[50257,768]
//       %1 = embedding %0, %x : f32[8,1024,768] loc("wte")
//       %7, %8, %9 = layernorm %6, %g, %b {eps=1e-05} : f32[8,1024,768], f32[8,1024], f32[8,1024] layer=3 loc("h3.ln1")
//       write @wte, %12
//       return %13
//     }
//   }
//
// Semantics. The ops of a function run in order. A value is defined once and is immutable. Only states live between
// calls: `read` yields the content of a state at that point, `write` replaces it. The body of a `fused` op sees only
// its block arguments; the op computes what its body computes, op by op.
#pragma once

#include "ir/type.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"

#include <list>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace gptc {

class Op;
class Block;
class Function;
class Module;
struct OpDef;

/// All ops, listed in ops.def.
enum class OpKind : uint16_t {
#define GPTC_OP(name) name,
#include "ir/ops.def"
#undef GPTC_OP
};
/// The name in text: that of the enumerator, except `return` for ret.
llvm::StringRef nameOf(OpKind kind);
/// The op of that name, also a former one; nullopt if there is none.
std::optional<OpKind> parseOpKind(llvm::StringRef name);
/// The op whose name, or former name, `word` misspells in any case of letters; nullopt if none is near enough.
std::optional<OpKind> nearestOpKind(llvm::StringRef word);

/// Attribute values.
using Attr = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
/// The value in text: strings are quoted, doubles parse back to the same bits.
std::string textOf(const Attr &a);

/// A small map that keeps its keys sorted, so that text is canonical.
class AttrMap {
public:
  // In graph.cpp, as many files copy attributes.
  AttrMap();
  AttrMap(const AttrMap &);
  AttrMap(AttrMap &&) noexcept;
  AttrMap &operator=(const AttrMap &);
  AttrMap &operator=(AttrMap &&) noexcept;
  ~AttrMap();
  const Attr *find(llvm::StringRef name) const;
  void set(llvm::StringRef name, Attr value);
  void erase(llvm::StringRef name);
  bool has(llvm::StringRef name) const { return find(name); }
  bool empty() const { return items.empty(); }
  auto begin() const { return items.begin(); }
  auto end() const { return items.end(); }
  bool operator==(const AttrMap &) const = default;

  // Typed look-ups with a default for an absent key. They throw InternalError if the value has another kind, which the
  // verifier rejects first. getFloat accepts an integer.
  int64_t getInt(llvm::StringRef name, int64_t otherwise = 0) const;
  double getFloat(llvm::StringRef name, double otherwise = 0) const;
  bool getBool(llvm::StringRef name, bool otherwise = false) const;
  std::string getString(llvm::StringRef name, llvm::StringRef otherwise = "") const;
  std::vector<int64_t> getInts(llvm::StringRef name) const;

private:
  std::vector<std::pair<std::string, Attr>> items;
};

/// An SSA value: result `index` of `def`, or argument `index` of block `owner` when `def` is null.
class Value {
public:
  Value() = default;
  ~Value();
  Value(const Value &) = delete;
  Value &operator=(const Value &) = delete;
  Type type;
  std::string name;  // a hint for printing, without '%'; may be empty
  Op *def = nullptr;
  Block *owner = nullptr;
  unsigned index = 0;

  /// One entry per operand slot that uses this value.
  llvm::ArrayRef<Op *> users() const { return uses; }
  bool unused() const { return uses.empty(); }
  bool hasOneUse() const { return uses.size() == 1; }
  /// Makes every user use `other` instead.
  void replaceAllUsesWith(Value *other);

private:
  friend class Op;
  llvm::SmallVector<Op *, 4> uses;
};

/// One operation. Created by Block::insert or Builder; owned by its block.
class Op {
public:
  ~Op();
  OpKind kind;
  AttrMap attrs;
  std::string loc;              // place in the model, e.g. "h3.ln1"; may be empty
  int layer = -1;               // transformer layer, or -1
  std::string state;            // for read and write: the state's name, without '@'
  std::unique_ptr<Block> body;  // for fused, else null

  const OpDef &def() const;
  llvm::StringRef name() const;
  bool is(OpKind k) const { return kind == k; }
  template <typename... K> bool isOneOf(K... k) const { return ((kind == k) || ...); }

  unsigned numOperands() const { return ops.size(); }
  Value *operand(unsigned i) const { return ops[i]; }
  llvm::ArrayRef<Value *> operands() const { return ops; }
  void setOperand(unsigned i, Value *v);
  void addOperand(Value *v);
  void dropOperands();

  unsigned numResults() const { return res.size(); }
  Value *result(unsigned i = 0) const { return res[i].get(); }
  Value *addResult(Type type, llvm::StringRef name = "");

  Block *parent() const { return block; }
  /// Removes the op from its block and destroys it. Its results must be unused (else InternalError).
  void erase();
  /// Moves the op to just before `other`, which must be in the same block (else InternalError).
  void moveBefore(Op *other);
  Op *next() const;  // null at the end
  Op *prev() const;

private:
  friend class Block;
  friend class Value;
  Op(OpKind kind) : kind(kind) {}
  void forgetUse(Value *v);
  Block *block = nullptr;
  std::list<std::unique_ptr<Op>>::iterator where;
  llvm::SmallVector<Value *, 4> ops;
  llvm::SmallVector<std::unique_ptr<Value>, 1> res;
};

/// A list of ops with arguments: the body of a function or of a fused op. The last op is `return` (in a function)
/// or `yield` (in a fused op).
class Block {
public:
  ~Block();
  std::vector<std::unique_ptr<Value>> args;
  Value *addArg(Type type, llvm::StringRef name = "");

  /// Inserts an op without operands and results before `before`, or at the end if that is null.
  Op *insert(OpKind kind, Op *before = nullptr);

  struct iterator {
    std::list<std::unique_ptr<Op>>::const_iterator it;
    Op &operator*() const { return **it; }
    Op *operator->() const { return it->get(); }
    iterator &operator++() {
      ++it;
      return *this;
    }
    bool operator==(const iterator &o) const { return it == o.it; }
  };
  iterator begin() const { return {ops.begin()}; }
  iterator end() const { return {ops.end()}; }
  bool empty() const { return ops.empty(); }
  size_t size() const { return ops.size(); }
  Op *front() const { return ops.empty() ? nullptr : ops.front().get(); }
  Op *back() const { return ops.empty() ? nullptr : ops.back().get(); }

private:
  friend class Op;
  std::list<std::unique_ptr<Op>> ops;
};

/// State that outlives a call: parameters, moments, step, KV cache. Its attributes are StateFacts, InitialFacts,
/// TrainedFacts and FileFacts (ir/facts.def). A state that has the fact `of` is derived from that state, and not saved;
/// functions that write a parameter also write its low and packed copies.
struct State {
  std::string name;
  Type type;
  AttrMap attrs;
};

/// Whether this is a parameter that training changes.
bool isTrained(const State &s);
bool isPiece(const State &s);
/// The type of all ranks' pieces together; the state's own type if it is no piece.
Type wholeType(const State &s);

/// Whether a state lies in the host's memory while all others are on a GPU, and whether the host computes a group. Both
/// are set by the pass offload.
bool livesOnHost(const State &s);
/// Whether a parameter has no memory: only what is derived from it has.
bool isInFiles(const State &s);
/// Whether it is a parameter that is a matrix of a layer: its name begins with "h.".
bool isLayerMatrix(const State &s);
bool runsOnHost(const Op &op);

class Function {
public:
  std::string name;
  AttrMap attrs;
  Block body;
  Module *module = nullptr;
  /// Types of the returned values.
  std::vector<Type> results() const;
};

class Module {
public:
  AttrMap attrs;
  std::vector<std::unique_ptr<State>> states;
  std::vector<std::unique_ptr<Function>> functions;

  State *state(llvm::StringRef name) const;
  State *addState(llvm::StringRef name, Type type);
  Function *function(llvm::StringRef name) const;
  Function *addFunction(llvm::StringRef name);
  void removeFunction(llvm::StringRef name);
  std::unique_ptr<Module> clone() const;
  /// Replaces the content by that of `other`, for a pass that works on a clone. Pointers to ops and values of `other`
  /// stay valid.
  void take(std::unique_ptr<Module> other);
  /// Copies `f` into this module under a new name (else InternalError).
  Function *cloneFunction(const Function &f, llvm::StringRef name);
};

/// Copies an op and its body into `to`, before `before` (at the end if null). Operands are replaced by their entries in
/// `map`; operands without an entry are kept and must be visible there. Adds the results to `map`.
Op *cloneOp(const Op &op, Block &to, Op *before, llvm::DenseMap<const Value *, Value *> &map);

/// Copies all ops of `from` with cloneOp.
void cloneOps(const Block &from, Block &to, Op *before, llvm::DenseMap<const Value *, Value *> &map);

/// Creates ops at one place, with result types from OpDef::infer. Wrong operands or attributes are an InternalError.
class Builder {
public:
  explicit Builder(Block &block, Op *before = nullptr) : block(&block), before(before) {}
  Block *block;
  Op *before;  // null: at the end
  std::string loc;
  int layer = -1;

  /// Returns the op, for ops with several results. Null operands at the end (absent optional ones) are dropped.
  Op *op(OpKind kind, llvm::ArrayRef<Value *> operands, AttrMap attrs = {});
  /// The same with given result types, for ops whose types do not follow from their operands.
  Op *op(OpKind kind, llvm::ArrayRef<Value *> operands, llvm::ArrayRef<Type> types, AttrMap attrs = {});
  /// Result 0 of `op`.
  Value *value(OpKind kind, llvm::ArrayRef<Value *> operands, AttrMap attrs = {}) {
    return op(kind, operands, std::move(attrs))->result();
  }
  Value *read(const State &s);
  Op *write(const State &s, Value *v);
  Value *constant(double v, Type type = Type::scalar(DType::f32));
  Op *ret(llvm::ArrayRef<Value *> values);
};

/// Convenience for attribute lists: attrs({{"eps", 1e-5}, {"bias", true}}).
AttrMap attrs(std::initializer_list<std::pair<const char *, Attr>> items);

// ---- text.cpp, parser.cpp -------------------------------------------------------------------------------------------
//
//   module   := "module" [attrs] "{" item* "}" | item*            item := state | func
//   state    := "state" "@"name ":" type [attrs]
//   func     := "func" "@"name "(" [arg ("," arg)*] ")" ["->" "(" types ")"] [attrs] "{" op* "}"
//   arg      := value ":" type
//   op       := [value ("," value)* "="] opname ["@"name [","]] [value ("," value)*] [attrs] [":" types]
//               ["layer" "=" int] ["loc" "(" string ")"] [body]
//   body     := "{" "^" "(" args ")" op* "}"
//   attrs    := "{" key "=" attr ("," key "=" attr)* "}"
//   attr     := "true" | "false" | int | double | string | "[" ints "]"
//   value    := "%" name          name := [A-Za-z0-9_.$]+ | string        comments run from // to the end of the line
//
// A double has a point or an exponent, or is inf, -inf, nan or nan(0xBITS). A string has the escapes \" \\ \n \t \xHH.
// A value whose name starts with a digit is unnamed; the printer numbers such values in order. A body is a scope of its
// own.

/// The module as text. Parsing it yields the same module, bit for bit, except that names of values may change to become
/// unique.
std::string print(const Module &m);
std::string print(const Function &f);
std::string print(const Op &op);
/// Parses a module; the `module { }` wrapper may be left out. Throws UserError(GirSyntax) with file:line:column.
/// The result is not verified.
std::unique_ptr<Module> parseModule(llvm::StringRef text, llvm::StringRef filename);

// ---- verify.cpp -----------------------------------------------------------------------------------------------------
/// Checks dominance, known states, operand counts, attribute names and kinds, result types against the inferred ones,
/// return last, types of read and write, fused bodies. Returns one line per violation (at most 50); empty if the module
/// is valid.
std::vector<std::string> verify(const Module &m);

}  // namespace gptc
