// Keeps weights in panels: in a step of training as copies, written once per step, for matmuls that would otherwise
// pack them each time; where nothing is trained in place of the weights, in the order in which products read memory.
//
// In training, on CPUs a matmul (here: product) copies its second operand into panels before it multiplies. If
// gradients accumulate, the products of many micro-batches pack the same weight. A copy in panels, a state of kind
// "packed", saves this work. It costs memory and one write per step. The forward product (AB) and the gradient of its
// input (AB') need different panels.
//
//   1. Uses: matmuls of more than 4 rows whose second operand is the content of a state when the function begins: a
//      parameter, its low copy, or its whole if ranks have pieces. A weight that is gathered at its use (ZeRO stage 3)
//      is none. bf16 needs a CPU that multiplies pairs (Target::bf16Dot), and f16 is excluded: panels in memory keep
//      the dtype, but those products widen to f32 as they pack.
//   2. Uses of one state with equal tb share a copy. Its panels are as wide as the register tiles of the products.
//   3. A copy pays if the packing that it saves in a step takes more than twice as long as writing it; the factor
//      allows for errors of the estimate. With the module attribute `pack_weights` true all are made, with false none.
//   4. No copy is made if memory is short: if the module attribute `remat` holds a budget, or if the states would take
//      more than half of the available memory.
//   5. Chosen uses read an `unpack` of the copy, which `fuse` copies into their groups. Functions that write the state
//      end by writing its panels. The runtime fills them after initialising and loading; no checkpoint holds them.
//
// In modules that write no parameter (sampling, serving):
//
//   6. A weight, or a rank's part of it along "tensor", is kept in panels if all that read it, or its low copy, are
//      matmuls of any number of rows, with equal tb, in f32 or bf16. They read panels of what they read before. The
//      weight is then in files alone, and loading packs it; a low copy goes. So memory stays as it is, and a sampled
//      token reads weights at the full rate. With the module attribute `pack_weights` false weights stay matrices.
//
// No sum changes its order, so the bits stay. Runs on the joint graph, after the passes that make low and whole copies
// and before fuse.
//
// Options: all, as if pack_weights were true; cols, the width of panels, for tests; available, bytes of memory.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/cost.h"
#include "passes/analysis/fusion_groups.h"
#include "passes/analysis/liveness.h"
#include "passes/analysis/parameters.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

#include <map>

namespace gptc {

namespace {

/// Products of at most so many rows stream their second operand instead of packing it (recipes/matmul/few_rows.cpp).
constexpr int64_t fewRows = 4;

/// Rows of the result.
int64_t rowsOf(const Op &product) {
  const Type &a = product.operand(0)->type;
  return product.attrs.getBool("ta") ? a.dim(-1) : a.elements() / a.dim(-1);
}

/// A copy pays if it saves more than this multiple of the time to write it.
constexpr double margin = 2;

struct Copy {
  State *of;
  bool tb;
  Type type;
  std::vector<Op *> uses;
  Type read;                       // what they read
  double written = 0, spared = 0;  // seconds per step: to write the copy, and of the packing that it saves
  double products = 0;             // calls of its uses per step
  bool pays() const { return spared > margin * written; }
  double bytes() const { return double(alignedBytes(type)); }
};

class PackWeights {
public:
  PackWeights(Module &m, const PassOptions &options)
      : m(m), target(options.target), cols(options.values.getInt("cols")),
        available(options.values.getInt("available")) {}

  /// Steps 1 to 3, up to the choice.
  void findCopies() {
    std::map<std::pair<std::string, bool>, std::vector<Op *>> found;
    std::vector<std::pair<std::string, bool>> order;
    for (const auto &f : m.functions) {
      llvm::StringSet<> written;
      for (Op &op : f->body) {
        if (op.is(OpKind::write))
          written.insert(op.state);
        if (op.is(OpKind::read) && written.contains(op.state))
          changing.insert(op.state);
        if (State *s = op.is(OpKind::matmul) ? weightOf(op) : nullptr) {
          const std::pair key(s->name, op.attrs.getBool("tb"));
          if (found[key].empty())
            order.push_back(key);
          found[key].push_back(&op);
        }
      }
    }
    for (const auto &key : order)
      if (!changing.contains(key.first))
        addCopy(*m.state(key.first), key.second, found[key]);
  }

  /// Step 6, whole. Returns how many weights are in panels.
  int64_t replaceMatrices() {
    std::map<std::string, std::vector<Op *>> readers;  // by parameter; null: a reader that needs the matrix
    std::vector<State *> order;
    for (const auto &f : m.functions)
      for (Op &op : f->body) {
        State *p = op.is(OpKind::read) ? parameterOf(m, m.state(op.state)) : nullptr;
        if (!p || hasFact<&StateFacts::cutData>(*p))
          continue;
        if (!llvm::is_contained(order, p))
          order.push_back(p);
        for (Op *user : op.result()->users())
          readers[p->name].push_back(readsPanels(*user, op.result()) ? user : nullptr);
      }
    int64_t done = 0;
    for (State *p : order)
      done += replaceMatrix(*p, readers[p->name]);
    return done;
  }

