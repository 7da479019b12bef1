// matmul on CUDA: a block of threads computes a tile of the product by a matmul statement (kir::MatmulTile), and the
// epilogue reads whole rows of the tile.
//
//   1. Blocks take the tiles in groups of a few rows of tiles, so that blocks that run at the same time share operands
//      in the second-level cache.
//   2. If there is an initial value, the block loads it into the tile in shared memory.
//   3. The matmul statement uses tensor cores for bf16 and f16, and for f32 if the op has tf32 and the GPU supports it.
//      Otherwise it uses fused multiply-adds in the order of k, which give the CPU's bits for f32.
//   4. Each thread takes a few neighbouring elements in each of some rows of the tile and stores the group's outputs.
// A bias gradient (the sum of B's rows) takes two more phases, as in the fold recipe: one thread for each column of
// each block of R tokens, then one thread for each column.
//
// Choice of tiles (docs/cuda.md has the figures). Shared memory limits tensor cores first, and a warp's tile of 64 x 64
// uses each element that it reads most often. If sums fold, a second set of sums halves the tile that fits the
// registers. Few tiles leave multiprocessors idle: the default has the least estimated time of the busiest one.
#include "codegen/recipes/matmul/matmul.h"
#include "codegen/recipes/place.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>

namespace gptc::matmul {

using namespace kir;

namespace {

constexpr int64_t lanesAtOnce = 4;  // elements of a row that a thread takes in the epilogue: 16 bytes of f32, so that
                                    // neighbours read the tile without bank conflicts
constexpr int rowsAtOnce = 4;       // rows whose operands it loads before it stores
constexpr int64_t tileGap = 8;      // unused elements after each row of the tile: a warp stores pairs of 8 rows at once
constexpr int64_t rowTilesAtOnce = 8;
constexpr int columnThreads = 128;
constexpr int64_t registersPerProcessor = 65536;

int64_t rowOfTile(int64_t cols) { return cols + tileGap; }

/// Bytes of shared memory that a block needs.
int64_t sharedBytes(const Schedule &s, DType stored, DType sum) {
  return std::max(s.mc * rowOfTile(s.nc) * int64_t(sizeOf(sum)),
                  (s.mc + s.nc) * s.kc * s.stages * int64_t(sizeOf(stored)));
}

bool usesTensorCores(const Problem &p, const Target &target) {
  return target.multiplies(p.stored) && (p.stored != DType::f32 || p.anchor->attrs.getBool("tf32"));
}

class CudaBuilder {
public:
  CudaBuilder(GroupEval &group, const Problem &p, const Schedule &s) : group(group), p(p), s(s), epilogue(group, p) {
    tile.a = group.inputs[p.a], tile.b = group.inputs[p.b];
    tile.m = p.m, tile.n = p.n, tile.k = p.k;
    tile.ta = p.ta, tile.tb = p.tb, tile.lda = p.lda, tile.ldb = p.ldb;
    tile.fold = p.fold, tile.goesOn = p.init >= 0;
    tile.mma = s.mma;
    tile.rows = s.mc, tile.cols = s.nc, tile.steps = s.kc;
    tile.ldc = rowOfTile(s.nc);
    tile.threads = s.threads, tile.mr = s.mr, tile.nr = s.nr, tile.stages = s.stages;
    const int64_t bytes = sharedBytes(s, tile.a->dtype, group.compute);
    sums = makeBuffer("tile", group.compute, Storage::shared, ceilDiv(bytes, sizeOf(group.compute)));
  }

