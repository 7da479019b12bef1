// Writes the text statement by statement. A node becomes a constant of its own if a statement uses it twice or if a
// line would become too long; other nodes stand where they are used. Lanes that are known to be inactive are left out.
// If that is known only at run time, a lane has a guard, a condition that protects its loads, stores and integer
// divisions.
#include "codegen/cuda/emit.h"

#include "codegen/cuda/device_text.h"
#include "codegen/cuda/emit_block.h"
#include "codegen/cuda/emit_text.h"
#include "codegen/cuda/emit_value.h"
#include "codegen/math.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace gptc {

using namespace kir;
using namespace cudaBlock;

namespace {

constexpr size_t longText = 120;
constexpr int64_t staticShared = 48 << 10;  // bytes that a kernel may declare

class TextEmitter {
public:
  TextEmitter(std::set<UnaryOp> &functions, bool &multiplies) : functions(functions), multiplies(multiplies) {}

  std::string out;
  std::string before;  // functions and constants of attention statements, to stand before the kernel

  /// A __global__ function, or a part of one: a function whose last parameter is the block. `info` has the symbol, and
  /// of a part the threads, too. A part takes all its shared memory from the launch.
  void kernel(const Kernel &k, const StmtNode &phase, CudaPhase &info, bool isPart) {
    int64_t begin, blocks;
    GPTC_CHECK(phase.kind == StmtKind::For && phase.loop == LoopKind::grid && isImm(phase.begin, &begin) &&
                   isImm(phase.extent, &blocks),
               "a phase of {} is no grid loop", k.name);
    GPTC_CHECK(blocks > 0 && blocks < int64_t(1) << 31, "{} blocks", blocks);
    info.blocks = blocks;
    symbol = info.symbol;
    int64_t sharedBytes = 0;
    placeShared(phase, sharedPlaces, sharedBytes);
    if (isPart || sharedBytes > staticShared)
      info.sharedBytes = sharedBytes;
    else
      sharedPlaces.clear();
    if (!isPart)
      info.threads = blockThreads(phase);
    threads = info.threads;
    std::string list;
    for (const Buffer &b : k.params) {
      memory[b.get()] = names.fresh(b->name);
      list += fmt::format("{}Global<{}{}> {}", list.empty() ? "" : ", ", b->written ? "" : "const ",
                          storedType(b->dtype), memory[b.get()]);
    }
    line(fmt::format("// {} blocks", blocks));
    const std::string own = isPart ? names.fresh("block") : "";
    if (isPart)
      line(fmt::format("GPTC_FUNCTION void {}({}, [[maybe_unused]] const int {}) {{", info.symbol, list, own));
    else
      line(fmt::format("GPTC_{}KERNEL({}, {})({}) {{", blocks <= fewBlocks || holdsTile(phase) ? "TILE_" : "",
                       info.symbol, threads, list));
    indent += "  ";
    line("const int thread = threadIndex();");
    if (!isPart)  // of a part the __global__ function has
      line("waitForPrevious();");
    Val v = index(begin);
    if (blocks > 1) {
      v = uniformVal(isPart ? own : "blockIndex()");
      v.bound = blocks - 1, v.narrow = true;
      v = *arithmetic64(BinaryOp::add, v, index(begin));
      v = define(v, phase.var->name, DType::i64);
    }
    vars[phase.var.get()] = std::move(v);
    body(phase.body);
    if (!isPart)
      line("letNextStart();");
    close();
  }

