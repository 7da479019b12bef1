// What the emitter concludes about indices against brute force: any base that the facts allow, lane by lane.
#include "codegen/emit_index.h"

#include "ir/kernel/eval.h"

#include <gtest/gtest.h>

#include <random>

namespace gptc {
namespace {

using kir::BinaryOp;

class Drawer {
public:
  explicit Drawer(unsigned seed) : random(seed) {}
  int64_t below(int64_t n) { return int64_t(random() % uint64_t(n)); }

  IndexFacts facts() {
    IndexFacts f;
    f.stride = below(2) ? 0 : 1 + below(3);
    f.multiple = int64_t(1) << below(6);
    f.bound = below(4) ? f.multiple * below(40) + below(3) : -1;
    return f;
  }
  /// A base of which these facts are true.
  int64_t base(const IndexFacts &f) {
    if (f.multiple == 0)
      return 0;
    if (f.bound >= 0)
      return f.multiple * below(f.bound / f.multiple + 1);
    return f.multiple * (below(81) - 40);
  }

private:
  std::mt19937_64 random;
};

TEST(IndexFacts, HoldForEveryBase) {
  Drawer draw(7);
  constexpr BinaryOp ops[] = {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::div,
                              BinaryOp::rem, BinaryOp::min, BinaryOp::max};
  int known[std::size(ops)] = {};
  for (int n = 0; n < 200000; ++n) {
    const size_t which = size_t(draw.below(std::size(ops)));
    const int width = 1 << (1 + draw.below(4));
    IndexFacts x = draw.facts(), y = draw.facts();
    std::optional<int64_t> c;
    if (draw.below(2)) {
      c = draw.below(5) ? int64_t(1) << draw.below(7) : draw.below(20) - 5;
      y = IndexFacts::ofConstant(*c);
    }
    const auto r = combineFacts(ops[which], x, y, c, width);
    if (!r)
      continue;
    ++known[which];
    for (int sample = 0; sample < 4; ++sample) {
      const int64_t a = draw.base(x), b = c ? *c : draw.base(y);
      const bool divides = ops[which] == BinaryOp::div || ops[which] == BinaryOp::rem;
      if (divides && (b == 0 || b + y.stride * (width - 1) == 0))
        continue;
      auto at = [&](int64_t lane) {
        return kir::evalInt(ops[which], DType::i64, a + x.stride * lane, b + y.stride * lane);
      };
      const int64_t base = at(0);
      SCOPED_TRACE(fmt::format("op {} of {}+{}l and {}+{}l, {} lanes", which, a, x.stride, b, y.stride, width));
      for (int64_t lane = 0; lane < width; ++lane)
        ASSERT_EQ(at(lane), base + r->stride * lane);
      if (r->multiple == 0)
        ASSERT_EQ(base, 0);
      else
        ASSERT_EQ(base % r->multiple, 0);
      if (r->bound >= 0) {
        ASSERT_GE(base, 0);
        ASSERT_LE(base, r->bound);
      }
    }
  }
  for (size_t i = 0; i < std::size(ops); ++i)
    EXPECT_GT(known[i], 1000) << "operator " << i;
}

TEST(IndexFacts, ThirtyTwoBitsAreEnoughForEveryLane) {
  Drawer draw(8);
  int fits = 0;
  for (int n = 0; n < 20000; ++n) {
    IndexFacts f;
    f.stride = draw.below(5);
    f.bound = draw.below(3) ? (int64_t(1) << 31) - 200 + draw.below(400) : draw.below(int64_t(1) << 40);
    const int width = 1 << draw.below(6);
    if (!f.fits32(width))
      continue;
    ++fits;
    ASSERT_LE(f.bound + f.stride * (width - 1), INT32_MAX);
  }
  EXPECT_GT(fits, 100);
  // Bounds whose product has more bits than an index.
  EXPECT_EQ(productOfBounds(int64_t(1) << 40, int64_t(1) << 40), -1);
  EXPECT_EQ(productOfBounds(int64_t(1) << 20, int64_t(1) << 20), int64_t(1) << 40);
  EXPECT_EQ(sumOfBounds(INT64_MAX, 1), -1);
}

}  // namespace
}  // namespace gptc
