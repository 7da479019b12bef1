// Keeps the weights of products in 8 or 4 bits (ir/quantized.h), in modules that train nothing: reading weights is
// what sampling spends its time on.
//
//   1. Products: matmuls without `ta`, batch, fold and beginning whose second operand is a parameter or its low copy, a
//      matrix of blocks of 32 along K. Others stay as they are. Ranks along "tensor" have blocks of their parts, which
//      must be blocks of the whole in the format that the whole would have.
//   2. With 4 bits the classifier, which is in no layer, has 8: its errors are those of the result. So have parameters
//      with the fact `eight_bits`, and with q4_k those that are no blocks of 256 along K.
//   3. Each becomes a quantized_matmul, which reads two states of kind `quantized`, with q4_k three. Products of one
//      parameter share them if they have the same `tb`; of two orientations the first one is taken.
//   4. A table that is multiplied and looked up (tied embeddings: [V,C], `tb`) is there once if nothing else reads it:
//      each `embedding` of it becomes a quantized_embedding, which reads the same states. What is only looked up stays.
//   5. A parameter that nothing else reads is in files alone: loading makes the numbers and scales of what it reads
//      there. A low copy that nothing reads goes.
//
// Results change: both operands of products are rounded, and so are the rows of tied tables. Runs on the joint graph,
// after the passes that make low copies and pieces and before fuse. Does nothing in a module that writes parameters,
// and without the module attribute `weights`.
//
// Options: all, as if `weights` were q8_0; cols, the columns of a panel, for tests.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "ir/quantized.h"
#include "passes/analysis/liveness.h"
#include "passes/analysis/parameters.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

namespace gptc {

namespace {

/// Columns of a panel: two vectors of 64 bytes.
constexpr int64_t usualColumns = 32;

class QuantizeWeights {
public:
  QuantizeWeights(Module &m, Weights weights, int64_t cols) : m(m), weights(weights), cols(cols) {}

  bool run() {
    for (const auto &f : m.functions)
      for (Op *op = f->body.front(), *next; op; op = next) {
        next = op->next();
        if (op->is(OpKind::matmul))
          visit(*op);
      }
    if (chosen.empty())
      return false;
    lookUpInBlocks();
    removeUnread();
    record(m, {.pass = "quantize-weights",
               .name = "weights",
               .choice = choiceOf(),
               .effect = {.memory = memory},
               .note = noteOf()});
    return true;
  }

private:
  struct Chosen {
    bool tb;
    QuantFormat format;
    State *numbers, *scales, *supers;  // supers: of q4_k, else null
  };
  Module &m;
  const Weights weights;
  const int64_t cols;
  llvm::StringMap<Chosen> chosen;  // by parameter
  llvm::StringSet<> left;          // parameters of products that stay
  double memory = 0;
  std::string why;                   // a reason for a product that stays
  std::vector<std::string> widened;  // parameters that have 8 bits because they are no blocks of 256
  std::vector<std::string> tables;   // parameters whose look-ups read the blocks

  void visit(Op &op) {
    const Op *read = op.operand(1)->def;
    State *p = read && read->is(OpKind::read) ? parameterOf(m, m.state(read->state)) : nullptr;
    if (!p)
      return;
    const bool tb = op.attrs.getBool("tb");
    const QuantFormat format = formatFor(*p, p->type, op.layer, tb);
    const auto type = quantizedType(p->type, cols, tb, format);
    const auto known = chosen.find(p->name);
    std::string problem;
    if (op.attrs.getBool("ta") || op.attrs.getInt("batch") || op.attrs.getInt("fold") || op.numOperands() > 2)
      problem = "they are no plain products";
    else if (hasFact<&StateFacts::cutData>(*p))
      problem = "ranks have pieces of them";
    else if (!type)
      problem = fmt::format("{} has no blocks of {} along its inputs", p->name, quantBlock);
    else if (op.operand(0)->type.padded(-1) != op.operand(0)->type.dim(-1))
      problem = "their inputs are padded";
    else if (known != chosen.end() && known->second.tb != tb)
      problem = fmt::format("{} is read along both dimensions", p->name);
    if (problem.empty() || !type)
      requireWholeBlocks(*p, op.layer, tb, type ? std::optional(format) : std::nullopt);
    if (!problem.empty()) {
      left.insert(p->name);
      why = problem;
      return;
    }
    if (known == chosen.end()) {
      add(*p, tb, format, *type);
      if (isWidened(*p, op.layer, format))
        widened.push_back(p->name);
    }
    replace(op, OpKind::quantized_matmul, op.operand(0), chosen.find(p->name)->second, {});
  }

