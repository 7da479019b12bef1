// train.micro_batch = "auto" on a GPU: the search by itself, and plans of a tiny model for a GPU with little memory.
#include "tools/planner/micro_batch.h"

#include "tools/compiler/compile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace gptc {
namespace {

using Curve = std::function<std::optional<int64_t>(int64_t)>;

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0)
      all.push_back(d);
  return all;
}

/// The largest by trying all; and by largestThatFits, in how many plannings.
void expectLargest(const std::vector<int64_t> &candidates, int64_t room, int64_t first, const Curve &bytes,
                   const char *what) {
  std::optional<int64_t> want;
  for (int64_t c : candidates)
    if (const std::optional<int64_t> b = bytes(c); b && *b <= room)
      want = c;
  int asked = 0;
  const std::optional<int64_t> got = largestThatFits(candidates, room, 6, first, [&](int64_t c) {
    ++asked;
    return bytes(c);
  });
  EXPECT_EQ(got, want) << what << ", room " << room << ", first " << first;
  EXPECT_LE(asked, 6) << what;
}

TEST(MicroBatch, SixPlanningsFindTheLargest) {
  const std::pair<const char *, Curve> curves[] = {
      {"a line", [](int64_t m) { return 1000 + 70 * m; }},
      {"mostly the same", [](int64_t m) { return 100000 + m; }},
      {"bent", [](int64_t m) { return int64_t(50 * std::pow(double(m), 1.4)); }},
      {"flat at first", [](int64_t m) { return std::max<int64_t>(5000, 60 * m); }},
      {"steep at the end", [](int64_t m) { return 30 * m + (m > 100 ? 40000 : 0); }},
      {"none beyond", [](int64_t m) { return m > 48 ? std::nullopt : std::optional(10 * m); }},
      {"none at all", [](int64_t) { return std::optional<int64_t>(); }},
      {"all the same", [](int64_t) { return 7; }},
  };
  for (const auto &[what, bytes] : curves)
    for (int64_t n : {1, 2, 512, 720, 5040})  // up to 60 divisors
      for (int64_t room : {0, 6, 1200, 9000, 50000, 101000, 1000000})
        for (int64_t first : {1, 32, 4096})
          expectLargest(divisors(n), room, first, bytes, what);
  // 240 of them are more than halving can do, and no problem for a line.
  for (int64_t room : {0, 1070, 2000, 123456, 40000000, 1000000000})
    expectLargest(divisors(720720), room, 16, [](int64_t m) { return 1000 + 70 * m; }, "many");
}

Config tiny(std::vector<std::string> settings) {
  for (const char *s : {"model.n_layer=2", "model.n_head=2", "model.n_embd=64", "model.block_size=64",
                        "model.vocab_size=512", "train.steps=1", "train.global_batch_tokens=262144",
                        "compile.target=cuda:sm_90a", "compile.library_calls=off", "compile.autotune=off"})
    settings.push_back(s);
  return readConfig("", settings);
}

std::unique_ptr<Module> planOf(const Config &c, const Target &target) {
  return planModule(c, target, "", int64_t(1) << 62);
}

TEST(MicroBatch, IsTheLargestDivisorWhosePlanFits) {
  Config c = tiny({"compile.gpu_memory=\"1GiB\""});
  bool here = true;
  const Target target = targetOf(c, here);
  EXPECT_FALSE(here);
  int plannings = 0;
  const auto choice = chooseMicroBatch(c, target, here, [&](const Config &some) {
    ++plannings;
    return planOf(some, target);
  });
  ASSERT_TRUE(choice);
  EXPECT_TRUE(choice->fits);
  EXPECT_EQ(choice->plannings, plannings);
  EXPECT_LE(plannings, 6);
  EXPECT_EQ(choice->memory.bytes, int64_t(1) << 30);
  EXPECT_GT(choice->room, 0);
  EXPECT_LT(choice->room, int64_t(0.9 * double(1 << 30)));
  EXPECT_EQ(c.train.microBatch, choice->sequences);
  EXPECT_EQ(c.train.microBatch * c.train.accumulate, 4096) << "the global batch stays";
  // Its plan fits and that of the next divisor does not.
  EXPECT_EQ(planOf(c, target)->attrs.getInt("arena_bytes"), choice->arenaBytes);
  EXPECT_LE(choice->arenaBytes, choice->room);
  Config next = c;
  next.train.microBatch *= 2, next.train.accumulate /= 2;
  EXPECT_GT(planOf(next, target)->attrs.getInt("arena_bytes"), choice->room);
  // Where the model is compiled again, for other ranks or to explain it, it is the same.
  const Config again = readConfig("", modelSettings(c));
  EXPECT_EQ(again.train.microBatch, choice->sequences);
  EXPECT_TRUE(again.fixes("train.micro_batch"));
  Config pinned = again;
  EXPECT_FALSE(chooseMicroBatch(pinned, target, here, [&](const Config &some) { return planOf(some, target); }));
}

TEST(MicroBatch, OneSequenceWhereNotEvenThatFits) {
  Config c = tiny({"compile.gpu_memory=\"1MiB\""});
  bool here = true;
  const Target target = targetOf(c, here);
  const auto choice = chooseMicroBatch(c, target, here, [&](const Config &some) { return planOf(some, target); });
  ASSERT_TRUE(choice);
  EXPECT_FALSE(choice->fits);
  EXPECT_LT(choice->room, 1 << 20);
  EXPECT_EQ(c.train.microBatch, 1);
}

TEST(MicroBatch, MemoryIsThatOfTheGpuThatIsNamed) {
  auto memory = [](std::vector<std::string> settings) {
    const Config c = tiny(std::move(settings));
    bool here = true;
    const Target target = targetOf(c, here);
    return gpuMemoryOf(c, target, here);
  };
  EXPECT_EQ(memory({"compile.gpu_memory=\"24GB\""}).bytes, 24'000'000'000);
  EXPECT_EQ(memory({"compile.gpu_memory=\"H200\""}).bytes, 141'000'000'000);
  EXPECT_EQ(memory({"compile.gpu_memory=\"auto\""}).bytes, 80'000'000'000) << "the least of sm_90";
  EXPECT_NE(memory({}).of.find("H100"), std::string::npos) << memory({}).of;
  // What is explicit stays as it is, and so does all on a CPU.
  Config fixed = tiny({"train.micro_batch=8"});
  EXPECT_FALSE(chooseMicroBatch(fixed, cudaTarget("cuda:sm_90a"), false, nullptr));
  Config cpu = tiny({});
  EXPECT_FALSE(chooseMicroBatch(cpu, hostTarget(1), true, nullptr));
}

}  // namespace
}  // namespace gptc
