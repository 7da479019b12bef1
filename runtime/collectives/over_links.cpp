#include "runtime/collectives/over_links.h"
#include "runtime/collectives/signature.h"
#include "runtime/collectives/sum.h"
#include "runtime/launch/pulse.h"
#include "support/diagnostics.h"

#include "llvm/ADT/SmallVector.h"

#include <bit>
#include <cstring>
#include <deque>

namespace gptc {

using std::chrono::milliseconds;

namespace {

constexpr size_t packBytes = 256 << 10;  // bytes of a message packed from small pieces
constexpr size_t smallPiece = 32 << 10;  // bytes; smaller pieces are copied into a common message
constexpr uint32_t headerMagic = 0x47505448;
constexpr size_t maxListed = 1 << 16;  // collectives of a bucket that a mismatch report lists

/// A contiguous part of a chunk. Sent from `at`. Received into `at`; if `own` is not null, its values are added.
struct Piece {
  char *at;
  size_t bytes;
  DType dtype = DType::f32;
  const char *own = nullptr;
  size_t packed() const { return (bytes + 7) / 8 * 8; }  // padded, so that all elements in a common message are aligned
};
using Pieces = std::vector<Piece>;

/// The content of one message. It depends only on sizes, so both sides cut alike.
struct Segment {
  llvm::SmallVector<Piece, 1> pieces;
  size_t bytes = 0;
};

std::vector<Segment> cut(const Pieces &pieces, size_t segmentBytes) {
  std::vector<Segment> all;
  bool open = false;  // the last segment has room for more
  for (const Piece &p : pieces) {
    if (p.bytes == 0)
      continue;
    if (p.bytes >= smallPiece) {
      for (size_t at = 0; at < p.bytes; at += segmentBytes) {
        const size_t n = std::min(segmentBytes, p.bytes - at);
        all.push_back({{{p.at + at, n, p.dtype, p.own ? p.own + at : nullptr}}, n});
      }
      open = false;
      continue;
    }
    if (!open || all.back().bytes + p.packed() > packBytes)
      all.emplace_back();
    open = true;
    all.back().pieces.push_back(p);
    all.back().bytes += p.packed();
  }
  for (Segment &s : all)
    if (s.pieces.size() == 1)  // sent from and received into its final place
      s.bytes = s.pieces[0].bytes;
  return all;
}

struct Header {
  uint32_t magic;
  uint32_t calls;
  uint64_t number;
  uint64_t signature;
};

class OverLinks final : public Communicator {
public:
  OverLinks(std::unique_ptr<Links> l, const Group &g, int rank, LinksPlace p)
      : Communicator(g, rank), links(std::move(l)), place(std::move(p)), segmentBytes(links->messageBytes()),
        window(links->messages()) {
    listening = place.client.onFailure([this] { links->abort(); });
  }
  ~OverLinks() override {
    listening.reset();
    links->close();
  }
  bool beside() const override { return place.beside; }
  size_t ownBytes() const override { return links->ownBytes() + received.size() + packed.size() + partial.size(); }

private:
  const std::unique_ptr<Links> links;
  const LinksPlace place;
  std::shared_ptr<void> listening;
  const size_t segmentBytes, window;  // bytes per message, and messages under way in each direction
  bool dead = false;
  std::vector<char> received, packed;  // messages under way
  std::vector<char> partial;           // partial sums of a reduce_scatter

  // Of the running collective:
  std::string doing;
  uint64_t slot = 0;
  std::vector<bool> came;

  // --- errors -------------------------------------------------------------------------------------------------------

