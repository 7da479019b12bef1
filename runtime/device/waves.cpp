#include "runtime/device/waves.h"

#include <algorithm>

namespace gptc {

void WavePhase::add(const CompiledPhase &phase, void *const *params, unsigned threads) {
  if (phase.tasks <= 0)
    return;
  const int64_t grain = std::max<int64_t>(1, phase.tasks / (8 * int64_t(threads)));
  parts.push_back({&phase, params, pieces, grain});
  pieces += (phase.tasks + grain - 1) / grain;
}

void WavePhase::runPieces(int64_t begin, int64_t end) const {
  auto after = std::upper_bound(parts.begin(), parts.end(), begin,
                                [](int64_t piece, const Part &p) { return piece < p.firstPiece; });
  for (auto part = after - 1; begin < end; ++part) {
    const int64_t last = part + 1 == parts.end() ? end : std::min(end, part[1].firstPiece);
    part->phase->run(part->params, (begin - part->firstPiece) * part->grain,
                     std::min(part->phase->tasks, (last - part->firstPiece) * part->grain));
    begin = last;
  }
}

void WavePhase::run(ThreadPool &pool) const {
  // Do not wake other threads for a single piece.
  if (pieces == 1)
    return runPieces(0, 1);
  pool.run(
      pieces,
      [](void *self, int64_t begin, int64_t end) { static_cast<const WavePhase *>(self)->runPieces(begin, end); },
      const_cast<WavePhase *>(this), 1);
}

void Waves::add(const WaveKernel &k) {
  auto rangeOf = [&](size_t i) {
    const char *at = static_cast<const char *>(k.params[i]);
    return Range(at, at + k.bytes[i]);
  };
  bool joins = !waves.empty();
  for (size_t i = 0; joins && i < k.params.size(); ++i)
    joins = !written.overlaps(rangeOf(i)) && (i < k.reads || !read.overlaps(rangeOf(i)));
  if (!joins) {
    waves.emplace_back();
    read.clear();
    written.clear();
  }
  for (size_t i = 0; i < k.params.size(); ++i)
    (i < k.reads ? read : written).insert(rangeOf(i));
  std::vector<WavePhase> &phases = waves.back();
  phases.resize(std::max(phases.size(), k.code->phases.size()));
  for (size_t i = 0; i < k.code->phases.size(); ++i)
    phases[i].add(k.code->phases[i], k.params.data(), threads);
}

void Waves::run(ThreadPool &pool) const {
  for (const std::vector<WavePhase> &wave : waves)
    for (const WavePhase &phase : wave)
      phase.run(pool);
}

bool Waves::Ranges::overlaps(Range r) const {
  auto next = ends.lower_bound(r.second);
  return next != ends.begin() && std::prev(next)->second > r.first;
}

void Waves::Ranges::insert(Range r) {
  if (r.first == r.second)
    return;
  auto it = ends.lower_bound(r.first);
  if (it != ends.begin() && std::prev(it)->second >= r.first)
    --it;
  while (it != ends.end() && it->first <= r.second) {
    r = {std::min(r.first, it->first), std::max(r.second, it->second)};
    it = ends.erase(it);
  }
  ends.insert(r);
}

}  // namespace gptc
