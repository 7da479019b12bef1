// Fusion: puts every op that runs code into a `fused` op (group), whose attribute `kind` names the recipe that makes
// one kernel of it. Constants, casts from narrow types to f32, and on CPUs `unpack` before matmuls are copied into the
// groups that use them. Reads, writes, reshapes and `return` stay outside.
//
// Groups
//   matmul     a matmul and pointwise ops on its result (bias, activation or its gradient, dropout, residual). Such ops
//              are not fused with a matmul that sums over tokens (`fold` or `init`), as its result is complete only
//              after the last block. A matmul that computes a weight's gradient takes in the bias gradient: the sum of
//              its second operand over the same tokens. Where cuBLASLt multiplies, only if the model of costs says that
//              the library's epilogue for it takes less time than to read that operand once more.
//   row        row ops and pointwise ops on one domain: residual + norm, with the sum as another result; loss and its
//              gradient
//   pointwise  pointwise and gather ops on one domain. Updates of parameters (adamw, sgd, adafactor) stay alone: the
//              working set of adamw is seven arrays already, and parameters of one shape share one kernel
//   fold       sums over the same leading dimensions, in the same blocks, that share an operand
//   row_fold   on GPUs: a row group and a fold group that both read two tensors, as the gradients of a norm do, if
//              every multiprocessor gets a block of rows and has room for two
//   row_matmul on GPUs, in functions with a cache of keys and values: a matmul of up to four rows with what follows it,
//              and with the row or pointwise group, or the attention of one token, that computes its first operand for
//              it alone. Other attention of one token is attention_split there
// All other ops form groups of their own.
//
// Algorithm
//   1. The function is a sequence of units, at first one per op. The ops of a unit are contiguous, so the sequence is
//      always an order in which the program may run.
//   2. Units grow greedily, kind by kind as listed, in order: by ops that use their results, and (row, pointwise) by
//      pointwise ops that compute their operands. An edge may lie inside a group if both ops have the same domain and
//      the user reads the operand at the current point or row (ir/access.h). Operands that an op reads at computed
//      positions, such as those of gather ops, must come from outside.
//   3. Units A and B (A first) may merge if no op between them both depends on A and is needed by B. The units between
//      them that do not depend on A move before A, the others after B. A write depends on the users of the content that
//      it replaces.
//   4. The results of a group are the values used outside (of attention ops all, but the one that a product in the
//      group reads). Its operands are in order of first use.
//
// Options, for ablation: epilogue, row, pointwise, fold, row_fold, row_matmul (default true) allow a kind of growth;
// bias (default true) allows matmuls to take in a bias or its gradient. max (default 32) bounds the ops of a group,
// except for groups of scalars, whose kernels are one task.
#include "passes/pass.h"

#include "ir/access.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "ir/quantized_cache.h"
#include "passes/analysis/cost.h"
#include "passes/analysis/fusion_groups.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"

#include <algorithm>

namespace gptc {

namespace {

struct Unit {
  std::vector<Op *> ops;
  std::optional<RecipeKind> kind;  // nullopt: the op runs no code
  Op *anchor = nullptr;            // gives the group its loc and layer
  int position = 0;                // index into the sequence
  Unit *into = nullptr;            // the unit that this one was merged into; null: none

  // For step 3, which visits many units. States have numbers here, as names would be slow.
  llvm::SmallVector<Unit *, 4> sources;     // units of the operands when this one was made; see current()
  llvm::SmallVector<unsigned, 2> contents;  // states whose content is an operand
  int state = -1;                           // the state of a read or write
  unsigned mark = 0;                        // the last merge (number) in which this unit had to come after A

  /// The unit that contains this unit's ops now.

  Unit *current() {
    Unit *u = this;
    while (u->into)
      u = u->into;
    return u;
  }
};

class Fuser {
public:
  Fuser(Function &f, const PassOptions &o, bool splitDecode)
      : f(f), options(o), maxOps(o.values.getInt("max", 32)), splitDecode(splitDecode) {}

