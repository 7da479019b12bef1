// A stand-in for libnccl.so.2, on the stand-in driver: ranks are processes, or threads of one, that meet in shared
// memory. It has no name: its maker holds it open, others come to it through /proc, and with the last process it is
// gone, however that ended. It is as strict as nccl.h allows, and as unhelpful:
//
//   - Communicators do not block. A call has happened only when ncclCommGetAsyncError says so, asked at least twice;
//     who goes on before that is refused, or finds that a capture ended without it.
//   - A group is one operation: all of its inputs are read before any of its results is written. What is sent to others
//     and received from them is so by all ranks alike.
//   - An operation waits for all ranks, as the kernel of NCCL does, for ever: it ends when the communicator is aborted.
//   - Sums begin at another rank for each part of the result, as rings do, and round after each addition.
//   - What NCCL leaves undefined is an error: operations, counts or types that are not another rank's, memory that
//     overlaps, is not there or belongs to another GPU; and so are two ranks on one GPU, a rank twice, another number
//     of ranks. The death of a rank is one, too, unless GPTC_STANDIN_SILENT=1: within a machine NCCL may not notice.
//   - A communicator ends when all ranks end theirs and no graph holds operations of it, else it does not end.
#include "driver_state.h"
#include "narrow.h"
#include "runtime/cuda/nccl.h"

#include <atomic>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

namespace gptc::cuda {

namespace {

constexpr int mostRanks = 64;
constexpr size_t headBytes = 1 << 16, areaBytes = size_t(4) << 30;  // as far as it is written, memory

enum RankState : int { absent, here, leaving, aborted };

/// What all processes see.
struct Shared {
  char tag[16];
  std::atomic<int> world;
  std::atomic<int> broken;  // a rank came that must not; `why` says so
  char why[200];
  struct Rank {
    std::atomic<int> state, device;
    std::atomic<uint64_t> arrived, departed;  // numbers of operations
    std::atomic<uint64_t> bytes;              // in its area: calls, then inputs
    std::atomic<uint32_t> calls;
  } ranks[mostRanks];
};
static_assert(sizeof(Shared) <= headBytes);

/// The content of a NcclId.
struct Meeting {
  char magic[8];
  int pid, fd;
  char tag[16];
};
constexpr char magic[8] = {'G', 'P', 'T', 'C', 'n', 'c', 'c', 'l'};

/// A collective, or half of what two ranks exchange.
enum class What : int { all_reduce, all_gather, reduce_scatter, broadcast, send, recv };
constexpr What whatOf(NcclCollective::Kind k) { return What(int(k)); }
static_assert(whatOf(NcclCollective::Kind::all_gather) == What::all_gather &&
              whatOf(NcclCollective::Kind::broadcast) == What::broadcast);

struct Call {
  What what;
  NcclType type;
  uint64_t count;
  int root;  // of a broadcast; the other end of send and recv
  bool reads(int rank) const { return what != What::recv && (what != What::broadcast || root == rank); }
  bool writes() const { return what != What::send; }
  bool operator==(const Call &) const = default;
  std::string str() const {
    constexpr const char *names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv"};
    return fmt::format("{} of {} elements of type {} from {}", names[int(what)], count, int(type), root);
  }
};
struct Request {
  Call call;
  DevicePtr from, to;
};

size_t sizeOf(NcclType t) {
  switch (t) {
  case ncclU8:
    return 1;
  case ncclF16:
  case ncclBF16:
    return 2;
  case ncclI64:
  case ncclF64:
    return 8;
  default:
    return 4;
  }
}

template <class T> T function(const char *name) { return reinterpret_cast<T>(dlsym(RTLD_DEFAULT, name)); }
std::byte *resolveIn(Context c, DevicePtr at, size_t bytes) {
  static const auto f = function<std::byte *(*)(Context, DevicePtr, size_t)>("gptcStandinResolveIn");
  return f(c, at, bytes);
}
bool driveChain(const void *chain) {
  static const auto f = function<bool (*)(const void *)>("gptcStandinDriveChain");
  return f(chain);
}
const void *captureOf(Context c, Stream s, bool *known) {
  static const auto f = function<const void *(*)(Context, Stream, bool *)>("gptcStandinCapture");
  return f(c, s, known);
}

thread_local std::string lastError;
NcclResult refuse(NcclResult r, const std::string &why) {
  lastError = why;
  return r;
}

}  // namespace

/// What runs later reads and writes it under the driver's lock; the rest belongs to the calls, under theirs.
struct NcclCommImpl {
  Context context;
  int rank, world, fd = -1;
  Shared *shared = nullptr;

