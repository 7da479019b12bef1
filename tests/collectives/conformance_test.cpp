// What every engine must compute: all kinds, dtypes and sizes, buckets, in place; sums compared with scalar ones, bit
// by bit. Engines of threads and of processes run the same function in each rank.
#include "tests/collectives/ranks_of.h"

#include "ir/element.h"
#include "runtime/collectives/in_process.h"
#include "runtime/collectives/sum.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

namespace gptc::test {
namespace {

using namespace std::chrono_literals;
using Kind = Collective::Kind;
using Bytes = std::vector<char>;

constexpr DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                            DType::i32, DType::i64, DType::u32,  DType::pred};

/// a + b as the dtype rounds it: in f64, from where it is rounded once. The sum of two f64 is theirs.
void scalarAdd(DType t, void *to, const void *a, const void *b, size_t i) {
  if (t == DType::i64) {
    static_cast<uint64_t *>(to)[i] = static_cast<const uint64_t *>(a)[i] + static_cast<const uint64_t *>(b)[i];
  } else if (!isFloat(t)) {
    static_cast<uint32_t *>(to)[i] = static_cast<const uint32_t *>(a)[i] + static_cast<const uint32_t *>(b)[i];
  } else if (t == DType::f32) {
    static_cast<float *>(to)[i] = static_cast<const float *>(a)[i] + static_cast<const float *>(b)[i];
  } else {
    storeElement(t, to, int64_t(i), loadElement(t, a, int64_t(i)) + loadElement(t, b, int64_t(i)));
  }
}

/// ((0 + 1) + (2 + 3)) + ...
Bytes treeSum(DType t, std::vector<Bytes> all) {
  for (size_t d = 1; d < all.size(); d *= 2)
    for (size_t r = 0; r + d < all.size(); r += 2 * d)
      for (size_t i = 0; i < all[r].size() / sizeOf(t); ++i)
        scalarAdd(t, all[r].data(), all[r].data(), all[r + d].data(), i);
  return all[0];
}

/// Whether `got` may be a sum of `all` in some order; exact where nothing is rounded.
void expectNearSum(DType t, const Bytes &got, const std::vector<Bytes> &all, const std::string &what) {
  for (size_t i = 0; i < got.size() / sizeOf(t); ++i) {
    double sum = 0, size = 0;
    for (const Bytes &b : all) {
      sum += loadElement(t, b.data(), int64_t(i));
      size += std::fabs(loadElement(t, b.data(), int64_t(i)));
    }
    const double eps = t == DType::f32 ? 0x1p-24 : t == DType::f64 ? 0x1p-52 : t == DType::bf16 ? 0x1p-8 : 0x1p-11;
    const double bound = isFloat(t) ? double(all.size()) * eps * size : 0;
    const double is = loadElement(t, got.data(), int64_t(i));
    if (!isFloat(t))
      sum = t == DType::i32   ? double(int32_t(uint32_t(int64_t(sum))))
            : t == DType::u32 ? double(uint32_t(int64_t(sum)))
                              : sum;
    ASSERT_LE(std::fabs(is - sum), bound) << what << ", element " << i;
  }
}

/// One call: what goes in at each rank, and what must come out here.
struct Case {
  Collective call;
  std::vector<Bytes> from;  // of all ranks
  Bytes in, out;            // here; `out` is empty where it runs in place
  bool inPlace;

  Case(const Communicator &c, Kind kind, DType t, size_t n, bool inPlace, uint64_t seed, int root) : inPlace(inPlace) {
    const size_t world = size_t(c.world), each = n * sizeOf(t);
    const bool wide = kind == Kind::reduce_scatter;
    for (size_t r = 0; r < world; ++r) {
      from.emplace_back(each * (wide ? world : 1));
      fill(t, from[r].data(), n * (wide ? world : 1), mixed(seed, r));
    }
    const Bytes &mine = from[size_t(c.rank)];
    const size_t result = kind == Kind::all_gather ? each * world : each;
    call = {kind, nullptr, nullptr, n, t, root};
    if (!inPlace) {
      in = mine;
      out.assign(result, 'x');
      call.from = in.data();
      call.to = out.data();
    } else if (kind == Kind::all_gather) {
      in.assign(result, 'x');
      call.to = in.data();
      call.from = in.data() + each * size_t(c.rank);
      std::copy(mine.begin(), mine.end(), in.begin() + long(each) * c.rank);
    } else {
      in = mine;
      call.from = in.data();
      call.to = in.data() + (wide ? each * size_t(c.rank) : 0);
    }
  }
  static uint64_t mixed(uint64_t seed, size_t r) { return seed * 1000 + r; }

