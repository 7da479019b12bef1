// The kernel IR: immutable loop trees over flat buffers. Recipes build them, emitters translate them to LLVM IR or CUDA
// C++, and the interpreter (interp.cpp) runs them in float64.
//
// Semantics
//   - Indices are i64 and count elements; a buffer is one-dimensional. Integers wrap; their division truncates. Shifts
//     are logical, by less than the width of the dtype.
//   - Float arithmetic is IEEE in the expression's type, never reassociated and never contracted: only Fma fuses. min
//     and max return the second operand when either is NaN. Conversions to narrow types (bf16, f16, f8e4m3) round to
//     nearest even; a denormal f32 becomes a bf16 zero of its sign, as in x86's conversion; what is beyond f8e4m3's
//     largest number becomes that number. A cast of a float to an integer that cannot hold it gives an unspecified
//     value.
//   - Buffers of narrow types are storage: a Load yields f32 and a Store takes f32. No expression has these types:
//     cast(bf16, e) rounds e and stays f32.
//   - A u32 may hold a pair of bf16, the first in its low half. Pair rounds two f32 to a pair. LoadPair reads two
//     elements of a bf16 buffer, at index and index + 1; the buffer must not be `reg`. Dot(acc, a, b), of an f32 and
//     two pairs, is fma(low a, low b, fma(high a, high b, acc)) in f32, where denormals count as zeros of their sign
//     among the operands and among the two results: x86's VDPBF16PS, and the same bits from FMAs on CPUs without it. In
//     the float64 interpreter, too, a pair holds bf16. The bits of denormals in a pair are unspecified: only Dot may
//     use the halves of a pair, and And may clear a half.
//   - A u32 may hold four bytes, the first in its lowest bits. Dot4(acc, a, b), of an i32 and two such u32, adds to acc
//     the products of the bytes of a, unsigned, and those of b, signed: x86's VPDPBUSD, and the same from other
//     instructions.
//   - Select evaluates both sides: a load in either must be in bounds, so clamp its index. If runs only one side.
//   - `vector(W)` runs W iterations at a time, in lock step, each statement for all lanes before the next; the last,
//     partial group runs masked (inactive lanes neither load nor store). Lane() is (i - begin) mod W. A body may carry
//     values from lane to lane only through `reg`; no two lanes of a group store to one element. Vector loops do not
//     nest; loops inside one have bounds that are equal for all lanes. If may depend on the lane.
//   - A `reg` buffer is private to the current task and lives in registers: all indices into it must be constants after
//     unrolling, plus Lane() or a vector loop's variable with stride 1 (then begin and extent of that loop are
//     constants, and the emitter expands it). A load may also permute: its index may be any constant function of Lane()
//     if the W elements come from at most two W-aligned groups of the buffer.
//   - A `stack` buffer is private to the current task and 64-byte aligned; indices may be any expression. All of them
//     have at most 1 MiB in one top-level statement.
//   - `unroll` loops have constant extents and are expanded by the emitter.
//   - `parallel` loops are only at the top level of a kernel and have constant begin and extent. Their iterations are
//     independent tasks and may run in any order on any thread; barriers separate top-level statements. A top-level
//     statement that is no parallel loop is one task.
//   - `grid` loops are only at the top level and have constant begin and extent: their iterations are the blocks of a
//     CUDA launch, independent like those of `parallel`. `block_thread` loops are in a grid loop and not in each other,
//     begin at 0 and have a constant extent of at most 1024: their iterations are the threads of the block, independent
//     of each other, and all of them end before the next statement begins. Outside of them a grid loop has only
//     statements that are the same for all threads: Let, If, serial loops and shared buffers, but no stores (use a
//     block_thread loop of extent 1). stack and reg buffers are inside block_thread loops. CPU emitters run both
//     serially and refuse shared buffers.
//   - A `shared` buffer belongs to a block of a grid loop; indices may be any expression. All of them have at most 227
//     KiB in one top-level statement, and at most Target::sharedBytes.
//   - `matmul` is executed by all threads of a block together, in the places where block_thread loops may be. It
//     computes a tile of a product (see MatmulTile) into a shared buffer and uses the rest of the buffer as workspace,
//     so that its other content is lost. CPU emitters refuse it.
//   - `attention`, too, is executed by all threads of a block together. It computes what its body computes, by a
//     template of the emitter. It may use all of a shared buffer, whose content is lost. It adds in an order of its
//     own, so that its bits differ from the body's. The shared buffers of the body do not count. CPU emitters refuse
//     it.
//   - HReduce folds W lanes of a reg buffer by halves (lane i with lane i+W/2, and so on), a fixed tree on every ISA.
//     The first operand is the lower lane. Outside of block_thread loops it folds a shared buffer in the same way.
//   - Two parameters may have the same memory (in-place groups). Then the kernel must load each element before it
//     stores to it, in statement order and within one task. Emitted code keeps that order: it never moves a load across
//     a store.
//
// Speed on the CPU
//   - An index inside a vector loop is cheap when it is uniform (scalar load, broadcast) or has stride 1 in the loop's
//     variable (vector load); anything else gathers or goes element by element. The analysis sees through Let, +, -, *
//     by constants, and through i / c and i % c if W divides c and all other terms of i (so that flat loops may
//     broadcast rows).
//   - A uniform load inside a loop that also stores to memory is repeated in each iteration, because the store may
//     alias: bind it with Let outside. Arithmetic on loop-invariant values is hoisted without that.
//   - Vector loops of constant extent that W divides have no tail; one of constant extent <= W is a single group
//     without a loop.
//   - Rows of a reg buffer are best W-aligned (round their length up to W): SROA then keeps each group in one register.
//   - Denormals are kept, as IEEE requires; on many CPUs an operation on one costs some hundred cycles.
//   - LoadPair is a vector load if its index has stride 2.
//   - Shared subexpressions (one ExprNode used twice in a statement) are computed once; across statements use Let.
#pragma once