  void function(const CudaFunction &f) {
    std::string list;
    for (const Var &p : f.params) {
      const std::string x = names.fresh(p->name);
      vars[p.get()] = uniformVal(x);
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", typeOf(p->dtype), x);
    }
    open(fmt::format("GPTC_FUNCTION {} {}({})", typeOf(f.result->dtype), f.name, list));
    begin({f.result});
    Val v = emit(f.result);
    line(fmt::format("return {};", v.text));
    close();
  }

private:
  std::set<UnaryOp> &functions;
  bool &multiplies;                                          // there are matmuls
  llvm::DenseMap<const BufferNode *, int64_t> sharedPlaces;  // first bytes, if the launch gives the shared memory
  std::string symbol, indent;
  Names names;
  llvm::DenseMap<const BufferNode *, std::string> memory;
  llvm::DenseMap<const VarNode *, Val> vars;
  llvm::DenseMap<const ExprNode *, int> uses;  // in the current statement
  llvm::DenseMap<const ExprNode *, Val> done;
  int threads = 0;
  bool inThread = false;
  int width = 1;                        // lanes of the current vector loop
  std::vector<int> active{0};           // its lanes that may be active
  std::vector<std::string> guards{""};  // per lane: the condition under which it is active; "": always
  Touched pending;                      // memory that all threads together accessed since the last barrier

  // ---- text --------------------------------------------------------------------------------------------------------

  void line(const std::string &s) { out += indent + s + "\n"; }
  void open(const std::string &s) {
    line(s.empty() ? "{" : s + " {");
    indent += "  ";
  }
  void close() {
    indent.resize(indent.size() - 2);
    line("}");
  }

  std::string laneOf(const Val &v, int l) const {
    if (!v.scalar())
      return v.lanes[l];
    return v.stride == 0 || l == 0 ? v.text : fmt::format("({} + {})", v.text, v.stride * l);
  }

  /// Writes the value's texts as constants named after `base`, unless they are constants already.
  Val define(Val v, const std::string &base, DType t) {
    if (v.known)
      return v;
    auto constant = [&](std::string &text) {
      if (llvm::all_of(text, [](char ch) { return std::isalnum((unsigned char)ch) || ch == '_'; }))
        return;  // it is one
      std::string name = names.fresh(base);
      line(fmt::format("const {} {} = {};", typeOf(t, v.narrow), name, text));
      text = name;
    };
    if (v.scalar())
      constant(v.text);
    else
      for (int l : active)
        constant(v.lanes[l]);
    return v;
  }

  // ---- expressions -------------------------------------------------------------------------------------------------

  void countUses(const Expr &e) {
    if (uses[e.get()]++ == 0)
      for (const Expr &a : e->args)
        countUses(a);
  }
  /// Starts a statement whose expressions are `roots`.
  void begin(std::initializer_list<Expr> roots) {
    uses.clear();
    done.clear();
    for (const Expr &e : roots)
      if (e)
        countUses(e);
  }

  Val index(int64_t v) {
    Val r;
    static_cast<IndexFacts &>(r) = IndexFacts::ofConstant(v);
    r.narrow = v > INT32_MIN && v <= INT32_MAX;
    r.text = v == INT64_MIN ? "(-9223372036854775807ll - 1)" : fmt::format("{}{}", v, r.narrow ? "" : "ll");
    if (v < 0 && v != INT64_MIN)
      r.text = "(" + r.text + ")";
    r.known = v;
    return r;
  }

  Val emit(const Expr &e) {
    if (e->kind == ExprKind::IntImm) {
      switch (e->dtype) {
      case DType::i64:
        return index(e->ival);
      case DType::u32:
        return uniformVal(fmt::format("{}u", e->ival));
      case DType::pred:
        return uniformVal(e->ival ? "true" : "false");
      default:
        return uniformVal(e->ival == INT32_MIN ? "(-2147483647 - 1)"
                          : e->ival < 0        ? fmt::format("({})", e->ival)
                                               : fmt::format("{}", e->ival));
      }
    }
    if (e->kind == ExprKind::FloatImm)
      return uniformVal(literal(e->fval, e->dtype));
    if (auto it = done.find(e.get()); it != done.end())
      return it->second;
    Val v = compute(e);
    const std::string &longest = v.scalar() ? v.text : v.lanes[active.back()];
    if (!e->args.empty() && (uses[e.get()] > 1 || longest.size() > longText))
      v = define(v, "t", e->dtype);
    return done[e.get()] = v;
  }

