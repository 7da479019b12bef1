// 1. Keep the arena as a list of segments, cut where a kernel's place begins or ends. Each segment knows the kernel
//    that stored to it last and those that have read it since; these are a kernel's predecessors.
// 2. Put a kernel on the stream of a predecessor that is the last kernel there; else on the stream that has been idle
//    longest. Collective kernels have a stream of their own, where no other kernel delays them or waits behind them.
// 3. For each stream, record up to which kernel it has seen every other stream. A kernel waits only for predecessors
//    beyond that, and thereby sees all that those had seen.
#include "runtime/cuda/branches.h"

#include "ir/facts.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace gptc::cuda {

namespace {

struct Segment {
  int writer = -1;
  std::vector<int> readers;  // since that store
};

class Memory {
public:
  /// The kernels that must have ended before kernel `n` may begin.
  std::set<int> touch(int n, const Touches &t) {
    std::set<int> before;
    for (size_t i = 0; i < t.memory.size(); ++i) {
      const Place &p = t.memory[i];
      if (p.bytes == 0)
        continue;
      cut(p.at);
      cut(p.at + p.bytes);
      for (auto s = segments.find(p.at); s->first < p.at + p.bytes; ++s) {
        Segment &m = s->second;
        if (m.writer >= 0)
          before.insert(m.writer);
        if (i < t.reads) {
          m.readers.push_back(n);
        } else {
          before.insert(m.readers.begin(), m.readers.end());
          m = {n, {}};
        }
      }
    }
    before.erase(n);
    return before;
  }

private:
  std::map<int64_t, Segment> segments = {{0, {}}, {std::numeric_limits<int64_t>::max(), {}}};

  void cut(int64_t at) {
    auto next = segments.lower_bound(at);
    if (next->first != at)
      segments.emplace_hint(next, at, std::prev(next)->second);
  }
};

}  // namespace

void addKernel(std::vector<Touches> &nodes, const Op &op, llvm::ArrayRef<Place> memory, bool meets) {
  const int64_t launch = fact<&GroupFacts::launch>(op);
  if (!launch || nodes.empty() || nodes.back().launch != launch)
    nodes.push_back({{}, 0, meets, launch});
  Touches &node = nodes.back();
  const auto operands = memory.take_front(op.numOperands()), others = memory.drop_front(op.numOperands());
  node.memory.insert(node.memory.begin() + node.reads, operands.begin(), operands.end());
  node.memory.insert(node.memory.end(), others.begin(), others.end());
  node.reads += op.numOperands();
}

std::vector<Branch> branchesOf(llvm::ArrayRef<Touches> kernels, int streams) {
  Memory memory;
  std::vector<Branch> branches;
  std::vector<int> tail(streams + 1, -1);
  // seen[n][s]: the last kernel of stream s that has ended when kernel n ends.
  std::vector<std::vector<int>> seen;
  for (int n = 0; n < int(kernels.size()); ++n) {
    const std::set<int> before = memory.touch(n, kernels[n]);
    Branch b{kernels[n].meets ? streams : int(std::min_element(tail.begin(), tail.end() - 1) - tail.begin()), {}};
    for (auto p = before.rbegin(); p != before.rend() && !kernels[n].meets; ++p)
      if (const int s = branches[*p].stream; s < streams && tail[s] == *p) {
        b.stream = s;
        break;
      }
    for (int p : before)
      b.chain = std::max(b.chain, branches[p].chain + 1);
    std::vector<int> mine = tail[b.stream] < 0 ? std::vector<int>(streams + 1, -1) : seen[tail[b.stream]];
    // The latest first: waiting for it may cover the others.
    for (auto p = before.rbegin(); p != before.rend(); ++p) {
      if (mine[branches[*p].stream] >= *p)
        continue;
      b.waits.push_back(*p);
      branches[*p].awaited = true;
      for (int s = 0; s <= streams; ++s)
        mine[s] = std::max(mine[s], seen[*p][s]);
    }
    mine[b.stream] = n;
    tail[b.stream] = n;
    seen.push_back(std::move(mine));
    branches.push_back(std::move(b));
  }
  return branches;
}

}  // namespace gptc::cuda
