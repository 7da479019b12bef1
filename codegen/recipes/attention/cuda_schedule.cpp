// Schedules of attention on CUDA. docs/cuda.md gives the reasons. A warp's tile of a stage is mr x nr (rows x columns)
// in the forward pass and for dk and dv, and qb x kb for dq. Schedules without mr mean loop trees.
#include "codegen/recipes/attention/attention.h"

#include <algorithm>

namespace gptc::attention {

using namespace kir;

namespace {

/// Most tokens for which the loop trees of an attention statement's body fit shared memory (fallbackSharedBudget,
/// cuda_kernel.cpp).
constexpr int64_t mostTokens = 20 << 10;
constexpr int64_t mostSize = 128;  // elements of a head: above it, sums do not fit the registers

/// Whether a tile fits a thread's 255 registers. From NVRTC's reports for tiles of all shapes: a sum takes one
/// register, a score, with exponentials and masks, one and a half; the rest up to 255 is for all other values.
bool fitsRegisters(const AttentionTile &t, const Target &target) {
  const int64_t sums = t.mr * t.size / 32 * (t.part == AttentionTile::Part::keyGrad ? 2 : 1);
  const int64_t scores = int64_t(t.mr) * t.nr / 32 * (t.part == AttentionTile::Part::forward ? 1 : 2);
  const bool narrow = sizeOf(t.operands[0]->dtype) == 2;
  const int64_t kept = t.part == AttentionTile::Part::forward && t.mma && narrow && t.mr * t.size <= 2048 ? 32 : 0;
  // Words of tf32 are loaded one by one, and the compiler moves such loads far ahead, which takes registers.
  const bool words = t.mma && !narrow;
  if (words && t.size > 64)
    return t.mr == 16 && t.nr == 16;
  if (words && t.part != AttentionTile::Part::forward && t.nr > 16)
    return false;
  const int64_t most = target.architecture < 80 ? 155 : t.part == AttentionTile::Part::forward ? 195 : 176;
  const int widest = target.architecture < 80 || t.part != AttentionTile::Part::forward ? 32 : 64;
  return t.nr <= widest && sums + scores * 3 / 2 + kept <= most;
}

/// An estimate of the fraction of a multiprocessor's multiply-adds that a tile uses; 0 if it does not fit.
double rateOf(const AttentionTile &t, const Shape &shape, const Target &target) {
  const int64_t shared = t.sharedBytes();
  if (!fitsRegisters(t, target) || shared > target.sharedBytes)
    return 0;
  // At most two blocks of four warps: most tiles need too many registers for three.
  const int64_t blocks = std::min<int64_t>(target.processorShared / (shared + 1024), 256 / t.threads);
  const int64_t warps = std::max<int64_t>(blocks, 1) * t.threads / 32;
  // Reading a fragment of 16 columns takes as long as computing two products of 16 x 8, and the fragment serves
  // 2 mr / 16 products. A fragment of rows, which only the forward pass keeps in registers, serves 2 nr / 16.
  const double column = 16.0 / t.mr, both = column + 16.0 / t.nr;
  auto time = [](double reads) { return std::max(1.0, reads); };
  double product = 0;
  switch (t.part) {
  case AttentionTile::Part::forward:
    product = time(column);
    break;
  case AttentionTile::Part::queryGrad:
    product = (2 * time(both) + time(column)) / 3;
    break;
  case AttentionTile::Part::keyGrad:
    product = (time(both) + time(column)) / 2;
    break;
  }
  // The tile wastes rows and columns past the last token or the diagonal.
  const double tokens = double(shape.tokens), seen = shape.causal ? tokens / 2 : tokens;
  const double useful = seen / (seen + double(t.rows()) / 2 + t.nr / 2.0);
  return double(warps) / double(warps + 3) * useful * (t.stages > 1 ? 1 : 0.85) / product;
}

AttentionTile best(AttentionTile t, const Shape &shape, const Target &target, int threads) {
  AttentionTile chosen;
  double most = 0;
  t.size = shape.size;
  t.threads = threads;
  for (int mr : {32, 16})
    for (int nr : {64, 32, 16})
      for (int stages : {2, 1}) {
        t.mr = mr, t.nr = nr, t.stages = stages;
        if (const double rate = rateOf(t, shape, target); rate > most)
          most = rate, chosen = t;
      }
  return chosen;
}

}  // namespace

Schedule cachedSchedule() {
  Schedule s;
  s.threads = 256;
  return s;
}

Schedule splitSchedule(int64_t rows) {
  constexpr int64_t fewest = 128, parts = 16, most = 4096;  // keys of a part, parts, keys that shared memory holds
  Schedule s;
  s.threads = 128;
  s.kb = std::clamp(ceilDiv(rows, parts), fewest, most);
  return s;
}

Schedule cudaSchedule(const Op &op, const Target &target) {
  const bool backward = op.is(OpKind::attention_grad);
  const Type &type = op.operand(backward)->type;
  const Shape shape = shapeOf(op, backward);
  Schedule s;
  s.threads = 256;
  // Attention statements know no documents, and windows only behind a causal mask.
  const bool ranged = op.attrs.getBool("documents") || (shape.window && !shape.causal);
  if (shape.tokens > mostTokens || shape.size > mostSize || type.dtype == DType::f64 || ranged)
    return s;
  Schedule tiled;
  tiled.mma = target.multiplies(type.dtype) && (type.dtype != DType::f32 || op.attrs.getBool("tf32"));
  AttentionTile t;
  t.mma = tiled.mma;
  t.operands = {makeBuffer("x", type.dtype, Storage::global, 1)};
  // No more warps than there are rows of queries for.
  tiled.threads = shape.tokens <= 16 ? 32 : shape.tokens <= 48 ? 64 : 128;
  if (!backward) {
    t = best(t, shape, target, tiled.threads);
    if (t.mr)
      tiled.mr = t.mr, tiled.nr = t.nr, tiled.stages = t.stages;
    return t.mr ? tiled : s;
  }
  t.part = AttentionTile::Part::queryGrad;
  const AttentionTile queries = best(t, shape, target, tiled.threads);
  t.part = AttentionTile::Part::keyGrad;
  const AttentionTile keys = best(t, shape, target, tiled.threads);
  if (!queries.mr || !keys.mr)
    return s;
  tiled.mr = keys.mr, tiled.nr = keys.nr, tiled.qb = queries.mr, tiled.kb = queries.nr;
  tiled.stages = std::min(keys.stages, queries.stages);
  return tiled;
}

// The columns of a tile do not vary: sums are rescaled once per tile of columns, so another width changes their bits.
std::vector<Schedule> cudaSpace(const Op &op, const Schedule &base, const Target &target) {
  const bool backward = op.is(OpKind::attention_grad);
  const Type &type = op.operand(backward)->type;
  if (!base.mr || base.library)  // loop trees only, or a call
    return {};
  AttentionTile t;
  t.mma = base.mma;
  t.operands = {makeBuffer("x", type.dtype, Storage::global, 1)};
  t.size = shapeOf(op, backward).size;
  t.threads = base.threads;
  auto fits = [&](AttentionTile::Part part, int rows, int64_t cols) {
    t.part = part, t.mr = rows, t.nr = int(cols);
    return fitsRegisters(t, target) && t.sharedBytes() <= target.sharedBytes;
  };
  std::vector<Schedule> space;
  for (t.stages = 1; t.stages <= 2; ++t.stages)
    for (int rows : {32, 16})
      for (int64_t queries : {32, 16}) {
        Schedule s = base;
        s.stages = t.stages, s.mr = rows;
        if (backward)
          s.qb = queries;
        if (!backward ? fits(AttentionTile::Part::forward, rows, s.nr)
                      : fits(AttentionTile::Part::keyGrad, rows, s.nr) &&
                            fits(AttentionTile::Part::queryGrad, int(queries), s.kb))
          space.push_back(s);
      }
  return space;
}

}  // namespace gptc::attention
