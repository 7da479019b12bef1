// Gives everything that a module keeps in memory an offset in one arena: states first, then one region that all
// functions share for arguments, temporaries and workspaces. ir/plan_check.h specifies the result.
//
//   1. Requires the output of fuse and settle-writes: code only in groups, and every written value a result that may
//      lie in its state's memory. It is placed there.
//   2. Other results of groups and arguments live from their op to the last use (through views), results of the
//      function to its end. Workspaces live during one op, those of overlapped collectives until their `done`.
//   3. A result takes the memory of an operand of equal size that has no later use, if mayShare (ir/access.h) allows.
//      This saves memory, and the store hits the cache line that was just loaded. Operands of overlapped collectives
//      are in use until `done`, but results of the same collectives may lie there. Groups of a launch take no memory of
//      operands: another one may still read it.
//   4. On a GPU products that do not depend on each other may run side by side, but not with one workspace: up to
//      `workspaces` of them behind each other get their own, as far as the plan fits `available` bytes.
//   5. The other ranges are placed by decreasing size, ties by first position. Each gets the lowest offset at which it
//      overlaps no range that lives at the same time (greedy by size, Pisarchyk & Lee 2020, "Efficient memory
//      management for deep neural net inference").
//   6. arena_bytes is the end of the largest function's region.
//   7. Offsets are multiples of planAlignment, on a GPU of cudaPlanAlignment, and sizes are rounded up to it. The
//      host's arena always uses planAlignment.
//   8. States in the host's memory (offload) have an arena of their own. Two slots follow them, through which operands
//      and results of the host's groups are transferred. A slot has the bytes of the largest group, or `slot` bytes
//      (32 MiB) if that is more, so that small groups share one. It never exceeds all groups of a function together.
#include "passes/pass.h"

#include "ir/access.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "ir/plan_check.h"
#include "passes/analysis/liveness.h"
#include "passes/analysis/state_uses.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>

namespace gptc {

namespace {

[[noreturn]] void tooLarge(const std::string &what) {
  throw UserError(ErrorCode::TooLarge,
                  fmt::format("{} needs more than {} TiB, which no machine has", what, maxArenaBytes >> 40),
                  "make train.micro_batch, model.block_size or the model smaller");
}

/// Steps 1 to 5 for one function.
class FunctionPlanner {
public:
  FunctionPlanner(Module &m, Function &f, int64_t alignment) : m(m), f(f), alignment(alignment) {}

  /// Step 1. Throws UserError(GirInvalid) if the function does not fulfil the requirements.
  void require() {
    StateUses uses(f);
    llvm::StringMap<bool> written;
    llvm::DenseSet<const Value *> placed;
    for (Op &op : f.body) {
      if (!op.isOneOf(OpKind::read, OpKind::write, OpKind::ret, OpKind::reshape, OpKind::done, OpKind::fused))
        throw UserError(ErrorCode::GirInvalid,
                        fmt::format("@{}: '{}' stands outside of a group", f.name, op.name().str()),
                        "run the pass 'fuse' first");
      bool settled = !op.isOneOf(OpKind::read, OpKind::write) || !written.count(op.state);
      if (op.is(OpKind::write)) {
        settled &= uses.inPlace(op) && placed.insert(rootOf(op.operand(0))).second;
        written[op.state] = true;
      }
      if (op.isOneOf(OpKind::read, OpKind::reshape, OpKind::done))
        settled &= !op.result()->unused();
      if (!settled)
        throw UserError(ErrorCode::GirInvalid,
                        fmt::format("@{}: '{}' of @{} is not settled", f.name, op.name().str(), op.state),
                        "run the pass 'settle-writes' before plan-memory, and nothing that moves ops between them");
    }
  }

  /// Steps 2 to 5: places everything at `base` or above. Returns the end. Throws UserError(TooLarge) if that exceeds
  /// maxArenaBytes.
  int64_t place(int64_t base, int64_t apart) {
    std::vector<LiveRange> ranges = liveRanges(f);
    keepApart(ranges, apart);
    std::vector<size_t> host = shareDying(ranges);
    for (LiveRange &r : ranges)
      r.bytes = int64_t(llvm::alignTo(uint64_t(r.bytes), uint64_t(alignment)));
    std::vector<size_t> order(ranges.size());
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ranges[a].bytes > ranges[b].bytes; });