  /// Calls `f` with the texts of the operands: once if all are uniform, else per active lane.
  template <typename F> Val lift(llvm::ArrayRef<Val> vals, F f) {
    llvm::SmallVector<std::string, 3> args;
    if (llvm::all_of(vals, [](const Val &v) { return v.uniform(); })) {
      for (const Val &v : vals)
        args.push_back(v.text);
      return uniformVal(f(args));
    }
    Val r;
    r.lanes.resize(width);
    for (int l : active) {
      args.clear();
      for (const Val &v : vals)
        args.push_back(laneOf(v, l));
      r.lanes[l] = f(args);
    }
    return r;
  }

  /// The value, with 0 in lanes whose guard is false.
  Val guarded(Val v) const {
    for (int l : active)
      if (!v.scalar() && !guards[l].empty())
        v.lanes[l] = fmt::format("({} ? {} : 0)", guards[l], v.lanes[l]);
    return v;
  }

  using Args = llvm::ArrayRef<std::string>;

  Val compute(const Expr &e) {
    llvm::SmallVector<Val, 3> a;
    for (const Expr &arg : e->args)
      a.push_back(emit(arg));
    const DType t = a.empty() ? e->dtype : e->args[0]->dtype;
    switch (e->kind) {
    case ExprKind::Var: {
      auto it = vars.find(e->var.get());
      GPTC_CHECK(it != vars.end(), "variable {} is not in scope", e->var->name);
      return it->second;
    }
    case ExprKind::Lane: {
      Val v = index(0);
      v.stride = width > 1;
      v.known.reset();
      return v;
    }
    case ExprKind::Load:
      return load(e->buffer, a[0]);
    case ExprKind::Unary:
      if (t == DType::f32 && expandMath(e->uop).result)
        functions.insert(e->uop == UnaryOp::exp_approx ? UnaryOp::exp : e->uop);
      return lift(a, [&](Args x) { return unaryText(e->uop, t, x[0]); });
    case ExprKind::Binary: {
      const bool wide = t == DType::i64 && e->bop < BinaryOp::eq;
      if (wide)
        if (std::optional<Val> r = arithmetic64(e->bop, a[0], a[1]))
          return *r;
      Val r =
          lift(a, [&](Args x) { return wide ? wrapping64(e->bop, x[0], x[1]) : binaryText(e->bop, t, x[0], x[1]); });
      const bool traps = isInt(t) && (e->bop == BinaryOp::div || e->bop == BinaryOp::rem) && !isImm(e->args[1]);
      return traps ? guarded(r) : r;
    }
    case ExprKind::Fma:
      return lift(a, [](Args x) { return fmt::format("fusedMultiplyAdd({}, {}, {})", x[0], x[1], x[2]); });
    case ExprKind::Dot4:
      return lift(a, [](Args x) { return fmt::format("dotOfBytes({}, {}, {})", x[0], x[1], x[2]); });
    case ExprKind::Select: {
      Val r = lift(a, [](Args x) { return fmt::format("({} ? {} : {})", x[0], x[1], x[2]); });
      if (e->dtype == DType::i64) {
        r.narrow = a[1].narrow && a[2].narrow;
        if (r.uniform() && a[1].natural(a[2]))
          r.bound = std::max(a[1].bound, a[2].bound);
      }
      return r;
    }
    case ExprKind::Cast:
      return cast(t, e->dtype, a[0]);
    case ExprKind::Bitcast:
      return lift(a, [&](Args x) -> std::string {
        switch (e->dtype) {
        case DType::f32:
          return fmt::format("floatOf((unsigned){})", x[0]);
        case DType::f64:
          return fmt::format("doubleOf({})", x[0]);
        default:
          return isFloat(t) ? fmt::format("({})bitsOf({})", typeOf(e->dtype), x[0])
                            : fmt::format("({}){}", typeOf(e->dtype), x[0]);
        }
      });
    case ExprKind::HReduce:
      return hreduce(*e, a[0]);
    default:
      GPTC_UNREACHABLE("symbolic expression in a kernel");
    }
  }