  Stmt product() {
    const int64_t rowTiles = ceilDiv(p.m, s.mc), colTiles = ceilDiv(p.n, s.nc);
    Var b = makeVar("block");
    Seq out;
    Expr at = kir::ref(b);
    batch = p.batch > 1 ? out.let("batch", at / imm(rowTiles * colTiles)) : imm(0);
    if (p.batch > 1)
      at = out.let("inBatch", at % imm(rowTiles * colTiles));
    Expr row = imm(0), col = at;
    if (rowTiles > 1) {
      const int64_t most = std::min(rowTiles, rowTilesAtOnce);
      Expr group = at / imm(most * colTiles), inGroup = at % imm(most * colTiles), first = group * most;
      Expr count = imm(most);
      if (rowTiles % most)  // never below 1: max() only proves that to the emitter, for narrow indices
        count = out.let("count", min(count, max(imm(rowTiles) - first, imm(1))));
      row = first + inGroup % count, col = inGroup / count;
    }
    row0 = out.let("row0", row * s.mc), col0 = out.let("col0", col * s.nc);
    out.alloc(sums);
    if (p.init >= 0)
      out.add(forTile([&](const Expr &row, const Expr &rows, const Expr &col, const Expr &cols) {
        return Body{serial("i", rows, [&](const Expr &i) {
          return Body{vectorLoop("j", cols, lanesAtOnce, [&](const Expr &j) {
            return Body{store(sums, place(row + i, col + j), epilogue.init(batch, row0 + row + i, col0 + col + j))};
          })};
        })};
      }));
    out.add(kir::matmul(tile, sums, batch * p.aBatch, batch * p.bBatch, row0, col0));
    out.add(forTile([&](const Expr &row, const Expr &rows, const Expr &col, const Expr &cols) {
      return Body{epilogue.emitRows(batch, row0 + row, rows, col0 + col, cols, lanesAtOnce, rowsAtOnce,
                                    [&](const Expr &i, const Expr &j) { return load(sums, place(row + i, col + j)); })};
    }));
    return loop(LoopKind::grid, b, imm(p.batch * rowTiles * colTiles), out.take());
  }

  /// The bias gradient: a phase that stores partial sums to `parts`, and a phase that adds them up.
  std::vector<Stmt> columnSums(const Buffer &parts) {
    const int64_t blocks = ceilDiv(p.k, p.fold), rest = p.k % p.fold;
    Var t = makeVar("t"), c = makeVar("col");
    Buffer acc = makeBuffer("acc", group.compute, Storage::reg, 1);
    auto add = [&](const Expr &e) { return store(acc, imm(0), load(acc, imm(0)) + e); };
    Expr block = kir::ref(t) / imm(p.n), col = kir::ref(t) % imm(p.n), first = block * p.fold;
    Stmt part = alloc(acc, {store(acc, imm(0), fimm(0, group.compute)),
                            serial("i", rest ? min(imm(p.fold), imm(p.k) - first) : imm(p.fold),
                                   [&](const Expr &i) { return Body{add(epilogue.columnTerm(first + i, col))}; }),
                            store(parts, kir::ref(t), load(acc, imm(0)))});
    Stmt total = alloc(
        acc, {store(acc, imm(0), epilogue.columnInit(kir::ref(c))),
              serial("i", imm(blocks), [&](const Expr &i) { return Body{add(load(parts, i * p.n + kir::ref(c)))}; }),
              epilogue.storeColumn(kir::ref(c), load(acc, imm(0)))});
    return {threadsLoop(t, blocks * p.n, columnThreads, {part}), threadsLoop(c, p.n, columnThreads, {total})};
  }

private:
  Expr place(const Expr &row, const Expr &col) const { return row * tile.ldc + col; }

  /// Each thread runs f(row, rows, col, cols) for its part of the tile: consecutive rows, without those past the end.
  Stmt forTile(const std::function<Body(const Expr &, const Expr &, const Expr &, const Expr &)> &f) {
    const int64_t across = s.nc / lanesAtOnce, threads = std::min<int64_t>(tile.threads, s.mc * across);
    const int64_t rows = ceilDiv(s.mc * across, threads);
    Var t = makeVar("t");
    Expr row = kir::ref(t) / imm(across) * rows, col = kir::ref(t) % imm(across) * lanesAtOnce;
    Expr some = p.m % s.mc ? min(imm(rows), max(imm(p.m) - (row0 + row), imm(0))) : imm(rows);
    Expr cols = p.n % lanesAtOnce ? min(imm(lanesAtOnce), imm(p.n) - (col0 + col)) : imm(lanesAtOnce);
    Body body = f(row, some, col, cols);
    if (p.n % s.nc)
      body = {ifThen(lt(col0 + col, imm(p.n)), std::move(body))};
    return loop(LoopKind::block_thread, t, imm(threads), std::move(body));
  }