  enum { joining, ready, ending, ended } phase = joining;
  int asked = 0;  // since the last call that does not block
  struct Deferred {
    std::vector<Request> requests;
    Stream stream;
    const void *capture;
  };
  std::vector<Deferred> deferred;

  std::atomic<int> error = ncclOk;
  std::mutex textLock;
  std::string text;
  std::atomic<bool> isAborted = false, isEnded = false;
  uint64_t operations = 0;
  std::shared_ptr<int> held = std::make_shared<int>();  // by every operation that has not run, and every graph with one

  ~NcclCommImpl() {
    munmap(shared, headBytes);
    close(fd);  // and with it this rank's sign of life
  }

  bool fail(NcclResult r, const std::string &why) {
    std::lock_guard guard(textLock);
    if (error == ncclOk) {
      text = why;
      error = r;
    }
    return false;
  }

  struct flock lockOf(int r, short type) const {
    struct flock l = {};
    l.l_type = type;
    l.l_whence = SEEK_SET;
    l.l_start = r;
    l.l_len = 1;
    return l;
  }
  bool isAlive(int r) const {
    struct flock l = lockOf(r, F_WRLCK);
    return r == rank || fcntl(fd, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
  }
  /// Whether no other rank has failed.
  bool lookAtOthers() {
    if (shared->broken)
      return fail(ncclRemoteFailed, shared->why);
    for (int r = 0; r < world; ++r) {
      const int state = shared->ranks[r].state;
      if (state == aborted)
        return fail(ncclRemoteFailed, fmt::format("rank {} has aborted", r));
      // Asked again: it may have left, and its process ended, since the first look.
      if (state == here && !isAlive(r) && shared->ranks[r].state == here && !setting("SILENT", 0))
        return fail(ncclRemoteFailed, fmt::format("rank {} is gone", r));
    }
    return true;
  }
  bool all(RankState least) const {
    for (int r = 0; r < world; ++r)
      if (const int s = shared->ranks[r].state; s < least || s == aborted)
        return false;
    return true;
  }
};

namespace {

using Comm = std::shared_ptr<NcclCommImpl>;
std::mutex mine;
std::map<NcclComm, Comm> live;
thread_local int groups = 0;
thread_local NcclResult groupRefused = ncclOk;
thread_local std::vector<std::tuple<NcclComm, Request, Stream>> grouped;

/// A part of the shared memory, mapped.
struct Area {
  std::byte *at;
  size_t bytes;
  Area(const NcclCommImpl &c, int rank, size_t bytes) : bytes(std::max<size_t>(bytes, 1)) {
    void *p = mmap(nullptr, this->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, c.fd,
                   off_t(headBytes + rank * areaBytes));
    at = p == MAP_FAILED ? nullptr : static_cast<std::byte *>(p);
  }
  ~Area() { munmap(at, bytes); }
  Area(const Area &) = delete;
};

template <class T> T as(const std::byte *p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}
/// *to += *from, rounded to the type.
void add(NcclType t, std::byte *to, const std::byte *from) {
  auto plain = [&]<class T>(T) {
    const T sum = T(as<T>(to) + as<T>(from));
    std::memcpy(to, &sum, sizeof(T));
  };
  switch (t) {
  case ncclF32:
    return plain(float());
  case ncclF64:
    return plain(double());
  case ncclBF16:
  case ncclF16: {
    const bool half = t == ncclF16;
    auto value = [&](const std::byte *p) { return half ? fromF16(as<uint16_t>(p)) : fromBF16(as<uint16_t>(p)); };
    const float sum = value(to) + value(from);
    const uint16_t bits = half ? toF16(sum) : toBF16(sum);
    std::memcpy(to, &bits, 2);
    return;
  }
  case ncclI64:
    return plain(uint64_t());
  case ncclU8:
    return plain(uint8_t());
  default:
    return plain(uint32_t());
  }
}

size_t inputBytes(const Call &c, int world) {
  return c.count * sizeOf(c.type) * (c.what == What::recv ? 0 : c.what == What::reduce_scatter ? world : 1);
}
size_t outputBytes(const Call &c, int world) {
  return c.count * sizeOf(c.type) * (c.what == What::send ? 0 : c.what == What::all_gather ? world : 1);
}

/// Inputs of all ranks to one rank's result.
void compute(const Call &c, int rank, int world, const std::vector<const std::byte *> &inputs, std::byte *to) {
  const size_t size = sizeOf(c.type);
  switch (c.what) {
  case What::send:
  case What::recv:
    return;  // Operation::receive
  case What::broadcast:
    std::memcpy(to, inputs[c.root], c.count * size);
    return;
  case What::all_gather:
    for (int r = 0; r < world; ++r)
      std::memcpy(to + r * c.count * size, inputs[r], c.count * size);
    return;
  case What::all_reduce:
  case What::reduce_scatter: {
    const bool scatter = c.what == What::reduce_scatter;
    for (size_t i = 0; i < c.count; ++i) {
      const size_t from = scatter ? rank * c.count + i : i;
      const int first = scatter ? rank : int(i * world / c.count);
      std::memcpy(to + i * size, inputs[(first + 1) % world] + from * size, size);
      for (int k = 2; k <= world; ++k)
        add(c.type, to + i * size, inputs[(first + k) % world] + from * size);
    }
  }
  }
}

/// One operation: waits for its turn, brings its inputs, waits for the others', takes its results.
struct Operation {
  Comm c;
  std::vector<Request> requests;
  std::shared_ptr<int> held;
  bool brought = false;