    std::vector<int64_t> offset(ranges.size());
    std::vector<size_t> placed;  // by offset
    int64_t end = base;
    for (size_t i : order) {
      if (host[i] != i)
        continue;
      const LiveRange &r = ranges[i];
      int64_t at = base;
      for (size_t j : placed) {
        const LiveRange &o = ranges[j];
        if (o.end < r.begin || r.end < o.begin || offset[j] + o.bytes <= at)
          continue;
        if (offset[j] >= at + r.bytes)
          break;
        at = offset[j] + o.bytes;
      }
      offset[i] = at;
      end = std::max(end, at + r.bytes);
      if (end > maxArenaBytes)
        tooLarge("@" + f.name);
      placed.insert(
          std::upper_bound(placed.begin(), placed.end(), at, [&](int64_t a, size_t j) { return a < offset[j]; }), i);
    }
    for (size_t i = 0; i < ranges.size(); ++i)
      offset[i] = offset[host[i]];
    record(ranges, offset);
    return end;
  }

private:
  Module &m;
  Function &f;
  const int64_t alignment;

  /// Step 4: lets the workspaces of `apart` products behind each other live at the same time.
  static void keepApart(std::vector<LiveRange> &ranges, int64_t apart) {
    std::vector<LiveRange *> products;
    for (LiveRange &r : ranges)
      if (!r.value && kindOf(*r.op) == RecipeKind::matmul)
        products.push_back(&r);
    for (size_t i = 0; i < products.size(); ++i)
      products[i]->end = std::max(products[i]->end, products[std::min(products.size(), i + size_t(apart)) - 1]->begin);
  }

  /// The periods of overlapped collectives, and the other uses of their operands.
  class Waits {
  public:
    explicit Waits(const Function &f) {
      int position = 0;
      for (const Op &op : f.body) {
        for (unsigned i = 0; i < op.numOperands(); ++i) {
          const Value *root = rootOf(op.operand(i));
          if (!op.is(OpKind::done)) {
            lastUse[root] = position + op.is(OpKind::ret);
          } else if (i == 0) {
            end[op.operand(0)->def] = position;
          } else if (auto [it, first] = reader.try_emplace(root, op.operand(0)->def);
                     !first && it->second != op.operand(0)->def) {
            it->second = nullptr;  // several collectives read it
          }
        }
        ++position;
      }
    }
    /// Whether `op`, at position `begin`, is the last user of the memory of `root`, which is live until `until`.
    bool dies(const Value *root, int until, const Op &op, int begin) const {
      if (until == begin)
        return true;
      return end.lookup(&op) == until && lastUse.lookup(root) == begin && reader.lookup(root) == &op;
    }

  private:
    llvm::DenseMap<const Op *, int> end;               // collective -> position of its last `done`
    llvm::DenseMap<const Value *, int> lastUse;        // by ops other than `done`
    llvm::DenseMap<const Value *, const Op *> reader;  // the only overlapped collective that reads it; null: several
  };

  /// Step 3: for each range the index of the range whose memory it uses (often its own). Extends that range to its end.
  std::vector<size_t> shareDying(std::vector<LiveRange> &ranges) {
    std::vector<size_t> host(ranges.size());
    std::vector<const Op *> takenBy(ranges.size());  // by range: the last group that took it, for one result only
    llvm::DenseMap<const Value *, size_t> of;
    const Waits waits(f);
    for (size_t i = 0; i < ranges.size(); ++i) {
      host[i] = i;
      const LiveRange &r = ranges[i];
      if (!r.value)
        continue;
      of[r.value] = i;
      if (!r.op || !r.op->is(OpKind::fused) || fact<&GroupFacts::launch>(*r.op))
        continue;
      for (const Value *v : r.op->operands()) {
        auto dying = of.find(rootOf(v));
        if (dying == of.end())
          continue;
        size_t h = host[dying->second];
        if (!waits.dies(rootOf(v), ranges[h].end, *r.op, r.begin) || takenBy[h] == r.op || ranges[h].bytes != r.bytes ||
            !mayTakeOver(*r.op, r.value->index, rootOf(v)))
          continue;
        host[i] = h;
        takenBy[h] = r.op;
        ranges[h].end = r.end;
        break;
      }
    }
    return host;
  }

