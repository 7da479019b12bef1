// The choice recipe: choose_token, which takes the next token of each row of logits.
//
//   1. The largest logit. A greedy choice is its first id.
//   2. The weight of each id, an integer, goes to a workspace.
//   3. top-k: the logit of the last likely id is found by bisection, as its bits have the order of integers; among ids
//      of that logit the last one is found by bisection of ids. The weights of all ids behind it become 0. top-p: the
//      same, with weights in place of ids counted.
//   4. Weights are added up in slots, those in groups. The position falls into a group, a slot, an id.
//
// Sums are those of integers, which have no order: the choice depends on neither lanes nor threads. On the CPU a task
// takes a row; on CUDA a block does, and in each pass over the ids a thread takes groups of four neighbours.
#include "codegen/recipes/group_ctx.h"
#include "codegen/recipes/place.h"
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "ir/choose_token.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

#include <functional>
#include <limits>

namespace gptc {

using namespace kir;

namespace {

constexpr int64_t slots = choose_token::slots, groups = 32, slotsOfGroup = slots / groups;
constexpr int idsOfThread = 4, blockThreads = int(slots / idsOfThread);

bool matches(const Op &fused) {
  int choices = 0;
  for (const Op &op : *fused.body) {
    choices += op.def().fusion == FusionKind::choice;
    if (op.def().fusion != FusionKind::choice && !op.isOneOf(OpKind::cast, OpKind::yield, OpKind::reshape))
      return false;
  }
  return choices == 1 && fused.numResults() == 1 && fused.body->back()->operand(0)->def &&
         fused.body->back()->operand(0)->def->def().fusion == FusionKind::choice;
}

Schedule defaults(const Op &, const Target &target) {
  Schedule s;
  s.vec = target.isCuda() ? idsOfThread : 2 * target.lanes(DType::f32);
  if (target.isCuda())
    s.threads = blockThreads;
  return s;
}

std::vector<Schedule> space(const Op &, const Schedule &, const Target &) {
  return {};  // a slot is a lane of a thread
}

Expr wide(const Expr &e) { return cast(DType::i64, e); }
Expr both(const Expr &a, const Expr &b) { return binary(BinaryOp::and_, a, b); }
Expr atLeast(const Expr &a, const Expr &b) { return binary(BinaryOp::ge, a, b); }
Expr equal(const Expr &a, const Expr &b) { return binary(BinaryOp::eq, a, b); }
/// `e` where the condition holds, else 0.
Expr where(const Expr &condition, const Expr &e) { return select(condition, e, imm(0, e->dtype)); }
/// The part of `total` that a fraction stands for, downwards.
Expr partOf(const Expr &total, const Expr &fraction) {
  return cast(DType::i64, cast(DType::f64, total) * cast(DType::f64, fraction));
}

/// An integer that orders logits: of NaN the smallest, of +0 and -0 one.
Expr keyOf(const Expr &x) {
  const Expr bits = bitcast(DType::i32, x + fimm(0)), zero = imm(0, DType::i32);
  const Expr ordered =
      select(lt(bits, zero), binary(BinaryOp::xor_, bits, imm(std::numeric_limits<int32_t>::max(), DType::i32)), bits);
  return select(equal(x, x), ordered, imm(std::numeric_limits<int32_t>::min(), DType::i32));
}

class Choice {
public:
  Choice(const Op &fused, const Schedule &s, DType compute)
      : g(fused, compute), op(*fused.body->back()->operand(0)->def), logits(op.operand(0)->type), rows(logits.dim(0)),
        vocab(logits.dim(1)), cuda(s.threads > 0), width(s.vec), own(cuda ? Storage::shared : Storage::stack),
        weights(makeBuffer("weights", DType::i32, Storage::global, rows * vocab, true)) {
    GPTC_CHECK(width > 0 && (!cuda || (s.threads == blockThreads && width == idsOfThread)), "a choice by {} threads",
               s.threads);
  }