  bool bring(std::string &problem) {
    Shared::Rank *ranks = c->shared->ranks;
    for (int r = 0; r < c->world; ++r)  // what this rank brought before has been read
      if (ranks[r].departed < c->operations)
        return false;
    if (ranks[c->rank].bytes)
      fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(headBytes + c->rank * areaBytes),
                off_t(ranks[c->rank].bytes));
    size_t bytes = requests.size() * sizeof(Call);
    for (const Request &r : requests)
      bytes += inputBytes(r.call, c->world);
    const Area area(*c, c->rank, bytes);
    size_t at = requests.size() * sizeof(Call);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request &r = requests[i];
      const Call &call = r.call;
      std::memcpy(area.at + i * sizeof(Call), &call, sizeof(Call));
      const size_t in = inputBytes(call, c->world), out = outputBytes(call, c->world),
                   one = call.count * sizeOf(call.type);
      const bool reads = call.reads(c->rank), writes = call.writes();
      const std::byte *from = reads ? resolveIn(c->context, r.from, in) : nullptr;
      if ((reads && !from) || (writes && !resolveIn(c->context, r.to, out))) {
        problem = fmt::format("{}: no memory of this GPU at address {:#x} or {:#x}", call.str(), r.from, r.to);
        return true;
      }
      const DevicePtr inPlace = call.what == What::all_gather       ? r.to + c->rank * one
                                : call.what == What::reduce_scatter ? r.to - c->rank * one
                                                                    : r.to;
      if (reads && writes && r.from != inPlace && r.from < r.to + out && r.to < r.from + in)
        return c->fail(ncclBadUsage, call.str() + ": input and result overlap");
      if (reads)
        std::memcpy(area.at + at, from, in);
      at += in;
    }
    ranks[c->rank].bytes = bytes;
    ranks[c->rank].calls = uint32_t(requests.size());
    ranks[c->rank].arrived = ++c->operations;
    brought = true;
    return false;
  }