  /// The format of a parameter of this type, which may be that of a part.
  QuantFormat formatFor(const State &p, const Type &type, int64_t layer, bool tb) const {
    if (weights == Weights::q8_0 || layer < 0 || fact<&StateFacts::eightBits>(p))
      return QuantFormat::q8_0;
    if (weights == Weights::q4_0)
      return QuantFormat::q4_0;
    return quantizedType(type, cols, tb, QuantFormat::q4_k) ? QuantFormat::q4_k : QuantFormat::q8_0;
  }

  /// Throws UserError(ShapeMismatch) if the whole of a rank's part would be in another format than `ofPart` (nullopt:
  /// in none), as the borders between ranks would fall into blocks.
  void requireWholeBlocks(const State &p, int64_t layer, bool tb, std::optional<QuantFormat> ofPart) const {
    const Type whole = wholeType(p);
    const QuantFormat format = formatFor(p, whole, layer, tb);
    if (ofPart == format || !quantizedType(whole, cols, tb, format))
      return;
    const int64_t inputs = whole.dim(tb ? 1 : 0), own = p.type.dim(tb ? 1 : 0);
    throw UserError(ErrorCode::ShapeMismatch,
                    fmt::format("{} inputs of {} on {} ranks are {} on each, which are no whole blocks of {} ({})",
                                inputs, p.name, inputs / own, own, elementsOf(format), nameOf(format)),
                    "fewer ranks work (--tensor), or weights as they are computed with: --weights compute, or for a "
                    "plan precision.weights = \"compute\"");
  }

  /// Whether only the length of its rows keeps a parameter from q4_k.
  bool isWidened(const State &p, int64_t layer, QuantFormat format) const {
    return weights == Weights::q4_k && layer >= 0 && format == QuantFormat::q8_0 && !fact<&StateFacts::eightBits>(p);
  }

  /// "q4_k, 30 of 151 weights", or with others in 8 bits "q4_k and q8_0, 30 and 120 of 151 weights".
  std::string choiceOf() const {
    const auto eight =
        llvm::count_if(chosen, [](const auto &weight) { return weight.second.format == QuantFormat::q8_0; });
    const size_t all = chosen.size() + left.size();
    if (weights == Weights::q8_0 || eight == 0)
      return fmt::format("{}, {} of {} weights", nameOf(weights), chosen.size(), all);
    return fmt::format("{} and q8_0, {} and {} of {} weights", nameOf(weights), chosen.size() - size_t(eight), eight,
                       all);
  }

  std::string noteOf() const {
    std::vector<std::string> notes;
    if (!widened.empty())
      notes.push_back(
          fmt::format("{} in 8 bits: {} has no blocks of {} along its inputs", widened.size(), widened[0], superBlock));
    if (!left.empty())
      notes.push_back(fmt::format("others: {}", why));
    if (notes.empty())
      notes.emplace_back("products round what they read to 8 bits, too");
    for (const std::string &table : tables)
      notes.push_back(fmt::format("tokens are looked up in the blocks of {}", table));
    return fmt::format("{}", fmt::join(notes, "; "));
  }