  void check(const Communicator &c, SumOrder order) const {
    const std::string what = fmt::format("rank {} of {}: {}{}{}", c.rank, c.world, call.str(),
                                         inPlace ? " in place" : "", order == SumOrder::tree ? ", tree" : ", fast");
    const size_t each = call.count * sizeOf(call.dtype);
    const char *at = static_cast<const char *>(call.to);
    const Bytes got(at, at + (call.kind == Kind::all_gather ? each * from.size() : each));
    std::vector<Bytes> parts = from;
    switch (call.kind) {
    case Kind::all_gather: {
      Bytes all;
      for (const Bytes &b : from)
        all.insert(all.end(), b.begin(), b.end());
      EXPECT_TRUE(got == all) << what;
      break;
    }
    case Kind::broadcast:
      EXPECT_TRUE(got == from[size_t(call.root)]) << what;
      break;
    case Kind::reduce_scatter:
      for (Bytes &b : parts)
        b = Bytes(b.begin() + long(each) * c.rank, b.begin() + long(each) * (c.rank + 1));
      [[fallthrough]];
    case Kind::all_reduce:
      if (order == SumOrder::tree) {
        EXPECT_TRUE(got == treeSum(call.dtype, parts)) << what;
      } else {
        expectNearSum(call.dtype, got, parts, what);
      }
      break;
    }
    EXPECT_TRUE(inPlace || in == from[size_t(c.rank)]) << what << ": its argument was written";
  }
};

void conform(Communicator &c) {
  std::vector<SumOrder> orders = {SumOrder::fast};
  if (std::has_single_bit(unsigned(c.world)))
    orders.push_back(SumOrder::tree);
  uint64_t seed = 1;
  auto run = [&](const std::vector<std::unique_ptr<Case>> &cases, SumOrder order) {
    std::vector<Collective> calls;
    for (const auto &k : cases)
      calls.push_back(k->call);
    c.run(calls, order);
    for (const auto &k : cases)
      k->check(c, order);
  };
  auto one = [&](Kind kind, DType t, size_t n, bool inPlace) {
    ++seed;
    return std::make_unique<Case>(c, kind, t, n, inPlace, seed, int(seed) % c.world);
  };
  constexpr Kind kinds[] = {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter, Kind::broadcast};
  for (const SumOrder order : orders) {
    // One by one, then together.
    std::vector<std::unique_ptr<Case>> bucket;
    for (const DType t : dtypes)
      for (const Kind kind : kinds) {
        if (t == DType::pred && (kind == Kind::all_reduce || kind == Kind::reduce_scatter))
          continue;
        for (const size_t n : {size_t(0), size_t(1), size_t(7), size_t(1000), size_t(9001)})
          for (const bool inPlace : {false, true}) {
            if (t == DType::f32 || t == DType::bf16 || t == DType::i64) {
              std::vector<std::unique_ptr<Case>> alone;
              alone.push_back(one(kind, t, n, inPlace));
              run(alone, order);
            }
            bucket.push_back(one(kind, t, n, inPlace));
          }
      }
    run(bucket, order);
    // More than fits into the messages under way, where there are any.
    const size_t most = c.bytesSent() == 0 ? 3001 : c.world <= 3 ? 1'100'001 : 300'001;
    for (const Kind kind : kinds) {
      std::vector<std::unique_ptr<Case>> large;
      large.push_back(one(kind, DType::f32, kind == Kind::reduce_scatter ? most / size_t(c.world) : most,
                          kind == Kind::all_reduce));
      large.push_back(one(kind, DType::bf16, 3, false));
      run(large, order);
    }
    c.barrier();
  }
}

/// The sums of all ranks are the same bits, also where numbers are infinite, denormal or none, and the same in a second
/// run.
void sameBits(Communicator &c, SumOrder order) {
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const size_t n = 30000, bytes = n * sizeOf(t);
    Bytes mine(bytes), sum(bytes), again(bytes), all(bytes * size_t(c.world));
    fill(t, mine.data(), n, uint64_t(c.rank) + 77, true);
    c.run({{Kind::all_reduce, mine.data(), sum.data(), n, t}}, order);
    c.run({{Kind::all_reduce, mine.data(), again.data(), n, t}}, order);
    EXPECT_TRUE(sum == again) << c.rank;
    c.run({{Kind::all_gather, sum.data(), all.data(), bytes / 4, DType::u32}}, order);
    for (int r = 0; r < c.world; ++r)
      EXPECT_EQ(std::memcmp(all.data() + size_t(r) * bytes, sum.data(), bytes), 0) << c.rank << " and " << r;
  }
}

