// Chooses the sizes of the matmul recipe on a CPU: register tiles, blocks of k, and the tasks of the result.
//
//   1. A cut is a tile, a length of blocks of k, and the numbers of tiles and panels of a task. A cut is valid if its
//      panels of B and its sums fit the second-level cache.
//   2. A coarse model estimates the time of the busiest thread for each cut.
//   3. The default is the best cut with one tile that suits the shape. The space has the best cuts with every tile and
//      length of blocks, for a tuner to measure.
#include "codegen/recipes/matmul/matmul.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace gptc::matmul {

namespace {

/// Estimated cycles of one core for one task. Coarse, but it ranks cuts well. Fitted to the shapes of GPT-2
/// (kernel_bench).
double taskCycles(const Problem &p, const Tile &tile, const Target &target, bool pairs, int64_t kc, int64_t tiles,
                  int64_t panels) {
  const double bytes = sizeOf(p.stored), cols = double(panels * tile.cols()), rows = double(tiles * tile.rows),
               k = double(p.k);
  // Cycles per byte that the prefetchers do not hide: A is read along its rows, B in pieces of a panel's width.
  auto far = [&](double total, double near, double memory) {
    return total > double(target.l3Bytes) / 2 ? memory : total > double(target.l2Bytes) / 2 ? near : 0.0;
  };
  // A tile takes part of a line of each row of a transposed A. If the block is short, the line is still in the cache
  // for the next tile.
  const double copyA = !copiesA(p, pairs, DType::f32, tile.rows) ? 0 : !p.ta ? 0.16 : kc > 256 ? 0.26 : 0.14;
  const double readA = rows * k * (copyA + bytes * far(double(p.m) * k * bytes, p.ta ? 0.05 : 0.02, p.ta ? 0.3 : 0.03));
  // Packed panels are prefetched while the tiles multiply by the panel before, at a small cost; the first one is not.
  const double packB = p.panels ? bytes * (0.05 * k * cols + 0.1 * double(kc * tile.cols()))
                                : k * cols *
                                      ((pairs  ? p.tb ? 0.29 : 0.19
                                        : p.tb ? 1.0
                                               : 0.25) +
                                       bytes * far(double(p.n) * k * bytes, 0.1, p.tb ? 0.1 : 0.35));
  const double blocks = double(ceilDiv(p.k, kc)), folds = p.fold ? double(ceilDiv(p.k, p.fold)) : 1;
  const double sums = double(tile.rows * tile.vecs);  // vectors of accumulators
  const double perPanel = k * sums / (pairs ? 4 : 2) + blocks * 40 +
                          (folds + (blocks > 1 ? (pairs && p.fold ? 0.25 : 2) * blocks : 0)) * sums;
  return readA + packB + double(tiles * panels) * perPanel + 2000;
}

/// The tallest tile as wide as a panel. Panels packed for another machine may need more vectors than suit this one.
Tile tileOfPanels(int64_t cols, const Target &target, bool pairs) {
  Tile t = registerTile(target, DType::f32, pairs);
  t.lanes = int(std::min<int64_t>(t.lanes, cols & -cols));
  const int vecs = int(cols / t.lanes), registers = int(target.vectorRegisters);
  if (vecs != t.vecs)
    t.rows = std::max(1, (registers - 2 * vecs) / vecs);
  t.vecs = vecs;
  return t;
}

/// A register tile that suits the shape.
Tile defaultTile(const Problem &p, const Target &target, bool pairs) {
  if (p.panels)
    return tileForRows(tileOfPanels(p.panels, target, pairs), p.m);
  // A transposed A is read in pieces of as many elements as a tile has rows, so the tallest tile is best.
  Tile largest = flatTile(target, DType::f32);
  if (p.ta || largest.cols() != tileColumns(target, p.m, p.n))
    largest = registerTile(target, DType::f32, pairs);
  // Four tiles that are copied together should fill whole vectors.
  if (const int part = largest.lanes / 4;
      p.ta && copiesA(p, pairs, DType::f32, largest.rows) && part && largest.rows > part)
    largest.rows = largest.rows / part * part;
  return tileForRows(largest, p.m);
}

int64_t unitOfBlocks(const Problem &p, bool pairs) { return p.fold ? p.fold : pairs ? 32 : 16; }

/// The length of equal blocks of k of at most `most` elements, a multiple of unitOfBlocks.
int64_t blockOfK(const Problem &p, bool pairs, int64_t most) {
  const int64_t unit = unitOfBlocks(p, pairs), blocks = ceilDiv(p.k, std::max(unit, most));
  return std::min(p.k, roundUp(ceilDiv(p.k, blocks), unit));
}

/// Whether the panels of B and the sums of a task fit the second-level cache. A transposed A that is read in place
/// needs room too: a tile takes a short piece of each of kc rows, which fall into few cache sets if each lies in its
/// own page.
bool fits(const Problem &p, const Tile &tile, const Target &target, bool pairs, int64_t kc, int64_t tiles,
          int64_t panels) {
  const int64_t bytes = sizeOf(tile.dtype), nr = tile.cols();
  const bool direct = p.ta && !copiesA(p, pairs, DType::f32, tile.rows);  // the micro-kernel reads A as it is
  if (direct && kc > (p.lda * bytes > 4096 ? 256 : panels > 1 ? 512 : 1024))
    return false;
  // If B is packed in memory, the current panel and the next one count.
  const double b = double(kc * (p.panels ? 2 : panels) * nr * bytes) / (pairs ? 2 : 1),
               sums = kc < p.k ? double(tiles * tile.rows * panels * nr * bytes) : 0;
  const double l2 = double(std::min(target.l2Bytes, stackBudget * 16 / 15));
  return b <= l2 * (direct ? 0.27 : pairs ? 0.58 : 0.5) && b + sums <= l2 * (direct ? 0.7 : 0.92);
}

/// Calls `body` with each valid cut of the result into tasks and its estimated time; not at all if no cut is valid.
void forCuts(const Problem &p, const Tile &tile, const Target &target, bool pairs, int64_t kc,
             const std::function<void(int64_t tilesPerTask, int64_t panelsPerTask, double cycles)> &body) {
  const int64_t tiles = ceilDiv(p.m, tile.rows), panels = ceilDiv(p.n, int64_t(tile.cols()));
  // For each possible number of tasks the least tiles per task: about 2 sqrt(tiles) values.
  for (int64_t most = tiles; most >= 1;) {
    const int64_t rowTasks = ceilDiv(tiles, most), tilesPerTask = ceilDiv(tiles, rowTasks);
    most = tilesPerTask - 1;
    for (int64_t perTask = 1; perTask <= panels; ++perTask) {
      if (!fits(p, tile, target, pairs, kc, tilesPerTask, perTask))
        break;
      // Threads are never equally fast, so the last round is partly idle: many small tasks beat a few large ones.
      const double tasks = double(p.batch * rowTasks * ceilDiv(panels, perTask));
      body(tilesPerTask, perTask,
           (std::ceil(tasks / target.threads) + 0.3) * taskCycles(p, tile, target, pairs, kc, tilesPerTask, perTask));
    }
  }
}

Schedule scheduleOf(const Tile &tile, bool pairs, int64_t kc, int64_t tilesPerTask, int64_t panelsPerTask) {
  Schedule s;
  s.recipe = RecipeKind::matmul;
  s.pairs = pairs;
  s.vec = tile.lanes;
  s.mr = tile.rows;
  s.nr = tile.cols();
  s.kc = kc;
  s.mc = tilesPerTask * tile.rows;
  s.nc = panelsPerTask * tile.cols();
  return s;
}

}  // namespace