  /// An i64 operation on uniform and linear values, with the facts about its result. nullopt if the result is varying.
  std::optional<Val> arithmetic64(BinaryOp op, const Val &x, const Val &y) {
    if (!x.scalar() || !y.scalar())
      return std::nullopt;
    std::optional<IndexFacts> facts = combineFacts(op, x, y, y.known, width);
    if (!facts)
      return std::nullopt;
    if (x.known && y.known && x.uniform() && y.uniform())
      if (int64_t v; isImm(kir::binary(op, imm(*x.known), imm(*y.known)), &v))
        return index(v);
    Val r;
    static_cast<IndexFacts &>(r) = *facts;
    const bool ints = x.narrow && y.narrow;
    if (op == BinaryOp::max && ints && x.uniform() && y.uniform() && (x.bound >= 0 || y.bound >= 0))
      r.bound = x.natural(y) ? r.bound : INT32_MAX;
    r.narrow = r.IndexFacts::fits32(width) || (ints && (op == BinaryOp::min || op == BinaryOp::max));
    const bool natural = x.natural(y);
    if (op == BinaryOp::add && (x.multiple == 0 || y.multiple == 0)) {  // the base of one is 0
      const Val &other = x.multiple == 0 ? y : x;
      r.narrow = other.narrow && (r.uniform() || r.IndexFacts::fits32(width));
      r.text = other.narrow && !r.narrow ? "(long long)" + other.text : other.text;
      return r;
    }
    switch (op) {
    case BinaryOp::sub:
      r.narrow = ints && natural && x.uniform() && y.uniform();  // perhaps below 0
      r.text = r.narrow ? fmt::format("({} - {})", x.text, y.text) : wrapping64(op, x.text, y.text);
      break;
    case BinaryOp::add:
    case BinaryOp::mul:
      if (r.narrow || r.bound >= 0)
        r.text = fmt::format("({}{} {} {})", ints && !r.narrow ? "(long long)" : "", x.text,
                             op == BinaryOp::add ? "+" : "*", y.text);
      else
        r.text = wrapping64(op, x.text, y.text);
      break;
    case BinaryOp::div:
    case BinaryOp::rem: {
      const char *sign = op == BinaryOp::div ? "/" : "%";
      if (natural)
        r.text = fmt::format("({})({} {} {})", typeOf(DType::i64, r.narrow),
                             ints ? "(unsigned)" + x.text : "(unsigned long long)" + x.text, sign, y.text);
      else
        r.text = wrapping64(op, x.text, y.text);
      break;
    }
    case BinaryOp::min:
    case BinaryOp::max:
      r.text = ints ? fmt::format("{}({}, {})", op == BinaryOp::min ? "minimum" : "maximum", x.text, y.text)
                    : wrapping64(op, x.text, y.text);
      if (!ints && r.narrow)
        r.text = "(int)" + r.text;
      break;
    default:
      r.text = wrapping64(op, x.text, y.text);
      r.narrow = false;
    }
    return r;
  }

  Val cast(DType from, DType to, const Val &x) {
    Val r = lift({x}, [&](Args a) {
      if (to == DType::pred)
        return fmt::format("({} != 0)", a[0]);
      if (to == DType::i64 && from == DType::i32)
        return a[0];
      return fmt::format("({}){}", typeOf(to), a[0]);
    });
    if (to == DType::i64) {
      r.narrow = from == DType::i32;
      if (r.uniform() && (from == DType::u32 || from == DType::pred))
        r.bound = from == DType::u32 ? int64_t(UINT32_MAX) : 1;
    }
    return r;
  }

  // ---- memory ------------------------------------------------------------------------------------------------------

  const std::string &nameOf(const Buffer &b) const {
    auto it = memory.find(b.get());
    GPTC_CHECK(it != memory.end(), "buffer {} is not in scope", b->name);
    return it->second;
  }

  bool isUnguarded() const {
    return llvm::all_of(guards, [](const std::string &g) { return g.empty(); });
  }

  /// Whether the lanes access one aligned vector of memory.
  bool isVector(const Buffer &b, const Val &at) const {
    const int64_t bytes = width * int64_t(sizeOf(b->dtype));
    return width > 1 && int(active.size()) == width && isUnguarded() &&
           (b->storage == Storage::global || b->storage == Storage::shared) && at.scalar() && at.stride == 1 &&
           at.multiple % width == 0 && (bytes <= 16 || bytes % 16 == 0);
  }

