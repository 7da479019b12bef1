// Checks the rules of kernel.h on a whole kernel. The functions that build nodes check operand types. This file checks
// what depends on context: scopes, places of loops, dependence on lanes, and indices into registers.
#include "ir/kernel/kernel.h"
#include "support/diagnostics.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SmallVector.h"

#include <cmath>
#include <utility>

namespace gptc::kir {

namespace {

constexpr int64_t maxStackBytes = 1 << 20;
constexpr int64_t maxSharedBytes = 227 << 10;
constexpr int64_t maxMatmulExtent = INT32_MAX - 4096;  // the last row or step of a tile still fits 32 bits
constexpr int64_t maxBlockThreads = 1024;
constexpr int maxLanes = 64;

/// An i64 expression as an index into registers.
struct Form {
  bool fixed = false;  // a constant after unrolling, plus stride * lane
  int64_t stride = 0;
  bool perLane = false;  // not `fixed`, but a constant for each lane
};

struct VarInfo {
  bool varying = false;  // differs between lanes of the enclosing vector loop
  Form form;
};

class Verifier {
public:
  std::vector<std::string> errors;

  void kernel(const Kernel &k) {
    llvm::DenseSet<const BufferNode *> seen;
    for (const Buffer &b : k.params) {
      if (b->storage != Storage::global)
        error("parameter {} is not global", b->name);
      if (!seen.insert(b.get()).second)
        error("parameter {} stands twice", b->name);
      buffers.insert(b.get());
    }
    for (const Stmt &s : k.body) {
      counted.clear();
      stackBytes = sharedBytes = 0;
      statement(*s, true);
    }
  }

private:
  llvm::DenseSet<const BufferNode *> buffers, counted;  // in scope; already counted in the bytes below
  llvm::DenseMap<const VarNode *, VarInfo> vars;
  int64_t stackBytes = 0, sharedBytes = 0;
  const StmtNode *vector = nullptr;  // the enclosing vector loop, or null
  bool inGrid = false, inThread = false;
  std::string where;
  struct Info {
    bool varying;
    Form form;
  };
  llvm::DenseMap<const ExprNode *, Info> known;  // per statement

  template <typename... A> void error(fmt::format_string<A...> f, A &&...a) {
    std::string text = fmt::format(f, std::forward<A>(a)...);
    errors.push_back(where.empty() ? text : fmt::format("{}: {}", where, text));
  }

  static bool constant(const Expr &e) { return isImm(e); }

  void checkReg(const Buffer &b, const Expr &index, const Info &i, bool isLoad) {
    if (b->storage != Storage::reg || (isLoad && i.form.perLane))
      return;
    if (!i.form.fixed || i.form.stride < 0 || i.form.stride > 1)
      error("index {} into reg {} is no constant plus the lane", print(index), b->name);
  }

  void checkBuffer(const Buffer &b) {
    if (!buffers.contains(b.get()))
      error("buffer {} is not in scope", b->name);
  }

  Info info(const Expr &e) {
    if (auto it = known.find(e.get()); it != known.end())
      return it->second;
    Info r = compute(e);
    known[e.get()] = r;
    return r;
  }

  Info compute(const Expr &e) {
    llvm::SmallVector<Info, 3> a;
    Info r{false, {}};
    for (const Expr &arg : e->args) {
      a.push_back(info(arg));
      r.varying |= a.back().varying;
    }
    switch (e->kind) {
    case ExprKind::IntImm:
      r.form.fixed = true;
      break;
    case ExprKind::FloatImm:
      break;
    case ExprKind::Var: {
      auto it = vars.find(e->var.get());
      if (it == vars.end()) {
        error("variable {} is not in scope", e->var->name);
        break;
      }
      if (e->dtype != e->var->dtype)
        error("reference to {} of another type", e->var->name);
      r = {it->second.varying, it->second.form};
      break;
    }
    case ExprKind::Lane:
      if (!vector)
        error("lane outside a vector loop");
      r = {true, {true, 1}};
      break;
    case ExprKind::Load: {
      checkBuffer(e->buffer);
      checkReg(e->buffer, e->args[0], a[0], true);
      int64_t at;
      if (isImm(e->args[0], &at) && (at < 0 || at >= e->buffer->size))
        error("load of element {} of {}, which has {}", at, e->buffer->name, e->buffer->size);
      break;
    }
    case ExprKind::LoadPair: {
      checkBuffer(e->buffer);
      if (e->buffer->storage == Storage::reg)
        error("a pair of reg {}", e->buffer->name);
      int64_t at;
      if (isImm(e->args[0], &at) && (at < 0 || at + 1 >= e->buffer->size))
        error("load of elements {} and {} of {}, which has {}", at, at + 1, e->buffer->name, e->buffer->size);
      break;
    }
    case ExprKind::Binary:
      if (e->dtype != DType::i64)
        break;
      r.form = combine(e->bop, e->args, a);
      break;
    case ExprKind::HReduce:
      checkBuffer(e->buffer);
      if (e->buffer->storage == Storage::shared ? inThread : e->buffer->storage != Storage::reg)
        error("hreduce of {}, which is not reg here", e->buffer->name);
      if (!a[0].form.fixed || a[0].form.stride)
        error("hreduce of {} at {}, which is no constant", e->buffer->name, print(e->args[0]));
      if (e->ival > e->buffer->size)
        error("hreduce of {} lanes of {}, which has {}", e->ival, e->buffer->name, e->buffer->size);
      break;
    case ExprKind::Reduce:
      error("symbolic reduce left in a kernel");
      break;
    default:
      break;
    }
    return r;
  }

