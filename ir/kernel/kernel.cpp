#include "ir/kernel/kernel.h"

#include "ir/kernel/eval.h"

#include <cmath>

namespace gptc::kir {

namespace {

std::shared_ptr<ExprNode> node(ExprKind kind, DType t) {
  auto n = std::make_shared<ExprNode>();
  n->kind = kind;
  n->dtype = t;
  return n;
}

bool isFImm(const Expr &e) { return e->kind == ExprKind::FloatImm; }

Expr foldBinaryFloat(BinaryOp op, const Expr &a, const Expr &b) {
  if (isComparison(op))
    return imm(compareFloat(op, a->fval, b->fval), DType::pred);
  double v = a->dtype == DType::f32 ? double(evalFloat<float>(op, float(a->fval), float(b->fval)))
                                    : evalFloat<double>(op, a->fval, b->fval);
  return fimm(v, a->dtype);
}

/// Simplifies x+0, x*1, x*0, (x+c)+d and the like. Null if nothing applies.
Expr simplifyInt(BinaryOp op, const Expr &a, const Expr &b) {
  int64_t va = 0, vb = 0;
  bool ia = isImm(a, &va), ib = isImm(b, &vb);
  DType t = a->dtype;
  switch (op) {
  case BinaryOp::add:
    if (ia && va == 0)
      return b;
    if (ib && vb == 0)
      return a;
    if (ia)  // move constants to the right
      return binary(op, b, a);
    if (ib && a->kind == ExprKind::Binary && a->bop == BinaryOp::add && isImm(a->args[1], &va))
      return binary(op, a->args[0], imm(evalInt(BinaryOp::add, t, va, vb), t));
    return nullptr;
  case BinaryOp::sub:
    return ib && vb == 0 ? a : nullptr;
  case BinaryOp::mul:
    if ((ia && va == 0) || (ib && vb == 0))
      return imm(0, t);
    if (ia && va == 1)
      return b;
    if (ib && vb == 1)
      return a;
    if (ia)
      return binary(op, b, a);
    return nullptr;
  case BinaryOp::div:
    return ib && vb == 1 ? a : nullptr;
  case BinaryOp::rem:
    return ib && vb == 1 ? imm(0, t) : nullptr;
  case BinaryOp::shl:
  case BinaryOp::shr:
    return ib && vb == 0 ? a : nullptr;
  case BinaryOp::and_:
    if (t == DType::pred && ia)
      return va ? b : a;
    if (t == DType::pred && ib)
      return vb ? a : b;
    return nullptr;
  case BinaryOp::or_:
    if (t == DType::pred && ia)
      return va ? a : b;
    if (t == DType::pred && ib)
      return vb ? b : a;
    return nullptr;
  default:
    return nullptr;
  }
}

bool foldsExactly(UnaryOp op) {
  switch (op) {
  case UnaryOp::exp:
  case UnaryOp::exp_approx:
  case UnaryOp::exp2:
  case UnaryOp::log:
  case UnaryOp::tanh:
  case UnaryOp::sin:
  case UnaryOp::cos:
    return false;  // not folded: an emitter's polynomial may differ from libm in the last place
  default:
    return true;
  }
}

}  // namespace

UnaryOp roundingTo(DType narrow) {
  GPTC_CHECK(isNarrow(narrow), "rounding to {}", nameOf(narrow).str());
  return narrow == DType::bf16 ? UnaryOp::round_bf16 : narrow == DType::f16 ? UnaryOp::round_f16 : UnaryOp::round_e4m3;
}
std::optional<DType> roundsTo(UnaryOp op) {
  for (DType t : {DType::bf16, DType::f16, DType::f8e4m3})
    if (op == roundingTo(t))
      return t;
  return std::nullopt;
}
DType valueType(const Buffer &b) { return isNarrow(b->dtype) ? DType::f32 : b->dtype; }

bool isImm(const Expr &e, int64_t *v) {
  if (e->kind != ExprKind::IntImm)
    return false;
  if (v)
    *v = e->ival;
  return true;
}

Expr imm(int64_t v, DType t) {
  GPTC_CHECK(isInt(t), "integer immediate of type {}", nameOf(t).str());
  auto n = node(ExprKind::IntImm, t);
  n->ival = wrapInt(t, v);
  return n;
}

Expr fimm(double v, DType t) {
  GPTC_CHECK(t == DType::f32 || t == DType::f64, "float immediate of type {}", nameOf(t).str());
  auto n = node(ExprKind::FloatImm, t);
  n->fval = t == DType::f32 ? double(float(v)) : v;
  return n;
}

Expr immLike(double v, const Expr &like) {
  return isInt(like->dtype) ? imm(int64_t(v), like->dtype) : fimm(v, like->dtype);
}

Var makeVar(const std::string &name, DType t) {
  GPTC_CHECK(!isNarrow(t), "variable of storage type {}", nameOf(t).str());
  return std::make_shared<VarNode>(VarNode{name, t});
}

Expr ref(const Var &v) {
  auto n = node(ExprKind::Var, v->dtype);
  n->var = v;
  return n;
}

Expr lane() { return node(ExprKind::Lane, DType::i64); }

Expr load(const Buffer &b, Expr index) {
  GPTC_CHECK(index->dtype == DType::i64, "index into {} is {}", b->name, nameOf(index->dtype).str());
  auto n = node(ExprKind::Load, valueType(b));
  n->buffer = b;
  n->args = {std::move(index)};
  return n;
}

Expr unary(UnaryOp op, Expr a) {
  bool f = isFloat(a->dtype);
  if (op == UnaryOp::not_)
    GPTC_CHECK(!f, "not of a float");
  else if (op != UnaryOp::neg && op != UnaryOp::abs)
    GPTC_CHECK(f, "unary operator {} of an integer", int(op));
  else
    GPTC_CHECK(a->dtype != DType::pred, "arithmetic on a predicate");
  if (roundsTo(op))
    GPTC_CHECK(a->dtype == DType::f32, "rounding of {}", nameOf(a->dtype).str());
  if (a->kind == ExprKind::IntImm)
    return imm(evalUnaryInt(op, a->dtype, a->ival), a->dtype);
  if (isFImm(a) && foldsExactly(op))
    return fimm(a->dtype == DType::f32 ? double(evalUnaryFloat<float>(op, float(a->fval)))
                                       : evalUnaryFloat<double>(op, a->fval),
                a->dtype);
  auto n = node(ExprKind::Unary, a->dtype);
  n->uop = op;
  n->args = {std::move(a)};
  return n;
}

Expr binary(BinaryOp op, Expr a, Expr b) {
  GPTC_CHECK(a->dtype == b->dtype, "operands of different types: {} and {}", print(a), print(b));
  DType t = a->dtype;
  if (isFloat(t)) {
    GPTC_CHECK(op <= BinaryOp::max ? op != BinaryOp::rem : isComparison(op), "no such operator on floats: {}", int(op));
    if (isFImm(a) && isFImm(b))
      return foldBinaryFloat(op, a, b);
  } else {
    GPTC_CHECK(t != DType::pred || op == BinaryOp::and_ || op == BinaryOp::or_ || op == BinaryOp::xor_ ||
                   op == BinaryOp::eq || op == BinaryOp::ne,
               "arithmetic on a predicate");
    bool divides = op == BinaryOp::div || op == BinaryOp::rem;
    if (isImm(a) && isImm(b) && !(divides && b->ival == 0))
      return imm(evalInt(op, t, a->ival, b->ival), isComparison(op) ? DType::pred : t);
    if (Expr simple = simplifyInt(op, a, b))
      return simple;
  }
  auto n = node(ExprKind::Binary, isComparison(op) ? DType::pred : t);
  n->bop = op;
  n->args = {std::move(a), std::move(b)};
  return n;
}

Expr fma(Expr a, Expr b, Expr c) {
  GPTC_CHECK(isFloat(a->dtype) && a->dtype == b->dtype && b->dtype == c->dtype, "fma of {}, {}, {}",
             nameOf(a->dtype).str(), nameOf(b->dtype).str(), nameOf(c->dtype).str());
  if (isFImm(a) && isFImm(b) && isFImm(c))
    return fimm(a->dtype == DType::f32 ? double(std::fma(float(a->fval), float(b->fval), float(c->fval)))
                                       : std::fma(a->fval, b->fval, c->fval),
                a->dtype);
  auto n = node(ExprKind::Fma, a->dtype);
  n->args = {std::move(a), std::move(b), std::move(c)};
  return n;
}

Expr pair(Expr low, Expr high) {
  GPTC_CHECK(low->dtype == DType::f32 && high->dtype == DType::f32, "a pair of {} and {}", nameOf(low->dtype).str(),
             nameOf(high->dtype).str());
  if (isFImm(low) && isFImm(high))
    return imm(evalPair(float(low->fval), float(high->fval)), DType::u32);
  auto n = node(ExprKind::Pair, DType::u32);
  n->args = {std::move(low), std::move(high)};
  return n;
}

Expr loadPair(const Buffer &b, Expr index) {
  GPTC_CHECK(b->dtype == DType::bf16 && index->dtype == DType::i64, "a pair of {} at an index of {}",
             nameOf(b->dtype).str(), nameOf(index->dtype).str());
  auto n = node(ExprKind::LoadPair, DType::u32);
  n->buffer = b;
  n->args = {std::move(index)};
  return n;
}

Expr dot(Expr acc, Expr a, Expr b) {
  GPTC_CHECK(acc->dtype == DType::f32 && a->dtype == DType::u32 && b->dtype == DType::u32, "dot of {}, {}, {}",
             nameOf(acc->dtype).str(), nameOf(a->dtype).str(), nameOf(b->dtype).str());
  auto n = node(ExprKind::Dot, DType::f32);
  n->args = {std::move(acc), std::move(a), std::move(b)};
  return n;
}

Expr dot4(Expr acc, Expr a, Expr b) {
  GPTC_CHECK(acc->dtype == DType::i32 && a->dtype == DType::u32 && b->dtype == DType::u32, "dot4 of {}, {}, {}",
             nameOf(acc->dtype).str(), nameOf(a->dtype).str(), nameOf(b->dtype).str());
  auto n = node(ExprKind::Dot4, DType::i32);
  n->args = {std::move(acc), std::move(a), std::move(b)};
  return n;
}

Expr select(Expr cond, Expr a, Expr b) {
  GPTC_CHECK(cond->dtype == DType::pred && a->dtype == b->dtype, "select of {}, {}, {}", nameOf(cond->dtype).str(),
             nameOf(a->dtype).str(), nameOf(b->dtype).str());
  int64_t c;
  if (isImm(cond, &c))
    return c ? a : b;
  if (a == b)
    return a;
  auto n = node(ExprKind::Select, a->dtype);
  n->args = {std::move(cond), std::move(a), std::move(b)};
  return n;
}

Expr cast(DType t, Expr a) {
  if (isNarrow(t))
    return unary(roundingTo(t), cast(DType::f32, std::move(a)));
  if (a->dtype == t)
    return a;
  if (a->kind == ExprKind::IntImm) {
    if (isFloat(t))  // directly to f32: going through double would round twice
      return fimm(t == DType::f32 ? double(float(a->ival)) : double(a->ival), t);
    return imm(t == DType::pred ? a->ival != 0 : a->ival, t);
  }
  if (isFImm(a))
    return isFloat(t) ? fimm(a->fval, t) : imm(floatToInt(t, a->fval), t);
  auto n = node(ExprKind::Cast, t);
  n->args = {std::move(a)};
  return n;
}

Expr bitcast(DType t, Expr a) {
  GPTC_CHECK(!isNarrow(t) && t != DType::pred && a->dtype != DType::pred && sizeOf(t) == sizeOf(a->dtype),
             "bitcast from {} to {}", nameOf(a->dtype).str(), nameOf(t).str());
  if (a->dtype == t)
    return a;
  auto n = node(ExprKind::Bitcast, t);
  n->args = {std::move(a)};
  return n;
}

Expr hreduce(const Buffer &reg, BinaryOp op, Expr offset, int lanes) {
  GPTC_CHECK(op == BinaryOp::add || op == BinaryOp::max || op == BinaryOp::min, "fold operator {}", int(op));
  if (!offset)
    offset = imm(0);
  if (lanes == 0)
    lanes = int(reg->size);
  GPTC_CHECK(lanes > 0 && (lanes & (lanes - 1)) == 0, "fold of {} lanes of {}", lanes, reg->name);
  auto n = node(ExprKind::HReduce, valueType(reg));
  n->buffer = reg;
  n->bop = op;
  n->ival = lanes;
  n->args = {std::move(offset)};
  return n;
}

Expr reduce(BinaryOp op, ReduceAxis axis, Expr e, int64_t fold, Expr init) {
  auto n = node(ExprKind::Reduce, e->dtype);
  n->bop = op;
  n->axis = axis;
  n->fold = fold;
  n->args = {std::move(e)};
  if (init)
    n->args.push_back(std::move(init));
  return n;
}

Expr min(Expr a, Expr b) { return binary(BinaryOp::min, std::move(a), std::move(b)); }
Expr max(Expr a, Expr b) { return binary(BinaryOp::max, std::move(a), std::move(b)); }
Expr lt(Expr a, Expr b) { return binary(BinaryOp::lt, std::move(a), std::move(b)); }

Stmt loop(LoopKind kind, const Var &v, Expr extent, std::vector<Stmt> body, int width, Expr begin) {
  auto s = std::make_shared<StmtNode>();
  s->kind = StmtKind::For;
  s->loop = kind;
  s->var = v;
  s->begin = begin ? std::move(begin) : imm(0);
  s->extent = std::move(extent);
  s->body = std::move(body);
  s->width = width;
  return s;
}

Stmt store(const Buffer &b, Expr index, Expr value) {
  GPTC_CHECK(index->dtype == DType::i64, "index into {} is {}", b->name, nameOf(index->dtype).str());
  GPTC_CHECK(value->dtype == valueType(b), "store of {} to {} of {}", nameOf(value->dtype).str(), b->name,
             nameOf(b->dtype).str());
  auto s = std::make_shared<StmtNode>();
  s->kind = StmtKind::Store;
  s->buffer = b;
  s->index = std::move(index);
  s->value = std::move(value);
  return s;
}

Stmt prefetch(const Buffer &b, Expr index) {
  GPTC_CHECK(index->dtype == DType::i64, "index into {} is {}", b->name, nameOf(index->dtype).str());
  auto s = std::make_shared<StmtNode>();
  s->kind = StmtKind::Prefetch;
  s->buffer = b;
  s->index = std::move(index);
  return s;
}

Stmt let(const Var &v, Expr value, std::vector<Stmt> body) {
  GPTC_CHECK(value->dtype == v->dtype, "let {} of {} is {}", v->name, nameOf(v->dtype).str(),
             nameOf(value->dtype).str());
  auto s = std::make_shared<StmtNode>();
  s->kind = StmtKind::Let;
  s->var = v;
  s->value = std::move(value);
  s->body = std::move(body);
  return s;
}

Stmt ifThen(Expr cond, std::vector<Stmt> then, std::vector<Stmt> orelse) {
  GPTC_CHECK(cond->dtype == DType::pred, "condition is {}", nameOf(cond->dtype).str());
  auto s = std::make_shared<StmtNode>();
  s->kind = StmtKind::If;
  s->value = std::move(cond);
  s->body = std::move(then);
  s->orelse = std::move(orelse);
  return s;
}

Stmt block(std::vector<Stmt> body) {
  auto s = std::make_shared<StmtNode>();
  s->kind = StmtKind::Block;
  s->body = std::move(body);
  return s;
}

Stmt alloc(const Buffer &b, std::vector<Stmt> body) {
  auto s = std::make_shared<StmtNode>();
  s->kind = StmtKind::Alloc;
  s->buffer = b;
  s->body = std::move(body);
  return s;
}

Stmt matmul(MatmulTile t, const Buffer &c, Expr aBase, Expr bBase, Expr row0, Expr col0) {
  for (const Expr &e : {aBase, bBase, row0, col0})
    GPTC_CHECK(e->dtype == DType::i64, "a place of a matmul is {}", nameOf(e->dtype).str());
  auto s = std::make_shared<StmtNode>();
  s->kind = StmtKind::Matmul;
  s->buffer = c;
  s->begin = std::move(aBase);
  s->extent = std::move(bBase);
  s->index = std::move(row0);
  s->value = std::move(col0);
  s->matmul = std::make_shared<MatmulTile>(std::move(t));
  return s;
}

double AttentionTile::factor() const { return scale != 0 ? scale : 1 / std::sqrt(double(size)); }

int64_t AttentionTile::sharedBytes() const {
  // The layout of codegen/cuda/device/attention.cuh: tiles of rows, then the ring of two pieces and the statistics of
  // columns.
  const int64_t element = sizeOf(operands[0]->dtype), once = element == 4 ? 8 : 16;
  const int64_t row = ((size + once - 1) / once * once) * element + 16;
  const int64_t tiles = part == Part::forward ? 1 : 2, statistics = part == Part::keyGrad ? nr * 8 : 0;
  return tiles * rows() * row + stages * (2 * nr * row + statistics);
}

Stmt attention(AttentionTile t, const Buffer &room, Expr tile, Expr sequence, Expr head, Expr key,
               std::vector<Stmt> meaning) {
  for (const Expr &e : {tile, sequence, head, key})
    GPTC_CHECK(!e || e->dtype == DType::i64, "a place of attention is {}", nameOf(e->dtype).str());
  auto s = std::make_shared<StmtNode>();
  s->kind = StmtKind::Attention;
  s->buffer = room;
  s->begin = std::move(tile);
  s->extent = std::move(sequence);
  s->index = std::move(head);
  s->value = std::move(key);
  s->body = std::move(meaning);
  s->attention = std::make_shared<AttentionTile>(std::move(t));
  return s;
}

Buffer makeBuffer(const std::string &name, DType t, Storage s, int64_t size, bool written) {
  GPTC_CHECK(size > 0, "buffer {} of {} elements", name, size);
  auto b = std::make_shared<BufferNode>();
  b->name = name;
  b->dtype = t;
  b->storage = s;
  b->size = size;
  b->written = written;
  return b;
}

}  // namespace gptc::kir