  /// Steps 1 to 3.
  void form() {
    for (Op &op : f.body) {
      if (op.is(OpKind::constant))
        continue;  // copied to its users
      if (isFreeCast(op) || isFreeUnpack(op)) {
        copied.insert(&op);
        continue;
      }
      units.push_back(std::make_unique<Unit>());
      Unit *u = units.back().get();
      u->ops = {&op};
      u->anchor = &op;
      u->kind = recipeOf(op.kind);
      u->position = sequence.size();
      sequence.push_back(u);
      unitOf[&op] = u;
      if (op.isOneOf(OpKind::read, OpKind::write))
        u->state = stateNumber(op.state);
      for (const Value *operand : op.operands()) {
        const Value *v = source(operand);
        if (Unit *from = unitOfValue(v))
          u->sources.push_back(from);
        if (v->def && v->def->is(OpKind::read))
          u->contents.push_back(stateNumber(v->def->state));
      }
    }
    if (options.values.getBool("epilogue", true))
      growAll(RecipeKind::matmul);
    if (options.values.getBool("row", true))
      growAll(RecipeKind::row);
    if (options.values.getBool("pointwise", true))
      growAll(RecipeKind::pointwise);
    if (options.values.getBool("fold", true)) {
      if (options.values.getBool("bias", true))
        joinBiasGradients();
      joinSums();
      if (options.target && options.target->isCuda() && options.values.getBool("row_fold", true))
        joinRowsAndSums();
    }
    if (options.target && options.target->isCuda() && options.values.getBool("row_matmul", true) && splitDecode &&
        llvm::any_of(units, [](auto &u) { return u->anchor->is(OpKind::attention_cached); }))
      takeFewRows();
  }
  /// How many products were cut over k, and attentions over keys.
  int64_t products() const { return productsSplit; }
  int64_t attentions() const { return attentionsSplit; }
  /// Bias gradients beside calls of cuBLASLt, in one of two forms.
  struct BiasGradients {
    int64_t count = 0;
    double saved = 0;  // seconds by the model of costs, against the other form
  };
  const BiasGradients &biasGradients(bool inEpilogue) const { return inEpilogue ? inEpilogues : inKernels; }

  /// Step 4.
  void emit() {
    Op *end = f.body.back();
    std::vector<Op *> old;
    for (Unit *u : sequence) {
      if (!u)
        continue;
      Op *first = u->ops[0];
      if (!u->kind) {
        if (first == end)
          continue;
        first->moveBefore(end);
        giveConstantsGroups(first);
      } else {
        makeGroup(*u, end);
        old.insert(old.end(), u->ops.begin(), u->ops.end());
      }
    }
    giveConstantsGroups(end);
    for (const Op *op : copied)
      old.push_back(const_cast<Op *>(op));
    for (Op *op : old)
      op->dropOperands();
    for (Op *op : old)
      op->erase();
    for (Op *op = f.body.back(), *before; op; op = before) {
      before = op->prev();
      if (op->is(OpKind::constant))
        op->erase();
    }
  }

  /// After step 3: the group of each op that runs code.
  llvm::DenseMap<const Op *, int> groups() const {
    llvm::DenseMap<const Op *, int> numbers;
    for (const Unit *u : sequence)
      if (u && u->kind)
        for (const Op *op : u->ops)
          numbers[op] = u->position;
    return numbers;
  }

private:
  Function &f;
  const PassOptions &options;
  const int64_t maxOps;
  const bool splitDecode;
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<Unit *> sequence;  // null at positions that merges have left empty
  llvm::DenseMap<const Op *, Unit *> unitOf;
  llvm::DenseSet<const Op *> copied;  // casts and unpacks that are copied into each group that uses them
  llvm::DenseMap<const Op *, std::vector<Access>> accessMemo;
  llvm::StringMap<unsigned> stateNumbers;
  std::vector<unsigned> touched,
      written;  // by state: the last merge in which a read, use or write of it (touched), or a write, came after A
  unsigned merges = 0;
  int64_t productsSplit = 0, attentionsSplit = 0;
  BiasGradients inEpilogues, inKernels;

