// The interpreter of kernels. A kernel is first compiled to a tree of statements whose expressions are straight-line
// programs over numbered temporaries; each operation then runs for all active lanes of a vector loop before the next,
// as kernel.h prescribes.
#include "ir/kernel/eval.h"
#include "ir/kernel/kernel.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace gptc::kir {

namespace {

constexpr int maxLanes = 64;

union Cell {
  double f;
  int64_t i;
};

/// A temporary or a variable: one cell, or one per lane.
struct Place {
  int at = 0;      // index of its first cell
  int stride = 0;  // 1 if there is a cell per lane
};

struct Memory {
  const BufferNode *node;
  double *global = nullptr;
  std::vector<Cell> cells;         // reg and stack
  std::vector<uint32_t> storedIn;  // by element: the value of `entry` at the last store
  uint32_t entry = 0;
};

struct Operation {
  const ExprNode *e;
  DType type;  // of the operands
  Place to, a, b, c;
  int memory = -1;
};

struct Node {
  const StmtNode *stmt;
  std::vector<Operation> ops;  // they compute the places below
  Place first, second;         // For: begin, extent; Store: index, value; Let, If: value
  Place var;                   // For, Let
  int memory = -1;             // Store, Alloc; Matmul: c
  Place third, fourth;         // Matmul: where a and b begin; first, second: row0, col0
  int left = -1, right = -1;   // Matmul: memory of a and b
  std::vector<Node> body, orelse;
};

class Compiler {
public:
  std::vector<Memory> memory;
  int cells = 0;

  Node compile(const StmtNode &s) {
    Node n{&s};
    done.clear();
    switch (s.kind) {
    case StmtKind::For: {
      n.first = expression(s.begin, n.ops);
      n.second = expression(s.extent, n.ops);
      bool isVector = s.loop == LoopKind::vector;
      GPTC_CHECK(!isVector || (s.width >= 1 && s.width <= maxLanes), "{} lanes", s.width);
      n.var = place(isVector);
      vars[s.var.get()] = n.var;
      bool outer = std::exchange(inVector, inVector || isVector);
      n.body = compileAll(s.body);
      inVector = outer;
      return n;
    }
    case StmtKind::Store:
      n.first = expression(s.index, n.ops);
      n.second = expression(s.value, n.ops);
      n.memory = memoryOf(s.buffer);
      return n;
    case StmtKind::Prefetch:
      n.first = expression(s.index, n.ops);
      n.memory = memoryOf(s.buffer);
      return n;
    case StmtKind::Matmul:
      n.first = expression(s.index, n.ops);
      n.second = expression(s.value, n.ops);
      n.third = expression(s.begin, n.ops);
      n.fourth = expression(s.extent, n.ops);
      n.memory = memoryOf(s.buffer);
      n.left = memoryOf(s.matmul->a);
      n.right = memoryOf(s.matmul->b);
      return n;
    case StmtKind::Let:
      n.first = expression(s.value, n.ops);
      n.var = place(n.first.stride);
      vars[s.var.get()] = n.var;
      n.body = compileAll(s.body);
      return n;
    case StmtKind::If:
      n.first = expression(s.value, n.ops);
      n.body = compileAll(s.body);
      n.orelse = compileAll(s.orelse);
      return n;
    case StmtKind::Alloc:
      n.memory = addMemory(s.buffer);
      n.body = compileAll(s.body);
      return n;
    case StmtKind::Block:
    case StmtKind::Attention:
      n.body = compileAll(s.body);
      return n;
    }
    GPTC_UNREACHABLE("statement kind");
  }

  int addMemory(const Buffer &b) {
    auto [it, fresh] = buffers.try_emplace(b.get(), int(memory.size()));
    if (fresh) {
      memory.push_back({b.get()});
      if (b->storage != Storage::global) {
        memory.back().cells.resize(b->size);
        memory.back().storedIn.resize(b->size);
      }
    }
    return it->second;
  }

private:
  llvm::DenseMap<const BufferNode *, int> buffers;
  llvm::DenseMap<const VarNode *, Place> vars;
  llvm::DenseMap<const ExprNode *, Place> done;  // per statement
  bool inVector = false;

  std::vector<Node> compileAll(const std::vector<Stmt> &stmts) {
    std::vector<Node> r;
    for (const Stmt &s : stmts)
      r.push_back(compile(*s));
    return r;
  }