  Val load(const Buffer &b, const Val &at) {
    const char *test = b->dtype == DType::pred ? " != 0" : "";
    auto value = [&](const std::string &raw) { return *test ? fmt::format("({}{})", raw, test) : raw; };
    if (isVector(b, at)) {
      std::string v = names.fresh("v");
      line(fmt::format("const auto {} = loadVector<{}>({}, {});", v, width, nameOf(b), at.text));
      Val r;
      for (int l = 0; l < width; ++l)
        r.lanes.push_back(value(fmt::format("{}.v[{}]", v, l)));
      return r;
    }
    return guarded(lift({at}, [&](Args a) { return value(fmt::format("load({}, {})", nameOf(b), a[0])); }));
  }

  void storeTo(const Buffer &b, const Val &at, const Val &value) {
    if (at.uniform()) {
      GPTC_CHECK(value.uniform(), "all lanes store to one element of {}", b->name);
      return line(fmt::format("store({}, {}, {});", nameOf(b), at.text, value.text));
    }
    if (isVector(b, at)) {
      auto list = [&](const Val &v) {
        std::string s;
        for (int l = 0; l < width; ++l)
          s += (l ? ", " : "") + laneOf(v, l);
        return s;
      };
      const std::string values = list(list(value).size() > longText ? define(value, "t", valueType(b)) : value);
      return line(fmt::format("storeVector<{}>({}, {}, {{{{{}}}}});", width, nameOf(b), at.text, values));
    }
    // All lanes load before any lane stores.
    const Val to = define(at, "at", DType::i64), v = define(value, "t", valueType(b));
    for (int l : active)
      line(fmt::format("{}store({}, {}, {});", guards[l].empty() ? "" : fmt::format("if ({}) ", guards[l]), nameOf(b),
                       laneOf(to, l), laneOf(v, l)));
  }

  // ---- folds -------------------------------------------------------------------------------------------------------

  /// Folds the texts by halves; each step becomes a constant.
  std::string halves(std::vector<std::string> v, BinaryOp op, DType t) {
    for (size_t n = v.size() / 2; n >= 1; n /= 2)
      for (size_t i = 0; i < n; ++i)
        v[i] = define(uniformVal(binaryText(op, t, v[i], v[i + n])), "f", t).text;
    return v[0];
  }

  Val hreduce(const ExprNode &e, const Val &at) {
    const std::string &name = nameOf(e.buffer);
    std::vector<std::string> v;
    auto element = [&](const std::string &i) {
      return define(uniformVal(fmt::format("load({}, {})", name, i)), "f", e.dtype).text;
    };
    if (e.buffer->storage == Storage::reg) {
      for (int64_t i = 0; i < e.ival; ++i)
        v.push_back(element(arithmetic64(BinaryOp::add, at, index(i))->text));
      return uniformVal(halves(v, e.bop, e.dtype));
    }
    // Every warp folds all elements: lane l takes l, l + 32, ..., then shuffles exchange values between partners. Both
    // use the value of the lower lane as the first operand, so that all lanes get the same bits.
    const int lanes = int(std::min<int64_t>(e.ival, 32));
    Val lane = uniformVal(fmt::format("(thread & {})", lanes - 1));
    lane.bound = lanes - 1, lane.narrow = true;
    lane = *arithmetic64(BinaryOp::add, lane, at);
    for (int64_t i = 0; i < e.ival; i += lanes)
      v.push_back(element(arithmetic64(BinaryOp::add, lane, index(i))->text));
    std::string mine = halves(v, e.bop, e.dtype);
    for (int m = lanes / 2; m >= 1; m /= 2) {
      std::string other = define(uniformVal(fmt::format("shuffleXor({}, {})", mine, m)), "f", e.dtype).text;
      std::string sum = binaryText(e.bop, e.dtype, mine, other);
      if (e.bop != BinaryOp::add)  // which commutes
        sum = fmt::format("(thread & {} ? {} : {})", m, binaryText(e.bop, e.dtype, other, mine), sum);
      mine = define(uniformVal(sum), "f", e.dtype).text;
    }
    return uniformVal(mine);
  }