  Unit *unitOfOp(const Op *op) const {
    Unit *u = unitOf.lookup(op);
    return u ? u->current() : nullptr;
  }
  /// Whether the op widens a narrow type and all its users have an element expression. Groups then read the narrow
  /// value and widen it, which is exact and free beside the load. Anchors, writes and views need the wide value in
  /// memory.
  static bool isFreeCast(const Op &op) {
    return op.is(OpKind::cast) && isNarrow(op.operand(0)->type.dtype) && op.result()->type.dtype == DType::f32 &&
           !isConstant(op.operand(0)) &&
           llvm::all_of(op.result()->users(), [](const Op *user) { return bool(user->def().lower); });
  }
  /// Whether all users of an `unpack` are CPU matmuls that read their second operand in panels. If not, the unpacked
  /// matrix is made in memory.
  bool isFreeUnpack(const Op &op) const {
    if (!op.is(OpKind::unpack) || (options.target && options.target->isCuda()))
      return false;
    const Value *b = op.result();
    return !b->unused() && llvm::all_of(b->users(), [&](const Op *user) { return readsPanels(*user, b); });
  }
  /// The value that a group reads if it uses `v`: the operand of a copied op, else `v`.
  const Value *source(const Value *v) const { return v->def && copied.contains(v->def) ? v->def->operand(0) : v; }
  /// The unit that computes a value; null for arguments and constants.
  Unit *unitOfValue(const Value *v) const { return v->def ? unitOfOp(v->def) : nullptr; }

  unsigned stateNumber(llvm::StringRef name) {
    auto [it, isNew] = stateNumbers.try_emplace(name, stateNumbers.size());
    if (isNew) {
      touched.push_back(0);
      written.push_back(0);
    }
    return it->second;
  }

  const std::vector<Access> &accessOf(const Op &op) {
    auto [it, isNew] = accessMemo.try_emplace(&op);
    if (isNew)
      it->second = operandAccess(op);
    return it->second;
  }

  // ---- step 3 ----

  /// Merges two units. Returns the merged unit, or null and changes nothing if step 3 forbids it.
  Unit *tryMerge(Unit *a, Unit *b) {
    if (a->position > b->position)
      std::swap(a, b);
    const unsigned now = ++merges;
    auto stayBehind = [&](Unit *u) {
      u->mark = now;
      for (unsigned s : u->contents)  // a write must stay after the users of the content that it replaces
        touched[s] = now;
      if (u->state >= 0) {
        touched[u->state] = now;
        if (u->ops[0]->is(OpKind::write))
          written[u->state] = now;
      }
    };
    auto mustStayBehind = [&](const Unit *u) {
      if (u->state >= 0 && (u->ops[0]->is(OpKind::write) ? touched : written)[u->state] == now)
        return true;
      return llvm::any_of(u->sources, [&](Unit *source) { return source->current()->mark == now; });
    };
    stayBehind(a);
    for (unsigned s : b->contents)
      touched[s] = now;
    for (int p = a->position + 1; p < b->position; ++p)
      if (Unit *u = sequence[p]; u && mustStayBehind(u))
        stayBehind(u);
    for (Unit *source : b->sources)
      if (Unit *u = source->current(); u != a && u->mark == now)
        return nullptr;

    std::vector<Unit *> before, behind;
    for (int p = a->position + 1; p < b->position; ++p)
      if (Unit *u = sequence[p])
        (u->mark == now ? behind : before).push_back(u);
    int p = a->position, last = b->position;
    auto put = [&](Unit *u) {
      sequence[p] = u;
      u->position = p++;
    };
    for (Unit *u : before)
      put(u);
    put(a);
    for (Unit *u : behind)
      put(u);
    while (p <= last)
      sequence[p++] = nullptr;
    a->ops.insert(a->ops.end(), b->ops.begin(), b->ops.end());
    a->sources.append(b->sources.begin(), b->sources.end());
    a->contents.append(b->contents.begin(), b->contents.end());
    b->ops.clear();
    b->into = a;
    return a;
  }

  // ---- step 2 ----