/// For a group of `world`, P x n bytes: how far what was sent is above what has to be.
void sendsLittle(Communicator &c) {
  const size_t n = 1 << 20, world = size_t(c.world), bytes = n * 4;
  std::vector<float> in(n * world, 1), out(n * world);
  auto sent = [&](Kind kind, size_t count) {
    const int64_t before = c.bytesSent();
    c.run({{kind, in.data(), out.data(), count, DType::f32}}, SumOrder::fast);
    return double(c.bytesSent() - before);
  };
  const double share = double(world - 1) / double(world);
  for (const auto &[kind, count, least] : {std::tuple{Kind::all_reduce, n, 2 * share * double(bytes)},
                                           {Kind::reduce_scatter, n / world, share * double(bytes)},
                                           {Kind::all_gather, n / world, share * double(bytes)}}) {
    const int64_t leastBefore = c.leastBytes();
    const double is = sent(kind, count);
    EXPECT_NEAR(double(c.leastBytes() - leastBefore), least, 16) << int(kind);  // whole elements
    EXPECT_GE(is, least * 0.999) << int(kind);
    EXPECT_LE(is, least * 1.1) << int(kind);
  }
  EXPECT_LE(sent(Kind::broadcast, n), 1.1 * double(bytes));
  EXPECT_LE(sent(Kind::all_reduce, 1), 1000 * std::log2(double(world)) + 1);
}

void all(Communicator &c) {
  conform(c);
  sameBits(c, SumOrder::fast);
  if (std::has_single_bit(unsigned(c.world)))
    sameBits(c, SumOrder::tree);
  else
    expectHas(
        errorOf([&] {
          float x = 1;
          c.run({{Kind::all_reduce, &x, &x, 1, DType::f32}}, SumOrder::tree);
        }).second,
        fmt::format("error[GPTC0209]: sums over {} ranks (world) cannot be in the order of a binary tree", c.world),
        __FILE__, __LINE__);
}

// --- threads --------------------------------------------------------------------------------------------------------

TEST(Conformance, Single) {
  auto c = joinGroup(nullptr, {"alone", {0}}, {});
  all(*c);
  c->finish();
  EXPECT_EQ(c->bytesSent(), 0);
  EXPECT_GT(c->number(), 0);
}

class Threads : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Conformance, Threads, testing::Values(1, 2, 3, 4));

TEST_P(Threads, InProcess) {
  InProcess job(GetParam(), 20s);
  std::vector<std::thread> ranks;
  for (int r = 0; r < GetParam(); ++r)
    ranks.emplace_back([&, r] {
      auto c = job.join(r);
      all(*c);
      c->finish();
    });
  for (std::thread &t : ranks)
    t.join();
}

/// Four threads in two rows and two columns, each of which is a group of its own, at the same time.
TEST(Conformance, ThreadsMeetAlongTheAxesOfAMesh) {
  std::vector<std::unique_ptr<InProcess>> rows, columns;
  for (int i : {0, 1}) {
    rows.push_back(std::make_unique<InProcess>(Group{fmt::format("tensor{}", i), {2 * i, 2 * i + 1}}, 20s));
    columns.push_back(std::make_unique<InProcess>(Group{fmt::format("data{}", i), {i, i + 2}}, 20s));
  }
  std::vector<std::thread> ranks;
  for (int r = 0; r < 4; ++r)
    ranks.emplace_back([&, r] {
      auto row = rows[r / 2]->join(r % 2), column = columns[r % 2]->join(r / 2);
      EXPECT_EQ(column->group.members[column->rank], r);
      for (int i = 0; i < 3; ++i) {
        int32_t mine = 1 << r, inRow = 0, all = 0;
        row->run({{Kind::all_reduce, &mine, &inRow, 1, DType::i32}}, SumOrder::tree);
        EXPECT_EQ(inRow, r < 2 ? 3 : 12);
        column->run({{Kind::all_reduce, &inRow, &all, 1, DType::i32}}, SumOrder::tree);
        EXPECT_EQ(all, 15);
      }
      row->finish();
      column->finish();
    });
  for (std::thread &t : ranks)
    t.join();
}

// --- processes ------------------------------------------------------------------------------------------------------

/// A rank process has no test: what fails is printed, and its end says so.
struct Judge : testing::EmptyTestEventListener {
  int failures = 0;
  void OnTestPartResult(const testing::TestPartResult &r) override {
    if (r.failed() && ++failures < 10)
      std::printf("%s:%d: %s\n", r.file_name(), r.line_number(), r.summary());
  }
};

