#include "passes/analysis/liveness.h"

#include "ir/facts.h"
#include "ir/plan_check.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <map>

namespace gptc {

Value *rootOf(Value *v) {
  while (v->def && v->def->isOneOf(OpKind::reshape, OpKind::done))
    v = v->def->operand(0);
  return v;
}

static int64_t aligned(int64_t bytes) {
  return std::max<int64_t>((bytes + planAlignment - 1) / planAlignment, 1) * planAlignment;
}

int64_t alignedBytes(const Type &t) {
  int64_t n = sizeOf(t.dtype);
  for (const Dim &d : t.dims)
    if (__builtin_mul_overflow(n, d.padded, &n) || n > (int64_t(1) << 56))
      throw UserError(ErrorCode::TooLarge, fmt::format("a tensor {} has more bytes than can be addressed", t.str()),
                      "use a smaller batch or model");
  return aligned(n);
}

/// For each position the first and the last one of the same launch.
static std::vector<std::pair<int, int>> launchSpans(const Function &f) {
  std::vector<std::pair<int, int>> spans;
  std::map<int64_t, std::pair<int, int>> of;  // any number, so no DenseMap
  std::vector<int64_t> launch;
  for (const Op &op : f.body) {
    const int at = int(launch.size());
    launch.push_back(op.is(OpKind::fused) ? fact<&GroupFacts::launch>(op) : 0);
    spans.push_back({at, at});
    if (launch.back() > 0)
      of.try_emplace(launch.back(), std::pair(at, at)).first->second.second = at;
  }
  for (size_t i = 0; i < launch.size(); ++i)
    if (launch[i] > 0)
      spans[i] = of.at(launch[i]);
  return spans;
}

std::vector<LiveRange> liveRanges(const Function &f) {
  std::vector<LiveRange> ranges;
  llvm::DenseMap<const Value *, size_t> of;
  llvm::DenseMap<const Value *, bool> inState;
  llvm::DenseMap<const Op *, std::vector<size_t>> workspaces;
  for (const Op &op : f.body)
    if (op.is(OpKind::write))
      inState[rootOf(op.operand(0))] = true;

  auto add = [&](const Value *v, const Op *op, int begin, int end) {
    if (inState.lookup(v))
      return;
    of[v] = ranges.size();
    ranges.push_back({v, op, 0, alignedBytes(v->type), begin, end});
  };
  for (const auto &a : f.body.args)
    add(a.get(), nullptr, -1, -1);
  const std::vector<std::pair<int, int>> spans = launchSpans(f);
  int position = 0;
  for (const Op &op : f.body) {
    const auto [begin, end] = spans[position];
    for (const Value *v : op.operands())
      if (auto it = of.find(rootOf(v)); it != of.end())
        ranges[it->second].end = std::max(ranges[it->second].end, end + op.is(OpKind::ret));
    if (op.is(OpKind::done))  // the collective uses its workspaces until then
      for (size_t i : workspaces.lookup(op.operand(0)->def))
        ranges[i].end = position;
    if (!op.isOneOf(OpKind::read, OpKind::reshape, OpKind::done))
      for (unsigned i = 0; i < op.numResults(); ++i)
        add(op.result(i), &op, begin, end);
    if (op.is(OpKind::fused)) {
      std::vector<int64_t> ws = fact<&GroupFacts::ws>(op);
      for (unsigned i = 0; i < ws.size(); ++i) {
        if (ws[i] < 0 || ws[i] > (int64_t(1) << 56))
          throw UserError(ErrorCode::TooLarge, fmt::format("a workspace of {} bytes", ws[i]));
        workspaces[&op].push_back(ranges.size());
        ranges.push_back({nullptr, &op, i, aligned(ws[i]), begin, end});
      }
    }
    ++position;
  }
  llvm::stable_sort(ranges, [](const LiveRange &a, const LiveRange &b) { return a.begin < b.begin; });
  return ranges;
}

int64_t peakBytes(llvm::ArrayRef<LiveRange> ranges) {
  int last = 0;
  for (const LiveRange &r : ranges)
    last = std::max(last, r.end);
  std::vector<int64_t> change(last + 3, 0);  // position p at index p + 1
  for (const LiveRange &r : ranges) {
    change[r.begin + 1] += r.bytes;
    change[r.end + 2] -= r.bytes;
  }
  int64_t live = 0, peak = 0;
  for (int64_t c : change)
    peak = std::max(peak, live += c);
  return peak;
}

}  // namespace gptc