  /// What comes from another rank: the n-th that is received from it is the n-th that it sends. All ranks make the same
  /// calls, so what this one sends where is where they find theirs.
  bool receive(size_t number, const std::vector<const std::byte *> &inputs) {
    const Call &mine = requests[number].call;
    int nth = 0;
    for (size_t i = 0; i < number; ++i)
      nth += requests[i].call.what == What::recv && requests[i].call.root == mine.root;
    const std::byte *at = inputs[mine.root];
    for (const Request &r : requests) {
      if (r.call.what == What::send && r.call.root == c->rank && nth-- == 0) {
        if (r.call.count != mine.count || r.call.type != mine.type)
          return c->fail(ncclBadUsage, fmt::format("{} does not meet {}", mine.str(), r.call.str()));
        std::memcpy(resolveIn(c->context, requests[number].to, outputBytes(mine, c->world)), at,
                    outputBytes(mine, c->world));
        return true;
      }
      at += inputBytes(r.call, c->world);
    }
    return c->fail(ncclBadUsage, fmt::format("{}, and nothing is sent", mine.str()));
  }

  bool operator()(std::string &problem) {
    Shared::Rank *ranks = c->shared->ranks;
    if (c->isEnded) {
      problem = "an operation of a communicator that has ended";
      return true;
    }
    if (c->isAborted) {  // the kernels leave; whatever they have written
      for (const Request &r : requests)
        if (std::byte *to = r.call.writes() ? resolveIn(c->context, r.to, outputBytes(r.call, c->world)) : nullptr)
          std::memset(to, 0xff, outputBytes(r.call, c->world));
      return true;
    }
    if (c->error != ncclOk)
      return false;
    if (!brought && bring(problem))
      return true;
    if (!brought)
      return c->lookAtOthers() && false;
    for (int r = 0; r < c->world; ++r)
      if (ranks[r].arrived < c->operations) {
        if (ranks[r].state == leaving)
          return c->fail(ncclRemoteFailed, fmt::format("rank {} has left", r));
        return c->lookAtOthers() && false;
      }
    std::vector<std::unique_ptr<Area>> areas;
    std::vector<const std::byte *> inputs;
    for (int r = 0; r < c->world; ++r) {
      areas.push_back(std::make_unique<Area>(*c, r, ranks[r].bytes));
      const size_t calls = ranks[r].calls;
      for (size_t i = 0; i < std::max(calls, requests.size()); ++i) {
        Call other{};
        if (i < calls)
          std::memcpy(&other, areas[r]->at + i * sizeof(Call), sizeof(Call));
        if (i >= calls || i >= requests.size() || !(other == requests[i].call))
          return c->fail(ncclBadUsage,
                         fmt::format("operation {}: rank {} does {}, and rank {} {}", c->operations, c->rank,
                                     i < requests.size() ? requests[i].call.str() : "nothing more", r,
                                     i < calls ? other.str() : "nothing more"));
      }
      inputs.push_back(areas[r]->at + calls * sizeof(Call));
    }
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i].call.what == What::recv && !receive(i, inputs))
        return false;
    for (const Request &r : requests) {
      if (r.call.writes())
        compute(r.call, c->rank, c->world, inputs, resolveIn(c->context, r.to, outputBytes(r.call, c->world)));
      for (const std::byte *&in : inputs)
        in += inputBytes(r.call, c->world);
    }
    ranks[c->rank].departed = c->operations;
    return true;
  }
};

Comm find(NcclComm comm) {
  auto it = live.find(comm);
  return it == live.end() ? nullptr : it->second;
}

/// Puts the operations into their streams.
void place(const Comm &c) {
  static const auto chain = function<Result (*)(const void *, Context, Stream, const Attempt &)>("gptcStandinChain");
  for (const NcclCommImpl::Deferred &d : c->deferred) {
    bool known = false;
    if (captureOf(c->context, d.stream, &known) != d.capture || !known)
      c->fail(ncclCudaFailed, "the stream was destroyed, or its capture ended, before the operation was in it");
    else if (chain(c.get(), c->context, d.stream, Attempt(Operation{c, d.requests, c->held})) != success)
      c->fail(ncclCudaFailed, "the driver refuses an operation in this stream");
  }
  c->deferred.clear();
}