  LoweredGroup build() {
    LoweredGroup out;
    out.workspaceBytes.push_back(weights->size * int64_t(sizeOf(DType::i32)));
    out.kernel.name = g.kernelName();
    out.kernel.params = g.params({weights});
    Seq all;
    all.alloc(state);
    if (cuda)
      for (const Buffer &b : {partOfIds, partOfMost})
        all.alloc(b);
    readHow(all);
    const Expr least = fimm(-std::numeric_limits<double>::infinity());
    largest = fold(all, {BinaryOp::max, least, [&](const Expr &id) {
                           const Expr x = logit(id);
                           return select(equal(x, x), x, least);
                         }});
    Seq draw, first;
    drawOne(draw);
    takeFirst(first);
    all.add(ifThen(lt(fimm(0), temperature), draw.take(), first.take()));
    out.kernel.body.push_back(cuda ? loop(LoopKind::grid, row, imm(rows), all.take())
                                   : tasksLoop(row, rows, all.take()));
    return out;
  }

private:
  /// A sum, minimum or maximum over the ids.
  struct Term {
    BinaryOp op;
    Expr start;
    std::function<Expr(const Expr &id)> of;
  };
  enum State { low, high, total, numStates };

  GroupEval g;
  const Op &op;
  const Type &logits;
  const int64_t rows, vocab;
  const bool cuda;
  const int width;
  const Storage own;
  const Buffer weights;
  const Buffer state = makeBuffer("state", DType::i64, own, numStates);
  // What the threads of a block fold.
  const Buffer partOfIds = makeBuffer("part", DType::i64, Storage::shared, blockThreads),
               partOfMost = makeBuffer("part", DType::f32, Storage::shared, blockThreads);
  const Var row = makeVar("row");
  Expr temperature, topK, topP, count, position;  // count: ids to choose from
  Expr largest;                                   // logit

  // ---- operands

  Expr element(unsigned operand, const Expr &column) {
    Point p;
    const llvm::ArrayRef<Dim> dims = op.operand(operand)->type.dims;
    p.add(kir::ref(row), dims.take_front()).add(column, dims.take_back());
    g.setDomain(p);
    return cast(DType::f32, g.at(op.operand(operand), p));
  }
  Expr logit(const Expr &id) { return element(0, id); }
  Expr placeOf(const Expr &id) { return kir::ref(row) * vocab + id; }
  Expr weight(const Expr &id) { return wide(load(weights, placeOf(id))); }
  const std::function<Expr(const Expr &id)> weightOf = [this](const Expr &id) { return weight(id); };
  Expr now(State s) { return load(state, imm(s)); }

  void readHow(Seq &seq) {
    auto column = [&](const char *name, choose_token::Column c) { return seq.let(name, element(1, imm(c))); };
    // Of NaN 0. By way of i32, so that a GPU counts ids in 32 bits.
    auto number = [&](const char *name, choose_token::Column c) {
      const Expr whole = cast(DType::i32, min(max(element(1, imm(c)), fimm(0)), fimm(double(vocab))));
      return seq.let(name, max(wide(whole), imm(0)));
    };
    temperature = column("temperature", choose_token::temperature);
    topP = column("top_p", choose_token::topP);
    position = column("position", choose_token::position);
    topK = number("top_k", choose_token::topK);
    const Expr tokens = number("tokens", choose_token::tokens);
    count = seq.let("count", select(lt(imm(0), tokens), tokens, imm(vocab)));
  }

  // ---- passes over the ids

  /// Statements of one thread, or of the CPU, for each id; `lane()` is the id's place in a vector.
  void eachId(Seq &seq, const Expr &thread, const std::function<void(Seq &, const Expr &id)> &body) {
    auto vector = [&](const Expr &extent, const Expr &begin) {
      const Var id = makeVar("id");
      Seq one;
      body(one, kir::ref(id));
      return loop(LoopKind::vector, id, extent, one.take(), width, begin);
    };
    if (!cuda)
      return seq.add(vector(count, imm(0)));
    const Var i = makeVar("i");
    const Expr full = count / imm(slots), mine = thread * idsOfThread;
    seq.add(loop(LoopKind::serial, i, full, {vector(imm(idsOfThread), kir::ref(i) * slots + mine)}));
    const Expr rest = seq.let("rest", full * slots + mine);
    seq.add(vector(max(min(imm(idsOfThread), count - rest), imm(0)), rest));
  }

