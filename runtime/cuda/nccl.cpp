#include "runtime/cuda/nccl.h"

#include "codegen/cuda/libraries.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <thread>

namespace gptc::cuda {

const Nccl &Nccl::get() {
  const CudaLibrary &library = CudaLibrary::get(CudaLibraryId::nccl);
  static Nccl nccl;
  static const char *const missing = [&]() -> const char * {
#define GPTC_BIND(member, symbol, params)                                                                              \
  if (!library.bind(nccl.member, #symbol))                                                                             \
    return #symbol;
    GPTC_NCCL_FUNCTIONS(GPTC_BIND)
    GPTC_BIND(errorString, ncclGetErrorString, )
    GPTC_BIND(lastError, ncclGetLastError, )
#undef GPTC_BIND
    return nullptr;
  }();
  if (missing)
    throw UserError(ErrorCode::TargetUnavailable, fmt::format("{} has no function {}", library.path, missing),
                    "`gptc doctor` says which version is needed");
  return nccl;
}

/// NCCL's description of a result. Its last error is per process; without a communicator it is per thread.
static std::string describe(const Nccl &nccl, NcclResult r, NcclComm comm) {
  const char *text = nccl.errorString(r), *more = nccl.lastError(comm);
  return fmt::format("{}{}{}", text ? text : fmt::format("result {}", int(r)), more && *more ? ": " : "",
                     more ? more : "");
}

NcclId NcclId::make() {
  const Nccl &nccl = Nccl::get();
  NcclId id;
  if (NcclResult r = nccl.getUniqueId(&id); r != ncclOk)
    throw UserError(ErrorCode::TargetUnavailable, "NCCL cannot start: " + describe(nccl, r, nullptr),
                    "NCCL_DEBUG=INFO makes it say more; NCCL_SOCKET_IFNAME names the network to use");
  return id;
}

static NcclType typeOf(DType t) {
  switch (t) {
  case DType::f32:
    return ncclF32;
  case DType::f64:
    return ncclF64;
  case DType::bf16:
    return ncclBF16;
  case DType::f16:
    return ncclF16;
  case DType::i32:
    return ncclI32;
  case DType::i64:
    return ncclI64;
  case DType::u32:
    return ncclU32;
  case DType::f8e4m3:  // moved, never added
  case DType::pred:
    return ncclU8;
  }
  GPTC_UNREACHABLE("dtype {}", int(t));
}

std::string NcclCollective::str() const { return fmt::format("{} of {} {}", nameOf(kind), count, nameOf(dtype).str()); }

std::string NcclExchange::str() const { return fmt::format("exchange of {} {}", count, nameOf(dtype).str()); }

NcclCommunicator::NcclCommunicator(const Gpu &gpu, const NcclId &id, int rank, int world,
                                   std::chrono::milliseconds timeout, std::chrono::milliseconds patience)
    : rank(rank), world(world), gpu(gpu), nccl(Nccl::get()), timeout(timeout), patience(std::max(timeout, patience)) {
  const std::string joining = "joining the other ranks";
  NcclConfig config;
  const NcclResult r = nccl.initRank(&comm, world, id, rank, &config);
  settle(r, joining);
}

NcclCommunicator::~NcclCommunicator() { abort(); }

/// Aborts and frees the communicator. Its work on the GPU ends, so streams can be waited for and memory freed.
void NcclCommunicator::abort() {
  if (comm)
    nccl.abort(comm);
  comm = nullptr;
}

std::string NcclCommunicator::who() const { return fmt::format("rank {} of {}", rank, world); }

void NcclCommunicator::fail(NcclResult r, llvm::StringRef what) {
  const std::string why = describe(nccl, r, comm);
  abort();
  throw UserError(ErrorCode::RankFailed, fmt::format("{}: {} failed: {}", who(), what.str(), why),
                  "see what the other ranks say: the first that failed is the cause");
}

void NcclCommunicator::failInTime(llvm::StringRef what, std::chrono::milliseconds most) {
  abort();
  throw UserError(ErrorCode::CollectiveTimeout,
                  fmt::format("{}: {} has not ended after {:.1f} s", who(), what.str(), most.count() / 1e3),
                  "another rank is dead, stopped or stuck, or does other collectives than this one");
}

/// Polls until `asked` returns true. Spins at first, so that the end of a step is noticed promptly.
template <class Asked> void NcclCommunicator::poll(llvm::StringRef what, std::chrono::milliseconds most, Asked asked) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (!asked()) {
    const auto waited = Clock::now() - begin;
    if (waited > most)
      failInTime(what, most);
    if (waited > std::chrono::microseconds(100))
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// A non-blocking call has ended only when the communicator says so. Until then no other call is allowed.
void NcclCommunicator::settle(NcclResult r, llvm::StringRef what) {
  if (r != ncclOk && r != ncclRunning)
    fail(r, what);
  poll(what, timeout, [&] {
    NcclResult state = ncclOk;
    if (NcclResult asked = nccl.asyncError(comm, &state); asked != ncclOk)
      fail(asked, what);
    if (state != ncclOk && state != ncclRunning)
      fail(state, what);
    return state == ncclOk;
  });
}

/// Enqueues `calls` calls as one group; call(i) makes the i-th.
void NcclCommunicator::group(const std::string &first, size_t calls, llvm::function_ref<NcclResult(size_t)> call) {
  ++number;
  last = fmt::format("{}{}", first, calls > 1 ? fmt::format(" and {} more", calls - 1) : "");
  const std::string what = fmt::format("{}, collective {}", last, number);
  NcclResult r = nccl.groupStart();
  for (size_t i = 0; i < calls && (r == ncclOk || r == ncclRunning); ++i)
    r = call(i);
  const NcclResult ended = nccl.groupEnd();
  settle(r == ncclOk || r == ncclRunning ? ended : r, what);
}

void NcclCommunicator::enqueue(llvm::ArrayRef<NcclCollective> calls, Stream stream) {
  GPTC_CHECK(comm && !calls.empty(), "the communicator has ended, or nothing is enqueued");
  for (const NcclCollective &c : calls)
    GPTC_CHECK(c.dtype != DType::pred || c.kind == NcclCollective::Kind::all_gather ||
                   c.kind == NcclCollective::Kind::broadcast,
               "a sum of pred");
  group(calls[0].str(), calls.size(), [&](size_t i) {
    const NcclCollective &c = calls[i];
    const auto *from = reinterpret_cast<const void *>(c.from);
    auto *to = reinterpret_cast<void *>(c.to);
    const NcclType type = typeOf(c.dtype);
    switch (c.kind) {
    case NcclCollective::Kind::all_reduce:
      return nccl.allReduce(from, to, c.count, type, ncclAdd, comm, stream);
    case NcclCollective::Kind::all_gather:
      return nccl.allGather(from, to, c.count, type, comm, stream);
    case NcclCollective::Kind::reduce_scatter:
      return nccl.reduceScatter(from, to, c.count, type, ncclAdd, comm, stream);
    case NcclCollective::Kind::broadcast:
      return nccl.broadcast(from, to, c.count, type, c.root, comm, stream);
    }
    GPTC_UNREACHABLE("collective {}", int(c.kind));
  });
}

void NcclCommunicator::exchange(llvm::ArrayRef<NcclExchange> calls, Stream stream) {
  GPTC_CHECK(comm && !calls.empty(), "the communicator has ended, or nothing is exchanged");
  group(calls[0].str(), calls.size(), [&](size_t i) {
    const NcclExchange &x = calls[i];
    const NcclType type = typeOf(x.dtype);
    const size_t size = sizeOf(x.dtype);
    NcclResult r = ncclOk;
    for (int peer = 0; peer < world && (r == ncclOk || r == ncclRunning); ++peer) {
      r = nccl.send(reinterpret_cast<const void *>(x.from + size_t(peer) * x.fromStride * size), x.count, type, peer,
                    comm, stream);
      if (r == ncclOk || r == ncclRunning)
        r = nccl.recv(reinterpret_cast<void *>(x.to + size_t(peer) * x.toStride * size), x.count, type, peer, comm,
                      stream);
    }
    return r;
  });
}

std::string NcclCommunicator::named(llvm::StringRef what) const {
  return number ? fmt::format("{} (collective {} was enqueued last, {})", what.str(), number, last) : what.str();
}

void NcclCommunicator::requireWell(llvm::StringRef what) {
  GPTC_CHECK(comm, "the communicator has ended");
  NcclResult state = ncclOk;
  if (NcclResult asked = nccl.asyncError(comm, &state); asked != ncclOk)
    fail(asked, named(what));
  if (state != ncclOk && state != ncclRunning)
    fail(state, named(what));
}

void NcclCommunicator::wait(Event event, llvm::StringRef what, llvm::function_ref<void()> meanwhile) {
  GPTC_CHECK(comm, "the communicator has ended");
  poll(named(what), patience, [&] {
    requireWell(what);
    const Result r = gpu.d.eventQuery(event);
    if (r != notReady)
      gpu.d.check(r, "cuEventQuery");
    if (r == success)
      return true;
    try {
      meanwhile();
    } catch (...) {
      abort();
      throw;
    }
    return false;
  });
}

void NcclCommunicator::finish() {
  GPTC_CHECK(comm, "the communicator has ended");
  settle(nccl.finalize(comm), "leaving the other ranks");
  const NcclComm ended = comm;
  comm = nullptr;
  const NcclResult r = nccl.destroy(ended);
  GPTC_CHECK(r == ncclOk, "ncclCommDestroy: {}", nccl.errorString(r));
}

}  // namespace gptc::cuda