  std::vector<Copy> copies;
  std::string why;  // the reason why some weight can have no copy

  /// Bytes of all states, the chosen copies included.
  int64_t statesWith(llvm::ArrayRef<const Copy *> chosen) const {
    int64_t bytes = 0;
    for (const auto &s : m.states)
      bytes += alignedBytes(s->type);
    for (const Copy *c : chosen)
      bytes += alignedBytes(c->type);
    return bytes;
  }

  /// Step 4.
  bool memoryIsShort(llvm::ArrayRef<const Copy *> chosen) const {
    const std::string remat = fact<&CompileFacts::remat>(m).value_or("auto");
    return (remat != "auto" && remat != "none") || (available && statesWith(chosen) > available / 2);
  }

  /// Step 5.
  void make(const Copy &c) {
    State *s = addState(m, (c.tb ? "turned." : "panels.") + c.of->name, c.type, StateKind::packed);
    setFact<&StateFacts::of>(*s, c.of->name);
    if (c.tb)
      setFact<&StateFacts::tb>(*s, true);
    llvm::DenseMap<const Op *, Value *> unpacked;  // the read of the state -> the `unpack` that replaces it
    for (Op *product : c.uses) {
      Op *read = product->operand(1)->def;
      Value *&b = unpacked[read];
      if (!b) {
        Builder builder(*product->parent(), read->next());
        builder.loc = s->name;
        b = builder.op(OpKind::unpack, {builder.read(*s)}, {c.read}, turned(c))->result();
      }
      product->setOperand(1, b);
    }
    for (auto &[read, b] : unpacked)
      if (read->result()->unused())
        const_cast<Op *>(read)->erase();
    for (const auto &f : m.functions) {
      Op *write = nullptr;
      for (Op &op : f->body)
        if (op.is(OpKind::write) && op.state == c.of->name)
          write = &op;
      if (!write)
        continue;
      // At the end of the function, so that all packing is one sweep over the weights, like the updates before it.
      Builder builder(f->body, f->body.back());
      builder.loc = s->name;
      const int64_t width = c.type.dim(2) / stepOfPanels(c.type.dtype);
      AttrMap how = turned(c);
      how.set("cols", width);
      builder.write(*s, builder.value(OpKind::pack, {write->operand(0)}, std::move(how)));
    }
  }

private:
  Module &m;
  const Target *target;
  const int64_t cols, available;
  llvm::StringSet<> changing;  // states that some function reads after writing them

  bool replaceMatrix(State &p, llvm::ArrayRef<Op *> products) {
    if (products.empty() || llvm::is_contained(products, nullptr) || p.type.dtype != DType::f32 || isQuantized(p))
      return false;
    const bool tb = products[0]->attrs.getBool("tb");
    const Type &read = products[0]->operand(1)->type;
    if (read.dtype != DType::f32 && read.dtype != DType::bf16)
      return false;
    int64_t rows = 0;
    for (const Op *product : products) {
      if (product->attrs.getBool("tb") != tb || product->operand(1)->type != read)
        return false;
      rows = std::max(rows, rowsOf(*product));
    }
    const std::optional<Type> type = panelsOf(read, widthOf(rows, read.dim(tb ? 0 : 1)), tb);
    if (!type)
      return false;
    State *low = nullptr;
    for (const auto &s : m.states)
      if (kindOf(*s) == StateKind::low && fact<&StateFacts::of>(*s) == p.name)
        low = s.get();
    make({.of = &p, .tb = tb, .type = *type, .uses = products.vec(), .read = read});
    setFact<&StateFacts::memory>(p, Memory::files);
    if (low)
      llvm::erase_if(m.states, [&](const auto &s) { return s.get() == low; });
    return true;
  }

  /// Whether others read it in few bits: loading fills one of both.
  bool isQuantized(const State &p) const {
    return llvm::any_of(m.states, [&](const auto &s) {
      return kindOf(*s) == StateKind::quantized && fact<&StateFacts::of>(*s) == p.name;
    });
  }

  int64_t widthOf(int64_t rows, int64_t columns) const {
    return cols ? cols : target ? tileColumns(*target, rows, columns) : 0;
  }

  static AttrMap turned(const Copy &c) { return c.tb ? attrs({{"tb", true}}) : AttrMap(); }

