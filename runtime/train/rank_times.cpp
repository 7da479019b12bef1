#include "runtime/train/rank_times.h"

#include "support/diagnostics.h"
#include "support/words.h"

#include <algorithm>
#include <numeric>

namespace gptc {

static std::vector<Communicator *> used(Communicator &ranks, const std::vector<Communicator *> &axes) {
  std::vector<Communicator *> groups = {&ranks};
  for (Communicator *axis : axes)
    if (axis && axis != &ranks)
      groups.push_back(axis);
  return groups;
}

RankTimes::RankTimes(Communicator &ranks, const std::vector<Communicator *> &axes)
    : ranks(ranks), groups(used(ranks, axes)), inside(totals().inside) {}

RankTimes::Totals RankTimes::totals() const {
  Totals t;
  for (const Communicator *g : groups) {
    t.sent += g->bytesSent();
    t.least += g->leastBytes();
    t.inside += g->timeInside();
  }
  return t;
}

std::string describeWaiting(llvm::ArrayRef<double> inside, double seconds) {
  // The last rank to arrive at every collective waits for nobody: its time inside is what the collectives cost. The
  // other ranks waited for it during the rest of theirs.
  const auto [last, first] = std::minmax_element(inside.begin(), inside.end());
  const double waited = std::accumulate(inside.begin(), inside.end(), 0.0) - *last * double(inside.size());
  const double average = waited / double(inside.size() - 1);
  return fmt::format(
      "rank {} was the slowest: the others waited for it {:.1f} s each, {:.1f}% of the time, rank {} most "
      "({:.1f} s); collectives took {:.1f}%",
      last - inside.begin(), average, 100 * average / seconds, first - inside.begin(), *first - *last,
      100 * *last / seconds);
}

std::string RankTimes::report() {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double own[] = {std::chrono::duration<double>(totals().inside - inside).count(), double(sent)};
  std::vector<double> all(2 * static_cast<size_t>(ranks.world)), times;
  ranks.run({{Collective::Kind::all_gather, own, all.data(), 2, DType::f64}}, SumOrder::fast);
  double most = 0;
  for (size_t i = 0; i < all.size(); i += 2) {
    times.push_back(all[i]);
    most = std::max(most, all[i + 1]);
  }
  return fmt::format("{}; no rank sent more than {} a step, {:.3f} x the lower bound", describeWaiting(times, seconds),
                     formatBytes(most / double(std::max<int64_t>(steps, 1))),
                     most / double(std::max<int64_t>(least, 1)));
}

}  // namespace gptc