#include "ir/kernel/dtype.h"

#include <functional>
#include <memory>
#include <optional>
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
  /// Global only, for speed: stored elements are not read again while caches would hold them. Whole aligned vectors
  /// bypass the caches. As with any store, others see them after the task.
  bool streamed = false;
};
using Buffer = std::shared_ptr<BufferNode>;

enum class ExprKind : uint8_t {
  IntImm,    // dtype i32/i64/u32/pred, `ival`
  FloatImm,  // dtype f32/f64, `fval`
  Var,       // loop variable or Let, identified by its VarNode
  Lane,      // lane of the innermost vector loop, i64
  Load,      // buffer[args[0]]
  Unary,
  Binary,
  Fma,
  Pair,      // u32: args[0] in the low half, args[1] in the high one
  LoadPair,  // u32: elements args[0] and args[0] + 1 of the bf16 `buffer`
  Dot,       // f32: args[0] plus the products of the pairs args[1] and args[2]
  Dot4,      // i32: args[0] plus the products of the bytes of args[1], unsigned, and args[2], signed
  Select,
  Cast,
  Bitcast,
  HReduce,  // fold of elements args[0] .. args[0] + ival of reg or shared `buffer` with `bop` (add, max, min); uniform
  Reduce,   // symbolic (ReduceAxis): OpDef::lower makes it, recipes replace it
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
  round_f16,
  round_e4m3,
  /// exp by a GPU's instruction for powers of two: with a relative error of at most 2^-22 + |x| 2^-23; results below
  /// 2^-126 may be 0. Exact for 0, infinities and NaN. On CPUs it is exp.
  exp_approx
};
constexpr int numUnaryOps = int(UnaryOp::exp_approx) + 1;
enum class BinaryOp : uint8_t { add, sub, mul, div, rem, min, max, and_, or_, xor_, shl, shr, eq, ne, lt, le, gt, ge };

/// The elements that a symbolic Reduce sums. row: the last dimension of the domain. fold: all leading dimensions, in
/// blocks of `fold` rows in order (docs/architecture.md, "The order of every sum"): acc = init (args[1], or +0 if
/// absent); for each block: p = +0, p += e(row) in order, then acc += p; fold 0 means one block. all: every element, in
/// fixed blocks of `fold` elements.
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

