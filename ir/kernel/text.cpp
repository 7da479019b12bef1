// Canonical text. Parameters, variables and buffers are numbered in the order in which they appear instead of named, so
// that equal kernels have equal text and the JIT compiles them once.
#include "ir/kernel/kernel.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"

namespace gptc::kir {

namespace {

const char *nameOf(Storage s) {
  switch (s) {
  case Storage::global:
    return "global";
  case Storage::shared:
    return "shared";
  case Storage::stack:
    return "stack";
  case Storage::reg:
    return "reg";
  }
  return "?";
}

const char *nameOf(LoopKind k) {
  switch (k) {
  case LoopKind::serial:
    return "for";
  case LoopKind::unroll:
    return "unroll";
  case LoopKind::vector:
    return "vector";
  case LoopKind::parallel:
    return "parallel";
  case LoopKind::grid:
    return "grid";
  case LoopKind::block_thread:
    return "block_thread";
  }
  return "?";
}

const char *nameOf(UnaryOp op) {
  constexpr const char *names[] = {"neg",        "abs",       "sqrt",       "rsqrt",     "exp", "exp2",
                                   "log",        "tanh",      "floor",      "not",       "sin", "cos",
                                   "round_bf16", "round_f16", "round_e4m3", "exp_approx"};
  return names[int(op)];
}

const char *nameOf(BinaryOp op) {
  constexpr const char *names[] = {"+", "-",  "*",  "/",  "%",  "min", "max", "&", "|",
                                   "^", "<<", ">>", "==", "!=", "<",   "<=",  ">", ">="};
  return names[int(op)];
}

class Printer {
public:
  explicit Printer(bool canonical) : canonical(canonical) {}

  void kernel(const Kernel &k) {
    out += "kernel(";
    for (const Buffer &b : k.params)
      out += fmt::format("{}{}: {}[{}]{}{}", &b == k.params.data() ? "" : ", ", buffer(b.get()),
                         gptc::nameOf(b->dtype).str(), b->size, b->written ? " written" : "",
                         b->streamed ? " streamed" : "");
    out += ") {\n";
    body(k.body, 1);
    out += "}\n";
  }

  std::string expression(const Expr &e) {
    begin({e});
    std::string last = text(e, true), s;
    for (const std::string &line : definitions)
      s += line + "; ";
    return s + last;
  }

  std::string out;

private:
  bool canonical;
  llvm::DenseMap<const void *, int> buffers, vars;
  // Per statement: number of uses of each node, number (%n) of each shared node, and the lines that define the shared
  // nodes.
  llvm::DenseMap<const ExprNode *, int> uses, shared;
  std::vector<std::string> definitions;

  std::string buffer(const BufferNode *b) {
    return canonical ? fmt::format("b{}", buffers.try_emplace(b, buffers.size()).first->second) : b->name;
  }
  std::string variable(const VarNode *v) {
    return canonical ? fmt::format("v{}", vars.try_emplace(v, vars.size()).first->second) : v->name;
  }

  void countUses(const Expr &e) {
    if (uses[e.get()]++ == 0)
      for (const Expr &a : e->args)
        countUses(a);
  }

  /// Begins a statement whose expressions are `roots`.
  void begin(std::initializer_list<Expr> roots) {
    uses.clear();
    shared.clear();
    definitions.clear();
    for (const Expr &e : roots)
      if (e)
        countUses(e);
  }

  std::string text(const Expr &e, bool root = false) {
    bool leaf = e->args.empty();
    if (leaf || root || uses[e.get()] < 2)
      return full(e);
    if (auto it = shared.find(e.get()); it != shared.end())
      return fmt::format("%{}", it->second);
    std::string s = full(e);  // defines the shared nodes below first
    int n = shared.size();
    shared[e.get()] = n;
    definitions.push_back(fmt::format("%{} = {}", n, s));
    return fmt::format("%{}", n);
  }