  /// Whether `user` can read `v` inside a group that contains both it and the op that computes `v`.
  bool readableInside(const Op &user, const Value *v) {
    const std::vector<Access> &access = accessOf(user);
    const Type &domain = domainOf(user);
    if (!domainOf(*source(v)->def).sameShape(domain))
      return false;
    for (unsigned i = 0; i < user.numOperands(); ++i) {
      if (user.operand(i) != v || access[i] == Access::none)
        continue;
      bool full = access[i] == Access::point && v->type.sameShape(domain);
      bool row = access[i] == Access::row && v->type.rank() + 1 == domain.rank() &&
                 v->type.sameShape(domain.slice(0, domain.rank() - 1));
      if (!full && !row)
        return false;
    }
    return true;
  }

  /// Whether all edges from ops of `from` to ops of `to` may lie inside a group.
  bool edgesFit(const Unit *from, const Unit *to) {
    for (const Op *op : to->ops)
      for (const Value *v : op->operands())
        if (unitOfValue(source(v)) == from && !readableInside(*op, v))
          return false;
    return true;
  }

  /// Whether step 2 allows `u` to take in `other`, apart from edges and order.
  bool mayGrow(const Unit *u, const Unit *other) {
    const Op &op = *other->anchor;
    if (!other->kind || updatesParameter(op) || updatesParameter(*u->anchor))
      return false;
    bool pointwise = other->kind == RecipeKind::pointwise;
    bool fits = u->kind == RecipeKind::matmul
                    ? pointwise && other->ops.size() == 1 && op.def().fusion == FusionKind::pointwise
                : u->kind == RecipeKind::row ? pointwise || other->kind == RecipeKind::row
                                             : pointwise;
    if (u->kind == RecipeKind::matmul && u->anchor->operand(0)->type.dtype == DType::f8e4m3 && !joinsEights(*u, op))
      return false;
    if (u->kind == RecipeKind::matmul && addsBias(op) && !options.values.getBool("bias", true))
      return false;
    if (!fits || (!domainOf(op).isScalar() && int64_t(u->ops.size() + other->ops.size()) > maxOps))
      return false;
    return domainOf(op).sameShape(domainOf(*u->anchor));
  }

  /// Whether the op may follow a product of f8e4m3 in its group. On a GPU only the library multiplies these by tensor
  /// cores, and its calls take a factor, a bias and a residual (codegen/cublaslt_matmul.h).
  bool joinsEights(const Unit &u, const Op &op) const {
    if (!options.target || !options.target->isCuda() || op.is(OpKind::cast))
      return true;
    if (op.is(OpKind::mul)) {
      const Value *sum = u.anchor->result(), *factor = op.operand(op.operand(0) == sum ? 1 : 0);
      return u.ops.size() == 1 && factor != sum && factor->type.isScalar() && !isConstant(factor);
    }
    const bool bias = addsBias(op);
    return op.is(OpKind::add) && op.operand(0) != op.operand(1) &&
           llvm::none_of(u.ops, [&](const Op *other) { return other->is(OpKind::add) && addsBias(*other) == bias; });
  }

  /// Merges `other` into `u` if all conditions hold. `u` keeps its kind and anchor and becomes the merged unit.
  bool absorb(Unit *&u, Unit *other) {
    if (!other || other == u || !mayGrow(u, other) || !edgesFit(u, other) || !edgesFit(other, u))
      return false;
    const std::optional<RecipeKind> kind = u->kind;
    Op *anchor = u->anchor;
    Unit *merged = tryMerge(u, other);
    if (!merged)
      return false;
    merged->kind = kind;
    merged->anchor = anchor;
    u = merged;
    return true;
  }

  /// Tries every edge of the unit once. Returns whether it grew.
  bool grow(Unit *&u) {
    bool grew = false;
    for (size_t n = 0; n < u->ops.size(); ++n) {
      Op *op = u->ops[n];
      for (unsigned i = 0; i < op->numResults(); ++i) {
        llvm::SmallVector<Op *, 8> users;
        for (Op *user : op->result(i)->users())
          if (unitOfOp(user))
            users.push_back(user);
          else if (copied.contains(user))  // as if its users read the narrow value
            llvm::copy_if(user->result()->users(), std::back_inserter(users),
                          [&](Op *other) { return unitOfOp(other); });
        std::stable_sort(users.begin(), users.end(),
                         [&](Op *a, Op *b) { return unitOfOp(a)->position < unitOfOp(b)->position; });
        for (Op *user : users)
          grew |= absorb(u, unitOfOp(user));
      }
      if (u->kind != RecipeKind::matmul)
        for (Value *v : op->operands())
          grew |= absorb(u, unitOfValue(source(v)));
    }
    return grew;
  }

