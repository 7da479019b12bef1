// Collectives between GPUs by NCCL (libnccl.so.2), loaded with dlopen. The few functions and types of its API that we
// use stand here as in nccl.h; a test compares them with that header where there is one.
//
// Each rank is one GPU. Ranks meet by a NcclId, which one of them makes and sends to the others; from then on all of
// them enqueue the same collectives in the same order.
#pragma once

#include "runtime/collectives/communicator.h"
#include "runtime/cuda/gpu.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"

#include <array>
#include <chrono>
#include <climits>
#include <string>

namespace gptc::cuda {

using NcclComm = struct NcclCommImpl *;

enum NcclResult : int {
  ncclOk = 0,
  ncclCudaFailed = 1,
  ncclBadArgument = 4,
  ncclBadUsage = 5,
  ncclRemoteFailed = 6,
  ncclRunning = 7,  // of a communicator that does not block: ask again
};
enum NcclType : int {
  ncclU8 = 1,
  ncclI32 = 2,
  ncclU32 = 3,
  ncclI64 = 4,
  ncclF16 = 6,
  ncclF32 = 7,
  ncclF64 = 8,
  ncclBF16 = 9,
};
enum NcclSum : int { ncclAdd = 0 };

/// By what ranks find each other: opaque bytes, which one rank makes and every rank needs.
struct NcclId {
  std::array<char, 128> bytes;
  /// A new one, for one communicator. The process that makes it must live until all ranks have joined.
  /// UserError(TargetUnavailable) where NCCL is missing or cannot start.
  static NcclId make();
};

/// As nccl.h of 2.19 has it, the oldest that we take; later versions know by `version` how much there is.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21900;
  int blocking = 0;
  int cgaClusterSize = INT_MIN, minCTAs = INT_MIN, maxCTAs = INT_MIN;
  const char *netName = nullptr;
  int splitShare = INT_MIN;
  int unused = INT_MIN;  // later versions have a setting here: their default
};

// X(member, symbol of the library, parameters) of those that return a result.
#define GPTC_NCCL_FUNCTIONS(X)                                                                                         \
  X(getUniqueId, ncclGetUniqueId, (NcclId * id))                                                                       \
  X(initRank, ncclCommInitRankConfig, (NcclComm * comm, int world, NcclId id, int rank, NcclConfig *config))           \
  X(asyncError, ncclCommGetAsyncError, (NcclComm comm, NcclResult * error))                                            \
  X(finalize, ncclCommFinalize, (NcclComm comm))                                                                       \
  X(destroy, ncclCommDestroy, (NcclComm comm))                                                                         \
  X(abort, ncclCommAbort, (NcclComm comm))                                                                             \
  X(groupStart, ncclGroupStart, ())                                                                                    \
  X(groupEnd, ncclGroupEnd, ())                                                                                        \
  X(allReduce, ncclAllReduce,                                                                                          \
    (const void *from, void *to, size_t count, NcclType type, NcclSum op, NcclComm comm, Stream stream))               \
  X(allGather, ncclAllGather, (const void *from, void *to, size_t count, NcclType type, NcclComm comm, Stream stream)) \
  X(reduceScatter, ncclReduceScatter,                                                                                  \
    (const void *from, void *to, size_t count, NcclType type, NcclSum op, NcclComm comm, Stream stream))               \
  X(broadcast, ncclBroadcast,                                                                                          \
    (const void *from, void *to, size_t count, NcclType type, int root, NcclComm comm, Stream stream))                 \
  X(send, ncclSend, (const void *from, size_t count, NcclType type, int peer, NcclComm comm, Stream stream))           \
  X(recv, ncclRecv, (void *to, size_t count, NcclType type, int peer, NcclComm comm, Stream stream))

struct Nccl {
#define GPTC_MEMBER(member, symbol, params) NcclResult(*member) params;
  GPTC_NCCL_FUNCTIONS(GPTC_MEMBER)
#undef GPTC_MEMBER
  const char *(*errorString)(NcclResult);
  const char *(*lastError)(NcclComm);