Schedule cpuSchedule(const Problem &p, const Target &target) {
  if (isFewRows(p))
    return fewRowsSchedule(p, target);
  const bool pairs = usesPairs(p, target);
  const Tile tile = defaultTile(p, target, pairs);
  // Long blocks of k load and store the accumulators less often; short ones leave room for more columns, so that A is
  // read less often.
  double least = HUGE_VAL;
  // If no cut is valid: tasks of all rows and one panel.
  Schedule best = scheduleOf(tile, pairs, blockOfK(p, pairs, 1024), ceilDiv(p.m, int64_t(tile.rows)), 1);
  for (int64_t most : {1024, 800, 512, 256}) {
    const int64_t kc = blockOfK(p, pairs, most);
    forCuts(p, tile, target, pairs, kc, [&](int64_t tilesPerTask, int64_t panelsPerTask, double cycles) {
      if (cycles < least) {
        least = cycles;
        best = scheduleOf(tile, pairs, kc, tilesPerTask, panelsPerTask);
      }
    });
  }
  return best;
}

std::vector<Schedule> cpuSpace(const Problem &p, const Schedule &base, const Target &target) {
  if (isFewRows(p))
    return fewRowsSpace(p, base);
  constexpr size_t perBlock = 8;  // cuts of each tile and length of blocks
  struct Cut {
    double cycles;
    Schedule schedule;
  };
  const bool pairs = base.pairs;
  // A tile leaves registers for its vectors of B and a broadcast; with pairs the broadcast needs one more.
  std::vector<Tile> tiles = {defaultTile(p, target, pairs)};
  const int lanes = target.lanes(DType::f32), registers = int(target.vectorRegisters) - 1 - pairs;
  for (int vecs : {2, 3, 4, 5, 6}) {
    if (p.panels && vecs * lanes != p.panels)
      continue;
    const int rows = (registers - vecs) / vecs;
    for (int r : {rows, rows - 1, rows - 2, rows * 2 / 3})
      if (r >= 2 && r <= p.m && (vecs - 1) * lanes < p.n)
        tiles.push_back(tileForRows({.rows = r, .vecs = vecs, .lanes = lanes, .dtype = DType::f32}, p.m));
  }
  std::vector<Cut> all;
  for (const Tile &tile : tiles)
    for (int64_t most : {1536, 1024, 800, 640, 512, 384, 256}) {
      const int64_t kc = blockOfK(p, pairs, most);
      std::vector<Cut> cuts;
      forCuts(p, tile, target, pairs, kc, [&](int64_t tilesPerTask, int64_t panelsPerTask, double cycles) {
        cuts.push_back({cycles, scheduleOf(tile, pairs, kc, tilesPerTask, panelsPerTask)});
      });
      llvm::stable_sort(cuts, [](const Cut &a, const Cut &b) { return a.cycles < b.cycles; });
      if (cuts.size() > perBlock)
        cuts.resize(perBlock);
      all.insert(all.end(), cuts.begin(), cuts.end());
    }
  llvm::stable_sort(all, [](const Cut &a, const Cut &b) { return a.cycles < b.cycles; });
  std::vector<Schedule> space;
  for (const Cut &c : all)
    space.push_back(c.schedule);
  return space;
}

}  // namespace gptc::matmul