  // ---- statements --------------------------------------------------------------------------------------------------

  void body(const std::vector<Stmt> &stmts) {
    for (const Stmt &s : stmts)
      statement(*s);
  }

  /// Must be called before each access that all threads of a block make. Writes a barrier if `next` conflicts with
  /// accesses since the last one.
  void sync(const Touched &next) {
    if (inThread)
      return;
    if (pending.clashes(next))
      barrier();
    pending.merge(next);
  }
  void barrier() {
    line("barrier();");
    pending = {};
  }
  void sync(std::initializer_list<Expr> next) {
    Touched t;
    for (const Expr &e : next)
      t.expression(e);
    sync(t);
  }

  void statement(const StmtNode &s) {
    switch (s.kind) {
    case StmtKind::Store: {
      GPTC_CHECK(inThread, "every thread of a block stores to {}", s.buffer->name);
      begin({s.index, s.value});
      Val at = emit(s.index), v = emit(s.value);
      return storeTo(s.buffer, at, v);
    }
    case StmtKind::Let: {
      sync({s.value});
      begin({s.value});
      Val v = emit(s.value);
      vars[s.var.get()] =
          s.value->args.empty() && s.value->kind != ExprKind::Load ? v : define(v, s.var->name, s.var->dtype);
      return body(s.body);
    }
    case StmtKind::Block:
      return body(s.body);
    case StmtKind::Prefetch:  // other threads hide the latency
      return;
    case StmtKind::Alloc: {
      std::string name = memory[s.buffer.get()] = names.fresh(s.buffer->name);
      const auto place = sharedPlaces.find(s.buffer.get());
      const bool isPlaced = place != sharedPlaces.end();
      line(fmt::format("GPTC_{}({}, {}, {}{});",
                       isPlaced                               ? "DYNAMIC_SHARED"
                       : s.buffer->storage == Storage::shared ? "SHARED"
                                                              : "PRIVATE",
                       storedType(s.buffer->dtype), name, s.buffer->size,
                       isPlaced ? fmt::format(", {}", place->second) : ""));
      return body(s.body);
    }
    case StmtKind::Matmul: {
      Touched touched;
      touched.statement(s);
      sync(touched);
      begin({s.begin, s.extent, s.index, s.value});
      const Val a = emit(s.begin), b = emit(s.extent), row = emit(s.index), col = emit(s.value);
      GPTC_CHECK(s.matmul->threads == threads, "{} threads multiply, of {}", s.matmul->threads, threads);
      multiplies = true;
      return line(matmulCall(*s.matmul, {nameOf(s.buffer), nameOf(s.matmul->a), nameOf(s.matmul->b), a.text, b.text,
                                         row.text, col.text, a.multiple, b.multiple}));
    }
    case StmtKind::Attention:
      return attention(s);
    case StmtKind::If:
      sync({s.value});
      begin({s.value});
      return branch(s, emit(s.value));
    case StmtKind::For:
      switch (s.loop) {
      case LoopKind::serial:
      case LoopKind::unroll:
        return serialLoop(s);
      case LoopKind::vector:
        return vectorLoop(s);
      case LoopKind::block_thread:
        return region(s);
      default:
        GPTC_UNREACHABLE("loop {} below the top level", s.var->name);
      }
    }
  }

  void attention(const StmtNode &s) {
    const AttentionTile &t = *s.attention;
    Touched touched;
    touched.statement(s);
    sync(touched);
    begin({s.begin, s.extent, s.index, s.value});
    std::vector<std::string> operands, places;
    for (const Buffer &b : t.operands)
      operands.push_back(nameOf(b));
    for (const Expr &e : {s.begin, s.extent, s.index, s.value})
      places.push_back(e ? emit(e).text : "0ll");
    GPTC_CHECK(t.threads == threads, "{} threads attend, of {}", t.threads, threads);
    for (const CudaFunction &f : attentionFunctions(t, symbol)) {
      TextEmitter e(functions, multiplies);
      e.function(f);
      before += e.out;
    }
    before += attentionConstants(t, symbol, s.value != nullptr);
    functions.insert({UnaryOp::exp, UnaryOp::log});
    if (t.softcap != 0)
      functions.insert(UnaryOp::tanh);
    line(attentionCall(t, symbol, nameOf(s.buffer), operands, places, t.head0 ? nameOf(t.head0) : ""));
  }