  /// The library of CudaLibraryId::nccl, bound once. UserError(TargetUnavailable) where there is none, or one without
  /// these functions.
  static const Nccl &get();
};

/// One collective over all ranks of a communicator, on memory of the GPU. Sums are in the order that NCCL chooses,
/// rounded to the dtype after each addition; all ranks get the same bits. `pred` can be copied, not added.
struct NcclCollective {
  using Kind = gptc::Collective::Kind;  // which says what each reads and writes
  Kind kind;
  DevicePtr from, to;
  size_t count;
  DType dtype;
  int root = 0;
  /// "all_reduce of 1024 f32"
  std::string str() const;
};

/// Each rank has something for every other one, and for itself: part p of `from` goes to rank p, and what rank p has
/// for this one comes to part p of `to`. Parts are `count` elements, and begin `fromStride` and `toStride` elements
/// apart; with a `fromStride` of 0 all get the same. `to` and `from` are no common memory.
struct NcclExchange {
  DevicePtr from, to;
  size_t count, fromStride, toStride;
  DType dtype;
  /// "exchange of 1024 f32"
  std::string str() const;
};

/// One rank's part of a communicator. It belongs to one GPU, which must outlive it, and to the thread of that GPU; a
/// GPU may have several, one for each axis of a mesh. Nothing here waits for ever: what takes longer than the time-out
/// (wait(): than its patience, as another rank may save or compile before it comes) is a UserError(CollectiveTimeout)
/// that names rank, world and what did not end; what NCCL reports is a UserError(RankFailed). After either the
/// communicator is aborted, so that nothing of it runs on the GPU any more, and can only be destroyed; what its
/// collectives were writing is undefined.
class NcclCommunicator {
public:
  /// Joins the others: returns when all `world` ranks have come. Each rank once, on a GPU of its own.
  NcclCommunicator(const Gpu &gpu, const NcclId &id, int rank, int world, std::chrono::milliseconds timeout,
                   std::chrono::milliseconds patience = {});
  /// Aborts, unless finish() has returned: the other ranks get an error, or their time-outs.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator &) = delete;

  const int rank, world;

  /// Enqueues the collectives as one: none may read what another one writes. They run behind what the stream has been
  /// given and, whatever their streams, in the order of these calls, which must be that of all ranks. Returns when they
  /// are enqueued; may be captured into a graph, which must be destroyed before finish().
  void enqueue(llvm::ArrayRef<NcclCollective> calls, Stream stream);
  /// Exchanges, likewise.
  void exchange(llvm::ArrayRef<NcclExchange> calls, Stream stream);
  /// Waits until the event has happened, with an eye on the other ranks: in the place of cuEventSynchronize behind
  /// anything that this communicator takes part in, graphs too. `what` is in errors: "step 12". `meanwhile` is called
  /// in between, and may throw: then the communicator is aborted, too.
  void wait(
      Event event, llvm::StringRef what, llvm::function_ref<void()> meanwhile = [] {});
  /// As wait() does: throws where NCCL has found that something failed.
  void requireWell(llvm::StringRef what);
  /// Leaves, when all ranks do: waits for what has been enqueued.
  void finish();
  /// Collectives enqueued so far, groups as one; those of a graph count once.
  int64_t enqueued() const { return number; }

private:
  const Gpu &gpu;
  const Nccl &nccl;
  const std::chrono::milliseconds timeout, patience;
  NcclComm comm = nullptr;
  int64_t number = 0;
  std::string last;  // what was enqueued last

  std::string who() const;
  std::string named(llvm::StringRef what) const;
  void group(const std::string &first, size_t calls, llvm::function_ref<NcclResult(size_t)> call);
  void settle(NcclResult r, llvm::StringRef what);
  template <class Asked> void poll(llvm::StringRef what, std::chrono::milliseconds most, Asked asked);
  [[noreturn]] void fail(NcclResult r, llvm::StringRef what);
  [[noreturn]] void failInTime(llvm::StringRef what, std::chrono::milliseconds most);
  void abort();
};

}  // namespace gptc::cuda