  static Form combine(BinaryOp op, const std::vector<Expr> &args, llvm::ArrayRef<Info> a) {
    const Form &x = a[0].form, &y = a[1].form;
    const Form perLane{false, 0, true};
    if (!x.fixed || !y.fixed)
      return (x.fixed || x.perLane) && (y.fixed || y.perLane) ? perLane : Form{};
    switch (op) {
    case BinaryOp::add:
      return {true, x.stride + y.stride};
    case BinaryOp::sub:
      return {true, x.stride - y.stride};
    case BinaryOp::mul: {
      int64_t c;
      if ((x.stride && !isImm(args[1], &c)) || y.stride)  // constants are on the right
        return perLane;
      return {true, x.stride ? x.stride * c : 0};
    }
    default:
      return x.stride || y.stride ? perLane : Form{true, 0};
    }
  }

  void body(const std::vector<Stmt> &stmts) {
    for (const Stmt &s : stmts)
      statement(*s, false);
  }

  void statement(const StmtNode &s, bool top) {
    known.clear();
    switch (s.kind) {
    case StmtKind::For:
      return loop(s, top);
    case StmtKind::Store: {
      where = fmt::format("store to {}", s.buffer->name);
      checkBuffer(s.buffer);
      Info at = info(s.index), v = info(s.value);
      checkReg(s.buffer, s.index, at, false);
      if (inGrid && !inThread)
        error("every thread of a block stores");
      if (s.buffer->storage == Storage::global && !s.buffer->written)
        error("the parameter is not marked as written");
      if (vector && v.varying && !at.varying)
        error("all lanes store to element {}", print(s.index));
      int64_t c;
      if (isImm(s.index, &c) && (c < 0 || c >= s.buffer->size))
        error("element {} of {}", c, s.buffer->size);
      return;
    }
    case StmtKind::Prefetch: {
      where = fmt::format("prefetch of {}", s.buffer->name);
      checkBuffer(s.buffer);
      if (s.buffer->storage != Storage::global)
        error("only parameters may be far away");
      if (info(s.index).varying)
        error("the index depends on the lane");
      return;
    }
    case StmtKind::Attention:
      return attention(s);
    case StmtKind::Matmul:
      return matmul(s);
    case StmtKind::Let: {
      where = fmt::format("let {}", s.var->name);
      Info v = info(s.value);
      return scope(s, {v.varying, v.form});
    }
    case StmtKind::If:
      where = "if";
      info(s.value);
      body(s.body);
      return body(s.orelse);
    case StmtKind::Block:
      return body(s.body);
    case StmtKind::Alloc: {
      where = fmt::format("alloc {}", s.buffer->name);
      if (s.buffer->storage == Storage::global)
        error("a global buffer is a parameter");
      if (s.buffer->storage == Storage::stack)
        count(s.buffer, stackBytes, maxStackBytes, "stack");
      if (s.buffer->storage == Storage::shared)
        count(s.buffer, sharedBytes, maxSharedBytes, "shared");
      if (s.buffer->storage == Storage::shared ? !inGrid || inThread : inGrid && !inThread)
        error("no place for a buffer of that storage");
      if (!buffers.insert(s.buffer.get()).second) {
        error("the buffer is in scope already");
        return body(s.body);
      }
      body(s.body);
      buffers.erase(s.buffer.get());
      return;
    }
    }
  }