NcclResult put(NcclComm comm, const Request &r, Stream stream) {
  std::lock_guard guard(mine);
  const Comm c = find(comm);
  if (!c)
    return refuse(ncclBadArgument, "the communicator is none, or was destroyed");
  if (c->phase != NcclCommImpl::ready || !c->deferred.empty())
    return refuse(ncclBadArgument, "the communicator is used before its last call has ended");
  if (c->error != ncclOk)
    return refuse(NcclResult(c->error.load()), c->text);
  const NcclType types[] = {ncclU8, ncclI32, ncclU32, ncclI64, ncclF16, ncclF32, ncclF64, ncclBF16};
  if (std::find(std::begin(types), std::end(types), r.call.type) == std::end(types) || r.call.root < 0 ||
      r.call.root >= c->world || r.call.count == 0)
    return refuse(ncclBadArgument, r.call.str());
  bool known = false;
  captureOf(c->context, stream, &known);
  if (!known)
    return refuse(ncclCudaFailed, "the stream is none of the communicator's GPU");
  grouped.emplace_back(comm, r, stream);
  return ncclOk;
}

/// All that was put, by communicators.
NcclResult endGroup() {
  std::lock_guard guard(mine);
  auto all = std::move(grouped);
  grouped.clear();
  if (NcclResult refused = std::exchange(groupRefused, ncclOk))
    return refused;
  for (const auto &[comm, request, stream] : all) {
    const Comm c = find(comm);
    if (!c)
      return refuse(ncclBadArgument, "a communicator was destroyed within a group");
    if (c->deferred.empty()) {
      bool known = false;
      c->deferred.push_back({{}, stream, captureOf(c->context, stream, &known)});
    }
    if (c->deferred[0].stream != stream)
      return refuse(ncclBadUsage, "one group of one communicator in two streams, which the stand-in has not");
    c->deferred[0].requests.push_back(request);
    c->asked = 0;
  }
  return all.empty() ? ncclOk : ncclRunning;
}

NcclResult call(NcclComm comm, const Request &r, Stream stream) {
  if (NcclResult refused = put(comm, r, stream)) {
    if (groups)
      groupRefused = refused;
    return refused;
  }
  return groups ? ncclOk : endGroup();
}

}  // namespace

extern "C" {

NcclResult ncclGetVersion(int *version) {
  *version = 22809;
  return ncclOk;
}
const char *ncclGetErrorString(NcclResult r) {
  switch (int(r)) {
  case 0:
    return "no error";
  case 1:
    return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
  case 4:
    return "invalid argument (run with NCCL_DEBUG=WARN for details)";
  case 5:
    return "invalid usage (run with NCCL_DEBUG=WARN for details)";
  case 6:
    return "remote process exited or there was a network error";
  case 7:
    return "NCCL operation in progress";
  }
  return "unknown result code";
}
const char *ncclGetLastError(NcclComm comm) {
  std::lock_guard guard(mine);
  if (const Comm c = find(comm); c && c->error != ncclOk) {
    std::lock_guard text(c->textLock);
    lastError = c->text;
  }
  return lastError.c_str();
}

NcclResult ncclGetUniqueId(NcclId *id) {
  const int fd = memfd_create("gptc-nccl", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, off_t(headBytes + mostRanks * areaBytes)) != 0)
    return refuse(NcclResult(2), "no shared memory");
  Meeting m{};
  std::memcpy(m.magic, magic, sizeof magic);
  m.pid = getpid();
  m.fd = fd;  // stays open as long as the process lives, as NCCL's listener does
  if (getrandom(m.tag, sizeof m.tag, 0) != sizeof m.tag || pwrite(fd, m.tag, sizeof m.tag, 0) != sizeof m.tag)
    return refuse(NcclResult(2), "no random bytes");
  *id = {};
  std::memcpy(id->bytes.data(), &m, sizeof m);
  return ncclOk;
}