  /// Whether a result may take the memory of `root`. All operands of the group that are views of it must allow that.
  bool mayTakeOver(const Op &group, unsigned result, const Value *root) {
    bool legal = true;
    for (unsigned i = 0; legal && i < group.numOperands(); ++i)
      if (rootOf(group.operand(i)) == root)
        legal = mayShare(group, result, i);
    return legal;
  }

  /// Writes the offsets to the attributes of the function and its ops.
  void record(llvm::ArrayRef<LiveRange> ranges, llvm::ArrayRef<int64_t> offset) {
    llvm::DenseMap<const Value *, int64_t> at;
    llvm::DenseMap<const Op *, std::vector<int64_t>> workspaces;
    for (size_t i = 0; i < ranges.size(); ++i)
      if (ranges[i].value)
        at[ranges[i].value] = offset[i];
      else
        workspaces[ranges[i].op].push_back(offset[i]);
    for (Op &op : f.body) {
      if (op.is(OpKind::read))
        at[op.result()] = fact<&StateFacts::at>(*m.state(op.state));
      if (op.is(OpKind::write))
        at[rootOf(op.operand(0))] = fact<&StateFacts::at>(*m.state(op.state));
    }
    std::vector<int64_t> args;
    for (const auto &a : f.body.args)
      args.push_back(at.lookup(a.get()));
    setFact<&FunctionFacts::argsAt>(f, args);
    for (Op &op : f.body) {
      if (!op.isOneOf(OpKind::fused, OpKind::reshape, OpKind::done))
        continue;
      std::vector<int64_t> results;
      for (unsigned i = 0; i < op.numResults(); ++i)
        results.push_back(at.lookup(rootOf(op.result(i))));
      setFact<&GroupFacts::at>(op, results);
      if (auto it = workspaces.find(&op); it != workspaces.end())
        setFact<&GroupFacts::wsAt>(op, it->second);
      else
        eraseFact<&GroupFacts::wsAt>(op);
    }
  }
};

bool hasLaunches(const Module &m) {
  for (const auto &f : m.functions)
    for (const Op &op : f->body)
      if (op.is(OpKind::fused) && fact<&GroupFacts::launch>(op))
        return true;
  return false;
}

}  // namespace

bool planMemory(Module &m, const PassOptions &options) {
  const int64_t alignment = options.target ? planAlignmentOf(*options.target) : planAlignment;
  int64_t base = 0, host = hostArena;
  for (auto &s : m.states) {
    if (isInFiles(*s))
      continue;
    const bool onHost = livesOnHost(*s);
    int64_t &next = onHost ? host : base;
    setFact<&StateFacts::at>(*s, next);
    next += int64_t(llvm::alignTo(uint64_t(alignedBytes(s->type)), uint64_t(onHost ? planAlignment : alignment)));
    if (base > maxArenaBytes || host - hostArena > maxArenaBytes)
      tooLarge("the model's state");
  }
  int64_t end = 0;
  const int64_t available = options.values.getInt("available", maxArenaBytes);
  for (int64_t apart = options.values.getInt("workspaces", 1); apart > 0; --apart) {
    end = base;
    for (auto &f : m.functions) {
      FunctionPlanner planner(m, *f, alignment);
      planner.require();
      end = std::max(end, planner.place(base, apart));
    }
    if (end <= available)
      break;
  }
  setFact<&MemoryFacts::arenaBytes>(m, end);
  int64_t slot = 0, most = 0;
  for (const auto &f : m.functions) {
    int64_t all = 0;
    for (const Op &op : f->body)
      if (runsOnHost(op)) {
        const int64_t one = stagingBytes(m, *f, op);
        slot = std::max(slot, one);
        all += one;
      }
    most = std::max(most, all);
  }
  slot = std::max(slot, std::min(most, options.values.getInt("slot", 32 << 20)));
  if (host > hostArena || slot)
    setFact<&MemoryFacts::hostBytes>(m, host - hostArena + 2 * slot);
  else
    eraseFact<&MemoryFacts::hostBytes>(m);
  std::vector<std::string> errors = checkPlan(m);
  if (!errors.empty() && hasLaunches(m))  // a file may have numbered them
    throw UserError(ErrorCode::GirInvalid, errors.front(),
                    "let the pass 'horizontal-fusion' number the launches, just before plan-memory");
  GPTC_CHECK(errors.empty(), "{}", fmt::join(errors, "\n"));
  return true;
}

}  // namespace gptc