  std::string full(const Expr &e) {
    auto arg = [&](unsigned i) { return text(e->args[i]); };
    switch (e->kind) {
    case ExprKind::IntImm:
      return e->dtype == DType::i64 ? fmt::format("{}", e->ival)
                                    : fmt::format("{}:{}", e->ival, gptc::nameOf(e->dtype).str());
    case ExprKind::FloatImm: {
      std::string s = fmt::format("{}", e->fval);
      if (s.find_first_of(".en") == std::string::npos)
        s += ".0";
      return e->dtype == DType::f32 ? s : s + ":f64";
    }
    case ExprKind::Var:
      return variable(e->var.get());
    case ExprKind::Lane:
      return "lane";
    case ExprKind::Load:
      return fmt::format("{}[{}]", buffer(e->buffer.get()), arg(0));
    case ExprKind::Unary:
      return fmt::format("{}({})", nameOf(e->uop), arg(0));
    case ExprKind::Binary: {
      std::string a = arg(0), b = arg(1);
      if (e->bop == BinaryOp::min || e->bop == BinaryOp::max)
        return fmt::format("{}({}, {})", nameOf(e->bop), a, b);
      return fmt::format("({} {} {})", a, nameOf(e->bop), b);
    }
    case ExprKind::LoadPair:
      return fmt::format("{}[{}:2]", buffer(e->buffer.get()), arg(0));
    case ExprKind::Pair: {
      std::string a = arg(0), b = arg(1);
      return fmt::format("pair({}, {})", a, b);
    }
    case ExprKind::Fma:
    case ExprKind::Dot:
    case ExprKind::Dot4:
    case ExprKind::Select: {
      const char *name = e->kind == ExprKind::Fma    ? "fma"
                         : e->kind == ExprKind::Dot  ? "dot"
                         : e->kind == ExprKind::Dot4 ? "dot4"
                                                     : "select";
      std::string a = arg(0), b = arg(1), c = arg(2);
      return fmt::format("{}({}, {}, {})", name, a, b, c);
    }
    case ExprKind::Cast:
      return fmt::format("{}({})", gptc::nameOf(e->dtype).str(), arg(0));
    case ExprKind::Bitcast:
      return fmt::format("bits_{}({})", gptc::nameOf(e->dtype).str(), arg(0));
    case ExprKind::HReduce:
      return fmt::format("hreduce<{}, {}>({}[{}])", nameOf(e->bop), e->ival, buffer(e->buffer.get()), arg(0));
    case ExprKind::Reduce: {
      constexpr const char *axes[] = {"row", "fold", "all"};
      std::string a = arg(0);
      return fmt::format("reduce<{}, {}, {}>({}{})", nameOf(e->bop), axes[int(e->axis)], e->fold, a,
                         e->args.size() > 1 ? ", " + arg(1) : "");
    }
    }
    return "?";
  }

  void line(int depth, const std::string &s) {
    for (const std::string &d : definitions)
      out.append(2 * depth, ' ').append(d).append("\n");
    definitions.clear();
    out.append(2 * depth, ' ').append(s).append("\n");
  }

  void body(const std::vector<Stmt> &stmts, int depth) {
    for (const Stmt &s : stmts)
      statement(*s, depth);
  }

  void scope(const std::string &head, const std::vector<Stmt> &stmts, int depth) {
    line(depth, head + " {");
    body(stmts, depth + 1);
    out.append(2 * depth, ' ').append("}\n");
  }