NcclResult ncclCommInitRankConfig(NcclComm *comm, int world, NcclId id, int rank, NcclConfig *config) {
  *comm = nullptr;
  if (groups)
    return refuse(ncclBadUsage, "communicators made within a group, which the stand-in has not");
  if (world < 1 || world > mostRanks || rank < 0 || rank >= world)
    return refuse(ncclBadArgument, fmt::format("rank {} of {}", rank, world));
  if (!config || config->magic != 0xcafebeef || config->size < sizeof(NcclConfig) || config->version < 21900)
    return refuse(ncclBadArgument, "the configuration was not initialised");
  if (config->blocking != 0)
    return refuse(ncclBadUsage, "a communicator that blocks, which the stand-in has not");
  static const auto contextOf = function<Context (*)(int *)>("gptcStandinContext");
  int device = 0;
  const Context context = contextOf ? contextOf(&device) : nullptr;
  if (!context)
    return refuse(ncclCudaFailed, "no GPU is current");
  Meeting m;
  std::memcpy(&m, id.bytes.data(), sizeof m);
  if (std::memcmp(m.magic, magic, sizeof magic) != 0)
    return refuse(ncclBadArgument, "this is no unique id");
  auto c = std::make_shared<NcclCommImpl>();
  c->context = context;
  c->rank = rank;
  c->world = world;
  // Opened anew even in the process that made it: locks belong to what was opened.
  c->fd = open(fmt::format("/proc/{}/fd/{}", m.pid, m.fd).c_str(), O_RDWR | O_CLOEXEC);
  void *at = c->fd < 0 ? MAP_FAILED : mmap(nullptr, headBytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
  if (at == MAP_FAILED) {
    c->shared = nullptr;
    return refuse(ncclRemoteFailed, "the process that made the unique id is gone");
  }
  c->shared = static_cast<Shared *>(at);
  Shared &s = *c->shared;
  if (std::memcmp(s.tag, m.tag, sizeof m.tag) != 0)
    return refuse(ncclRemoteFailed, "the process that made the unique id is gone");
  auto spoil = [&](const std::string &why) {
    std::snprintf(s.why, sizeof s.why, "%s", why.c_str());
    s.broken = 1;
    return refuse(ncclBadUsage, why);
  };
  int known = 0;
  if (!s.world.compare_exchange_strong(known, world) && known != world)
    return spoil(fmt::format("rank {} says that there are {} ranks, others say {}", rank, world, known));
  struct flock l = c->lockOf(rank, F_WRLCK);
  int before = absent;
  if (fcntl(c->fd, F_OFD_SETLK, &l) != 0 || s.ranks[rank].state != absent)
    return spoil(fmt::format("rank {} has come twice", rank));
  s.ranks[rank].device = device;
  if (!s.ranks[rank].state.compare_exchange_strong(before, here))
    return spoil(fmt::format("rank {} has come twice", rank));
  std::lock_guard guard(mine);
  *comm = c.get();
  live[c.get()] = c;
  return ncclRunning;
}

NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult *state) {
  std::lock_guard guard(mine);
  const Comm c = find(comm);
  if (!c)
    return refuse(ncclBadArgument, "the communicator is none, or was destroyed");
  *state = ncclRunning;
  const bool first = c->asked++ == 0;
  if (c->error == ncclOk && !first) {
    switch (c->phase) {
    case NcclCommImpl::joining:
      if (!c->lookAtOthers() || !c->all(here))
        break;
      for (int r = 0; r < c->world; ++r)
        if (r != c->rank && c->shared->ranks[r].device == c->shared->ranks[c->rank].device)
          c->fail(ncclBadUsage, fmt::format("Duplicate GPU detected : rank {} and rank {} both on CUDA device {}",
                                            c->rank, r, c->shared->ranks[r].device.load()));
      c->phase = NcclCommImpl::ready;
      *state = ncclOk;
      break;
    case NcclCommImpl::ready:
      place(c);
      c->lookAtOthers();
      *state = ncclOk;
      break;
    case NcclCommImpl::ending:
      if (!driveChain(c.get()) || c->held.use_count() > 1)
        break;  // an operation has not run, or a graph has not been destroyed
      c->shared->ranks[c->rank].state = leaving;
      if (!c->lookAtOthers() || !c->all(leaving))
        break;
      c->phase = NcclCommImpl::ended;
      [[fallthrough]];
    case NcclCommImpl::ended:
      *state = ncclOk;
      break;
    }
  }
  if (c->phase == NcclCommImpl::ready && c->deferred.empty())
    *state = ncclOk;
  if (c->error != ncclOk)
    *state = NcclResult(c->error.load());
  return ncclOk;
}

