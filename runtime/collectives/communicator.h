// Collectives between the CPU ranks of a job, behind one interface:
//
//   single      one rank: copies.
//   shared      ranks in processes of one machine, through memory (shared_links.h).
//   Gloo        ranks in processes anywhere, over TCP. It sits in a plug-in, libgptc_gloo.so beside the programs, which
//   is
//               loaded when it is needed.
//   in process  ranks as threads of one program (in_process.h), for tests; it defines what the others must compute.
//
// joinGroup chooses; the rendezvous brings processes together. Shared and Gloo are two ways to pass messages, on which
// the same algorithms stand (over_links.h).
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

/// One collective over all ranks of a communicator, on memory of the host (cuda/nccl.h has the same on a GPU's). Sums
/// are of any dtype but pred, rounded to the dtype after each addition; all ranks get the same bits.
struct Collective {
  enum class Kind : uint8_t {
    /// `to`, `count` elements: the sum of all ranks' `from`, as many. May be one memory.
    all_reduce,
    /// `to`, world x `count`: the ranks' `from`, `count` each, in their order. `from` may lie where it goes.
    all_gather,
    /// `to`, `count`: this rank's part of the sum of all ranks' `from`, world x `count`. `to` may be that part of
    /// `from`.
    reduce_scatter,
    /// `to`, `count`: `root`'s `from`, `count`. May be one memory; `from` is not read elsewhere.
    broadcast,
  };
  Kind kind;
  const void *from;
  void *to;
  size_t count;
  DType dtype;
  int root = 0;
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
  return "unknown collective";  // of another rank, where memory is damaged
}

/// In what order the ranks' values are added.
enum class SumOrder : uint8_t {
  /// ((r0 + r1) + (r2 + r3)) + ...: one binary tree over a power of two of ranks, in the order of the group.
  tree,
  /// What costs the engine least. Two runs with as many ranks get the same bits.
  fast,
};

/// Ranks of the job, in the group's own order. The name belongs to these ranks in this order, once in a job.
struct Group {
  std::string name;
  std::vector<int> members;
  static Group all(int world);
};

/// One rank's part of a group. For one thread at a time. Nothing here waits for ever: where nothing arrives for as long
/// as the time-out, that is a UserError(CollectiveTimeout) that names this rank, the collective and who did not come; a
/// rank that is gone is a UserError(RankFailed), and ranks that do different things a UserError(CollectiveMismatch)
/// with both sides. All ranks of the job hear of it through the rendezvous. After any of these the communicator can
/// only be destroyed; what its collectives were writing is undefined, and nothing writes there any more.
class Communicator {
public:
  /// Without finish() before, the other ranks see this one as gone.
  virtual ~Communicator();
  Communicator(const Communicator &) = delete;

  const Group group;
  const int rank, world;  // within the group

  /// Runs the collectives as one: none may read what another one writes. All ranks call it with the same kinds, counts,
  /// dtypes, roots and order. Returns when the results are there.
  /// UserError(Contradiction) for sums in the order of a tree over other than a power of two of ranks.
  void run(llvm::ArrayRef<Collective> calls, SumOrder order);
  /// The same on a thread beside the one that computes: only what that one waits for it counts as time inside.
  void runBeside(llvm::ArrayRef<Collective> calls, SumOrder order);
  void waited(std::chrono::nanoseconds time) { inside += time; }
  /// Returns when all ranks have come.
  void barrier();
  /// Leaves, when all ranks do.
  void finish();
  /// UserError where the job is known to have failed; costs next to nothing. For who waits for other ranks by other
  /// means.
  virtual void requireWell() {}

  /// Buckets and barriers so far: what errors call "collective 12".
  int64_t number() const { return count; }
  /// Bytes that this rank has sent to others of the group.
  int64_t bytesSent() const { return sent; }
  /// What no algorithm could have done with fewer, over all that it ran; and how long it was in there.
  int64_t leastBytes() const { return least; }
  std::chrono::nanoseconds timeInside() const { return inside; }
  /// Whether a bucket is better run beside computation: it waits for a network, asleep. Where ranks meet in memory they
  /// copy, which takes the CPUs that compute.
  virtual bool beside() const { return false; }
  /// Memory that the communicator holds beside the caller's, now. Grows with the largest bucket of reduce_scatter only.
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
  /// Over TCP also where all ranks are on one machine. So it is too where GPTC_INTERFACE names the network interface
  /// between ranks; else that is the one that reaches the rendezvous.
  bool tcp = false;
  /// Of collectives, where that is longer than the time-out: another rank may save or compile before it comes.
  std::chrono::milliseconds patience{0};
};
/// Joins the other members: returns when all have come. The client may be null for a group of one, and must outlive the
/// communicator.
std::unique_ptr<Communicator> joinGroup(RendezvousClient *client, const Group &group, const JoinOptions &options);

/// Why ranks on several machines, or over TCP, cannot run here; empty where they can.
std::string whyNoGloo();

}  // namespace gptc