  std::string nameOf(int member) const {
    return fmt::format("rank {} on {}", group.members[size_t(member)], place.hosts[size_t(member)]);
  }
  std::string who() const {
    return fmt::format("rank {} of {} on {}, group {}, {}", group.members[size_t(rank)], place.client.world,
                       place.hosts[size_t(rank)], group.name, doing);
  }
  [[noreturn]] void fail(ErrorCode code, const std::string &text, const std::string &help) {
    dead = true;
    place.client.report(code, text, help);
    links->close();
    throw UserError(code, text, help);
  }
  [[noreturn]] void failBecause(const RankFailure &f) {
    dead = true;
    links->close();
    throw UserError(f.code, fmt::format("{}: cannot go on: {}", who(), f.text),
                    "the first rank that failed is the cause: see what it says");
  }
  /// Reports that `peer` has not done its part. The rendezvous's knowledge comes first, because the peer may be gone
  /// since it waited for another rank.
  [[noreturn]] void fail(int peer, const LinkError &e) {
    const auto grace = std::min<milliseconds>(place.timeout / 2 + milliseconds(50), milliseconds(1000));
    if (e.kind == LinkError::late && !came[size_t(peer)])
      fail(ErrorCode::CollectiveTimeout,
           fmt::format("{}: {} did not come in {:.1f} s", who(), nameOf(peer), place.timeout.count() / 1e3),
           "that rank is dead, stopped or stuck, or does less than this one");
    if (const RankFailure *f = place.client.failure(grace))
      failBecause(*f);
    if (e.kind == LinkError::late)
      fail(ErrorCode::CollectiveTimeout,
           fmt::format("{}: {} came, but sent nothing for {:.1f} s", who(), nameOf(peer), place.timeout.count() / 1e3),
           "that rank is stopped or stuck, or waits for another one that is");
    fail(ErrorCode::RankFailed, fmt::format("{}: {} is gone: {}", who(), nameOf(peer), e.text),
         "see what that rank says: the first that failed is the cause");
  }

  // --- messages -----------------------------------------------------------------------------------------------------

  struct Sending {
    OverLinks &of;
    int peer;
    Links::Message *message;
    Sending(OverLinks &of, int peer, Links::Message *m) : of(of), peer(peer), message(m) {}
    Sending(Sending &&o) noexcept : of(o.of), peer(o.peer), message(std::exchange(o.message, nullptr)) {}
    ~Sending() {
      if (message)
        of.links->free(message);
    }
    void wait(milliseconds timeout) {
      LinkError e;
      Pulse::get().waits(of.group.members[size_t(peer)]);
      if (!of.links->wait(message, timeout.count(), e))
        of.fail(peer, e);
      Pulse::get().moved();
    }
    void wait() { wait(of.place.timeout); }
  };
  Sending send(int peer, uint64_t slot, const void *at, size_t n) {
    LinkError e;
    Links::Message *m = links->send(peer, slot, at, n, e);
    if (!m)
      fail(peer, e);
    sent += int64_t(n);
    return Sending(*this, peer, m);
  }
  Sending receive(int peer, uint64_t slot, void *at, size_t n) {
    LinkError e;
    Links::Message *m = links->receive(peer, slot, at, n, e);
    if (!m)
      fail(peer, e);
    return Sending(*this, peer, m);
  }

  char *stage(std::vector<char> &memory, size_t bytes, size_t i) {
    if (memory.empty())
      memory.resize(window * bytes);
    return memory.data() + i % window * bytes;
  }