  /// False for matmuls that sum over tokens: those with `init` (a third operand) or `fold`.
  static bool canAnchor(const Op &op) {
    return !op.is(OpKind::matmul) || (op.numOperands() == 2 && op.attrs.getInt("fold") == 0);
  }

  void growAll(RecipeKind kind) {
    for (auto &owned : units) {
      Unit *u = owned.get();
      if (u->ops.empty() || u->kind != kind || !canAnchor(*u->anchor))
        continue;
      while (grow(u)) {
      }
    }
  }

  /// Merges the gradient of a weight (matmul with ta and `fold`) with the sum over tokens of its second operand.
  void joinBiasGradients() {
    for (auto &owned : units) {
      Unit *u = owned.get();
      if (u->ops.empty() || u->kind != RecipeKind::matmul)
        continue;
      const Op &product = *u->anchor;
      const int64_t fold = product.attrs.getInt("fold");
      if (fold == 0 || !product.attrs.getBool("ta") || product.attrs.getBool("tb") || product.attrs.getInt("batch"))
        continue;
      auto sumFor = [&](const Value *from) -> Unit * {
        for (Op *user : from->users())
          if (Unit *other = unitOfOp(user); other && user->is(OpKind::reduce_sum) && user->operand(0) == from &&
                                            !user->result()->unused() && other->ops.size() == 1 &&
                                            user->attrs.getInt("fold") == fold &&
                                            user->attrs.getInt("lead") + 1 == int64_t(from->type.rank()))
            return other;
        return nullptr;
      };
      const Value *dy = product.operand(1);
      Unit *sum = sumFor(dy);
      for (Op *user : dy->users())
        if (!sum && copied.contains(user))
          sum = sumFor(user->result());
      if (!sum)
        continue;
      const bool library = options.target && options.target->callsLibrary();
      if (library && product.numOperands() > 2)
        continue;  // the library's epilogue cannot sum where the product continues a sum
      const double more = library ? epilogueOverKernel(product, *sum->anchor) : 0;
      Op *anchor = u->anchor;
      Unit *merged = more > 0 ? nullptr : tryMerge(u, sum);
      if (merged) {
        merged->kind = RecipeKind::matmul;
        merged->anchor = anchor;
      }
      if (library) {
        BiasGradients &form = merged ? inEpilogues : inKernels;
        ++form.count;
        form.saved += merged ? -more : more;
      }
    }
  }

  /// Seconds by which cuBLASLt takes longer to sum a bias gradient in the epilogue of the weight's than a kernel takes
  /// that reads the gradient once more.
  double epilogueOverKernel(const Op &product, const Op &sum) {
    const MachineRates rates = ratesOf(*options.target);
    const double alone = costOf(product, rates).seconds - rates.launch,
                 kernel = double(source(sum.operand(0))->type.bytes()) / rates.dram + rates.launch;
    return (rates.biasGradient - 1) * alone - kernel;
  }

  /// Merges `fold` units of equal shape and blocks that share an operand.
  void joinSums() {
    auto sameSum = [](const Op &a, const Op &b) {
      return a.operand(0)->type.sameShape(b.operand(0)->type) && a.result()->type.sameShape(b.result()->type) &&
             a.attrs.getInt("fold") == b.attrs.getInt("fold");
    };
    for (auto &owned : units) {
      Unit *u = owned.get();
      for (size_t n = 0; n < u->ops.size() && u->kind == RecipeKind::fold; ++n)
        for (Value *v : llvm::SmallVector<Value *, 4>(u->ops[n]->operands()))
          for (Op *user : llvm::SmallVector<Op *, 8>(v->users())) {
            Unit *other = unitOfOp(user);
            if (!other || other == u || other->kind != RecipeKind::fold || other->position < u->position ||
                !sameSum(*u->anchor, *other->anchor) || int64_t(u->ops.size() + other->ops.size()) > maxOps ||
                !edgesFit(u, other))
              continue;
            tryMerge(u, other);
          }
    }
  }