  void add(const State &p, bool tb, QuantFormat format, const QuantizedType &type) {
    auto state = [&](const char *what, const Type &t) {
      State *s = addState(m, fmt::format("{}.{}", what, p.name), t, StateKind::quantized);
      setFact<&StateFacts::of>(*s, p.name);
      if (tb)
        setFact<&StateFacts::tb>(*s, true);
      memory += double(alignedBytes(t));
      return s;
    };
    State *numbers = state("numbers", type.numbers);
    State *scales = state("scales", type.scales);
    chosen[p.name] = {tb, format, numbers, scales, type.supers ? state("supers", *type.supers) : nullptr};
  }

  /// Puts an op of this kind, which reads `first` and the weight, in the place of `op`.
  static void replace(Op &op, OpKind kind, Value *first, const Chosen &weight, AttrMap attributes) {
    Builder b(*op.parent(), &op);
    b.loc = op.loc;
    b.layer = op.layer;
    llvm::SmallVector<Value *, 4> operands = {first, b.read(*weight.numbers), b.read(*weight.scales)};
    if (weight.supers)
      operands.push_back(b.read(*weight.supers));
    attributes.set("bits", bitsOf(weight.format));
    Value *y = b.op(kind, operands, {op.result()->type}, std::move(attributes))->result();
    op.result()->replaceAllUsesWith(y);
    op.erase();
  }

  /// Whether `user` looks up rows of `table`.
  static bool looksUp(const Op &user, const Value &table) {
    return user.is(OpKind::embedding) && user.operand(0) == &table && isArithmetic(table.type.dtype);
  }

  /// Step 4.
  void lookUpInBlocks() {
    llvm::StringMap<std::vector<Op *>> lookUps;  // by parameter
    llvm::StringSet<> kept;                      // parameters that something else reads
    for (const auto &f : m.functions)
      for (Op &op : f->body) {
        const State *p = op.is(OpKind::read) ? parameterOf(m, m.state(op.state)) : nullptr;
        if (!p || !chosen.contains(p->name))
          continue;
        for (Op *user : op.result()->users())
          if (looksUp(*user, *op.result()))
            lookUps[p->name].push_back(user);
          else
            kept.insert(p->name);
      }
    for (const auto &s : m.states) {
      const auto found = lookUps.find(s->name);
      if (found == lookUps.end() || kept.contains(s->name))
        continue;
      const Chosen &weight = chosen.find(s->name)->second;
      if (!weight.tb)
        continue;
      for (Op *op : found->second)
        replace(*op, OpKind::quantized_embedding, op->operand(1), weight, attrs({{"vocab", s->type.dim(0)}}));
      tables.push_back(s->name);
    }
  }

  void removeUnread() {
    eraseUnusedReads(m);
    llvm::StringSet<> touched;
    for (const auto &f : m.functions)
      for (const Op &op : f->body)
        if (op.isOneOf(OpKind::read, OpKind::write))
          touched.insert(op.state);
    llvm::erase_if(m.states, [&](const auto &s) {
      const bool goes =
          kindOf(*s) == StateKind::low && !touched.contains(s->name) && chosen.contains(fact<&StateFacts::of>(*s));
      memory -= goes ? double(alignedBytes(s->type)) : 0;
      return goes;
    });
    for (const auto &s : m.states)
      if (kindOf(*s) == StateKind::low)
        touched.insert(fact<&StateFacts::of>(*s));
    for (const auto &s : m.states)
      if (chosen.contains(s->name) && !touched.contains(s->name)) {
        setFact<&StateFacts::memory>(*s, Memory::files);
        memory -= double(alignedBytes(s->type));
      }
  }
};

}  // namespace

bool quantizeWeights(Module &m, const PassOptions &options) {
  const Weights asked = fact<&PrecisionFacts::weights>(m);
  if ((asked == Weights::compute && !options.values.getBool("all")) || isDecided(m, "quantize-weights", "weights"))
    return false;
  if (!trainsNothing(m))
    return false;
  const int64_t cols = options.values.getInt("cols");
  return QuantizeWeights(m, asked == Weights::compute ? Weights::q8_0 : asked, cols ? cols : usualColumns).run();
}

}  // namespace gptc
