// The kernel IR: immutable loop trees over flat buffers. Recipes build them, emitters print them as LLVM IR or CUDA
// C++, the interpreter (interp.cpp) runs them in float64.
//
// Meaning
//   - Indices are i64 and count elements; a buffer is one-dimensional. Integers wrap; their division truncates. Shifts
//     are logical, by less than the width of the dtype.
//   - Float arithmetic is IEEE in the expression's type, never reassociated and never contracted: only Fma fuses. min
//     and max return the second operand when either is NaN. Conversions to bf16 and f16 round to nearest even;
//     a denormal f32 becomes a bf16 zero of its sign, as x86's conversion has it. A float that does not fit the integer
//     it is cast to gives an unspecified value.
//   - Buffers of dtype bf16/f16 are storage: a Load yields f32 and a Store takes f32. No expression has these dtypes:
//     cast(bf16, e) rounds e and stays f32.
//   - A u32 may hold a pair of bf16, the first in its low half. Pair rounds two f32 to one. LoadPair reads two elements
//     of a bf16 buffer that is not `reg`, at index and behind it. Dot(acc, a, b), of an f32 and two pairs, is
//     fma(low a, low b, fma(high a, high b, acc)) in f32, where denormals count as zeros of their sign among the
//     operands and among the two results: x86's VDPBF16PS, and the same bits from FMAs on CPUs without it. In float64 a
//     pair still holds bf16. A pair's denormals have no certain bits: only Dot looks into pairs, And may clear a half.
//   - Select evaluates both sides: a load in either must be in bounds, so clamp its index. If evaluates one side only.
//   - `vector(W)` runs W iterations at a time, in lock step, each statement for all lanes before the next; the last,
//     partial group runs masked (inactive lanes neither load nor store). Lane() is (i - begin) mod W. A body must not
//     carry a value from lane to lane but through `reg`; no two lanes of a group store to one element. Vector loops do
//     not nest; loops inside one have bounds that are equal for all lanes. If may depend on the lane.
//   - A `reg` buffer is private to the current task and lives in registers: all indices into it must be constants after
//     unrolling, plus Lane() or a vector loop's variable with stride 1 (then begin and extent of that loop are
//     constants, and the emitter expands it). A load may also permute: its index may be any constant function of
//     Lane(), when the W elements come from at most two W-aligned groups of the buffer.
//   - A `stack` buffer is private to the current task, 64-byte aligned, at any index; together at most 1 MiB in a
//     phase.
//   - `unroll` loops have constant extents and are expanded by the emitter.
//   - `parallel` loops stand only at the top level of a kernel and have constant begin and extent. Their iterations are
//     independent tasks and may run in any order on any thread; top-level statements are separated by barriers. A
//     top-level statement that is no parallel loop is one task.
//   - `grid` loops stand only at the top level and have constant begin and extent: their iterations are the blocks of a
//     CUDA launch, independent as those of `parallel`. `block_thread` loops stand in a grid loop and not in each other,
//     begin at 0 and have a constant extent of at most 1024: their iterations are the threads of the block, independent
//     of each other, and all of them end before what follows begins. Around them a grid loop holds what is the same for
//     all threads: Let, If, serial loops and shared buffers, but no stores (a block_thread loop of extent 1 does
//     those). stack and reg buffers live inside block_thread loops. CPU emitters run both serially and refuse shared
//     buffers.
//   - A `shared` buffer belongs to a block of a grid loop, at any index; together at most 227 KiB in a phase, and what
//     the target has (Target::sharedBytes).
//   - `matmul` is what all threads of a block do together: it stands where block_thread loops do. It computes a tile of
//     a product, as MatmulTile says, and leaves it in a shared buffer, the rest of which is room to work in: whatever
//     else the buffer held is lost. CPU emitters refuse it.
//   - `attention` likewise: what its body says, by a template of the emitter's. It may use all of a shared buffer; what
//     that held is lost.
//     It takes sums in an order of its own: the bits are not the body's. The shared memory that the body asks for does
//     not count.
//   - HReduce folds W lanes of a reg buffer by halves (lane i with lane i+W/2, and so on): one fixed tree on every ISA.
//     The first operand is the lower lane. Outside of block_thread loops it folds a shared buffer in the same way.
//   - Two parameters may be given the same memory (in-place groups). Then each element is loaded before it is stored to
//     in statement order and within one task, and code keeps that order: it never moves a load across a store.
//
// For speed, on the CPU
//   - An index inside a vector loop is cheap when it is uniform (scalar load, broadcast) or has stride 1 in the loop's
//     variable (vector load); anything else gathers or goes element by element. The analysis sees through Let, +, -, *
//     by constants, and through i / c and i % c where W divides c and all else in i (so that flat loops may broadcast
//     rows).
//   - Whatever is uniform and loaded from memory inside a loop that also stores to memory is loaded again each time, as
//     the store may alias: bind it with Let outside. Arithmetic on loop-invariant values is hoisted by itself.
//   - Vector loops of constant extent that W divides have no tail; one of constant extent <= W is a single group
//     without a loop.
//   - Rows of a reg buffer are best W-aligned (round their length up to W): SROA then keeps each group in one register.
//   - Denormals are kept, as IEEE says; on many CPUs an operation on one costs some hundred cycles.
//   - LoadPair has stride 1 in the sense above when its index has stride 2.
//   - Shared subexpressions (one ExprNode used twice in a statement) are computed once; across statements use Let.
#pragma once