  void statement(const StmtNode &s, int depth) {
    begin({s.begin, s.extent, s.index, s.value});
    switch (s.kind) {
    case StmtKind::For: {
      std::string kind = nameOf(s.loop);
      if (s.loop == LoopKind::vector)
        kind += fmt::format("({})", s.width);
      std::string from = text(s.begin), extent = text(s.extent);
      return scope(fmt::format("{} {} = {} count {}", kind, variable(s.var.get()), from, extent), s.body, depth);
    }
    case StmtKind::Store: {
      std::string index = text(s.index), value = text(s.value);
      return line(depth, fmt::format("{}[{}] = {}", buffer(s.buffer.get()), index, value));
    }
    case StmtKind::Prefetch: {
      std::string index = text(s.index);
      return line(depth, fmt::format("prefetch {}[{}]", buffer(s.buffer.get()), index));
    }
    case StmtKind::Let: {
      std::string value = text(s.value);
      return scope(fmt::format("let {}: {} = {}", variable(s.var.get()), gptc::nameOf(s.var->dtype).str(), value),
                   s.body, depth);
    }
    case StmtKind::Matmul: {
      const MatmulTile &t = *s.matmul;
      auto operand = [&](const Buffer &b, bool turned, const Expr &at, int64_t ld) {
        return fmt::format("{}[{}:{}]{}", buffer(b.get()), text(at), ld, turned ? "'" : "");
      };
      std::string a = operand(t.a, t.ta, s.begin, t.lda), b = operand(t.b, t.tb, s.extent, t.ldb);
      std::string row = text(s.index), col = text(s.value);
      return line(depth,
                  fmt::format("matmul {}[{}x{}:{}] {} {} {} at ({}, {}) of {}x{}x{} fold {} {} threads {} each "
                              "{}x{} steps {} stages {}",
                              buffer(s.buffer.get()), t.rows, t.cols, t.ldc, t.goesOn ? "+=" : "=", a, b, row, col, t.m,
                              t.n, t.k, t.fold, t.mma ? "mma" : "fma", t.threads, t.mr, t.nr, t.steps, t.stages));
    }
    case StmtKind::Attention: {
      const AttentionTile &t = *s.attention;
      constexpr const char *parts[] = {"forward", "dq", "dkv"};
      std::string operands;
      for (const Buffer &b : t.operands)
        operands += " " + buffer(b.get());
      std::string tile = text(s.begin), sequence = text(s.extent), head = text(s.index);
      if (t.head0)
        head += fmt::format(" + {} of {}", buffer(t.head0.get()), t.ofHeads);
      std::string how = t.causal ? " causal" : "";
      if (t.window)
        how += fmt::format(" window {}", t.window);
      if (t.alibi)
        how += " alibi";
      if (t.scale != 0)
        how += fmt::format(" scale {}", t.scale);
      if (t.softcap != 0)
        how += fmt::format(" softcap {}", t.softcap);
      if (s.value)
        how += fmt::format(" p {} key {}", t.p, text(s.value));
      return scope(
          fmt::format("attention {} in {} of{} at ({}, {}, {}) of {}x{}x{}/{}x{}{} {} threads {} each {}x{} stages {}",
                      parts[int(t.part)], buffer(s.buffer.get()), operands, sequence, head, tile, t.batch, t.tokens,
                      t.heads, t.keyHeads, t.size, how, t.mma ? "mma" : "fma", t.threads, t.mr, t.nr, t.stages),
          s.body, depth);
    }
    case StmtKind::If:
      scope(fmt::format("if {}", text(s.value)), s.body, depth);
      if (!s.orelse.empty()) {
        begin({});
        scope("else", s.orelse, depth);
      }
      return;
    case StmtKind::Block:
      return scope("block", s.body, depth);
    case StmtKind::Alloc:
      return scope(fmt::format("alloc {}: {} {}[{}]", buffer(s.buffer.get()), nameOf(s.buffer->storage),
                               gptc::nameOf(s.buffer->dtype).str(), s.buffer->size),
                   s.body, depth);
    }
  }
};

}  // namespace

std::string print(const Kernel &k) {
  Printer p(true);
  p.kernel(k);
  return std::move(p.out);
}

std::string print(const Expr &e) { return Printer(false).expression(e); }

}  // namespace gptc::kir