  /// Folds a term over all ids. `also`: further statements for each id, before its term is taken.
  Expr fold(Seq &seq, const Term &term, const std::function<void(Seq &, const Expr &id)> &also = nullptr) {
    const DType type = term.start->dtype;
    const Buffer acc = makeBuffer("acc", type, Storage::reg, width),
                 &part = type == DType::f32 ? partOfMost : partOfIds;
    const Var t = makeVar("t");
    Seq ofThread;
    Seq &thread = cuda ? ofThread : seq;
    thread.alloc(acc);
    thread.add(loop(LoopKind::vector, makeVar("l"), imm(width), {store(acc, lane(), term.start)}, width));
    eachId(thread, kir::ref(t), [&](Seq &one, const Expr &id) {
      if (also)
        also(one, id);
      one.add(store(acc, lane(), binary(term.op, load(acc, lane()), term.of(id))));
    });
    if (cuda) {
      thread.add(store(part, kir::ref(t), hreduce(acc, term.op)));
      seq.add(loop(LoopKind::block_thread, t, imm(blockThreads), thread.take()));
    }
    return seq.let("folded", hreduce(cuda ? part : acc, term.op));
  }

  Expr sumOf(Seq &seq, const std::function<Expr(const Expr &id)> &term,
             const std::function<void(Seq &, const Expr &id)> &also = nullptr) {
    return fold(seq, {BinaryOp::add, imm(0), term}, also);
  }

  /// Statements of one thread.
  void once(Seq &seq, std::vector<Stmt> body) {
    if (cuda)
      seq.add(loop(LoopKind::block_thread, makeVar("t"), imm(1), std::move(body)));
    else
      seq.add(body);
  }
  void set(Seq &seq, State s, const Expr &value) {
    const Expr bound = seq.let("value", value);
    once(seq, {store(state, imm(s), bound)});
  }

  // ---- the choice

  void takeFirst(Seq &seq) {
    const Expr first = fold(seq, {BinaryOp::min, imm(vocab),
                                  [&](const Expr &id) { return select(equal(logit(id), largest), id, imm(vocab)); }});
    once(seq, {choose(where(lt(first, imm(vocab)), first))});
  }

  Stmt choose(const Expr &id) {
    Point p;
    p.add(kir::ref(row), op.result(0)->type.dims);
    return g.storeOutput(0, p, cast(DType::i32, id));
  }

  void drawOne(Seq &seq) {
    weigh(seq);
    Seq likeliest, nucleus;
    exclude(likeliest, [](const Expr &) { return imm(1); }, topK);
    seq.add(ifThen(both(lt(imm(0), topK), lt(topK, count)), likeliest.take()));
    const Expr need = nucleus.let("need", max(partOf(now(total), max(topP, fimm(0))), imm(1)));
    exclude(nucleus, weightOf, need);
    seq.add(ifThen(lt(topP, fimm(1)), nucleus.take()));
    addSlots(seq);
  }

  void weigh(Seq &seq) {
    const DType i32 = DType::i32;
    auto weigh = [&](const Expr &id) {
      const Expr x = logit(id);
      const Expr part = unary(UnaryOp::exp, (x - largest) / temperature) * fimm(double(choose_token::mostWeight));
      return select(equal(x, largest), imm(choose_token::mostWeight, i32),
                    cast(i32, select(lt(x, largest), part, fimm(0))));
    };
    set(seq, total,
        sumOf(seq, weightOf, [&](Seq &one, const Expr &id) { one.add(store(weights, placeOf(id), weigh(id))); }));
  }

