// Collectives between GPUs by NCCL (libnccl.so.2), loaded with dlopen. The functions and types of its API that we use
// are declared here as in nccl.h; a test compares them with that header if it is installed.
//
// Each rank is one GPU. One rank makes an NcclId and sends it to the others; all join with it. After that every rank
// must enqueue the same collectives in the same order.
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
  ncclRunning = 7,  // a non-blocking communicator is still working: ask again
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

/// The identity of a communicator: opaque bytes that one rank makes and every rank needs to join.
struct NcclId {
  std::array<char, 128> bytes;
  /// Makes an id for one communicator. The calling process must live until all ranks have joined. Throws
  /// UserError(TargetUnavailable) if NCCL is missing or cannot start.
  static NcclId make();
};

/// The layout of nccl.h 2.19, the oldest supported version. Later versions read only the fields that `version` implies.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21900;
  int blocking = 0;
  int cgaClusterSize = INT_MIN, minCTAs = INT_MIN, maxCTAs = INT_MIN;
  const char *netName = nullptr;
  int splitShare = INT_MIN;
  int unused = INT_MIN;  // a setting in later versions: its default
};

// X(member, symbol of the library, parameters), for the functions that return a result.
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

  /// The library of CudaLibraryId::nccl, bound once. Throws UserError(TargetUnavailable) if it is missing or lacks one
  /// of these functions.
  static const Nccl &get();
};

/// One collective over all ranks of a communicator, on GPU memory. NCCL chooses the order of sums and rounds to the
/// dtype after each addition; all ranks get the same bits. `pred` can be copied but not added.
struct NcclCollective {
  using Kind = gptc::Collective::Kind;  // defines what each kind reads and writes
  Kind kind;
  DevicePtr from, to;
  size_t count;
  DType dtype;
  int root = 0;
  /// "all_reduce of 1024 f32"
  std::string str() const;
};

/// Every rank sends a part to every rank, itself included: part p of `from` goes to rank p, and the data from rank p
/// arrives in part p of `to`. A part has `count` elements. Parts begin `fromStride` and `toStride` elements apart;
/// `fromStride` = 0 sends the same part to all. `from` and `to` must not overlap.
struct NcclExchange {
  DevicePtr from, to;
  size_t count, fromStride, toStride;
  DType dtype;
  /// "exchange of 1024 f32"
  std::string str() const;
};

/// One rank's end of a communicator. It belongs to one GPU, which must outlive it, and to that GPU's thread. A GPU may
/// have several, one per mesh axis.
///
/// Every wait is bounded by the time-out, or in wait() by `patience` if that is longer, because another rank may be
/// saving or compiling. If the bound passes, the call throws UserError(CollectiveTimeout), which names rank, world and
/// the unfinished work. An error reported by NCCL throws UserError(RankFailed). Either error aborts the communicator:
/// none of its work runs on the GPU any more, the memory its collectives were writing is undefined, and it can only be
/// destroyed.
class NcclCommunicator {
public:
  /// Joins and returns when all `world` ranks have joined. Each rank joins once, on its own GPU.
  NcclCommunicator(const Gpu &gpu, const NcclId &id, int rank, int world, std::chrono::milliseconds timeout,
                   std::chrono::milliseconds patience = {});
  /// Aborts unless finish() has returned; the other ranks then get an error or time out.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator &) = delete;

  const int rank, world;

  /// Enqueues the collectives as one NCCL group; none may read what another writes. They run after the work already on
  /// `stream`, and across streams in the order of these calls, which must be the same on all ranks. Asynchronous. May
  /// be captured into a graph, which must be destroyed before finish().
  void enqueue(llvm::ArrayRef<NcclCollective> calls, Stream stream);
  /// Enqueues exchanges under the same rules.
  void exchange(llvm::ArrayRef<NcclExchange> calls, Stream stream);
  /// Waits for the event while watching for failures of other ranks. Use it instead of cuEventSynchronize for any work
  /// that involves this communicator, graphs included. `what` names the work in errors: "step 12". `meanwhile` is
  /// called repeatedly; if it throws, the communicator is aborted too.
  void wait(Event event, llvm::StringRef what, llvm::function_ref<void()> meanwhile = [] {});
  /// Throws if NCCL has found a failure, as wait() does.
  void requireWell(llvm::StringRef what);
  /// Waits for all enqueued work and leaves. All ranks must call it.
  void finish();
  /// Number of groups of collectives enqueued so far. A captured group counts once.
  int64_t enqueued() const { return number; }

private:
  const Gpu &gpu;
  const Nccl &nccl;
  const std::chrono::milliseconds timeout, patience;
  NcclComm comm = nullptr;
  int64_t number = 0;
  std::string last;  // description of the last enqueued group

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
