#include "runtime/collectives/communicator.h"
#include "runtime/collectives/join.h"
#include "runtime/collectives/signature.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <bit>
#include <cstring>
#include <numeric>

namespace gptc {

std::string Collective::str() const {
  return fmt::format("{} of {} {}", nameOf(kind), count, gptc::nameOf(dtype).str());
}

std::string CallSignature::str() const {
  std::string text = Collective{kind, nullptr, nullptr, size_t(count), dtype}.str();
  if (kind == Collective::Kind::broadcast)
    text += fmt::format(" from {}", root);
  if (kind == Collective::Kind::all_reduce || kind == Collective::Kind::reduce_scatter)
    text += order == SumOrder::tree ? " as a tree" : " as is fast";
  return text;
}

std::vector<CallSignature> signatureOf(llvm::ArrayRef<Collective> calls, SumOrder order) {
  std::vector<CallSignature> all;
  for (const Collective &c : calls)
    all.push_back({c.kind, c.dtype, order, 0, c.kind == Collective::Kind::broadcast ? c.root : 0, c.count});
  return all;
}

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a + 0x9e3779b97f4a7c15u * (b + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t hashOf(llvm::ArrayRef<CallSignature> calls) {
  uint64_t h = mix(0, calls.size());
  for (const CallSignature &c : calls) {
    uint64_t words[2];
    std::memcpy(words, &c, sizeof words);
    h = mix(mix(h, words[0]), words[1]);
  }
  return h;
}

std::string differenceOf(int rank, llvm::ArrayRef<CallSignature> calls, int other,
                         llvm::ArrayRef<CallSignature> others) {
  auto one = [](int r, llvm::ArrayRef<CallSignature> c, size_t i) {
    return fmt::format("rank {} runs {}", r,
                       i < c.size() ? c[i].str()
                       : c.empty()  ? "a barrier"
                                    : fmt::format("{} collectives", c.size()));
  };
  size_t i = 0;
  while (i < calls.size() && i < others.size() && calls[i] == others[i])
    ++i;
  const size_t most = std::max(calls.size(), others.size());
  return fmt::format("{}, {}{}", one(rank, calls, i), one(other, others, i),
                     most > 1 ? fmt::format(" (number {} of the {} in the bucket)", i + 1, most) : "");
}

Group Group::all(int world) {
  Group g{"world", std::vector<int>(size_t(world))};
  std::iota(g.members.begin(), g.members.end(), 0);
  return g;
}

Communicator::Communicator(Group g, int rank) : group(std::move(g)), rank(rank), world(int(group.members.size())) {
  GPTC_CHECK(rank >= 0 && rank < world, "rank {} of {}", rank, world);
}
Communicator::~Communicator() = default;

std::string Communicator::what(llvm::ArrayRef<Collective> calls) const {
  if (calls.empty())
    return fmt::format("collective {}, a barrier", count);
  return fmt::format("collective {}, {}{}", count, calls[0].str(),
                     calls.size() > 1 ? fmt::format(" and {} more", calls.size() - 1) : "");
}

/// Bytes that a rank must send on average. In a sum, every element must leave each rank except for the rank's own
/// share, and every share must reach all others. In a broadcast, each rank but the last passes the data on once.
static int64_t leastBytesOf(const Collective &c, int world) {
  const int64_t bytes = int64_t(c.count * sizeOf(c.dtype)), others = world - 1;
  switch (c.kind) {
  case Collective::Kind::all_reduce:
    return 2 * others * bytes / world;
  case Collective::Kind::all_gather:
  case Collective::Kind::reduce_scatter:
    return others * bytes;
  case Collective::Kind::broadcast:
    return others * bytes / world;
  }
  GPTC_UNREACHABLE("collective");
}

void Communicator::run(llvm::ArrayRef<Collective> calls, SumOrder order) {
  const auto begin = std::chrono::steady_clock::now();
  runBeside(calls, order);
  waited(std::chrono::steady_clock::now() - begin);
}

void Communicator::runBeside(llvm::ArrayRef<Collective> calls, SumOrder order) {
  GPTC_CHECK(!calls.empty(), "an empty bucket");
  const bool sums = llvm::any_of(calls, [](const Collective &c) { return c.sums(); });
  for (const Collective &c : calls) {
    GPTC_CHECK(c.dtype != DType::pred || !c.sums(), "a sum of pred");
    GPTC_CHECK(c.root >= 0 && c.root < world, "broadcast from {} of {}", c.root, world);
  }
  if (sums && order == SumOrder::tree && !std::has_single_bit(unsigned(world)))
    throw UserError(ErrorCode::Contradiction,
                    fmt::format("sums over {} ranks ({}) cannot be in the order of a binary tree", world, group.name),
                    fmt::format("{} or {} ranks work, or reduce_order = \"fast\"", std::bit_floor(unsigned(world)),
                                std::bit_ceil(unsigned(world))));
  ++count;
  for (const Collective &c : calls)
    least += leastBytesOf(c, world);
  perform(calls, order);
}

void Communicator::barrier() {
  ++count;
  meet();
}

void Communicator::finish() {
  ++count;
  end();
}

namespace {

class Single final : public Communicator {
public:
  explicit Single(const Group &g) : Communicator(g, 0) {}

private:
  void perform(llvm::ArrayRef<Collective> calls, SumOrder) override {
    for (const Collective &c : calls)
      if (c.from != c.to && c.count)
        std::memcpy(c.to, c.from, c.count * sizeOf(c.dtype));
  }
  void meet() override {}
  void end() override {}
};

}  // namespace

std::unique_ptr<Communicator> joinGroup(RendezvousClient *client, const Group &group, const JoinOptions &options) {
  GPTC_CHECK(!group.members.empty(), "an empty group");
  if (group.members.size() == 1)
    return std::make_unique<Single>(group);
  GPTC_CHECK(client, "several ranks need a rendezvous");
  return joinProcesses(*client, group, options);
}

}  // namespace gptc