  void branch(const StmtNode &s, Val cond) {
    if (cond.uniform()) {
      const Touched before = pending;
      open(fmt::format("if ({})", cond.text));
      body(s.body);
      Touched after = std::exchange(pending, before);
      if (!s.orelse.empty()) {
        indent.resize(indent.size() - 2);
        open("} else");
        body(s.orelse);
      }
      pending.merge(after);
      return close();
    }
    // A varying condition: both arms are written, each for the lanes that take it.
    const std::vector<std::string> outer = guards;
    cond = define(cond, "on", DType::pred);  // what one side stores does not change it
    auto arm = [&](const std::vector<Stmt> &stmts, const char *sign) {
      std::string any;
      for (int l : active) {
        std::string own = fmt::format("{}({})", sign, cond.lanes[l]);
        guards[l] =
            define(uniformVal(outer[l].empty() ? own : fmt::format("({} && {})", outer[l], own)), "on", DType::pred)
                .text;
        any += (any.empty() ? "" : " || ") + guards[l];
      }
      open(fmt::format("if ({})", any));
      body(stmts);
      close();
      guards = outer;
    };
    arm(s.body, "");
    if (!s.orelse.empty())
      arm(s.orelse, "!");
  }

  void serialLoop(const StmtNode &s) {
    sync({s.begin, s.extent});
    begin({s.begin, s.extent});
    Val from = emit(s.begin), extent = emit(s.extent);
    if (extent.known && *extent.known <= 0)
      return;
    if (extent.known == 1) {
      vars[s.var.get()] = std::move(from);
      return body(s.body);
    }
    if (!inThread && !pending.empty())
      barrier();
    Val to = define(*arithmetic64(BinaryOp::add, from, extent), "end", DType::i64);
    Val v = uniformVal(names.fresh(s.var->name));
    v.bound = to.bound > 0 ? to.bound - 1 : to.bound;
    v.narrow = v.bound >= 0 ? to.narrow : false;
    if (s.loop == LoopKind::unroll)
      line("#pragma unroll");
    open(
        fmt::format("for ({0} {1} = {2}; {1} < {3}; ++{1})", typeOf(DType::i64, v.narrow), v.text, from.text, to.text));
    vars[s.var.get()] = std::move(v);
    body(s.body);
    if (!inThread && !pending.empty())
      barrier();
    close();
  }

  /// Writes the body for the first `lanes` lanes from `base` on. With `end`, lanes at or past it get a false guard.
  void group(const StmtNode &s, Val base, int lanes, const std::string &end = "") {
    width = s.width;
    active.resize(lanes);
    std::iota(active.begin(), active.end(), 0);
    guards.assign(width, "");
    base.stride = width > 1;
    if (base.stride)
      base.known.reset();
    for (int l : active)
      if (!end.empty())
        guards[l] = fmt::format("({} < {})", laneOf(base, l), end);
    vars[s.var.get()] = std::move(base);
    body(s.body);
    width = 1;
    active = {0};
    guards = {""};
  }