  /// Merges `fold` units with the `row` unit that reads two tensors of theirs.
  void joinRowsAndSums() {
    for (auto &owned : units) {
      Unit *u = owned.get();
      if (u->ops.empty() || u->kind != RecipeKind::fold)
        continue;
      const Op &sum = *u->anchor;
      const Type &domain = sum.operand(0)->type;
      const int64_t fold = sum.attrs.getInt("fold");
      int64_t sums = 0;
      bool used = false;
      for (const Op *op : u->ops)
        for (unsigned i = 0; i < op->numResults(); ++i)
          sums += domain.dim(-1), used |= !op->result(i)->unused();
      if (!used || domain.rank() < 2 || (domain.rank() == 2 && domain.dim(0) == domain.dim(1)) ||
          sum.result(0)->type.rank() != 1 || domain.dim(-1) < RowFoldLimits::leastColumns ||
          sums > RowFoldLimits::mostSums || fold <= 0 || fold % RowFoldLimits::batch || domain.rows() % fold ||
          domain.rows() / fold < int64_t(options.target->processors))
        continue;
      const llvm::SmallSetVector<const Value *, 8> read = tensorsRead(*u, domain);
      Unit *with = nullptr;
      for (const Value *v : sum.operands())
        for (Op *user : v->users()) {
          Unit *other = unitOfOp(user);
          if (with || !other || other->kind != RecipeKind::row || !domainOf(*other->anchor).sameShape(domain))
            continue;
          llvm::SmallSetVector<const Value *, 8> both = tensorsRead(*other, domain);
          const int64_t shared = llvm::count_if(both, [&](const Value *t) { return read.contains(t); });
          both.insert(read.begin(), read.end());
          int64_t bytes = 0;  // of half a batch, which two blocks keep
          for (const Value *t : both)
            bytes += RowFoldLimits::batch / 2 * domain.dim(-1) * int64_t(sizeOf(t->type.dtype));
          if (shared > 1 && 2 * bytes <= options.target->processorShared)
            with = other;
        }
      if (!with || int64_t(u->ops.size() + with->ops.size()) > maxOps || !edgesFit(with, u) || !edgesFit(u, with) ||
          llvm::any_of(with->ops, [](const Op *op) { return op->def().fusion == FusionKind::gather; }))
        continue;
      Op *anchor = with->anchor;
      if (Unit *merged = tryMerge(with, u)) {
        merged->kind = RecipeKind::row_fold;
        merged->anchor = anchor;
      }
    }
  }
  /// The tensors as large as the domain that the unit reads from memory.
  llvm::SmallSetVector<const Value *, 8> tensorsRead(const Unit &u, const Type &domain) {
    llvm::SmallSetVector<const Value *, 8> all;
    for (const Op *op : u.ops)
      for (const Value *v : op->operands())
        if (v->type.sameShape(domain) && unitOfValue(source(v)) != &u)
          all.insert(source(v));
    return all;
  }