  void matmul(const StmtNode &s) {
    const MatmulTile &t = *s.matmul;
    where = fmt::format("matmul to {}", s.buffer->name);
    for (const Buffer &b : {t.a, t.b, s.buffer})
      checkBuffer(b);
    for (const Expr &e : {s.begin, s.extent, s.index, s.value})
      info(e);
    if (!inGrid || inThread)
      error("no place for what a block does together");
    if (t.a->storage != Storage::global || t.b->storage != Storage::global || s.buffer->storage != Storage::shared)
      error("operands are no parameters, or the tile is not shared");
    if (t.a->dtype != t.b->dtype || !isFloat(t.a->dtype) || s.buffer->dtype != valueType(t.a) ||
        (t.mma && t.a->dtype == DType::f64))
      error("no products of {} and {} in {}", gptc::nameOf(t.a->dtype).str(), gptc::nameOf(t.b->dtype).str(),
            gptc::nameOf(s.buffer->dtype).str());
    for (int64_t extent : {t.m, t.n, t.k, t.lda, t.ldb})
      if (extent < 1 || extent > maxMatmulExtent)
        error("an extent of {}", extent);
    if (t.fold < 0 || t.fold > t.k)
      error("blocks of {} steps of {}", t.fold, t.k);
    auto isPower = [](int64_t v) { return v > 0 && (v & (v - 1)) == 0; };
    const int64_t piece = 16 / int64_t(sizeOf(t.a->dtype));  // elements of a 16-byte copy
    if (!isPower(t.rows) || !isPower(t.cols) || !isPower(t.steps) || std::min({t.rows, t.cols, t.steps}) < piece ||
        std::max({t.rows, t.cols, t.steps}) > 1024 || t.ldc < t.cols || t.ldc % 4)
      error("a tile of {} x {}, rows {} apart, in {} steps", t.rows, t.cols, t.ldc, t.steps);
    // All warps or threads take equal parts, in whole units.
    const int64_t rowUnit = t.mma ? 16 : 4, colUnit = t.mma ? 16 : 4;
    if (t.mr < 1 || t.nr < 1 || t.mr % rowUnit || t.nr % colUnit || t.rows % t.mr || t.cols % t.nr ||
        t.rows / t.mr * (t.cols / t.nr) * (t.mma ? 32 : 1) != t.threads || t.threads % 32 ||
        t.threads > maxBlockThreads || (t.mma && t.steps % t.stepsAtOnce()))
      error("{} threads, of which {} takes {} x {}", t.threads, t.mma ? "each warp" : "each", t.mr, t.nr);
    if (t.stages < 2 || t.stages > 8)
      error("{} stages", t.stages);
    const int64_t bytes = s.buffer->size * int64_t(sizeOf(s.buffer->dtype));
    if (s.buffer->size < t.rows * t.ldc || bytes < t.stageBytes())
      error("{} bytes are no room for the tile or {} bytes of stages", bytes, t.stageBytes());
  }

  void attention(const StmtNode &s) {
    const AttentionTile &t = *s.attention;
    where = "attention";
    checkBuffer(s.buffer);
    for (const Buffer &b : t.operands)
      checkBuffer(b);
    if (t.head0) {
      checkBuffer(t.head0);
      if (t.head0->dtype != DType::i64)
        error("head0 of {}", gptc::nameOf(t.head0->dtype).str());
    }
    if (t.ofHeads < t.heads || (!t.head0 && t.ofHeads != t.heads))
      error("{} heads of {}", t.heads, t.ofHeads);
    for (const Expr &e : {s.begin, s.extent, s.index, s.value})
      if (e)
        info(e);
    if (!inGrid || inThread)
      error("no place for what a block does together");
    const bool forward = t.part == AttentionTile::Part::forward;
    if (t.operands.size() != (forward ? 3 : 5))
      return error("{} operands", t.operands.size());
    const Buffer qkv = t.operands[forward ? 0 : 1], out = t.operands[forward ? 1 : 0],
                 grad = t.operands[forward ? 0 : 4];
    const DType type = qkv->dtype;
    if (sizeOf(type) > 4 || !isFloat(type) || out->dtype != type || grad->dtype != type ||
        t.operands[2]->dtype != DType::f32 || t.operands[forward ? 2 : 3]->dtype != DType::f32)
      error("operands of {}", gptc::nameOf(type).str());
    for (int64_t extent : {t.batch, t.tokens, t.heads, t.keyHeads, t.size})
      if (extent < 1 || extent > maxMatmulExtent)
        return error("an extent of {}", extent);
    const int64_t row = (t.heads + 2 * t.keyHeads) * t.size, tokens = t.batch * t.tokens;
    if (t.heads % t.keyHeads || row > maxMatmulExtent || qkv->size < tokens * row || grad->size < tokens * row ||
        out->size < tokens * t.heads * t.size || t.operands[2]->size < tokens * t.heads ||
        t.operands[forward ? 2 : 3]->size < tokens * t.heads)
      error("operands are too small for {} rows of {}", tokens, row);
    if (t.window < 0 || t.window >= t.tokens || (t.window && !t.causal) || !(t.softcap >= 0) || !(t.scale >= 0) ||
        !std::isfinite(t.softcap) || !std::isfinite(t.scale))
      error("a window of {}, scale {}, softcap {}", t.window, t.scale, t.softcap);
    if (t.threads < 32 || t.threads % 32 || t.threads > maxBlockThreads || t.mr < 16 || t.mr % 16 || t.mr > 64 ||
        t.nr < 16 || t.nr % 16 || t.nr > 256 || t.stages < 1 || t.stages > 2)
      return error("{} threads, of which each warp takes {} x {}, {} stages", t.threads, t.mr, t.nr, t.stages);
    if (s.buffer->storage != Storage::shared || s.buffer->size * int64_t(sizeOf(s.buffer->dtype)) < t.sharedBytes())
      error("{} has no room for {} bytes", s.buffer->name, t.sharedBytes());
    const int64_t outside = std::exchange(sharedBytes, 0);
    body(s.body);
    sharedBytes = outside;
  }