void rankConforms(const RankPlace &place) {
  auto *judge = new Judge;
  auto &listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());  // says more than the pipe holds
  listeners.Append(judge);
  auto client = joinJob(place.rank, place.world);
  auto c = joinGroup(client.get(), Group::all(place.world), joinOptions(20s));
  if (place.world < 8) {
    all(*c);
  } else {
    sameBits(*c, SumOrder::tree);
    sameBits(*c, SumOrder::fast);
  }
  sendsLittle(*c);
  // Axes of a mesh: neighbours, and every other one in reverse.
  if (place.world == 4) {
    const int r = place.rank;
    auto pair = joinGroup(client.get(), {fmt::format("tp{}", r / 2), {r / 2 * 2, r / 2 * 2 + 1}}, joinOptions(20s));
    auto cross = joinGroup(client.get(), {fmt::format("dp{}", r % 2), {r % 2 + 2, r % 2}}, joinOptions(20s));
    EXPECT_EQ(pair->rank, r % 2);
    EXPECT_EQ(cross->rank, 1 - r / 2);
    sameBits(*pair, SumOrder::tree);
    int32_t mine = r, both[2];
    cross->run({{Kind::all_gather, &mine, both, 1, DType::i32}}, SumOrder::tree);
    EXPECT_EQ(both[0], r % 2 + 2);
    EXPECT_EQ(both[1], r % 2);
    pair->finish();
    cross->finish();
  }
  EXPECT_LE(c->ownBytes(), size_t(64) << 20);
  c->finish();
  client->leave();
  if (judge->failures)
    throw std::runtime_error("conformance failed");
}
const RankScenarioAdded conforms("conforms", rankConforms);

struct Engine {
  int world;
  bool tcp;
};
class Processes : public testing::TestWithParam<Engine> {};
INSTANTIATE_TEST_SUITE_P(Conformance, Processes,
                         testing::Values(Engine{2, true}, Engine{3, true}, Engine{4, true}, Engine{8, true},
                                         Engine{2, false}, Engine{3, false}, Engine{4, false}, Engine{5, false},
                                         Engine{8, false}),
                         [](auto &info) {
                           return fmt::format("{}{}", info.param.tcp ? "Gloo" : "Shared", info.param.world);
                         });

TEST_P(Processes, All) {
  const auto [world, tcp] = GetParam();
  if (const std::string why = whyNoGloo(); tcp && !why.empty())
    GTEST_SKIP() << why;
  const std::string token = newToken();
  const RendezvousServer server({.address = world == 2 ? "::1" : "127.0.0.1", .token = token, .world = world});
  for (const RankOutcome &o : runRanks(
           {.scenario = "conforms", .world = world, .environment = JobPlace::of(server, token).environment(tcp)})) {
    EXPECT_EQ(o.status, 0) << o.text;
    EXPECT_EQ(printed(o.text), "");
  }
  EXPECT_EQ(server.left(), world);
  EXPECT_FALSE(server.failure());
}

// --- additions ------------------------------------------------------------------------------------------------------

TEST(Sum, RoundsAsMemoryDoes) {
  // All pairs of some, and every f16 and bf16 with one other.
  for (const DType t : {DType::bf16, DType::f16})
    for (const uint16_t other : {uint16_t(0), uint16_t(1), uint16_t(0x3c01), uint16_t(0x8400), uint16_t(0x7bff)}) {
      std::vector<uint16_t> a(1 << 16), b(1 << 16, other), got(1 << 16);
      for (size_t i = 0; i < a.size(); ++i)
        a[i] = uint16_t(i);
      addElements(t, got.data(), a.data(), b.data(), a.size());
      for (size_t i = 0; i < a.size(); ++i) {
        const double sum = loadElement(t, a.data(), int64_t(i)) + loadElement(t, b.data(), int64_t(i));
        const double is = loadElement(t, got.data(), int64_t(i));
        uint16_t one = 0;
        addElements(t, &one, &a[i], &b[i], 1);
        if (std::isnan(sum)) {
          ASSERT_TRUE(std::isnan(is)) << nameOf(t).str() << " " << i;
        } else {
          ASSERT_EQ(is, roundTo(t, sum)) << nameOf(t).str() << " " << i << " + " << other;
          ASSERT_EQ(one, got[i]) << "alone and among others";
        }
      }
    }
}

}  // namespace
}  // namespace gptc::test