  GroupEval &group;
  const Problem &p;
  const Schedule &s;
  Epilogue epilogue;
  MatmulTile tile;
  Buffer sums;
  Expr batch, row0, col0;
};

/// A tile that a schedule may choose.
struct Candidate {
  int64_t mc, nc;  // tile of a block
  int mr, nr;      // tile of each of its warps (tensor cores) or threads
  double rate;     // multiply-adds as a fraction of the multiprocessor's peak, if two blocks share it
};

// The rate is the fraction of 1024 multiply-adds of bf16 per cycle that shared memory (128 bytes per cycle) can feed. A
// warp's tile reads (mr + nr) / (mr nr) elements per multiply-add; a block's copies write (mc + nc) / (mc nc).
constexpr Candidate byTensorCores[] = {{256, 128, 64, 64, 0.97}, {128, 256, 64, 64, 0.97}, {128, 128, 64, 64, 0.93},
                                       {128, 64, 64, 32, 0.75},  {64, 128, 32, 64, 0.75},  {64, 64, 32, 32, 0.55},
                                       {32, 64, 16, 32, 0.35},   {16, 128, 16, 32, 0.26},  {16, 64, 16, 16, 0.22}};
constexpr Candidate folded[] = {{128, 128, 64, 32, 0.8}, {128, 64, 64, 32, 0.75}, {64, 128, 32, 64, 0.75},
                                {128, 64, 32, 32, 0.6},  {64, 64, 32, 32, 0.55},  {32, 64, 16, 32, 0.35},
                                {16, 64, 16, 16, 0.22}};
constexpr Candidate byFma[] = {
    {128, 128, 8, 8, 0.95}, {64, 128, 8, 8, 0.85}, {64, 64, 4, 4, 0.7}, {32, 64, 4, 4, 0.6}, {16, 128, 4, 4, 0.45}};

/// An estimate of a thread's registers: sums, operands of a step, and about 60 others.
int64_t registersOf(const Schedule &s, bool folds) {
  const int64_t sums = s.mma ? s.mr * s.nr / 32 : s.mr * s.nr,
                operands = s.mma ? s.mr / 4 + s.nr / 4 : 4 * (s.mr + s.nr);
  return std::min<int64_t>(255, sums * (folds ? 2 : 1) + operands + 60);
}

}  // namespace

Stmt Epilogue::emitRows(const Expr &batch, const Expr &firstRow, const Expr &rows, const Expr &firstCol,
                        const Expr &cols, int lanes, int atOnce,
                        const std::function<Expr(const Expr &, const Expr &)> &sum) {
  Var b = makeVar("b"), u = makeVar("u"), j = makeVar("j");
  Expr row = kir::ref(b) * atOnce + kir::ref(u), element = sum(row, kir::ref(j));
  std::vector<Var> around;
  for (const Expr &e :
       collect({batch, firstRow, firstCol, element}, [](const Expr &e) { return e->kind == ExprKind::Var; }))
    if (e->var != b && e->var != u && e->var != j && !llvm::is_contained(around, e->var))
      around.push_back(e->var);
  Seq outer, inRows, inRow, inCol;
  Placer placer;
  placer.push(outer, around);
  placer.push(inRows, {b});
  placer.push(inRow, {u});
  placer.push(inCol, {j});
  std::vector<unsigned> results;
  const std::vector<Expr> values =
      placer.place(valuesAt(point(batch, firstRow + row, firstCol + kir::ref(j)), element, results));
  const Expr slot = kir::ref(u) * lanes + lane();
  std::vector<Buffer> kept;
  for (const Expr &v : values) {
    kept.push_back(makeBuffer("kept", v->dtype, Storage::reg, int64_t(atOnce) * lanes));
    inCol.add(store(kept.back(), slot, v));
  }
  // `body` for each of the `atOnce` rows that exists.
  int64_t n = 0;
  const bool whole = isImm(rows, &n) && n % atOnce == 0;
  auto eachRow = [&](const Var &v, Body body) {
    if (!whole)
      body = {ifThen(lt(kir::ref(b) * atOnce + kir::ref(v), rows), std::move(body))};
    return loop(LoopKind::unroll, v, imm(atOnce), std::move(body));
  };
  inRow.add(loop(LoopKind::vector, j, cols, inCol.take(), lanes));
  Body all = {eachRow(u, inRow.take())};
  Var v = makeVar("v"), c = makeVar("c");
  Body stores;
  for (size_t i = 0; i < results.size(); ++i)
    stores.push_back(group.storeOutput(
        results[i], point(batch, firstRow + (kir::ref(b) * atOnce + kir::ref(v)), firstCol + kir::ref(c)),
        load(kept[i], kir::ref(v) * lanes + lane())));
  all.push_back(eachRow(v, {loop(LoopKind::vector, c, cols, std::move(stores), lanes)}));
  for (const Buffer &k : kept)
    all = {alloc(k, std::move(all))};
  inRows.add(all);
  Expr count = (rows + int64_t(atOnce - 1)) / imm(atOnce);
  outer.add(loop(LoopKind::serial, b, count, inRows.take()));
  return block(outer.take());
}

namespace {

llvm::ArrayRef<Candidate> candidatesOf(const Problem &p, bool mma) {
  return !mma          ? llvm::ArrayRef<Candidate>(byFma)
         : p.fold != 0 ? llvm::ArrayRef<Candidate>(folded)
                       : llvm::ArrayRef<Candidate>(byTensorCores);
}

/// Whether a thread has enough registers for a tile, in cases that NVRTC showed and registersOf does not cover.
bool hasRegisters(const Candidate &c, const Problem &p, const Target &target, bool mma) {
  const int64_t size = sizeOf(p.stored);
  // ldmatrix cannot transpose fragments of tf32, so they take additional registers.
  if (mma && p.fold && size == 4 && c.mr * c.nr > 32 * 32)
    return false;
  // Two sets of 64 sums and operands widened to f32 need more registers than a thread has: bf16 on sm_75. Of 8 bits,
  // whose widening takes several steps, one set does on sm_90a.
  if (!mma && (p.fold ? size <= 2 : size == 1) && c.mr * c.nr > 4 * 4)
    return false;
  // On sm_80 NVRTC 13 needs more registers for columns that end within a tile than the largest tile leaves.
  return !(mma && target.architecture == 80 && !p.tb && p.n % c.nc && c.mr * c.nr == 64 * 64);
}

Schedule scheduleOf(const Candidate &c, bool mma, const Target &target) {
  Schedule s;
  s.mma = mma;
  s.mc = c.mc, s.nc = c.nc, s.mr = c.mr, s.nr = c.nr;
  s.threads = int(c.mc / c.mr * (c.nc / c.nr)) * (mma ? int(target.warp) : 1);
  return s;
}

/// Blocks that a multiprocessor can run at a time, at most 2; 0 if shared memory or registers do not suffice for one.
int64_t blocksOf(const Schedule &s, const Problem &p, const Target &target) {
  const int64_t bytes = sharedBytes(s, p.stored, DType::f32);
  const int64_t most = registersPerProcessor / (registersOf(s, p.fold != 0) * s.threads);
  return bytes > target.sharedBytes ? 0 : std::min({most, target.processorShared / (bytes + 1024), int64_t(2)});
}

/// An estimate of the time of the busiest multiprocessor.
double busiest(const Candidate &c, int64_t blocks, const Problem &p, const Target &target) {
  const double tiles = double(p.batch * ceilDiv(p.m, c.mc) * ceilDiv(p.n, c.nc));
  const double each =
      double(c.mc * c.nc) * (double(p.k) / c.rate * (blocks > 1 ? 1 : 1.2) + (blocks > 1 ? 60 : 200)) + 64e3;
  return std::ceil(tiles / target.processors) * each;
}

int mostStages(const Target &target) { return target.architecture < 80 ? 2 : 4; }

}  // namespace

Schedule cudaSchedule(const Problem &p, const Target &target) {
  Schedule best;
  best.mma = usesTensorCores(p, target);
  double least = HUGE_VAL;
  for (const Candidate &c : candidatesOf(p, best.mma)) {
    if (!hasRegisters(c, p, target, best.mma))
      continue;
    Schedule s = scheduleOf(c, best.mma, target);
    // Rows of a stage are 64 bytes, or 128 if the tile is small and barriers are frequent. Three stages in flight hide
    // the latency of memory. Fewer suffice if that makes room for a second block, because its epilogue overlaps with
    // the products of the first.
    s.kc = (s.mma && c.mc * c.nc < 128 * 128 ? 128 : 64) / int64_t(sizeOf(p.stored));
    int64_t blocks = 0;
    for (int stages = 2; stages <= mostStages(target); ++stages) {
      Schedule deeper = s;
      deeper.stages = stages;
      if (const int64_t n = blocksOf(deeper, p, target); n && n >= blocks)
        s = deeper, blocks = n;
    }
    if (blocks == 0)
      continue;
    if (const double time = busiest(c, blocks, p, target); time < least)
      least = time, best = s;
  }
  return best;
}

std::vector<Schedule> cudaSpace(const Problem &p, const Schedule &base, const Target &target) {
  std::vector<std::pair<double, Schedule>> all;
  for (const Candidate &c : candidatesOf(p, base.mma)) {
    if (!hasRegisters(c, p, target, base.mma))
      continue;
    Schedule s = scheduleOf(c, base.mma, target);
    s.recipe = base.recipe;
    for (int64_t bytes : {64, 128})
      for (s.stages = 2; s.stages <= mostStages(target); ++s.stages) {
        s.kc = bytes / int64_t(sizeOf(p.stored));
        if (const int64_t blocks = blocksOf(s, p, target))
          all.push_back({busiest(c, blocks, p, target), s});
      }
  }
  llvm::stable_sort(all, [](const auto &a, const auto &b) { return a.first < b.first; });
  std::vector<Schedule> space;
  for (auto &[time, s] : all)
    space.push_back(s);
  return space;
}

LoweredGroup buildCuda(const Op &fused, const Problem &p, const Schedule &given, DType compute) {
  GroupEval group(fused, compute);
  Schedule s = given;
  if (compute == DType::f64) {  // fused multiply-adds, with sums that take two registers each
    s.mma = false;
    s.mc = std::min<int64_t>(s.mc, 64), s.nc = 64, s.mr = s.nr = 4, s.kc = 8, s.stages = 2;
    s.threads = int(s.mc * s.nc / 16);
  }
  GPTC_CHECK(s.mc > 0 && s.nc > 0 && s.kc > 0 && s.mr > 0 && s.nr > 0 && s.stages > 1 && s.nc % lanesAtOnce == 0, "{}",
             s.str());
  LoweredGroup out;
  CudaBuilder builder(group, p, s);
  out.kernel.name = group.kernelName();
  std::vector<Buffer> workspaces;
  if (p.columnSum) {
    const int64_t parts = ceilDiv(p.k, p.fold) * p.n;
    workspaces.push_back(makeBuffer("parts", compute, Storage::global, parts, true));
    out.workspaceBytes.push_back(parts * int64_t(sizeOf(compute)));
  }
  out.kernel.params = group.params(workspaces);
  out.kernel.body = {builder.product()};
  if (p.columnSum)
    for (Stmt &phase : builder.columnSums(workspaces[0]))
      out.kernel.body.push_back(std::move(phase));
  return out;
}

}  // namespace gptc::matmul