  /// The state whose content this product packs, if panels may replace it; else null. Sets `why` if that has a reason
  /// worth telling.
  State *weightOf(const Op &product) {
    const Value *b = product.operand(1);
    State *s = b->def && b->def->is(OpKind::read) ? m.state(b->def->state) : nullptr;
    const std::optional<StateKind> kind = s ? kindOf(*s) : std::nullopt;
    const bool gathered = b->def && b->def->is(OpKind::all_gather);
    if ((kind != StateKind::param && kind != StateKind::low && kind != StateKind::whole) || !readsPanels(product, b)) {
      if (gathered)
        why = "ranks gather weights where they use them (ZeRO stage 3)";
      return nullptr;
    }
    if (rowsOf(product) <= fewRows)
      return nullptr;
    if (b->type.dtype == DType::f16 || (b->type.dtype == DType::bf16 && target && !target->bf16Dot)) {
      why = fmt::format("products of {} widen it as they pack{}", nameOf(b->type.dtype).str(),
                        b->type.dtype == DType::bf16 ? ": this CPU has no dot products of it" : "");
      return nullptr;
    }
    return s;
  }

  void addCopy(State &s, bool tb, std::vector<Op *> uses) {
    const std::optional<Type> type = panelsOf(s.type, widthOf(rowsOf(*uses[0]), s.type.dim(tb ? 0 : 1)), tb);
    if (!type)
      return;
    Copy c{.of = &s, .tb = tb, .type = *type, .uses = std::move(uses), .read = s.type};
    if (target) {
      const MachineRates rates = ratesOf(*target);
      for (const Op *product : c.uses) {
        const double calls = callsPerStep(m, functionOf(*product));
        c.products += calls;
        c.spared += calls * packingSeconds(*product, rates);
      }
      const double bytes = double(s.type.bytes() + c.type.bytes());
      c.written = bytes / (bytes <= rates.cacheBytes ? rates.cache : rates.dram) + rates.launch;
    }
    copies.push_back(std::move(c));
  }

  llvm::StringRef functionOf(const Op &op) const {
    for (const auto &f : m.functions)
      if (&f->body == op.parent())
        return f->name;
    return "";
  }
};

Effect effectOf(llvm::ArrayRef<const Copy *> copies) {
  Effect e;
  for (const Copy *c : copies) {
    e.memory += c->bytes();
    e.traffic += double(c->of->type.bytes() + c->type.bytes());
    e.ms += 1e3 * (c->written - c->spared);
  }
  return e;
}

Effect reversed(const Effect &e) { return {-e.memory, -e.traffic, -e.ms}; }

std::string countOf(llvm::ArrayRef<const Copy *> copies) {
  const auto turned = llvm::count_if(copies, [](const Copy *c) { return c->tb; });
  return copies.empty() ? "none" : fmt::format("{} copies for AB, {} for AB'", int64_t(copies.size()) - turned, turned);
}

}  // namespace

bool packWeights(Module &m, const PassOptions &options) {
  const std::optional<bool> wish = fact<&CompileFacts::packWeights>(m);
  const bool all = options.values.getBool("all") || wish == true;
  if (wish == false || (!options.target && !all) || llvm::any_of(m.states, [](const auto &s) {
        return kindOf(*s) == StateKind::packed;  // done
      }))
    return false;
  PackWeights pass(m, options);
  const bool cuda = options.target && options.target->isCuda();
  if (!cuda && options.target && trainsNothing(m)) {
    const bool erased = eraseUnusedReads(m);
    const int64_t count = pass.replaceMatrices();
    if (count)
      record(m, {.pass = "pack-weights",
                 .name = "panels",
                 .choice = fmt::format("{} weight{}", count, count == 1 ? "" : "s"),
                 .note = "in place of matrices: products read memory in order"});
    return erased || count > 0;
  }
  if (!cuda)
    pass.findCopies();
  if (pass.copies.empty()) {
    if (wish && all)
      throw UserError(ErrorCode::NotBuiltYet,
                      fmt::format("no weight can be kept in panels: {}",
                                  cuda                ? "tensor cores read weights as they are"
                                  : !pass.why.empty() ? pass.why
                                                      : "no product of more than a few rows reads one"),
                      "compile.pack_weights = \"auto\" packs where that is possible and pays");
    return false;
  }
  std::vector<const Copy *> chosen, others;
  for (const Copy &c : pass.copies)
    (all || c.pays() ? chosen : others).push_back(&c);
  Decision d{.pass = "pack-weights", .name = "panels"};
  std::string why = "spares less than twice the time that writing takes";
  if (!all && !chosen.empty() && pass.memoryIsShort(chosen)) {
    why = "memory is what is short";
    others.insert(others.begin(), chosen.begin(), chosen.end());
    chosen.clear();
  }
  d.choice = countOf(chosen);
  d.effect = effectOf(chosen);
  if (!chosen.empty()) {
    double products = 0;
    for (const Copy *c : chosen)
      products += c->products;
    d.note = fmt::format("written once per step for {:.0f} products", products);
    d.rejected.push_back({"none", reversed(d.effect), all ? "compile.pack_weights" : "slower"});
  }
  if (!others.empty())
    d.rejected.push_back({countOf(others), effectOf(others), why});
  for (const Copy *c : chosen)
    pass.make(*c);
  record(m, d);
  return true;
}

}  // namespace gptc