#include "ir/kernel/dtype.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gptc::kir {

enum class Storage : uint8_t { global, shared, stack, reg };
enum class LoopKind : uint8_t { serial, unroll, vector, parallel, grid, block_thread };

struct BufferNode {
  std::string name;
  DType dtype;
  Storage storage;
  int64_t size;          // elements; for global: the number that may be accessed
  bool written = false;  // global only: the kernel stores to it
  /// Global only, for speed: what is stored is not read again while caches hold it. Whole aligned vectors go past them;
  /// they are seen by others where any store is, after the task.
  bool streamed = false;
};
using Buffer = std::shared_ptr<BufferNode>;

enum class ExprKind : uint8_t {
  IntImm,    // dtype i32/i64/u32/pred, `ival`
  FloatImm,  // dtype f32/f64, `fval`
  Var,       // loop variable or Let, identity = the VarNode
  Lane,      // lane of the innermost vector loop, i64
  Load,      // buffer[args[0]]
  Unary,
  Binary,
  Fma,
  Pair,      // u32: args[0] in the low half, args[1] in the high one
  LoadPair,  // u32: elements args[0] and args[0] + 1 of the bf16 `buffer`
  Dot,       // f32: args[0] plus the products of the pairs args[1] and args[2]
  Select,
  Cast,
  Bitcast,
  HReduce,  // fold of elements args[0] .. args[0] + ival of reg or shared `buffer` with `bop` (add, max, min); uniform
  Reduce,   // only between OpDef::lower and a recipe: see ReduceAxis. Recipes replace it.
};
enum class UnaryOp : uint8_t {
  neg,
  abs,
  sqrt,
  rsqrt,
  exp,
  exp2,
  log,
  tanh,
  floor,
  not_,
  sin,
  cos,
  round_bf16,
  round_f16
};
enum class BinaryOp : uint8_t { add, sub, mul, div, rem, min, max, and_, or_, xor_, shl, shr, eq, ne, lt, le, gt, ge };

/// What a symbolic Reduce sums over. Row: the last dimension of the domain. Fold: all leading dimensions, in blocks of
/// `fold` rows in order (docs/architecture.md, "The order of every sum"): acc = init (args[1], or +0 when absent); for
/// each block: p = +0, p += e(row) in order, then acc += p. fold 0 means one block. All: every element, in fixed blocks
/// of `fold` elements.
enum class ReduceAxis : uint8_t { row, fold, all };

struct VarNode {
  std::string name;
  DType dtype = DType::i64;
};
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

