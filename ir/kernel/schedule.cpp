#include "ir/kernel/schedule.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <type_traits>

namespace gptc {

namespace {

// Far above what any recipe chooses, but small enough that no product of a size and an extent overflows, and that
// unrolled code does not fill the memory.
constexpr int64_t maxVec = 64;
constexpr int64_t maxUnrolled = 1024;
constexpr int64_t maxThreads = 1024;
constexpr int64_t maxTileVectors = 128;
constexpr int64_t maxStages = 8;

/// Calls f(name, field, limit) for each size of a schedule, in the order of its text.
template <typename S, typename F> void forEachField(S &s, F f) {
  f("vec", s.vec, maxVec);
  f("unroll", s.unroll, maxUnrolled);
  f("task", s.task, maxElements);
  f("threads", s.threads, maxThreads);
  f("mr", s.mr, maxUnrolled);
  f("nr", s.nr, maxUnrolled);
  f("mc", s.mc, maxElements);
  f("nc", s.nc, maxElements);
  f("kc", s.kc, maxElements);
  f("stages", s.stages, maxStages);
  f("qb", s.qb, maxElements);
  f("kb", s.kb, maxElements);
  f("stream", s.stream, 1);
  f("packB", s.packB, 1);
  f("pairs", s.pairs, 1);
  f("mma", s.mma, 1);
  f("library", s.library, 1);
  f("algorithm", s.algorithm, INT32_MAX);
}

}  // namespace

int64_t tileColumns(const Target &target, int64_t m, int64_t n) {
  const int64_t lanes = target.lanes(DType::f32), flat = 4 * lanes;
  // Flat tiles need many registers, and wide panels leave more of the last panel unused.
  return target.vectorRegisters < 32 || m < 64 || (n % flat && n < 1024) ? 2 * lanes : flat;
}

std::string Schedule::str() const {
  std::string s = recipe ? std::string(nameOf(*recipe)) : "";
  forEachField(*this, [&](const char *name, auto value, int64_t) {
    if (value)
      s += std::string(" ") + name + "=" + std::to_string(int64_t(value));
  });
  return s;
}

bool Schedule::parse(llvm::StringRef text, Schedule &out) {
  llvm::SmallVector<llvm::StringRef, 12> words;
  text.split(words, ' ', -1, /*KeepEmpty=*/false);
  Schedule s;
  if (!words.empty())
    s.recipe = parseWord<RecipeKind>(words[0]);
  if (!s.recipe)
    return false;
  for (llvm::StringRef word : llvm::ArrayRef(words).drop_front()) {
    auto [name, digits] = word.split('=');
    bool known = false;
    bool good = true;
    forEachField(s, [&, name = name, digits = digits](const char *field, auto &value, int64_t limit) {
      if (name != field)
        return;
      known = true;
      int64_t parsed = 0;
      good = !value && !digits.getAsInteger(10, parsed) && parsed > 0 && parsed <= limit;
      value = std::remove_reference_t<decltype(value)>(parsed);
    });
    if (!known || !good)
      return false;
  }
  const int64_t tile = int64_t(s.mr) * s.nr;  // elements, held in vectors that are all unrolled
  if ((s.vec & (s.vec - 1)) || s.threads % 32 || (s.vec && tile > maxTileVectors * s.vec) ||
      (s.algorithm && !(s.library && s.recipe == RecipeKind::matmul)))
    return false;
  out = s;
  return true;
}

}  // namespace gptc