  static bool hasFewRows(const Op &product) {
    const Type &a = product.operand(0)->type;
    return product.numOperands() == 2 && !product.attrs.getInt("fold") && !product.attrs.getInt("batch") &&
           !product.attrs.getBool("ta") && product.operand(1)->type.rank() == 2 &&
           product.operand(0) != product.operand(1) && a.rows() <= RowMatmulLimits::mostRows &&
           a.dim(-1) <= RowMatmulLimits::mostColumns;
  }
  /// Whether ops of `after` read what `before` also has: results but the first, or a cast that is copied into both.
  bool readBoth(const Unit &before, const Unit &after) {
    auto isIn = [&](const Unit &u, const Op *op) { return llvm::is_contained(u.ops, op); };
    for (const Op *op : before.ops) {
      for (unsigned i = 1; i < op->numResults(); ++i)
        for (const Op *user : op->result(i)->users())
          if (isIn(after, user))
            return true;
      for (const Value *v : op->operands())
        if (v->def && copied.contains(v->def) &&
            llvm::any_of(v->users(), [&](const Op *user) { return isIn(after, user); }))
          return true;
    }
    return false;
  }
  /// Makes products of few rows row_matmul, and merges them with what computes their first operands.
  void takeFewRows() {
    for (auto &owned : units) {
      Unit *u = owned.get();
      if (u->anchor->is(OpKind::attention_cached) && u->anchor->operand(0)->type.dim(1) == 1 &&
          u->anchor->operand(1)->type.rank() == 3 && !hasQuantizedCache(*u->anchor)) {
        u->kind = RecipeKind::attention_split;
        ++attentionsSplit;
      }
      if (u->ops.empty() || u->kind != RecipeKind::matmul || !hasFewRows(*u->anchor))
        continue;
      Op *product = u->anchor;
      u->kind = RecipeKind::row_matmul;
      ++productsSplit;
      const Value *a = product->operand(0);
      Unit *before = unitOfValue(source(a));
      if (before && before->kind == RecipeKind::attention_split && source(a) == a && a->index == 0 && a->hasOneUse() &&
          !readBoth(*before, *u)) {
        if (Unit *merged = tryMerge(before, u)) {
          merged->kind = RecipeKind::row_matmul;
          merged->anchor = product;
        }
        continue;
      }
      if (!before || (before->kind != RecipeKind::row && before->kind != RecipeKind::pointwise) || source(a) != a ||
          !domainOf(*before->anchor).sameShape(a->type) || int64_t(u->ops.size() + before->ops.size()) > maxOps)
        continue;
      const bool isForIt = llvm::all_of(before->ops, [&](const Op *op) {
        const FusionKind kind = op->def().fusion;
        if (kind != FusionKind::pointwise && kind != FusionKind::row)
          return false;
        for (unsigned i = 0; i < op->numResults(); ++i)
          for (const Op *user : op->result(i)->users())
            if (user == product ? op->result(i) != a : unitOfOp(user) != before)
              return false;
        return true;
      });
      if (!isForIt || readBoth(*before, *u))
        continue;
      if (Unit *merged = tryMerge(before, u)) {
        merged->kind = RecipeKind::row_matmul;
        merged->anchor = product;
      }
    }
  }

  // ---- step 4 ----

  static bool isConstant(const Value *v) { return v->def && v->def->is(OpKind::constant); }

  /// Makes a fused op of the unit, before `before`. Its results replace the values that other ops use.
  void makeGroup(const Unit &u, Op *before) {
    llvm::DenseSet<const Op *> inside(u.ops.begin(), u.ops.end());
    llvm::MapVector<Value *, Value *> arguments;
    std::vector<Value *> escaping;
    bool used = false;
    auto body = std::make_unique<Block>();
    llvm::DenseMap<const Value *, Value *> map;
    for (Op *op : u.ops) {
      for (Value *v : op->operands()) {
        if (map.count(v))
          continue;
        if (isConstant(v) && !op->def().lower) {  // an anchor's recipe loads from memory
          map[v] = arguments[constantGroup(*v->def, before)] = body->addArg(v->type, v->name);
        } else if (isConstant(v)) {
          cloneOp(*v->def, *body, nullptr, map);
        } else {
          Value *stored = const_cast<Value *>(source(v));
          if (!map.count(stored))
            map[stored] = arguments[stored] = body->addArg(stored->type, stored->name);
          if (stored != v)
            cloneOp(*v->def, *body, nullptr, map);
        }
      }
      cloneOp(*op, *body, nullptr, map);
      for (unsigned i = 0; i < op->numResults(); ++i) {
        Value *v = op->result(i);
        auto isInside = [&](const Op *user) { return inside.contains(user); };
        if (llvm::any_of(v->users(), [&](const Op *user) {
              return copied.contains(user) ? !llvm::all_of(user->result()->users(), isInside) : !isInside(user);
            })) {
          used = true;
          escaping.push_back(v);
        } else if (op->def().fusion == FusionKind::attention && (u.kind != RecipeKind::row_matmul || i > 0)) {
          escaping.push_back(v);  // the recipe needs all results as outputs, but the one that a product reads
        }
      }
    }
    if (!used)
      return;  // dead
    Op *group = f.body.insert(OpKind::fused, before);
    setKind(*group, *u.kind);
    group->loc = u.anchor->loc;
    group->layer = u.anchor->layer;
    for (auto &[outer, inner] : arguments)
      group->addOperand(outer);
    Op *yield = body->insert(OpKind::yield);
    for (Value *v : escaping)
      yield->addOperand(map.lookup(v));
    group->body = std::move(body);
    for (Value *v : escaping) {
      Value *r = group->addResult(v->type, v->name);
      llvm::SmallVector<Op *, 8> users(v->users());
      for (Op *user : users)
        if (!inside.contains(user))
          for (unsigned i = 0; i < user->numOperands(); ++i)
            if (user->operand(i) == v)
              user->setOperand(i, r);
    }
  }

