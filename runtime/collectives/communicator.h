// Collectives between the CPU ranks of a job, behind one interface. Its implementations:
//
//   single      one rank: copies.
//   shared      processes of one machine, through shared memory (shared_links.h).
//   Gloo        processes on any machines, over TCP: a plug-in, libgptc_gloo.so beside the programs, loaded on demand.
//   in process  threads of one program (in_process.h), for tests; the reference for the others.
//
// joinGroup chooses one; the rendezvous brings processes together. Shared and Gloo only transport messages; both use
// the same algorithms (over_links.h).
//
// A group is any subset of the job's ranks, for example one axis of a mesh:
//
//   auto world = joinGroup(&client, Group::all(client.world), {});
//   auto dp = joinGroup(&client, {"dp0", {0, 2}}, {});   // on ranks 0 and 2
//   dp->run({{Collective::Kind::all_reduce, g, g, n, DType::f32}}, SumOrder::tree);
//   dp->finish();
#pragma once

#include "ir/type.h"

#include "llvm/ADT/ArrayRef.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

class RendezvousClient;

/// One collective over all ranks of a communicator, on host memory (cuda/nccl.h has those on GPU memory). Sums work on
/// any dtype but pred and round to the dtype after each addition; all ranks get the same bits. P is the number of
/// ranks.
struct Collective {
  enum class Kind : uint8_t {
    /// `to[count]`: the sum of all ranks' `from[count]`. `to` may be `from`.
    all_reduce,
    /// `to[P, count]`: all ranks' `from[count]` in rank order. `from` may be its place in `to`.
    all_gather,
    /// `to[count]`: this rank's part of the sum of all ranks' `from[P, count]`. `to` may be that part of `from`.
    reduce_scatter,
    /// `to[count]`: the root's `from[count]`. `to` may be `from`; only the root's `from` is read.
    broadcast,
  };
  Kind kind;
  const void *from;
  void *to;
  size_t count;  // elements, as each kind defines
  DType dtype;
  int root = 0;  // rank within the group, for broadcast
  bool sums() const { return kind == Kind::all_reduce || kind == Kind::reduce_scatter; }
  /// "all_reduce of 1024 f32"
  std::string str() const;
};
/// "all_reduce"
inline const char *nameOf(Collective::Kind k) {
  switch (k) {
  case Collective::Kind::all_reduce:
    return "all_reduce";
  case Collective::Kind::all_gather:
    return "all_gather";
  case Collective::Kind::reduce_scatter:
    return "reduce_scatter";
  case Collective::Kind::broadcast:
    return "broadcast";
  }
  return "unknown collective";  // a value from another rank's damaged memory
}

/// The order in which the ranks' values are added.
enum class SumOrder : uint8_t {
  /// ((r0 + r1) + (r2 + r3)) + ...: one binary tree in the group's order; needs a power of two of ranks.
  tree,
  /// The cheapest order for the engine. Two runs with equally many ranks get the same bits.
  fast,
};

/// Ranks of the job in the group's own order. Within a job a name always means the same ranks in the same order.
struct Group {
  std::string name;
  std::vector<int> members;  // ranks of the job
  static Group all(int world);
};

/// One rank's end of a group; only one thread at a time may use it. No call waits forever: if nothing arrives within
/// the time-out, it throws UserError(CollectiveTimeout), naming this rank, the collective and the missing rank. It
/// throws UserError(RankFailed) if a rank is gone, and UserError(CollectiveMismatch), showing both sides, if ranks run
/// different collectives. The rendezvous tells all ranks of the job. After such an error the communicator can only be
/// destroyed; the memory its collectives were writing is undefined, and nothing writes to it any more.
class Communicator {
public:
  /// If finish() was not called, the other ranks see this one as gone.
  virtual ~Communicator();
  Communicator(const Communicator &) = delete;

  const Group group;
  const int rank, world;  // within the group

  /// Runs the collectives as one bucket and waits for the results; none may read what another writes. All ranks must
  /// pass the same kinds, counts, dtypes, roots and order. Throws UserError(Contradiction) for sums in tree order if
  /// the number of ranks is not a power of two.
  void run(llvm::ArrayRef<Collective> calls, SumOrder order);
  /// Like run(), on a thread beside the computing one. Only the time that the computing thread waits, reported to
  /// waited(), counts as time inside.
  void runBeside(llvm::ArrayRef<Collective> calls, SumOrder order);
  void waited(std::chrono::nanoseconds time) { inside += time; }
  /// Waits for all ranks.
  void barrier();
  /// Leaves the group. All ranks must call it.
  void finish();
  /// Throws UserError if the job is known to have failed; nearly free. For code that waits for other ranks in other
  /// ways.
  virtual void requireWell() {}

  /// Number of buckets and barriers so far: "collective 12" in errors.
  int64_t number() const { return count; }
  /// Bytes that this rank has sent to others of the group.
  int64_t bytesSent() const { return sent; }
  /// Lower bound on the bytes that any algorithm must send for the collectives so far, and the time spent in them.
  int64_t leastBytes() const { return least; }
  std::chrono::nanoseconds timeInside() const { return inside; }
  /// Whether to run buckets beside computation: true if they sleep waiting for a network, false if they copy memory
  /// with the CPUs that compute.
  virtual bool beside() const { return false; }
  /// Bytes that the communicator holds besides the caller's memory. Grows only with the largest reduce_scatter bucket.
  virtual size_t ownBytes() const { return 0; }

protected:
  Communicator(Group group, int rank);
  virtual void perform(llvm::ArrayRef<Collective> calls, SumOrder order) = 0;
  virtual void meet() = 0;
  virtual void end() = 0;
  /// "collective 12, all_reduce of 1024 f32 and 3 more"
  std::string what(llvm::ArrayRef<Collective> calls) const;
  int64_t count = 0;
  int64_t sent = 0;

private:
  int64_t least = 0;
  std::chrono::nanoseconds inside{0};
};

struct JoinOptions {
  std::chrono::milliseconds timeout{120000};
  /// Use TCP even between ranks of one machine, as is also done if GPTC_INTERFACE names the network interface between
  /// ranks. Without that variable, the interface that reaches the rendezvous is used.
  bool tcp = false;
  /// Time-out of collectives if longer than `timeout`: another rank may be saving or compiling.
  std::chrono::milliseconds patience{0};
};
/// Joins the group and returns when all members have come. `client` must outlive the communicator; it may be null for a
/// group of one.
std::unique_ptr<Communicator> joinGroup(RendezvousClient *client, const Group &group, const JoinOptions &options);

/// Why ranks cannot run on several machines or over TCP here; empty if they can.
std::string whyNoGloo();

}  // namespace gptc