  /// Sends to one rank while receiving from one; -1 for none. With `relay` it passes on what it receives.
  void transfer(int to, const Pieces &sends, int from, const Pieces &receives, bool relay = false) {
    const std::vector<Segment> out = to < 0 ? std::vector<Segment>() : cut(sends, segmentBytes);
    const std::vector<Segment> in = from < 0 ? std::vector<Segment>() : cut(receives, segmentBytes);
    std::deque<Sending> outgoing, incoming;
    auto begin = [&](size_t i) {
      if (outgoing.size() == window) {
        outgoing.front().wait();
        outgoing.pop_front();
      }
      const Segment &s = out[i];
      const char *at = s.pieces[0].at;
      if (s.pieces.size() > 1) {
        char *copy = stage(packed, packBytes, i);
        at = copy;
        for (const Piece &p : s.pieces) {
          std::memcpy(copy, p.at, p.bytes);
          copy += p.packed();
        }
      }
      outgoing.push_back(send(to, slot, at, s.bytes));
    };
    auto expect = [&](size_t i) {
      const Segment &s = in[i];
      const bool direct = s.pieces.size() == 1 && !s.pieces[0].own;
      incoming.push_back(receive(from, slot, direct ? s.pieces[0].at : stage(received, segmentBytes, i), s.bytes));
    };
    size_t begun = 0, expected = 0;
    for (size_t i = 0; i < std::max(in.size(), out.size()); ++i) {
      while (expected < std::min(in.size(), i + window))
        expect(expected++);
      while (!relay && begun < std::min(out.size(), i + window))
        begin(begun++);
      if (i < in.size()) {
        incoming.front().wait();
        incoming.pop_front();
        const Segment &s = in[i];
        const char *at = s.pieces.size() == 1 && !s.pieces[0].own ? nullptr : stage(received, segmentBytes, i);
        for (const Piece &p : s.pieces) {
          if (!at)
            break;
          if (!p.own)
            std::memcpy(p.at, at, p.bytes);
          else if (from < rank)  // in rank order, because even the bits of a NaN depend on it
            addElements(p.dtype, p.at, at, p.own, p.bytes / sizeOf(p.dtype));
          else
            addElements(p.dtype, p.at, p.own, at, p.bytes / sizeOf(p.dtype));
          at += p.packed();
        }
      }
      if (relay)
        begin(i);
    }
    for (Sending &s : outgoing)
      s.wait();
  }

  // --- what ranks are about to do -----------------------------------------------------------------------------------

  /// The ranks at distances 1, 2, 4, ... in both directions, which connect all ranks.
  std::vector<int> neighbours() const {
    std::vector<int> all;
    for (int d = 1; d < world; d *= 2)
      for (int peer : {(rank + d) % world, (rank - d + world) % world})
        if (peer != rank && std::find(all.begin(), all.end(), peer) == all.end())
          all.push_back(peer);
    return all;
  }

  void begin(llvm::ArrayRef<Collective> calls, SumOrder order) {
    doing = what(calls);
    GPTC_CHECK(!dead, "{}: the communicator has failed before", who());
    came.assign(size_t(world), false);
    came[size_t(rank)] = true;
    const std::vector<CallSignature> mine = signatureOf(calls, order);
    const Header header{headerMagic, uint32_t(mine.size()), uint64_t(count), hashOf(mine)};
    const uint64_t hello = mix(uint64_t(count), 1), list = mix(uint64_t(count), 2);
    slot = mix(header.signature, hello);
    const std::vector<int> peers = neighbours();
    std::vector<Header> theirs(peers.size());
    std::vector<Sending> out, in;
    for (size_t i = 0; i < peers.size(); ++i) {
      in.push_back(receive(peers[i], hello, &theirs[i], sizeof(Header)));
      out.push_back(send(peers[i], hello, &header, sizeof header));
    }
    std::vector<size_t> differ;
    for (size_t i = 0; i < peers.size(); ++i) {
      in[i].wait();
      came[size_t(peers[i])] = true;
      const Header &h = theirs[i];
      if (h.magic != headerMagic || h.number != header.number)
        fail(ErrorCode::RankFailed, fmt::format("{}: what {} sent is no header", who(), nameOf(peers[i])),
             "all ranks must run the same version of gptc");
      if (h.signature != header.signature || h.calls != header.calls)
        differ.push_back(i);
    }
    for (Sending &s : out)
      s.wait();
    if (differ.empty())
      return;
    // Both sides of each differing pair get here.
    std::vector<Sending> lists;
    if (!mine.empty() && mine.size() <= maxListed)
      for (size_t i : differ)
        lists.push_back(send(peers[i], list, mine.data(), mine.size() * sizeof mine[0]));
    const size_t first = differ[0];
    std::vector<CallSignature> other(theirs[first].calls <= maxListed ? theirs[first].calls : 0);
    if (!other.empty())
      receive(peers[first], list, other.data(), other.size() * sizeof other[0]).wait();
    for (size_t i : differ)  // a rank that waits for this one's list gets it before the links close
      if (i != first && theirs[i].calls > 0 && theirs[i].calls <= maxListed) {
        std::vector<CallSignature> unused(theirs[i].calls);
        receive(peers[i], list, unused.data(), unused.size() * sizeof unused[0]).wait();
      }
    for (Sending &s : lists)
      s.wait();
    const int me = group.members[size_t(rank)], it = group.members[size_t(peers[first])];
    fail(ErrorCode::CollectiveMismatch, fmt::format("{}: {}", who(), differenceOf(me, mine, it, other)),
         "all ranks must run the same plan: start them by one gptrun");
  }