// Construction. Both operands of a binary expression have the same dtype (InternalError otherwise); immediate operands
// fold; x+0, x*1 and x*0 of integers simplify. Comparisons yield pred.
Expr imm(int64_t v, DType t = DType::i64);
Expr fimm(double v, DType t = DType::f32);
/// An immediate of `like`'s dtype, integer or float.
Expr immLike(double v, const Expr &like);
Expr ref(const Var &v);
inline Expr ref(Var &v) { return ref(std::as_const(v)); }  // or else argument-dependent lookup prefers std::ref
inline Expr ref(Var &&v) { return ref(std::as_const(v)); }
Var makeVar(const std::string &name, DType t = DType::i64);
Expr lane();
Expr load(const Buffer &b, Expr index);
Expr unary(UnaryOp op, Expr a);
Expr binary(BinaryOp op, Expr a, Expr b);
Expr fma(Expr a, Expr b, Expr c);
Expr pair(Expr low, Expr high);
Expr loadPair(const Buffer &b, Expr index);
Expr dot(Expr acc, Expr a, Expr b);
Expr select(Expr cond, Expr a, Expr b);
Expr cast(DType t, Expr a);
Expr bitcast(DType t, Expr a);
/// Folds `lanes` elements (a power of two; 0: the whole buffer) from `offset` (null: 0; a constant after unrolling).
Expr hreduce(const Buffer &reg, BinaryOp op, Expr offset = nullptr, int lanes = 0);
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

/// A tile of the product of two matrices in memory. Element (i, j) of the tile, where row = row0 + i is below m and col
/// = col0 + j below n (others have no value afterwards), is a sum over k of a(row, k) b(k, col):
///   fold = 0   one chain over all k, which starts with c[i * ldc + j] where the tile goes on, else with +0;
///   fold = R   acc = that start; for each block of R steps: a chain p from +0, then acc = acc + p.
/// A chain takes one fused multiply-add per step, in the dtype of the sums; or, by tensor cores, products of 16 (of
/// f32: 8) steps at once, the last ones of a chain filled with zeros, as evalMma has it. Those round operands of f32 to
/// tf32.
struct MatmulTile {
  Buffer a, b;  // parameters of one dtype: bf16 and f16 with sums in f32; f32 and f64 with sums of theirs
  int64_t m = 0, n = 0, k = 0;
  bool ta = false, tb = false;  // a is [k, m] in memory rather than [m, k], b [n, k] rather than [k, n]
  int64_t lda = 0, ldb = 0;     // elements between rows in memory
  int64_t fold = 0;
  bool goesOn = false;
  bool mma = false;  // by tensor cores
  int64_t rows = 0, cols = 0, ldc = 0;
  // For speed only. Of the tile, a warp (by tensor cores) or a thread takes mr x nr; `stages` pieces of `steps` of k
  // are on their way or in use.
  int threads = 0, mr = 0, nr = 0, stages = 0;
  int64_t steps = 0;

  /// Room that the pieces take, in bytes: the buffer is at least as large.
  int64_t stageBytes() const { return (rows + cols) * steps * stages * int64_t(sizeOf(a->dtype)); }
  /// Steps of k that a tensor core takes at once.
  int64_t stepsAtOnce() const { return sizeOf(a->dtype) == 4 ? 8 : 16; }
};

/// What a block does for attention over packed rows (ir/ops/attention.cpp), in rows `threads` / 32 * `mr` from the
/// first of a tile on: queries of one head of one sequence, or keys. With bf16 and f16, what the second product takes
/// from the first one is rounded to them; by tensor cores of f32, operands are rounded to tf32.
struct AttentionTile {
  enum class Part : uint8_t { forward, queryGrad, keyGrad };
  Part part = Part::forward;
  /// Parameters: qkv, o, lse; or do, qkv, lse, delta (of each query, do . o), dqkv. Statistics are f32, all others of
  /// one dtype.
  std::vector<Buffer> operands;
  int64_t batch = 0, tokens = 0, heads = 0, keyHeads = 0, size = 0;
  int64_t ofHeads = 0;  // of which `heads` are some: the first is the one that this i64 says; null: they are all
  Buffer head0;
  bool causal = false, alibi = false;
  double p = 0;      // dropout, where the statement has a key
  bool mma = false;  // by tensor cores
  // For speed only: a warp takes mr rows, and nr columns at once; `stages` of these are on their way or in use.
  int threads = 0, mr = 0, nr = 0, stages = 0;