  Place place(bool varies) {
    Place p{cells, varies};
    cells += varies ? maxLanes : 1;
    return p;
  }

  int memoryOf(const Buffer &b) {
    auto it = buffers.find(b.get());
    GPTC_CHECK(it != buffers.end(), "buffer {} is not in scope", b->name);
    return it->second;
  }

  Place expression(const Expr &e, std::vector<Operation> &ops) {
    if (auto it = done.find(e.get()); it != done.end())
      return it->second;
    Place r;
    if (e->kind == ExprKind::Var) {
      auto it = vars.find(e->var.get());
      GPTC_CHECK(it != vars.end(), "variable {} is not in scope", e->var->name);
      r = it->second;
    } else {
      Operation op{e.get(), e->args.empty() ? e->dtype : e->args[0]->dtype};
      Place *slots[] = {&op.a, &op.b, &op.c};
      bool varies = e->kind == ExprKind::Lane;
      GPTC_CHECK(!varies || inVector, "lane outside a vector loop");
      for (size_t i = 0; i < e->args.size(); ++i) {
        *slots[i] = expression(e->args[i], ops);
        varies |= slots[i]->stride != 0;
      }
      if (e->kind == ExprKind::Load || e->kind == ExprKind::LoadPair || e->kind == ExprKind::HReduce)
        op.memory = memoryOf(e->buffer);
      op.to = r = place(varies);
      ops.push_back(op);
    }
    done[e.get()] = r;
    return r;
  }
};

class Machine {
public:
  Machine(std::vector<Memory> m, int cellCount, bool rounded)
      : memory(std::move(m)), cells(cellCount), rounded(rounded) {}

  void run(const Node &n) {
    try {
      for (const Operation &op : n.ops)
        execute(op);
      if (n.stmt->kind == StmtKind::Store)
        return store(n);
      if (n.stmt->kind == StmtKind::Prefetch)
        return checkBounds(memory[n.memory], cell(n.first, 0).i);
      if (n.stmt->kind == StmtKind::Matmul)
        return matmul(n);
    } catch (const InternalError &e) {
      throw InternalError(__FILE__, __LINE__, fmt::format("{}: {}", describe(*n.stmt), e.what()));
    }
    switch (n.stmt->kind) {
    case StmtKind::For:
      return loop(n);
    case StmtKind::If:
      return branch(n);
    case StmtKind::Let:
      for (int l : lanesOf(n.var))
        cell(n.var, l) = cell(n.first, l);
      return runAll(n.body);
    case StmtKind::Alloc:
      ++memory[n.memory].entry;
      return runAll(n.body);
    default:
      return runAll(n.body);
    }
  }

private:
  std::vector<Memory> memory;
  std::vector<Cell> cells;
  const bool rounded;
  std::vector<int> active{0};  // lanes of the current group; never empty
  const std::vector<int> single{0};

  Cell &cell(const Place &p, int lane) { return cells[p.at + p.stride * lane]; }
  const std::vector<int> &lanesOf(const Place &p) const { return p.stride ? active : single; }

  static std::string describe(const StmtNode &s) {
    switch (s.kind) {
    case StmtKind::Store:
      return fmt::format("store {}[{}]", s.buffer->name, print(s.index));
    case StmtKind::Prefetch:
      return fmt::format("prefetch {}[{}]", s.buffer->name, print(s.index));
    case StmtKind::Matmul:
      return fmt::format("matmul to {}", s.buffer->name);
    case StmtKind::Let:
      return fmt::format("let {} = {}", s.var->name, print(s.value));
    case StmtKind::For:
      return fmt::format("loop {} count {}", s.var->name, print(s.extent));
    case StmtKind::If:
      return fmt::format("if {}", print(s.value));
    default:
      return "statement";
    }
  }

  void runAll(const std::vector<Node> &nodes) {
    for (const Node &n : nodes)
      run(n);
  }

  double round(DType t, double v) const { return rounded && t == DType::f32 ? double(float(v)) : v; }

  // ---- memory ------------------------------------------------------------------------------------------------------

  static void checkBounds(const Memory &m, int64_t at) {
    GPTC_CHECK(at >= 0 && at < m.node->size, "element {} of {}, which has {}", at, m.node->name, m.node->size);
  }