// Construction. Both operands of a binary expression must have the same dtype (else InternalError). Operations on
// immediates are folded; x+0, x*1 and x*0 of integers are simplified. Comparisons yield pred.
Expr imm(int64_t v, DType t = DType::i64);
Expr fimm(double v, DType t = DType::f32);
/// An immediate of `like`'s dtype, integer or float.
Expr immLike(double v, const Expr &like);
Expr ref(const Var &v);
inline Expr ref(Var &v) { return ref(std::as_const(v)); }  // without these, argument-dependent lookup prefers std::ref
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
Expr dot4(Expr acc, Expr a, Expr b);
Expr select(Expr cond, Expr a, Expr b);
Expr cast(DType t, Expr a);
Expr bitcast(DType t, Expr a);
/// Folds `lanes` elements (a power of two; 0: the whole buffer) from `offset` on, a constant after unrolling (null: 0).
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

/// A tile of the product of two matrices in memory. Element (i, j) of the tile is a sum over k of a(row, k) b(k, col),
/// with row = row0 + i and col = col0 + j. If row >= m or col >= n, it has no value. The order of the sum:
///   fold = 0   one chain over all k, which starts with c[i * ldc + j] if `goesOn`, else with +0;
///   fold = R   acc = that start; for each block of R steps: a chain p from +0, then acc = acc + p.
/// A chain takes one fused multiply-add per step, in the dtype of the sums. With `mma` (tensor cores) it takes the
/// products of 16 steps (f32: 8) at once, padded with zeros at the end of a chain (see evalMma), and rounds operands of
/// f32 to tf32.
struct MatmulTile {
  Buffer a, b;  // parameters of one dtype; sums in f32, of f64 in f64
  int64_t m = 0, n = 0, k = 0;
  bool ta = false, tb = false;  // a is [k, m] in memory instead of [m, k], b is [n, k] instead of [k, n]
  int64_t lda = 0, ldb = 0;     // leading dimensions, in elements
  int64_t fold = 0;
  bool goesOn = false;
  bool mma = false;  // by tensor cores
  int64_t rows = 0, cols = 0, ldc = 0;
  // For speed only. A thread, or with `mma` a warp, computes mr x nr of the tile. `stages` pieces of `steps` of k are
  // being copied or in use.
  int threads = 0, mr = 0, nr = 0, stages = 0;
  int64_t steps = 0;

  /// Bytes of the pieces; the shared buffer must have at least as many.
  int64_t stageBytes() const { return (rows + cols) * steps * stages * int64_t(sizeOf(a->dtype)); }
  /// Steps of k per instruction of a tensor core.
  int64_t stepsAtOnce() const { return sizeOf(a->dtype) == 4 ? 8 : 16; }
};

/// The work of a block for attention over packed rows (ir/ops/attention.cpp): `threads` / 32 * `mr` rows from the first
/// row of a tile on, which are queries of one head of one sequence, or keys. Of bf16 and f16 operands, the second
/// product takes the results of the first rounded to that dtype. Tensor cores round f32 operands to tf32.
struct AttentionTile {
  enum class Part : uint8_t { forward, queryGrad, keyGrad };
  Part part = Part::forward;
  /// Parameters: qkv, o, lse for `forward`; do, qkv, lse, delta (do . o of each query), dqkv for gradients. lse and
  /// delta are f32, all others of one dtype.
  std::vector<Buffer> operands;
  int64_t batch = 0, tokens = 0, heads = 0, keyHeads = 0, size = 0;
  int64_t ofHeads = 0;  // heads of the model
  Buffer head0;         // an i64, the first of `heads` among ofHeads; null: `heads` are all of them
  bool causal = false, alibi = false;
  double p = 0;        // probability of dropout, if the statement has a key
  double scale = 0;    // the factor of q . k; 0: 1/sqrt(size)
  double softcap = 0;  // the largest magnitude of a scaled score before ALiBi; 0: no limit
  int64_t window = 0;  // the last keys that a query sees, if causal; 0: all
  bool mma = false;    // by tensor cores
  // For speed only: a warp computes mr rows, nr columns at a time; `stages` pieces of columns are being copied or in
  // use.
  int threads = 0, mr = 0, nr = 0, stages = 0;

  int64_t rows() const { return threads / 32 * mr; }
  /// The factor of q . k.
  double factor() const;
  /// Shared memory of the block, in bytes.
  int64_t sharedBytes() const;
};

