#include "codegen/recipes/attention/attention.h"
#include "ir/ops/heads.h"
#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>

namespace gptc::attention {

using namespace kir;

double Shape::scale() const { return factor != 0 ? factor : 1.0 / std::sqrt(double(size)); }

Expr Shape::firstKey(const Expr &query) const { return window ? max(imm(0), query + (1 - window)) : imm(0); }
Expr Shape::endOfQueries(const Expr &key) const { return window ? min(imm(tokens), key + window) : imm(tokens); }
Expr Shape::withWindow(const Expr &seen, const Expr &query, const Expr &key) const {
  return window ? binary(BinaryOp::and_, seen, lt(query + -window, key)) : seen;
}

Shape shapeOf(const Op &op, unsigned qkv) {
  Shape s;
  const Type &t = op.operand(qkv)->type;
  s.batch = t.dim(0);
  s.tokens = t.dim(1);
  s.heads = op.attrs.getInt("n_head");
  s.kvHeads = op.attrs.getInt("n_kv_head", s.heads);
  if (s.kvHeads == 0)
    s.kvHeads = s.heads;
  s.ofHeads = op.attrs.getInt("of_heads");
  if (s.ofHeads == 0)
    s.ofHeads = s.heads;
  s.size = t.dim(2) / (s.heads + 2 * s.kvHeads);
  s.causal = op.attrs.getBool("causal", true);
  s.alibi = op.attrs.getBool("alibi");
  s.p = op.attrs.getFloat("p");
  s.factor = op.attrs.getFloat("scale");
  s.softcap = op.attrs.getFloat("softcap");
  s.window = op.attrs.getInt("window");
  if (s.window >= (op.is(OpKind::attention_cached) ? op.operand(1)->type.dim(-2) : s.tokens))
    s.window = 0;
  return s;
}

bool usesPairs(const Op &op, unsigned qkv, const Target &target) {
  return target.bf16Dot && op.operand(qkv)->type.dtype == DType::bf16;
}

Tile queryTile(const Target &target, const Shape &shape, bool pairs) {
  Tile largest = registerTile(target, DType::f32, pairs);
  if (shape.causal && shape.tokens <= 128)
    largest.rows = std::min(largest.rows, 8);
  return tileForRows(largest, shape.tokens);
}

const Op *onlyOp(const Op &fused, OpKind kind) {
  const Op *found = nullptr;
  for (const Op &op : *fused.body) {
    if (op.isOneOf(OpKind::constant, OpKind::yield))
      continue;
    if (found || !op.is(kind))
      return nullptr;
    found = &op;
  }
  if (!found)
    return nullptr;
  for (const Value *v : found->operands())
    if (v->def)
      return nullptr;
  // Each result is yielded once, in order.
  const Op *yield = fused.body->back();
  if (yield->numOperands() != found->numResults())
    return nullptr;
  for (unsigned i = 0; i < found->numResults(); ++i)
    if (yield->operand(i) != found->result(i))
      return nullptr;
  return found;
}

unsigned outputOf(const GroupEval &group, const Value *result) {
  for (unsigned i = 0; i < group.outputs.size(); ++i)
    if (group.output(i) == result)
      return i;
  GPTC_UNREACHABLE("a result of {} that is no output", result->def->name());
}

LoweredGroup Phases::lowered(const GroupEval &group) && {
  LoweredGroup out;
  out.kernel.name = group.kernelName();
  out.kernel.params = group.params(workspaces);
  out.kernel.body = std::move(body);
  for (const Buffer &w : workspaces)
    out.workspaceBytes.push_back(w->size * int64_t(sizeOf(w->dtype)));
  return out;
}

Buffer firstHead(const GroupEval &group, const Op &op) {
  return op.attrs.getInt("of_heads") ? group.inputs[op.operand(op.numOperands() - 1)->index] : nullptr;
}

Sight::Sight(const GroupEval &group, const Op &op, const Shape &shape) : shape(shape) {
  if (op.attrs.getBool("documents"))
    bounds = group.inputs[op.operand(ops::documentsOperand(op))->index];
}

Expr Sight::within(const Expr &row) const { return min(row, imm(shape.tokens - 1)); }

Expr Sight::bound(const Expr &b, const Expr &row, int side) const {
  const Expr own = within(row), given = load(bounds, (b * shape.tokens + own) * 2 + side);
  return side ? max(own + 1, min(given, imm(shape.tokens))) : max(imm(0), min(given, own));
}

Expr Sight::firstKey(const Expr &b, const Expr &query) const {
  const Expr first = shape.firstKey(shape.window && !shape.causal ? within(query) : query);
  return bounds ? max(bound(b, query, 0), first) : first;
}
Expr Sight::endOfKeys(const Expr &b, const Expr &query) const {
  if (shape.causal)
    return query + 1;
  if (!shape.window)
    return bounds ? bound(b, query, 1) : imm(shape.tokens);
  const Expr end = shape.endOfQueries(within(query));  // a window reaches as far to both sides
  return bounds ? min(bound(b, query, 1), end) : end;
}
Expr Sight::firstQuery(const Expr &b, const Expr &key) const {
  if (shape.causal)
    return key;
  if (!shape.window)
    return bounds ? bound(b, key, 0) : imm(0);
  const Expr first = shape.firstKey(within(key));
  return bounds ? max(bound(b, key, 0), first) : first;
}
Expr Sight::endOfQueries(const Expr &b, const Expr &key) const {
  return bounds ? min(bound(b, key, 1), shape.endOfQueries(key)) : shape.endOfQueries(key);
}

RowRanges::RowRanges(int rows)
    : rows(rows), firsts(makeBuffer("firsts", DType::i64, Storage::stack, rows)),
      ends(makeBuffer("ends", DType::i64, Storage::stack, rows)) {}

Stmt RowRanges::within(const OfRow &first, const OfRow &end, Body body) const {
  body.insert(body.begin(), serial("r", imm(rows), [&](const Expr &r) {
                return Body{store(firsts, r, first(r)), store(ends, r, end(r))};
              }));
  return alloc(firsts, {alloc(ends, std::move(body))});
}

Expr RowRanges::has(const Expr &row, const Expr &element) const {
  return binary(BinaryOp::and_, binary(BinaryOp::le, load(firsts, row), element), lt(element, load(ends, row)));
}

void RowRanges::steps(TileLoop &t, const Expr &from, const Expr &count) const {
  const int64_t perStep = t.pairs ? 2 : 1;
  auto within = [&](const Expr &element) { return max(imm(0), min(element - from, count)); };
  auto down = [&](const Expr &element) { return perStep == 1 ? element : element / imm(perStep); };
  auto up = [&](const Expr &element) { return perStep == 1 ? element : (element + 1) / imm(perStep); };
  t.sees = [=, *this](int row, const Expr &element) { return has(imm(row), element + from); };
  t.begin = down(within(load(firsts, imm(0))));
  t.beginWhole = up(within(load(firsts, imm(rows - 1))));
  t.steps = max(t.beginWhole, down(within(load(ends, imm(0)))));
  t.end = up(within(load(ends, imm(rows - 1))));
}

Places::Places(const GroupEval &group, const Op &op, const Shape &shape)
    : pos(group.inputs[op.operand(3)->index]), tokens(shape.tokens), kvHeads(shape.kvHeads), size(shape.size) {
  const Type &cache = op.operand(1)->type;
  slots = cache.rank() == 4 ? cache.dim(0) : 0;
  rows = cache.dim(-2);
}

Expr Places::row(const Expr &i) const {
  return slots ? min(load(pos, i * 2 + 1), imm(rows - 1)) : max(imm(0), min(load(pos, imm(0)), imm(rows - tokens))) + i;
}

Expr Places::head(const Expr &i, const Expr &kvHead) const {
  if (!slots)
    return kvHead * (rows * size);
  return (max(imm(0), min(load(pos, i * 2), imm(slots - 1))) * kvHeads + kvHead) * (rows * size);
}

Body Places::ifThere(const Expr &row, Body there, Body none) const {
  return slots ? Body{ifThen(lt(row, imm(0)), std::move(none), std::move(there))} : there;
}

Dropout::Dropout(GroupEval &group, const Op &anchor, unsigned first, const Shape &shape)
    : shape(shape), head0(firstHead(group, anchor)) {
  on = shape.p > 0 && anchor.numOperands() >= first + 3;
  if (!on)
    return;
  auto scalar = [&](unsigned i) { return load(group.inputs[anchor.operand(first + i)->index], imm(0)); };
  seed = scalar(0), step = scalar(1), seq0 = scalar(2), stream = group.stream(anchor);
}

Stmt Dropout::withKey(const Expr &b, const std::function<Body()> &body) {
  if (!on)
    return block(body());
  RandomKeyExpr e = randomKeyExpr(seed, step, stream, seq0 + b);
  return bindTo("key0", e.k0, [&](const Expr &k0) {
    return Body{bindTo("key1", e.k1, [&](const Expr &k1) {
      key = {k0, k1};
      if (!head0)
        return body();
      return Body{bindTo("head0", load(head0, imm(0)), [&](const Expr &e) {
        first = e;
        return body();
      })};
    })};
  });
}

Expr Dropout::packedKey() const {
  if (!on)
    return nullptr;
  auto wide = [](const Expr &e) { return cast(DType::i64, e); };
  return binary(BinaryOp::or_, wide(key.k0), binary(BinaryOp::shl, wide(key.k1), imm(32)));
}

Expr Dropout::keep(const Expr &head, const Expr &i, const Expr &j) const {
  Expr index = ((first ? first + head : head) * shape.tokens + i) * shape.tokens + j;
  return ops::dropoutKeeps(randomBitsExpr(key, index), shape.p);
}

Bias::Bias(const GroupEval &group, const Op &op, const Shape &shape)
    : shape(shape), compute(group.compute), head0(firstHead(group, op)) {}

Stmt Bias::withSlope(const Expr &head, const std::function<Body()> &body) {
  if (!shape.alibi)
    return block(body());
  const Expr ofAll = head0 ? load(head0, imm(0)) + head : head;
  return bindTo("slope", ops::alibiSlope(ofAll, shape.ofHeads, compute), [&](const Expr &e) {
    slope = e;
    return body();
  });
}

Expr Bias::inCaps(const Expr &score) const { return unary(UnaryOp::tanh, score * fimm(1 / shape.softcap, compute)); }

Expr Bias::of(const Expr &score, const Expr &uniform, const Expr &lane) const {
  return add(shape.softcap != 0 ? inCaps(score) * fimm(shape.softcap, compute) : score, uniform, lane);
}

Stmt Bias::withDerivative(const Expr &score, const Expr &uniform, const Expr &lane, const WithDerivative &body) const {
  return bindTo("caps", inCaps(score), [&](const Expr &t) {
    return body(add(t * fimm(shape.softcap, compute), uniform, lane), fma(-t, t, fimm(1, compute)));
  });
}

Expr Bias::add(const Expr &score, const Expr &uniform, const Expr &lane) const {
  if (!shape.alibi)
    return score;
  Expr distance = cast(compute, uniform) + cast(compute, lane);
  // With a causal mask keys after the query are masked, so the distance is never positive.
  return shape.causal ? fma(slope, distance, score) : fma(-slope, unary(UnaryOp::abs, distance), score);
}

Expr isHuge(const Expr &exponent) {
  const DType t = exponent->dtype;
  return binary(BinaryOp::le, fimm(t == DType::f64 ? 0x1p45 : 0x1p16, t), unary(UnaryOp::abs, exponent));
}

Stmt copyRows(const Buffer &from, const std::function<Expr(const Expr &)> &fromBase, const Buffer &to,
              const Expr &toBase, int64_t toStride, const Expr &rows, int64_t cols, int64_t paddedCols, int lanes,
              double scale) {
  return serial("i", rows, [&](const Expr &i) {
    Body out;
    if (paddedCols > cols)
      out.push_back(vectorLoop("x", imm(paddedCols), lanes, [&](const Expr &x) {
        return Body{store(to, toBase + i * toStride + x, fimm(0, to->dtype))};
      }));
    out.push_back(vectorLoop("x", imm(cols), lanes, [&](const Expr &x) {
      Expr v = load(from, fromBase(i) + x);
      return Body{store(to, toBase + i * toStride + x, scale == 1 ? v : v * fimm(scale, v->dtype))};
    }));
    return out;
  });
}

Body packTransposed(PanelPack p, int64_t size, bool pairs) {
  p.panelSteps = pairs ? ceilDiv(size, 2) : size;
  p.steps = imm(pairs ? size / 2 : size);
  if (!pairs)
    return packPanels(p);
  auto elements = [&p](const Expr &base, bool odd) {
    return [from = p.from, stride = p.colStride, base, odd](const Expr &step, const Expr &col) {
      return stepOf(true, from, base + col * stride + step * 2, 1, odd);
    };
  };
  p.element = elements(p.base, false);
  Body out = packPanels(p);
  if (size % 2) {
    p.element = elements(p.base + (size - 1), true);
    p.toBase = (p.toBase ? p.toBase : imm(0)) + size / 2 * p.width;
    p.steps = imm(1);
    for (const Stmt &s : packPanels(p))
      out.push_back(s);
  }
  return out;
}

Stmt copyPairs(const Buffer &from, const std::function<Expr(const Expr &)> &fromBase, const Buffer &to,
               int64_t toStride, const Expr &rows, int64_t cols, int lanes) {
  return serial("i", rows, [&](const Expr &i) {
    Body out = {vectorLoop("x", imm(cols / 2), lanes, [&](const Expr &x) {
      return Body{store(to, i * toStride + x, stepOf(true, from, fromBase(i) + x * 2, 1, false))};
    })};
    if (cols % 2)
      out.push_back(store(to, i * toStride + cols / 2, stepOf(true, from, fromBase(i) + (cols - 1), 1, true)));
    return out;
  });
}

Stmt copyRowPairs(const Buffer &from, const std::function<Expr(const Expr &)> &fromBase, const Buffer &to,
                  const Expr &toBase, int64_t toStride, const Expr &rows, int64_t cols, int64_t paddedCols, int lanes) {
  auto row = [&](const Expr &i, bool odd) {
    Expr at = toBase + i * toStride;
    Body out;
    if (paddedCols > cols)
      out.push_back(vectorLoop("x", imm(paddedCols), lanes,
                               [&](const Expr &x) { return Body{store(to, at + x, imm(0, DType::u32))}; }));
    out.push_back(vectorLoop("x", imm(cols), lanes, [&](const Expr &x) {
      Expr first = load(from, fromBase(i * 2) + x);
      return Body{store(to, at + x, pair(first, odd ? fimm(0) : load(from, fromBase(i * 2 + 1) + x)))};
    }));
    return out;
  };
  Expr whole = rows / imm(2);
  return block({serial("i", whole, [&](const Expr &i) { return row(i, false); }),
                ifThen(binary(BinaryOp::eq, rows % imm(2), imm(1)), row(whole, true))});
}

Stmt foldRow(const char *name, DType dtype, BinaryOp op, double start, const Expr &extent, int lanes,
             const FoldElement &element, const std::function<Body(const Expr &)> &body) {
  return foldParts(name, dtype, op, start, {{imm(0), extent, element}}, lanes, body);
}

Stmt foldParts(const char *name, DType dtype, BinaryOp op, double start, const std::vector<FoldPart> &parts, int lanes,
               const std::function<Body(const Expr &)> &body) {
  Buffer acc = makeBuffer(name, dtype, Storage::reg, lanes);
  Body all = {
      vectorLoop("j", imm(lanes), lanes, [&](const Expr &) { return Body{store(acc, lane(), fimm(start, dtype))}; })};
  for (const FoldPart &p : parts)
    all.push_back(vectorLoop("j", p.count, lanes, [&](const Expr &j) {
      return p.element(p.begin + j,
                       [&](Expr v) { return store(acc, lane(), binary(op, load(acc, lane()), std::move(v))); });
    }));
  all.push_back(bindTo(name, hreduce(acc, op), body));
  return alloc(acc, std::move(all));
}

Body fetchRow(const Buffer &from, const Expr &base, int64_t size) {
  Body out;
  for (int64_t x = 0; x < size; x += cacheLine / int64_t(sizeOf(from->dtype)))
    out.push_back(prefetch(from, base + x));
  return out;
}

Body forPanels(const Tile &tile, int64_t columns, const std::function<Body(const Expr &, const Tile &)> &body) {
  Body out;
  if (columns >= tile.cols())
    out.push_back(
        serial("d", imm(columns / tile.cols()), [&](const Expr &d) { return body(d * int64_t(tile.cols()), tile); }));
  if (int64_t left = columns % tile.cols()) {
    Tile narrow = tile;
    narrow.vecs = int(ceilDiv(left, tile.lanes));
    for (const Stmt &s : body(imm(columns - left), narrow))
      out.push_back(s);
  }
  return out;
}

}  // namespace gptc::attention