  void count(const Buffer &b, int64_t &sum, int64_t most, const char *what) {
    int64_t bytes;
    if (counted.insert(b.get()).second && (__builtin_mul_overflow(b->size, int64_t(sizeOf(b->dtype)), &bytes) ||
                                           __builtin_add_overflow(sum, bytes, &sum) || sum > most))
      error("more than {} bytes of {} buffers", most, what);
  }

  void scope(const StmtNode &s, VarInfo v) {
    if (!vars.try_emplace(s.var.get(), v).second) {
      error("variable {} is in scope already", s.var->name);
      return;
    }
    body(s.body);
    vars.erase(s.var.get());
  }

  void loop(const StmtNode &s, bool top) {
    where = fmt::format("loop {}", s.var->name);
    if (s.var->dtype != DType::i64 || s.begin->dtype != DType::i64 || s.extent->dtype != DType::i64)
      error("variable, begin and extent must be i64");
    Info begin = info(s.begin), extent = info(s.extent);
    if (begin.varying || extent.varying)
      error("bounds differ between lanes");
    VarInfo v{false, {}};
    switch (s.loop) {
    case LoopKind::serial:
      break;
    case LoopKind::grid:
      if (!top)
        error("a grid loop below the top level");
      if (!constant(s.extent) || !constant(s.begin))
        error("a grid loop without constant bounds");
      inGrid = true;
      scope(s, v);
      inGrid = false;
      return;
    case LoopKind::block_thread: {
      int64_t n;
      if (!inGrid || inThread || vector)
        error("a block_thread loop outside of a grid loop, or inside another");
      if (!isImm(s.extent, &n) || n < 1 || n > maxBlockThreads || !isImm(s.begin, &n) || n != 0)
        error("{} threads from {}", print(s.extent), print(s.begin));
      const bool outer = std::exchange(inThread, true);
      scope(s, v);
      inThread = outer;
      return;
    }
    case LoopKind::parallel:
      if (!top)
        error("a parallel loop below the top level");
      if (!constant(s.extent) || !constant(s.begin))
        error("a parallel loop without constant bounds");
      break;
    case LoopKind::unroll:
      if (!constant(s.extent))
        error("an unroll loop without constant extent");
      v.form = begin.form;
      break;
    case LoopKind::vector: {
      if (vector)
        error("a vector loop inside another");
      if (inGrid && !inThread)
        error("a vector loop around the threads of a block");
      if (s.width < 1 || s.width > maxLanes || (s.width & (s.width - 1)))
        error("{} lanes", s.width);
      v.varying = true;
      v.form = {begin.form.fixed && !begin.form.stride && extent.form.fixed && !extent.form.stride, 1};
      const StmtNode *outer = std::exchange(vector, &s);
      scope(s, v);
      vector = outer;
      return;
    }
    }
    scope(s, v);
  }
};

}  // namespace

std::vector<std::string> verify(const Kernel &k) {
  Verifier v;
  v.kernel(k);
  return std::move(v.errors);
}

}  // namespace gptc::kir