enum class StmtKind : uint8_t { For, Store, Prefetch, Let, If, Block, Alloc, Matmul, Attention };
struct StmtNode;
using Stmt = std::shared_ptr<const StmtNode>;
struct StmtNode {
  StmtKind kind;
  Var var;                   // For, Let
  Expr begin;                // For: first value (default imm 0); Matmul: offset of a, elements; Attention: tile
  Expr extent;               // For: iterations, i64, may be a runtime value (not for unroll loops and reg indices);
                             // Matmul: offset of b, elements; Attention: sequence
  LoopKind loop{};           // For
  int width = 1;             // For vector: lanes, a power of two
  Buffer buffer;             // Store, Prefetch, Alloc; Matmul: c; Attention: its room
  Expr index;                // Store, Prefetch; Matmul: row0; Attention: head
  Expr value;                // Store, Let; If: condition; Matmul: col0; Attention: key of dropout, or null
  std::vector<Stmt> body;    // For, If, Block; Let and Alloc: the scope; Attention: its definition
  std::vector<Stmt> orelse;  // If
  std::shared_ptr<const MatmulTile> matmul;
  std::shared_ptr<const AttentionTile> attention;
};
Stmt loop(LoopKind kind, const Var &v, Expr extent, std::vector<Stmt> body, int width = 1, Expr begin = nullptr);
Stmt store(const Buffer &b, Expr index, Expr value);
/// Prefetches the cache line of b[index], for writing if the kernel writes the buffer. `index` is uniform and in
/// bounds.
Stmt prefetch(const Buffer &b, Expr index);
Stmt let(const Var &v, Expr value, std::vector<Stmt> body);
Stmt ifThen(Expr cond, std::vector<Stmt> then, std::vector<Stmt> orelse = {});
Stmt block(std::vector<Stmt> body);
/// Declares a stack, reg or shared buffer for `body`. Elements are undefined until they are stored to.
Stmt alloc(const Buffer &b, std::vector<Stmt> body);
/// Computes the tile at (row0, col0), multiples of its size, into `c`. The matrices begin at elements aBase and bBase.
Stmt matmul(MatmulTile t, const Buffer &c, Expr aBase, Expr bBase, Expr row0, Expr col0);
/// `tile` is the index of a tile of rows, `head` that of a head (for keyGrad: a key head). `key` (i64, or null without
/// dropout) has k0 of the sequence's RandomKey in its lower half, k1 in the upper.
Stmt attention(AttentionTile t, const Buffer &room, Expr tile, Expr sequence, Expr head, Expr key,
               std::vector<Stmt> meaning);
Buffer makeBuffer(const std::string &name, DType t, Storage s, int64_t size, bool written = false);

struct Kernel {
  std::string name;
  std::vector<Buffer> params;  // global buffers, in argument order
  std::vector<Stmt> body;      // top-level statements, with a barrier between one and the next
};

/// The operator that rounds f32 to a narrow type.
UnaryOp roundingTo(DType narrow);
/// The narrow type to which an operator rounds; none for others.
std::optional<DType> roundsTo(UnaryOp op);
/// The dtype that a Load of the buffer yields and a Store takes: f32 for narrow types, else the buffer's dtype.
DType valueType(const Buffer &b);
/// Whether `e` is an immediate integer; stores its value in `v`.
bool isImm(const Expr &e, int64_t *v = nullptr);
/// Canonical text of a kernel: without its name and with numbered buffers and variables, so that equal kernels have
/// equal text. Nodes used more than once in a statement are printed before it as `%n = ...`.
std::string print(const Kernel &k);
std::string print(const Expr &e);
/// Violations of the rules above, one line each; empty if there are none.
std::vector<std::string> verify(const Kernel &k);
/// Runs the kernel in float64. Integers are exact; those stored to a parameter up to 2^53. `buffers[i]` holds
/// params[i], at least `size` elements. Throws InternalError naming the statement for an index out of bounds, a store
/// of two lanes to one element, or a read of an undefined stack or reg element. With `rounded`, every float operation
/// and store rounds to its dtype: the bits are those of emitted code, except for the last places of f32 exp, log, tanh,
/// sin and cos.
void interpret(const Kernel &k, std::vector<std::vector<double>> &buffers, bool rounded = false);

}  // namespace gptc::kir