  /// Gives each constant that `user` writes, views or returns a group of its own.
  void giveConstantsGroups(Op *user) {
    for (unsigned i = 0; i < user->numOperands(); ++i)
      if (Value *v = user->operand(i); isConstant(v))
        user->setOperand(i, constantGroup(*v->def, user));
  }

  Value *constantGroup(const Op &constant, Op *before) {
    const Value *v = constant.result();
    Op *group = f.body.insert(OpKind::fused, before);
    setKind(*group, RecipeKind::pointwise);
    group->loc = constant.loc;
    group->layer = constant.layer;
    group->body = std::make_unique<Block>();
    llvm::DenseMap<const Value *, Value *> map;
    Value *inner = cloneOp(constant, *group->body, nullptr, map)->result();
    group->body->insert(OpKind::yield)->addOperand(inner);
    return group->addResult(v->type, v->name);
  }
};

}  // namespace

bool fuse(Module &m, const PassOptions &options) {
  bool changed = false;
  int64_t products = 0, attentions = 0;
  Fuser::BiasGradients inEpilogues, inKernels;  // of a step
  for (auto &f : m.functions) {
    bool open = false;
    for (Op &op : f->body)
      open |= recipeOf(op.kind).has_value();
    if (!open)
      continue;
    Fuser fuser(*f, options, fact<&CompileFacts::splitDecode>(m));
    fuser.form();
    fuser.emit();
    changed = true;
    products += fuser.products();
    attentions += fuser.attentions();
    for (bool inEpilogue : {true, false}) {
      Fuser::BiasGradients &all = inEpilogue ? inEpilogues : inKernels;
      const Fuser::BiasGradients &some = fuser.biasGradients(inEpilogue);
      all.count += some.count;
      all.saved += some.saved * callsPerStep(m, f->name);
    }
  }
  if (inEpilogues.count + inKernels.count > 0)
    record(m, {.pass = "fuse",
               .name = "bias_gradients",
               .choice = fmt::format("{} in epilogues of cuBLASLt, {} in kernels of their own", inEpilogues.count,
                                     inKernels.count),
               .rejected = {{"all in epilogues", {.ms = 1e3 * inKernels.saved}, "the call takes longer by more"},
                            {"all in kernels", {.ms = 1e3 * inEpilogues.saved}, "they read the gradient once more"}}});
  if (products + attentions > 0)
    record(m, {.pass = "fuse",
               .name = "decode",
               .choice = fmt::format("{} products cut over k, attention of {} layers over keys", products, attentions),
               .note = "a row has the same bits beside up to 3 others and on any GPU, not those of one chain over k "
                       "(compile.split_decode = false)"});
  return changed;
}

bool readsPanels(const Op &product, const Value *b) {
  return product.is(OpKind::matmul) && product.operand(1) == b && product.operand(0) != b &&
         (product.numOperands() < 3 || product.operand(2) != b) && b->type.rank() == 2 &&
         product.attrs.getInt("batch") == 0 && product.attrs.getInt("fold") == 0 &&
         (!b->def || !b->def->is(OpKind::unpack) || b->def->attrs.getBool("tb") == product.attrs.getBool("tb"));
}

bool addsBias(const Op &op) {
  return op.is(OpKind::add) && llvm::any_of(op.operands(), [](const Value *v) { return v->type.rank() == 1; });
}

llvm::DenseMap<const Op *, int> fusionGroups(Function &f) {
  const PassOptions defaults;
  Fuser fuser(f, defaults, false);
  fuser.form();
  return fuser.groups();
}

}  // namespace gptc