  void requireWell() override {
    if (const RankFailure *f = place.client.failure())
      failBecause(*f);
  }

  void meet() override {
    const Pulse::Collective waiting("a barrier");
    begin({}, SumOrder::fast);
    // A rank that has heard from all at distances below d hears through rank - d of those below 2 d.
    for (int d = 1; d < world; d *= 2) {
      char to = 1, from = 0;
      const int next = (rank + d) % world, before = (rank - d + world) % world;
      Sending in = receive(before, mix(slot, uint64_t(d)), &from, 1);
      Sending out = send(next, mix(slot, uint64_t(d)), &to, 1);
      in.wait();
      out.wait();
    }
  }

  void end() override {
    meet();
    listening.reset();
    dead = true;
    links->leave();
  }

  // --- collectives --------------------------------------------------------------------------------------------------

  /// Byte range of chunk c in a buffer of `bytes`: whole elements, roughly equal shares.
  std::pair<size_t, size_t> share(size_t bytes, int c) const {
    auto border = [&](int i) { return i == world ? bytes : bytes / size_t(world) * size_t(i) / 64 * 64; };
    return {border(c), border(c + 1)};
  }

  void perform(llvm::ArrayRef<Collective> calls, SumOrder order) override {
    const Pulse::Collective waiting(calls[0].str());
    begin(calls, order);
    // The parts of each chunk: a rank's own values, the places of its sums, and the places of the results.
    std::vector<Pieces> own(static_cast<size_t>(world)), sums(own), gathered(own);
    auto needed = [&](const Collective &c) {
      return c.kind == Collective::Kind::reduce_scatter ? c.count * sizeOf(c.dtype) : 0;
    };
    size_t scratch = 0;
    for (const Collective &c : calls)
      scratch += (needed(c) + 63) / 64 * 64;
    const bool halves = std::has_single_bit(unsigned(world));
    const size_t perChunk = scratch;
    // Halving keeps half of the chunks after its first step; a ring passes one on while it receives the next.
    const size_t kept = world == 2 ? 0 : halves ? size_t(world) / 2 : 2;
    if (partial.size() < kept * perChunk)
      partial.resize(kept * perChunk);
    size_t at = 0;
    for (const Collective &c : calls) {
      const size_t bytes = c.count * sizeOf(c.dtype);
      auto *from = const_cast<char *>(static_cast<const char *>(c.from));
      auto *to = static_cast<char *>(c.to);
      for (int k = 0; k < world; ++k) {
        const auto i = size_t(k);
        switch (c.kind) {
        case Collective::Kind::all_reduce: {
          const auto [begin, end] = share(bytes, k);
          own[i].push_back({from + begin, end - begin, c.dtype});
          sums[i].push_back({to + begin, end - begin, c.dtype, from + begin});
          gathered[i].push_back({to + begin, end - begin, c.dtype});
          break;
        }
        case Collective::Kind::reduce_scatter: {
          const size_t place = halves ? i / 2 : size_t(ring(rank - k)) % 2;
          char *sum = k == rank ? to : kept ? partial.data() + place * perChunk + at : nullptr;
          own[i].push_back({from + i * bytes, bytes, c.dtype});
          sums[i].push_back({sum, bytes, c.dtype, from + i * bytes});
          break;
        }
        case Collective::Kind::all_gather:
          if (k == rank && bytes && to + i * bytes != from)
            std::memcpy(to + i * bytes, from, bytes);
          gathered[i].push_back({to + i * bytes, bytes, c.dtype});
          break;
        case Collective::Kind::broadcast:
          break;
        }
      }
      at += (needed(c) + 63) / 64 * 64;
    }
    if (halves) {
      halve(own, sums);
      redouble(gathered);
    } else {
      aroundReduce(own, sums);
      aroundGather(gathered);
    }
    for (int root = 0; root < world; ++root)
      chain(calls, root);
  }