  /// Step 3: keeps the likeliest ids whose sum of `measure` reaches `need`, as few as it takes.
  void exclude(Seq &seq, const std::function<Expr(const Expr &id)> &measure, const Expr &need) {
    // The largest key such that ids from there on are enough.
    set(seq, low, imm(std::numeric_limits<int32_t>::min()));
    set(seq, high, wide(keyOf(largest)));
    bisect(seq, imm(32), [&](Seq &step, const Expr &from, const Expr &to) {
      const Expr middle = step.let("middle", to - (to - from) / imm(2));
      const Expr sum =
          sumOf(step, [&](const Expr &id) { return where(atLeast(wide(keyOf(logit(id))), middle), measure(id)); });
      return Range{lt(sum, need), from, middle + -1, middle, to};
    });
    const Expr last = seq.let("last", now(low));
    auto isBetter = [&](const Expr &id) { return lt(last, wide(keyOf(logit(id)))); };
    auto isLast = [&](const Expr &id) { return equal(wide(keyOf(logit(id))), last); };
    // Of the ids with this key the smallest ones.
    const Expr rest =
        seq.let("rest", need - sumOf(seq, [&](const Expr &id) { return where(isBetter(id), measure(id)); }));
    const Expr ties = sumOf(seq, [&](const Expr &id) { return where(isLast(id), imm(1)); });
    set(seq, low, where(equal(ties, imm(1)), count + -1));
    set(seq, high, count + -1);
    bisect(seq, where(lt(imm(1), ties), imm(llvm::Log2_64_Ceil(uint64_t(vocab) + 1))),
           [&](Seq &step, const Expr &from, const Expr &to) {
             const Expr middle = step.let("middle", from + (to - from) / imm(2));
             const Expr sum =
                 sumOf(step, [&](const Expr &id) { return where(both(isLast(id), atLeast(middle, id)), measure(id)); });
             return Range{lt(sum, rest), middle + 1, to, from, middle};
           });
    const Expr end = seq.let("end", now(high));
    const Expr left = sumOf(seq, weightOf, [&](Seq &one, const Expr &id) {
      const Expr stays = binary(BinaryOp::or_, isBetter(id), both(isLast(id), atLeast(end, id)));
      one.add(store(weights, placeOf(id), where(stays, load(weights, placeOf(id)))));
    });
    set(seq, total, left);
  }

  /// The range that remains if the condition holds, else the other one.
  struct Range {
    Expr condition, from, to, elseFrom, elseTo;
  };
  /// Halves the range from `low` to `high` until it is one number, at most `steps` times.
  void bisect(Seq &seq, const Expr &steps, const std::function<Range(Seq &, const Expr &from, const Expr &to)> &half) {
    Seq step;
    const Expr from = step.let("from", now(low)), to = step.let("to", now(high));
    const Range r = half(step, from, to);
    const Expr nextFrom = step.let("next", select(r.condition, r.from, r.elseFrom)),
               nextTo = step.let("next", select(r.condition, r.to, r.elseTo)), isOpen = lt(from, to);
    once(step,
         {store(state, imm(low), select(isOpen, nextFrom, from)), store(state, imm(high), select(isOpen, nextTo, to))});
    seq.add(loop(LoopKind::serial, makeVar("step"), steps, step.take()));
  }

  /// Step 4.
  void addSlots(Seq &seq) {
    const Buffer ofSlot = makeBuffer("slots", DType::i64, own, slots),
                 ofGroup = makeBuffer("groups", DType::i64, own, groups);
    seq.alloc(ofSlot);
    seq.alloc(ofGroup);
    if (cuda)
      addByThreads(seq, ofSlot);
    else
      addByLanes(seq, ofSlot);
    const Var group = makeVar("group"), s = makeVar("slot");
    const Buffer sum = makeBuffer("sum", DType::i64, Storage::reg, 1);
    Seq add;
    add.alloc(sum);
    add.add(store(sum, imm(0), imm(0)));
    add.add(loop(LoopKind::serial, s, imm(slotsOfGroup),
                 {store(sum, imm(0), load(sum, imm(0)) + load(ofSlot, kir::ref(group) * slotsOfGroup + kir::ref(s)))}));
    add.add(store(ofGroup, kir::ref(group), load(sum, imm(0))));
    seq.add(loop(cuda ? LoopKind::block_thread : LoopKind::serial, group, imm(groups), add.take()));
    const Expr all = seq.let("total", now(total)), at = seq.let("at", partOf(all, position));

    Seq find;
    const Buffer sumBefore = makeBuffer("before", DType::i64, Storage::reg, 1);
    find.alloc(sumBefore);
    find.add(store(sumBefore, imm(0), imm(0)));
    const Expr theGroup = passed(find, sumBefore, at, imm(groups), [&](const Expr &i) { return load(ofGroup, i); });
    const Expr firstSlot = find.let("first", min(theGroup, imm(groups - 1)) * slotsOfGroup);
    const Expr inGroup =
        passed(find, sumBefore, at, imm(slotsOfGroup), [&](const Expr &i) { return load(ofSlot, firstSlot + i); });
    const Expr slot = find.let("slot", firstSlot + min(inGroup, imm(slotsOfGroup - 1)));
    const Expr inSlot = passed(find, sumBefore, at, max(count - slot + (slots - 1), imm(0)) / imm(slots),
                               [&](const Expr &i) { return weight(slot + i * slots); });
    find.add(choose(where(lt(at, all), slot + inSlot * slots)));
    once(seq, find.take());
  }