  Cell get(const Memory &m, int64_t at) const {
    checkBounds(m, at);
    Cell c;
    if (!m.global) {
      GPTC_CHECK(m.storedIn[at] == m.entry, "element {} of {} is read before it is stored to", at, m.node->name);
      return m.cells[at];
    }
    if (isFloat(m.node->dtype))
      c.f = round(valueType(m.node->dtype), m.global[at]);
    else
      c.i = wrapInt(m.node->dtype, int64_t(m.global[at]));
    return c;
  }
  static DType valueType(DType t) { return t == DType::f64 ? t : DType::f32; }

  /// What a rounding to a narrow type makes of `v`: if nothing is rounded, it only saturates.
  double narrowed(UnaryOp rounding, double v) const {
    if (rounded)
      return evalUnaryFloat<double>(rounding, v);
    return rounding == UnaryOp::round_e4m3 && std::fabs(v) > 448 ? std::copysign(448, v) : v;
  }

  void put(Memory &m, int64_t at, Cell c) const {
    checkBounds(m, at);
    if (isNarrow(m.node->dtype))
      c.f = narrowed(roundingTo(m.node->dtype), c.f);
    if (!m.global) {
      m.cells[at] = c;
      m.storedIn[at] = m.entry;
      return;
    }
    m.global[at] = isFloat(m.node->dtype) ? c.f : double(c.i);
  }

  void store(const Node &n) {
    Memory &m = memory[n.memory];
    if (!n.first.stride) {
      GPTC_CHECK(!n.second.stride, "all lanes store to one element");
      return put(m, cell(n.first, 0).i, cell(n.second, 0));
    }
    int64_t top = INT64_MIN;
    for (size_t i = 0; i < active.size(); ++i) {
      int64_t at = cell(n.first, active[i]).i;
      for (size_t j = 0; at <= top && j < i; ++j)
        GPTC_CHECK(cell(n.first, active[j]).i != at, "two lanes store to element {} of {}", at, m.node->name);
      top = std::max(top, at);
      put(m, at, cell(n.second, active[i]));
    }
  }

  void matmul(const Node &n) {
    const MatmulTile &t = *n.stmt->matmul;
    Memory &c = memory[n.memory];
    const Memory &a = memory[n.left], &b = memory[n.right];
    const int64_t row0 = cell(n.first, 0).i, col0 = cell(n.second, 0).i;
    const int64_t rows = std::clamp<int64_t>(t.m - row0, 0, t.rows), cols = std::clamp<int64_t>(t.n - col0, 0, t.cols);
    auto elements = [&](const Memory &from, int64_t base, bool kFirst, int64_t ld, int64_t first, int64_t count) {
      std::vector<double> v(count * t.k);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t k = 0; k < t.k; ++k) {
          const double x = get(from, base + (kFirst ? k * ld + first + i : (first + i) * ld + k)).f;
          v[i * t.k + k] = rounded && t.mma && sizeOf(from.node->dtype) == 4 ? roundTF32(float(x)) : x;
        }
      return v;
    };
    const std::vector<double> left = elements(a, cell(n.third, 0).i, t.ta, t.lda, row0, rows),
                              right = elements(b, cell(n.fourth, 0).i, !t.tb, t.ldb, col0, cols);
    std::vector<double> sums(rows * cols);
    const int64_t block = t.fold ? t.fold : t.k;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        double &sum = sums[i * cols + j];
        sum = t.goesOn ? get(c, i * t.ldc + j).f : 0;
        for (int64_t k = 0; k < t.k; k += block) {
          const double p = chain(t, c.node->dtype, t.fold ? 0 : sum, &left[i * t.k + k], &right[j * t.k + k],
                                 std::min(block, t.k - k));
          sum = t.fold ? round(c.node->dtype, sum + p) : p;
        }
      }
    std::fill(c.storedIn.begin(), c.storedIn.end(), 0);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        put(c, i * t.ldc + j, {.f = sums[i * cols + j]});
  }
  double chain(const MatmulTile &t, DType type, double sum, const double *a, const double *b, int64_t count) const {
    if (!rounded || !t.mma) {
      for (int64_t k = 0; k < count; ++k)
        sum =
            rounded && type == DType::f32 ? std::fma(float(a[k]), float(b[k]), float(sum)) : std::fma(a[k], b[k], sum);
      return sum;
    }
    for (int64_t k = 0; k < count; k += t.stepsAtOnce()) {
      float x[16] = {}, y[16] = {};
      for (int64_t i = 0; i < std::min(t.stepsAtOnce(), count - k); ++i)
        x[i] = float(a[k + i]), y[i] = float(b[k + i]);
      sum = evalMma(float(sum), x, y, int(t.stepsAtOnce()));
    }
    return sum;
  }

  // ---- control -----------------------------------------------------------------------------------------------------

  void loop(const Node &n) {
    int64_t begin = cell(n.first, 0).i, extent = cell(n.second, 0).i;
    if (n.stmt->loop != LoopKind::vector) {
      for (int64_t i = 0; i < extent; ++i) {
        cell(n.var, 0).i = begin + i;
        runAll(n.body);
      }
      return;
    }
    std::vector<int> outer = std::move(active);
    for (int64_t i = 0; i < extent; i += n.stmt->width) {
      active.clear();
      for (int l = 0; l < n.stmt->width && i + l < extent; ++l) {
        active.push_back(l);
        cell(n.var, l).i = begin + i + l;
      }
      runAll(n.body);
    }
    active = std::move(outer);
  }

  void branch(const Node &n) {
    if (!n.first.stride)
      return runAll(cell(n.first, 0).i ? n.body : n.orelse);
    std::vector<int> outer = active, taken, other;
    for (int l : active)
      (cell(n.first, l).i ? taken : other).push_back(l);
    for (auto [lanes, nodes] : {std::pair(&taken, &n.body), std::pair(&other, &n.orelse)}) {
      if (lanes->empty())
        continue;
      active = *lanes;
      runAll(*nodes);
    }
    active = std::move(outer);
  }

  // ---- expressions -------------------------------------------------------------------------------------------------

  /// Sets op.to in each lane from f(lane).
  template <typename F> void floats(const Operation &op, F f) {
    for (int l : lanesOf(op.to))
      cell(op.to, l).f = round(op.e->dtype, f(l));
  }
  template <typename F> void ints(const Operation &op, F f) {
    for (int l : lanesOf(op.to))
      cell(op.to, l).i = f(l);
  }

  void execute(const Operation &op) {
    const ExprNode &e = *op.e;
    auto a = [&](int l) { return cell(op.a, l); };
    auto b = [&](int l) { return cell(op.b, l); };
    auto c = [&](int l) { return cell(op.c, l); };
    switch (e.kind) {
    case ExprKind::IntImm:
      return ints(op, [&](int) { return e.ival; });
    case ExprKind::FloatImm:
      return floats(op, [&](int) { return e.fval; });
    case ExprKind::Lane:
      return ints(op, [&](int l) { return l; });
    case ExprKind::Load:
      for (int l : lanesOf(op.to))
        cell(op.to, l) = get(memory[op.memory], a(l).i);
      return;
    case ExprKind::Unary:
      if (isInt(op.type))
        return ints(op, [&](int l) { return evalUnaryInt(e.uop, op.type, a(l).i); });
      if (roundsTo(e.uop))
        return floats(op, [&](int l) { return narrowed(e.uop, a(l).f); });
      if (e.uop == UnaryOp::rsqrt)  // two roundings
        return floats(op, [&](int l) { return 1 / round(op.type, std::sqrt(a(l).f)); });
      return floats(op, [&](int l) { return evalUnaryFloat<double>(e.uop, a(l).f); });
    case ExprKind::Binary:
      return binary(op);
    case ExprKind::Fma:
      if (rounded && op.type == DType::f32)  // a double fma would round twice
        return floats(op, [&](int l) { return std::fma(float(a(l).f), float(b(l).f), float(c(l).f)); });
      return floats(op, [&](int l) { return std::fma(a(l).f, b(l).f, c(l).f); });
    case ExprKind::Pair:
      return ints(op, [&](int l) { return int64_t(evalPair(float(a(l).f), float(b(l).f))); });
    case ExprKind::LoadPair: {
      const Memory &m = memory[op.memory];
      return ints(op, [&](int l) { return int64_t(evalPair(float(get(m, a(l).i).f), float(get(m, a(l).i + 1).f))); });
    }
    case ExprKind::Dot:
      if (rounded)
        return floats(op, [&](int l) { return evalDot(float(a(l).f), uint32_t(b(l).i), uint32_t(c(l).i)); });
      return floats(op, [&](int l) {
        auto x = uint32_t(b(l).i), y = uint32_t(c(l).i);
        return a(l).f + double(highOfPair(x)) * highOfPair(y) + double(lowOfPair(x)) * lowOfPair(y);
      });
    case ExprKind::Dot4:
      return ints(op, [&](int l) { return evalDot4(int32_t(a(l).i), uint32_t(b(l).i), uint32_t(c(l).i)); });
    case ExprKind::Select:
      for (int l : lanesOf(op.to))
        cell(op.to, l) = a(l).i ? b(l) : c(l);
      return;
    case ExprKind::Cast:
      if (isFloat(op.type) && isFloat(e.dtype))
        return floats(op, [&](int l) { return a(l).f; });
      if (isFloat(op.type))
        return ints(op, [&](int l) { return floatToInt(e.dtype, a(l).f); });
      if (isFloat(e.dtype) && rounded && e.dtype == DType::f32)  // straight to f32, not through double
        return floats(op, [&](int l) { return double(float(a(l).i)); });
      if (isFloat(e.dtype))
        return floats(op, [&](int l) { return double(a(l).i); });
      return ints(op, [&](int l) { return e.dtype == DType::pred ? a(l).i != 0 : wrapInt(e.dtype, a(l).i); });
    case ExprKind::Bitcast:
      return bitcast(op);
    case ExprKind::HReduce:
      return hreduce(op);
    case ExprKind::Var:
    case ExprKind::Reduce:
      GPTC_UNREACHABLE("symbolic expression in a kernel");
    }
  }

  void binary(const Operation &op) {
    BinaryOp o = op.e->bop;
    auto a = [&](int l) { return cell(op.a, l); };
    auto b = [&](int l) { return cell(op.b, l); };
    if (isInt(op.type)) {
      if (op.type == DType::i64 && o == BinaryOp::add)  // a fast path for indices
        return ints(op, [&](int l) { return int64_t(uint64_t(a(l).i) + uint64_t(b(l).i)); });
      return ints(op, [&](int l) { return evalInt(o, op.type, a(l).i, b(l).i); });
    }
    if (isComparison(o))
      return ints(op, [&](int l) { return int64_t(compareFloat(o, a(l).f, b(l).f)); });
    switch (o) {
    case BinaryOp::add:
      return floats(op, [&](int l) { return a(l).f + b(l).f; });
    case BinaryOp::mul:
      return floats(op, [&](int l) { return a(l).f * b(l).f; });
    default:
      return floats(op, [&](int l) { return evalFloat<double>(o, a(l).f, b(l).f); });
    }
  }

  void bitcast(const Operation &op) {
    for (int l : lanesOf(op.to)) {
      Cell in = cell(op.a, l), &out = cell(op.to, l);
      uint64_t bits;
      if (op.type == DType::f32)
        bits = std::bit_cast<uint32_t>(float(in.f));
      else  // the bits of an f64 or an integer: Cell is a union
        bits = uint64_t(in.i);
      if (op.e->dtype == DType::f32)
        out.f = std::bit_cast<float>(uint32_t(bits));
      else
        out.i = op.e->dtype == DType::f64 ? int64_t(bits) : wrapInt(op.e->dtype, int64_t(bits));
    }
  }

  void hreduce(const Operation &op) {
    const Memory &m = memory[op.memory];
    int64_t at = cell(op.a, 0).i, n = op.e->ival;
    DType t = op.e->dtype;
    std::vector<Cell> v;
    for (int64_t i = 0; i < n; ++i)
      v.push_back(get(m, at + i));
    for (n /= 2; n >= 1; n /= 2)
      for (int64_t i = 0; i < n; ++i)
        if (isFloat(t))
          v[i].f = round(t, evalFloat<double>(op.e->bop, v[i].f, v[i + n].f));
        else
          v[i].i = evalInt(op.e->bop, t, v[i].i, v[i + n].i);
    cell(op.to, 0) = v[0];
  }
};

}  // namespace

void interpret(const Kernel &k, std::vector<std::vector<double>> &buffers, bool rounded) {
  GPTC_CHECK(buffers.size() == k.params.size(), "{} buffers for {} parameters of {}", buffers.size(), k.params.size(),
             k.name);
  Compiler compiler;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer &b = k.params[i];
    GPTC_CHECK(int64_t(buffers[i].size()) >= b->size, "buffer {} has {} elements and needs {}", b->name,
               buffers[i].size(), b->size);
    compiler.memory[compiler.addMemory(b)].global = buffers[i].data();
  }
  std::vector<Node> phases;
  for (const Stmt &s : k.body)
    phases.push_back(compiler.compile(*s));
  Machine machine(std::move(compiler.memory), compiler.cells, rounded);
  for (const Node &n : phases)
    machine.run(n);
}

}  // namespace gptc::kir
