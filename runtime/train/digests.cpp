#include "runtime/train/digests.h"

#include "ir/facts.h"
#include "runtime/checkpoint/checkpoint_files.h"
#include "runtime/checkpoint/state.h"
#include "runtime/collectives/share_text.h"
#include "runtime/device/profile.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include <algorithm>
#include <fmt/format.h>

namespace gptc {

namespace {

constexpr int64_t kPiece = 1 << 20;  // bytes

/// The place of row r, in elements.
int64_t placeOfRow(const Type &type, int64_t r) {
  int64_t place = 0, scale = type.isScalar() ? 1 : type.padded(-1);
  for (int d = int(type.rank()) - 2; d >= 0; --d) {
    place += r % type.dim(d) * scale;
    r /= type.dim(d);
    scale *= type.padded(d);
  }
  return place;
}

}  // namespace

std::string digestOf(const Type &type, const void *data, ThreadPool &pool) {
  const int64_t size = sizeOf(type.dtype), rows = type.rows(), bytes = (type.isScalar() ? 1 : type.dim(-1)) * size;
  // A piece is some rows, or a part of a row that is longer than a piece.
  const int64_t perRow = std::max<int64_t>(1, (bytes + kPiece - 1) / kPiece);
  const int64_t together = perRow > 1 ? 1 : std::max<int64_t>(1, kPiece / std::max<int64_t>(1, bytes));
  const int64_t pieces = perRow > 1 ? rows * perRow : (rows + together - 1) / together;
  std::vector<std::string> digests(pieces);
  pool.each(pieces, [&](int64_t piece) {
    Hasher hasher;
    const int64_t first = piece / perRow * together, part = piece % perRow;
    for (int64_t r = first; r < std::min(first + together, rows); ++r) {
      const char *row = static_cast<const char *>(data) + placeOfRow(type, r) * size;
      const int64_t from = part * kPiece;
      hasher.update(row + from, size_t(perRow > 1 ? std::min(kPiece, bytes - from) : bytes));
    }
    digests[piece] = hasher.finish();
  });
  return blake3(fmt::format("{}", fmt::join(digests, ""))).substr(0, 32);
}

StateDigests digestsOfStates(Executor &executor) {
  StateDigests all;
  std::vector<char> whole;
  for (const bool parameters : {true, false})
    for (const State *s : savedStates(executor.planned(), parameters)) {
      const Type type = wholeType(*s);
      if (executor.ranks) {
        whole.resize(type.bytes());
        loadWhole(executor, *s, whole.data());
        if (executor.ranks->rank == 0)
          all[s->name] = digestOf(type, whole.data(), executor.threads());
      } else {
        all[s->name] = digestOf(type, executor.view(*s, StateAccess::read).data, executor.threads());
      }
    }
  return all;
}

void requireSameWeights(Executor &executor) {
  std::string all;
  for (const State *s : savedStates(executor.planned(), true))
    if (!hasFact<&StateFacts::cutTensor>(*s) && fact<&StateFacts::memory>(*s) != Memory::files)
      all += digestOf(s->type, executor.view(*s, StateAccess::read).data, executor.threads());
  const std::string mine = blake3(all);
  if (shareText(*executor.ranks, mine) != mine)
    throw UserError(ErrorCode::RanksDiffer,
                    fmt::format("rank {} has loaded other weights than rank 0", executor.ranks->rank),
                    "all machines must see the same files; --checkpoint N names a step, which no other run moves");
}

void KernelDigests::ran(const BoundKernel &kernel, int64_t, int64_t) {
  std::string results;
  for (unsigned i = 0; i < kernel.op->numResults(); ++i)
    results += digestOf(kernel.op->result(i)->type, kernel.result(i), pool);
  text += blake3(results).substr(0, digits);
  kernels.push_back(&kernel);
}

std::string KernelDigests::describe(size_t i) const {
  return fmt::format("{}, kernel {}", gptc::describe(*kernels[i]->op), kernels[i]->name);
}

}  // namespace gptc