  void vectorLoop(const StmtNode &s) {
    GPTC_CHECK(inThread && width == 1, "vector loop {} around threads, or in another", s.var->name);
    const int w = s.width;
    begin({s.begin, s.extent});
    const Val from = emit(s.begin), extent = emit(s.extent);
    auto at = [&](int64_t offset) { return *arithmetic64(BinaryOp::add, from, index(offset)); };
    const int64_t whole = extent.known ? *extent.known / w : -1, rest = extent.known ? *extent.known % w : -1;
    if (whole == 1 || (whole > 1 && indexesRegisters(s))) {
      for (int64_t i = 0; i < whole; ++i)
        group(s, at(i * w), w);
    } else if (whole != 0) {
      const Val to = whole > 0 ? at(whole * w) : *arithmetic64(BinaryOp::add, from, extent);
      const Val end = define(to, "end", DType::i64);
      Val base = uniformVal(names.fresh(s.var->name));
      base.multiple = std::gcd(from.multiple, int64_t(w));
      base.bound = to.bound;
      base.narrow = to.bound >= 0 && sumOfBounds(to.bound, w) <= INT32_MAX;
      line(fmt::format("{} {} = {};", typeOf(DType::i64, base.narrow), base.text, from.text));
      open(fmt::format("for (; {0} + {1} < {2}; {0} += {3})", base.text, w - 1, end.text, w));
      group(s, base, w);
      close();
      if (whole < 0 && w > 1) {
        open(fmt::format("if ({} < {})", base.text, end.text));
        group(s, base, w, end.text);
        close();
      }
    }
    if (rest > 0)
      group(s, at(whole * w), int(rest));
  }

  /// A block_thread loop: each thread of a block runs one iteration.
  void region(const StmtNode &s) {
    Touched touched;
    touched.statement(s);
    sync(touched);
    int64_t n = 0;
    isImm(s.extent, &n);
    Val t = uniformVal("thread");
    t.bound = n - 1, t.narrow = true;
    vars[s.var.get()] = n == 1 ? index(0) : t;
    open(n == threads ? "" : n == 1 ? "if (thread == 0)" : fmt::format("if (thread < {})", n));
    inThread = true;
    body(s.body);
    inThread = false;
    close();
  }
};

/// The functions of some kernels, and what stands before them.
class CudaProgram {
public:
  void add(const Kernel &k, size_t phase, CudaPhase &info, bool isPart) {
    TextEmitter e(functions, multiplies);
    e.kernel(k, *k.body[phase], info, isPart);
    phases += "\n" + e.out;
    constants += e.before;
  }

  std::string text() {
    std::string all = "#include \"gptc_device.h\"\n";
    for (UnaryOp op : functions) {
      TextEmitter e(functions, multiplies);
      const std::string name = fmt::format("{}F32", functionOf(op));
      e.function({name, {expandMath(op).x}, expandMath(op).result});
      all += fmt::format("\n#ifndef GPTC_{0}\n#define GPTC_{0}\n{1}#endif\n", name, e.out);
    }
    if (multiplies)
      all += fmt::format("\n#ifndef GPTC_matmul\n#define GPTC_matmul\n{}#endif\n", device_text::matmul);
    if (!constants.empty())
      all += fmt::format("\n#ifndef GPTC_attention\n#define GPTC_attention\n{}#endif\n\n", device_text::attention);
    return all + constants + phases;
  }

private:
  std::set<UnaryOp> functions;
  bool multiplies = false;
  std::string phases, constants;
};

}  // namespace

CudaKernel emitCuda(const Kernel &k, const std::string &symbol) {
  CudaKernel r;
  CudaProgram program;
  for (size_t i = 0; i < k.body.size(); ++i) {
    r.phases.push_back({fmt::format("{}_p{}", symbol, i), 0, 0, 0});
    program.add(k, i, r.phases.back(), false);
  }
  r.text = program.text();
  return r;
}

CudaParts emitCudaParts(llvm::ArrayRef<const Kernel *> kernels, const std::string &symbol) {
  CudaParts r;
  CudaProgram program;
  r.phases.resize(kernels.size());
  const auto shorter = [](const Kernel *a, const Kernel *b) { return a->body.size() < b->body.size(); };
  const size_t most = (*llvm::max_element(kernels, shorter))->body.size();
  for (size_t phase = 0; phase < most; ++phase) {
    int threads = 0;
    for (const Kernel *k : kernels)
      threads = phase < k->body.size() ? std::max(threads, blockThreads(*k->body[phase])) : threads;
    for (size_t i = 0; i < kernels.size(); ++i)
      if (phase < kernels[i]->body.size()) {
        r.phases[i].push_back({fmt::format("{}_p{}_k{}", symbol, phase, i), 0, threads, 0});
        program.add(*kernels[i], phase, r.phases[i].back(), true);
      }
  }
  r.text = program.text();
  return r;
}

}  // namespace gptc
