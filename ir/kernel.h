// The kernel IR: immutable loop trees over flat buffers. Recipes build them, emitters print them as LLVM IR or CUDA C++,
// the interpreter (kernel_interp.cpp) runs them in float64.
//
// Meaning
//   - Indices are i64 and count elements; a buffer is one-dimensional. Integers wrap. Shifts are logical.
//   - Float arithmetic is IEEE in the expression's type, never reassociated and never contracted: only Fma fuses.
//     min and max return the second operand when either is NaN. Conversions to bf16 and f16 round to nearest even.
//   - Buffers of dtype bf16/f16 are storage: a Load yields f32 and a Store takes f32.
//   - `vector(W)` runs W iterations at a time, in lock step, each statement for all lanes before the next; the last,
//     partial group runs masked. Lane() is i mod W. A body must not carry a value from lane to lane but through `reg`.
//   - A `reg` buffer is private to the current task and lives in registers: all indices into it must be constants after unrolling,
//     plus Lane() or a vector loop's variable with stride 1.
//   - `unroll` loops have constant extents and are expanded by the emitter.
//   - `parallel` loops stand only at the top level of a kernel. Their iterations are independent tasks and may run in any order
//     on any thread; top-level statements are separated by barriers. A top-level statement that is no parallel loop
//     is one task.
//   - `grid`, `block_thread` bind a loop to a CUDA grid or thread index (x,y,z by nesting order); CPU emitters run them serially.
//   - HReduce folds the W lanes of a reg buffer by halves (lane i with lane i+W/2, and so on): one fixed tree on every ISA.
#pragma once

#include "ir/type.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gptc::kir {

enum class Storage : uint8_t { global, shared, stack, reg };
enum class LoopKind : uint8_t { serial, unroll, vector, parallel, grid, block_thread };

struct BufferNode {
  std::string name;
  DType dtype;
  Storage storage;
  int64_t size;      // elements; for global: the number that may be accessed
  bool written = false;  // global only: the kernel stores to it
};
using Buffer = std::shared_ptr<BufferNode>;

enum class ExprKind : uint8_t {
  IntImm,    // dtype i32/i64/u32/pred, `ival`
  FloatImm,  // dtype f32/f64, `fval`
  Var,       // loop variable or Let, identity = the VarNode
  Lane,      // lane of the innermost vector loop, i64
  Load,      // buffer[args[0]]
  Unary, Binary, Fma, Select, Cast, Bitcast,
  HReduce,   // fold of all lanes of reg `buffer` with `bop` (add or max); uniform
  Reduce,    // only between OpDef::lower and a recipe: see ReduceAxis. Recipes replace it.
};
enum class UnaryOp : uint8_t { neg, abs, sqrt, rsqrt, exp, log, tanh, floor, not_ , sin, cos };
enum class BinaryOp : uint8_t { add, sub, mul, div, rem, min, max, and_, or_, xor_, shl, shr, eq, ne, lt, le, gt, ge };

/// What a symbolic Reduce sums over. Row: the last dimension of the domain. Fold: all leading dimensions, in blocks of
/// `fold` rows in order (DESIGN "the order of every sum"): acc = init (args[1], or +0 when absent); for each block: p = +0,
/// p += e(row) in order, then acc += p. fold 0 means one block. All: every element, in fixed blocks of `fold` elements.
enum class ReduceAxis : uint8_t { row, fold, all };

struct VarNode { std::string name; DType dtype = DType::i64; };
using Var = std::shared_ptr<const VarNode>;

struct ExprNode;
using Expr = std::shared_ptr<const ExprNode>;
struct ExprNode {
  ExprKind kind;
  DType dtype;
  int64_t ival = 0;
  double fval = 0;
  Var var;
  Buffer buffer;
  UnaryOp uop{};
  BinaryOp bop{};
  ReduceAxis axis{};
  int64_t fold = 0;
  std::vector<Expr> args;
};

