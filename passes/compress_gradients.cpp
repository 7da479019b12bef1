// Compressed gradients (PowerSGD, Vogels, Karimireddy & Jaggi 2019): of the sum of a matrix's gradients over the ranks
// along "data", only two factors of low rank are sent. What they leave out is added to the next gradient.
//
// Module attributes: gradient_rank, the rank R of the factors, 0 for none; compress_from, the first step that
// compresses; reduce_order (ir/ops/collective.cpp). The runtime calls @train_step or @update from that step on, and
// before it @train_step_whole or @update_whole, which send whole gradients (runtime/train/train_step.cpp).
//
//   1. If compress_from is above 0, the step's last function is copied as it is to @NAME_whole.
//   2. Each all_reduce of the gradient of an [M,N] parameter is replaced if the factors have fewer elements than it:
//      R (M + N) < M N. The others stay. Factors are stored by rows: P [R,M] and Q [R,N].
//        m  = gradient + @error.NAME         this rank's, as are all values without "all"
//        P  = all ranks' sum of Q m^T        with Q of the step before, @factor.NAME, which begins at random
//        P^ = the rows of P, orthonormal     (orthogonalize)
//        q  = P^ m,  Q = all ranks' sum of q
//        the gradient of all is P^^T Q;  @error.NAME = m - P^^T q;  @factor.NAME = Q
//      The gradient that clipping and the optimizer see is that of all, so the norm is that of what is applied.
//   3. A matrix whose rows of Q are zero or not finite would stay so for ever, and an error that is not finite, too.
//      Such rows keep what they were (usable_rows).
//
// Errors differ between ranks: they are each rank's own (passes/analysis/whole_ranks.h). Each rank must have one shard
// of the batch: a shard whose gradient has been added to another one's can no longer have an error of its own.
//
// All P depend on gradients alone and all Q on P alone, so overlap-collectives makes one bucket of either: P beside the
// gradients that are sent whole.
//
// Runs behind partition, which places the all_reduces, and behind the passes that copy parameters, so that @NAME_whole
// writes the same copies; before fuse.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/whole_ranks.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"
#include "support/words.h"

namespace gptc {

namespace {

/// The stream of a factor's initial values is this plus the index of the matrix. Those of other initial values, of
/// dropout and of stochastic rounding are lower.
constexpr int64_t factorStreams = 1 << 25;

class Compression {
public:
  Compression(Module &m, Function &f) : m(m), f(f), facts(factsOf<ParallelFacts>(m)) {}
  int matrices = 0, others = 0;  // gradients
  double wholeBytes = 0, sentBytes = 0, errorBytes = 0;

  void run() {
    for (const Gradient &g : gradients()) {
      const double bytes = double(g.sum->result()->type.bytes());
      wholeBytes += bytes;
      if (!pays(g.sum->result()->type)) {
        sentBytes += bytes;
        ++others;
        continue;
      }
      compress(g);
      ++matrices;
    }
  }

  /// Whether factors have fewer elements than a gradient of this type.
  bool pays(const Type &t) const {
    return t.rank() == 2 && t.dtype == DType::f32 && facts.gradientRank * (t.dim(0) + t.dim(1)) < t.dim(0) * t.dim(1);
  }

  struct Gradient {
    Op *sum;  // all_reduce
    std::string parameter;
  };
  /// The gradients that are summed over the ranks, in the order of their updates.
  std::vector<Gradient> gradients() const {
    std::vector<Gradient> all;
    for (Op &op : f.body)
      if (updatesParameter(op))
        if (Op *sum = op.operand(1)->def;
            sum && sum->is(OpKind::all_reduce) && sum->attrs.getString("axis") == "data" && op.operand(0)->def)
          all.push_back({sum, op.operand(0)->def->state});
    return all;
  }

private:
  Module &m;
  Function &f;
  const ParallelFacts facts;

  /// Steps 2 and 3.
  void compress(const Gradient &g) {
    const Type type = g.sum->result()->type;
    State *error = errorOf(g.parameter, type), *factor = factorOf(g.parameter, type);
    Builder b(f.body, g.sum);
    b.loc = g.sum->loc;
    auto sumOfAll = [&](Value *own) {
      sentBytes += double(own->type.bytes());
      return b.value(OpKind::all_reduce, {own}, g.sum->attrs);
    };
    const AttrMap ta = attrs({{"ta", true}});
    Value *before = b.read(*error), *last = b.read(*factor);
    Value *mine = b.value(OpKind::add, {g.sum->operand(0), before});
    Value *p = sumOfAll(b.value(OpKind::matmul, {last, mine}, attrs({{"tb", true}})));
    p = b.value(OpKind::orthogonalize, {p});
    Value *own = b.value(OpKind::matmul, {p, mine}), *q = sumOfAll(own);
    Value *left = b.value(OpKind::sub, {mine, b.value(OpKind::matmul, {p, own}, ta)});
    b.write(*error, b.value(OpKind::usable_rows, {left, before}));
    b.write(*factor, b.value(OpKind::usable_rows, {q, last}, attrs({{"nonzero", true}})));
    g.sum->result()->replaceAllUsesWith(b.value(OpKind::matmul, {p, q}, ta));
    g.sum->erase();
  }

  State *errorOf(const std::string &parameter, const Type &type) {
    State *s = addState(m, "error." + parameter, type, StateKind::moment);
    makeEachRanksOwn(*s, facts.data);
    errorBytes += double(type.bytes());
    return s;
  }

  State *factorOf(const std::string &parameter, const Type &type) {
    State *s = addState(m, "factor." + parameter, Type(type.dtype, {Dim(facts.gradientRank), type.dims[1]}),
                        StateKind::moment);
    setFact<&InitialFacts::init>(*s, Initial::normal);
    setFact<&InitialFacts::stream>(*s, factorStreams + matrices);
    errorBytes += double(s->type.bytes());
    return s;
  }
};

}  // namespace

bool compressGradients(Module &m, const PassOptions &) {
  const auto facts = factsOf<ParallelFacts>(m);
  if (facts.gradientRank == 0 || isDecided(m, "compress-gradients", "powersgd"))
    return false;
  const WholeRanks ranks = {.setting = fmt::format("gradient_rank = {}", facts.gradientRank),
                            .help =
                                "gradients are compressed if each rank has the whole model and one shard of the batch",
                            .apart = false};
  ranks.require(m);
  Function *last = m.function("update") ? m.function("update") : m.function("train_step");
  if (facts.data == 1 || !last || !fact<&PhaseFacts::partitioned>(m))
    return false;
  Compression pass(m, *last);
  if (facts.compressFrom > 0)
    m.cloneFunction(*last, last->name + "_whole");
  pass.run();
  record(m, {.pass = "compress-gradients",
             .name = "powersgd",
             .choice = fmt::format("rank {}, {} of {} gradients", facts.gradientRank, pass.matrices,
                                   pass.matrices + pass.others),
             .effect = {.memory = pass.errorBytes},
             .note = fmt::format("ranks add up {} a step in place of {}{}", formatBytes(pass.sentBytes),
                                 formatBytes(pass.wholeBytes),
                                 facts.compressFrom ? fmt::format(", from step {} on", facts.compressFrom + 1) : "")});
  return true;
}

}  // namespace gptc