NcclResult ncclCommFinalize(NcclComm comm) {
  std::lock_guard guard(mine);
  const Comm c = find(comm);
  if (!c || c->phase != NcclCommImpl::ready || !c->deferred.empty())
    return refuse(ncclBadArgument, "the communicator is none, has ended, or its last call has not");
  if (c->error != ncclOk)
    return NcclResult(c->error.load());
  c->phase = NcclCommImpl::ending;
  c->asked = 0;
  return ncclRunning;
}
NcclResult ncclCommDestroy(NcclComm comm) {
  std::lock_guard guard(mine);
  const Comm c = find(comm);
  if (!c)
    return refuse(ncclBadArgument, "the communicator is none, or was destroyed");
  if (c->phase != NcclCommImpl::ended)
    return refuse(ncclBadUsage, "a communicator that does not block is destroyed before it was finalized");
  c->isEnded = true;
  live.erase(comm);
  return ncclOk;
}
NcclResult ncclCommAbort(NcclComm comm) {
  std::lock_guard guard(mine);
  const Comm c = find(comm);
  if (!c)
    return refuse(ncclBadArgument, "the communicator is none, or was destroyed");
  c->isAborted = true;
  c->shared->ranks[c->rank].state = aborted;
  live.erase(comm);
  return ncclOk;
}

NcclResult ncclGroupStart() {
  ++groups;
  return ncclOk;
}
NcclResult ncclGroupEnd() {
  if (groups == 0)
    return refuse(ncclBadUsage, "a group ends that did not start");
  return --groups ? ncclOk : endGroup();
}

NcclResult ncclAllReduce(const void *from, void *to, size_t count, NcclType type, NcclSum op, NcclComm comm, Stream s) {
  if (op != ncclAdd)
    return refuse(ncclBadArgument, "only sums");
  return call(comm, {{What::all_reduce, type, count, 0}, DevicePtr(from), DevicePtr(to)}, s);
}
NcclResult ncclAllGather(const void *from, void *to, size_t count, NcclType type, NcclComm comm, Stream s) {
  return call(comm, {{What::all_gather, type, count, 0}, DevicePtr(from), DevicePtr(to)}, s);
}
NcclResult ncclReduceScatter(const void *from, void *to, size_t count, NcclType type, NcclSum op, NcclComm comm,
                             Stream s) {
  if (op != ncclAdd)
    return refuse(ncclBadArgument, "only sums");
  return call(comm, {{What::reduce_scatter, type, count, 0}, DevicePtr(from), DevicePtr(to)}, s);
}
NcclResult ncclBroadcast(const void *from, void *to, size_t count, NcclType type, int root, NcclComm comm, Stream s) {
  return call(comm, {{What::broadcast, type, count, root}, DevicePtr(from), DevicePtr(to)}, s);
}
NcclResult ncclSend(const void *from, size_t count, NcclType type, int peer, NcclComm comm, Stream s) {
  return call(comm, {{What::send, type, count, peer}, DevicePtr(from), 0}, s);
}
NcclResult ncclRecv(void *to, size_t count, NcclType type, int peer, NcclComm comm, Stream s) {
  return call(comm, {{What::recv, type, count, peer}, 0, DevicePtr(to)}, s);
}
}

}  // namespace gptc::cuda