// Construction. Both operands of a binary expression have the same dtype (InternalError otherwise); immediate operands fold; x+0, x*1
// and x*0 of integers simplify. Comparisons yield pred.
Expr imm(int64_t v, DType t = DType::i64);
Expr fimm(double v, DType t = DType::f32);
/// An immediate of `like`'s dtype, integer or float.
Expr immLike(double v, const Expr &like);
Expr ref(const Var &v);
Var makeVar(const std::string &name, DType t = DType::i64);
Expr lane();
Expr load(const Buffer &b, Expr index);
Expr unary(UnaryOp op, Expr a);
Expr binary(BinaryOp op, Expr a, Expr b);
Expr fma(Expr a, Expr b, Expr c);
Expr select(Expr cond, Expr a, Expr b);
Expr cast(DType t, Expr a);
Expr bitcast(DType t, Expr a);
Expr hreduce(const Buffer &reg, BinaryOp op);
Expr reduce(BinaryOp op, ReduceAxis axis, Expr e, int64_t fold = 0, Expr init = nullptr);
inline Expr operator+(Expr a, Expr b) { return binary(BinaryOp::add, a, b); }
inline Expr operator-(Expr a, Expr b) { return binary(BinaryOp::sub, a, b); }
inline Expr operator*(Expr a, Expr b) { return binary(BinaryOp::mul, a, b); }
inline Expr operator/(Expr a, Expr b) { return binary(BinaryOp::div, a, b); }
inline Expr operator%(Expr a, Expr b) { return binary(BinaryOp::rem, a, b); }
inline Expr operator-(Expr a) { return unary(UnaryOp::neg, a); }
inline Expr operator+(Expr a, int64_t b) { return a + imm(b, a->dtype); }
inline Expr operator*(Expr a, int64_t b) { return a * imm(b, a->dtype); }
Expr min(Expr a, Expr b);
Expr max(Expr a, Expr b);
Expr lt(Expr a, Expr b);

enum class StmtKind : uint8_t { For, Store, Let, If, Block, Alloc };
struct StmtNode;
using Stmt = std::shared_ptr<const StmtNode>;
struct StmtNode {
  StmtKind kind;
  Var var;                  // For, Let
  Expr begin;               // unused but for For: first value (imm 0 by default)
  Expr extent;              // For: number of iterations, i64; may be a runtime value (not for unroll, reg indices)
  LoopKind loop{};          // For
  int width = 1;            // For vector: lanes, a power of two
  Buffer buffer;            // Store, Alloc
  Expr index;               // Store
  Expr value;               // Store, Let; If: condition
  std::vector<Stmt> body;   // For, If, Block; Let and Alloc: the scope
  std::vector<Stmt> orelse; // If
};
Stmt loop(LoopKind kind, const Var &v, Expr extent, std::vector<Stmt> body, int width = 1);
Stmt store(const Buffer &b, Expr index, Expr value);
Stmt let(const Var &v, Expr value, std::vector<Stmt> body);
Stmt ifThen(Expr cond, std::vector<Stmt> then, std::vector<Stmt> orelse = {});
Stmt block(std::vector<Stmt> body);
/// A stack or reg buffer visible in `body`. Its content is undefined until stored to.
Stmt alloc(const Buffer &b, std::vector<Stmt> body);
Buffer makeBuffer(const std::string &name, DType t, Storage s, int64_t size, bool written = false);

struct Kernel {
  std::string name;
  std::vector<Buffer> params;  // global buffers, in argument order
  std::vector<Stmt> body;      // top-level statements, with a barrier between one and the next
};

/// Replaces variables and rewrites sub-expressions bottom-up; shares what does not change.
Expr rewrite(const Expr &e, const std::function<Expr(const Expr &)> &f);
/// Canonical text of a kernel; buffers and variables are numbered, so that equal kernels have equal text.
std::string print(const Kernel &k);
std::string print(const Expr &e);
/// Violations of the rules above, one line each.
std::vector<std::string> verify(const Kernel &k);
/// Runs the kernel in float64 (integers exactly). `buffers[i]` holds params[i], size elements each. An index out of bounds,
/// or a read of an undefined stack or reg element, throws InternalError naming the statement.
void interpret(const Kernel &k, std::vector<std::vector<double>> &buffers);

}  // namespace gptc::kir