  int64_t rows() const { return threads / 32 * mr; }
  /// What the block needs of shared memory, in bytes.
  int64_t sharedBytes() const;
};

enum class StmtKind : uint8_t { For, Store, Prefetch, Let, If, Block, Alloc, Matmul, Attention };
struct StmtNode;
using Stmt = std::shared_ptr<const StmtNode>;
struct StmtNode {
  StmtKind kind;
  Var var;                   // For, Let
  Expr begin;                // For: first value (imm 0 by default); Matmul: where a begins; Attention: tile
  Expr extent;               // For: number of iterations, i64; may be a runtime value (not for unroll, reg indices);
                             // Matmul: where b begins; Attention: sequence
  LoopKind loop{};           // For
  int width = 1;             // For vector: lanes, a power of two
  Buffer buffer;             // Store, Prefetch, Alloc; Matmul: c; Attention: its room
  Expr index;                // Store, Prefetch; Matmul: row0; Attention: head
  Expr value;                // Store, Let; If: condition; Matmul: col0; Attention: key of dropout, or null
  std::vector<Stmt> body;    // For, If, Block; Let and Alloc: the scope; Attention: what it means
  std::vector<Stmt> orelse;  // If
  std::shared_ptr<const MatmulTile> matmul;
  std::shared_ptr<const AttentionTile> attention;
};
Stmt loop(LoopKind kind, const Var &v, Expr extent, std::vector<Stmt> body, int width = 1, Expr begin = nullptr);
Stmt store(const Buffer &b, Expr index, Expr value);
/// Asks early for the cache line of b[index], a uniform index in bounds, to be written if the buffer is. No meaning.
Stmt prefetch(const Buffer &b, Expr index);
Stmt let(const Var &v, Expr value, std::vector<Stmt> body);
Stmt ifThen(Expr cond, std::vector<Stmt> then, std::vector<Stmt> orelse = {});
Stmt block(std::vector<Stmt> body);
/// A stack or reg buffer visible in `body`. Its content is undefined until stored to.
Stmt alloc(const Buffer &b, std::vector<Stmt> body);
/// The tile from (row0, col0) on, multiples of its size, of matrices that begin at elements aBase and bBase, to `c`.
Stmt matmul(MatmulTile t, const Buffer &c, Expr aBase, Expr bBase, Expr row0, Expr col0);
/// `tile` counts tiles of rows, `head` heads (of keys, for their gradient). `key` (i64, or null): k0 of the sequence's
/// RandomKey in the lower half, k1 in the upper.
Stmt attention(AttentionTile t, const Buffer &room, Expr tile, Expr sequence, Expr head, Expr key,
               std::vector<Stmt> meaning);
Buffer makeBuffer(const std::string &name, DType t, Storage s, int64_t size, bool written = false);

struct Kernel {
  std::string name;
  std::vector<Buffer> params;  // global buffers, in argument order
  std::vector<Stmt> body;      // top-level statements, with a barrier between one and the next
};

/// The dtype a Load of the buffer yields and a Store takes: f32 for bf16 and f16, else the buffer's own.
DType valueType(const Buffer &b);
/// True for an immediate integer; `v` is its value.
bool isImm(const Expr &e, int64_t *v = nullptr);
/// Canonical text of a kernel; its name is left out and buffers and variables are numbered, so that equal kernels have
/// equal text. Nodes used more than once in a statement stand before it as `%n = ...`.
std::string print(const Kernel &k);
std::string print(const Expr &e);
/// Violations of the rules above, one line each.
std::vector<std::string> verify(const Kernel &k);
/// Runs the kernel in float64 (integers exactly; those stored to a parameter up to 2^53). `buffers[i]` holds params[i],
/// at least size elements each. An index out of bounds, a store of two lanes to one element, or a read of an undefined
/// stack or reg element throws InternalError naming the statement. With `rounded`, every float operation rounds to its
/// dtype, and stores to theirs: then emitted code gives the same bits, up to the last places of f32 exp, log, tanh, sin
/// and cos.
void interpret(const Kernel &k, std::vector<std::vector<double>> &buffers, bool rounded = false);

}  // namespace gptc::kir