  /// The chunks whose index is congruent to r modulo `modulus`.
  Pieces some(const std::vector<Pieces> &chunks, int r, int modulus) const {
    Pieces all;
    for (int c = r % modulus; c < world; c += modulus)
      all.insert(all.end(), chunks[size_t(c)].begin(), chunks[size_t(c)].end());
    return all;
  }

  void halve(const std::vector<Pieces> &own, std::vector<Pieces> &sums) {
    for (int d = 1; d < world; d *= 2) {
      const int peer = rank ^ d;
      transfer(peer, some(d == 1 ? own : sums, peer, 2 * d), peer, some(sums, rank, 2 * d));
      if (d == 1)  // from now on add to the partial sums
        for (Pieces &chunk : sums)
          for (Piece &p : chunk)
            p.own = p.at;
    }
  }

  void redouble(const std::vector<Pieces> &chunks) {
    for (int d = world / 2; d >= 1; d /= 2) {
      const int peer = rank ^ d;
      transfer(peer, some(chunks, rank, 2 * d), peer, some(chunks, peer, 2 * d));
    }
  }

  int ring(int i) const { return ((i % world) + world) % world; }

  void aroundReduce(const std::vector<Pieces> &own, const std::vector<Pieces> &sums) {
    // Rank r is the last to add to chunk r. Partial sums alternate between two places from step to step.
    for (int s = 0; s + 1 < world; ++s) {
      const auto out = size_t(ring(rank - s - 1)), in = size_t(ring(rank - s - 2));
      transfer(ring(rank + 1), s == 0 ? own[out] : sums[out], ring(rank - 1), sums[in]);
    }
  }

  void aroundGather(const std::vector<Pieces> &chunks) {
    for (int s = 0; s + 1 < world; ++s)
      transfer(ring(rank + 1), chunks[size_t(ring(rank - s))], ring(rank - 1), chunks[size_t(ring(rank - s - 1))]);
  }

  void chain(llvm::ArrayRef<Collective> calls, int root) {
    Pieces pieces;
    for (const Collective &c : calls)
      if (c.kind == Collective::Kind::broadcast && c.root == root) {
        const size_t bytes = c.count * sizeOf(c.dtype);
        if (rank == root && c.from != c.to && bytes)
          std::memcpy(c.to, c.from, bytes);
        pieces.push_back({static_cast<char *>(c.to), bytes, c.dtype});
      }
    if (pieces.empty())
      return;
    const int place = ring(rank - root);
    const int next = place + 1 < world ? ring(rank + 1) : -1, before = place > 0 ? ring(rank - 1) : -1;
    transfer(next, pieces, before, pieces, before >= 0 && next >= 0);
  }
};

}  // namespace

std::unique_ptr<Communicator> overLinks(std::unique_ptr<Links> links, const Group &group, LinksPlace place) {
  const auto at = std::find(group.members.begin(), group.members.end(), place.client.rank);
  return std::make_unique<OverLinks>(std::move(links), group, int(at - group.members.begin()), std::move(place));
}

}  // namespace gptc