  /// The number of terms, from the first on, whose sums with all before them are not above `at`; adds them to
  /// `sumBefore`.
  Expr passed(Seq &seq, const Buffer &sumBefore, const Expr &at, const Expr &extent,
              const std::function<Expr(const Expr &i)> &term) {
    const Buffer number = makeBuffer("passed", DType::i64, Storage::reg, 1),
                 sum = makeBuffer("sum", DType::i64, Storage::reg, 1);
    const Var i = makeVar("i");
    Seq one;
    seq.alloc(number);
    seq.alloc(sum);
    seq.add(store(number, imm(0), imm(0)));
    seq.add(store(sum, imm(0), load(sumBefore, imm(0))));
    const Expr next = one.let("next", load(sum, imm(0)) + term(kir::ref(i))),
               passes = one.let("passes", atLeast(at, next));
    one.add(store(sum, imm(0), next));
    one.add(store(number, imm(0), load(number, imm(0)) + select(passes, imm(1), imm(0))));
    one.add(store(sumBefore, imm(0), select(passes, next, load(sumBefore, imm(0)))));
    seq.add(loop(LoopKind::serial, i, extent, one.take()));
    return seq.let("passed", load(number, imm(0)));
  }

  void addByThreads(Seq &seq, const Buffer &ofSlot) {
    const Buffer acc = makeBuffer("acc", DType::i64, Storage::reg, idsOfThread);
    const Var t = makeVar("t");
    const Expr zero = imm(0);
    auto each = [&](const Expr &index, const Buffer &to, const Expr &value) {
      return loop(LoopKind::vector, makeVar("l"), imm(idsOfThread), {store(to, index, value)}, idsOfThread);
    };
    Seq thread;
    thread.alloc(acc);
    thread.add(each(lane(), acc, zero));
    eachId(thread, kir::ref(t),
           [&](Seq &one, const Expr &id) { one.add(store(acc, lane(), load(acc, lane()) + weight(id))); });
    thread.add(each(kir::ref(t) * idsOfThread + lane(), ofSlot, load(acc, lane())));
    seq.add(loop(LoopKind::block_thread, t, imm(blockThreads), thread.take()));
  }

  void addByLanes(Seq &seq, const Buffer &ofSlot) {
    const Var i = makeVar("i"), s = makeVar("slot"), zeroed = makeVar("slot");
    seq.add(loop(LoopKind::vector, zeroed, imm(slots), {store(ofSlot, kir::ref(zeroed), imm(0))}, width));
    Seq some;
    const Expr first = some.let("first", kir::ref(i) * slots);
    some.add(loop(LoopKind::vector, s, min(imm(slots), count - first),
                  {store(ofSlot, kir::ref(s), load(ofSlot, kir::ref(s)) + weight(first + kir::ref(s)))}, width));
    seq.add(loop(LoopKind::serial, i, (count + (slots - 1)) / imm(slots), some.take()));
  }
};

LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  return Choice(fused, s, compute).build();
}

}  // namespace

const Recipe &choiceRecipe() {
  static const Recipe recipe = {RecipeKind::choice, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc
