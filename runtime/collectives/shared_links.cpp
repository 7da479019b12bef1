#include "runtime/collectives/shared_links.h"
#include "runtime/rendezvous/rendezvous.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <fstream>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gptc {

using Clock = std::chrono::steady_clock;

namespace {

struct SharedMessage : Links::Message {
  int peer;
  bool sends;
  uint64_t slot;
  char *at;
  size_t bytes;
  size_t moved = 0;
  bool named = false;  // slot and length have been written or read
};

constexpr size_t ringBytes = 1 << 20;
constexpr size_t blockBytes = 64 << 10;  // the other side is notified after this many bytes
constexpr int spins = 2000;
constexpr size_t idBytes = 32;

/// A ring buffer from one rank to another, in the latter's segment.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) char bytes[ringBytes];
};
struct Segment {
  char id[idBytes];
  alignas(64) std::atomic<uint32_t> bell, sleeps, closed;
  alignas(64) Ring from[1];  // one per rank
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

size_t sizeFor(int world) { return sizeof(Segment) + size_t(world - 1) * sizeof(Ring); }

long futex(std::atomic<uint32_t> &word, int op, uint32_t value, const timespec *timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), op, value, timeout, nullptr, 0);
}

struct Header {
  uint64_t slot, bytes;
};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void say(LinkError &e, LinkError::Kind kind, const std::string &text) {
  e.kind = kind;
  std::strncpy(e.text, text.c_str(), sizeof e.text - 1);
}

class SharedLinks final : public Links {
public:
  SharedLinks(int rank, int world) : rank(rank), world(world), segments(size_t(world)), queues(size_t(world)) {
    fd = memfd_create("gptc", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, off_t(sizeFor(world))) != 0)
      throw UserError(ErrorCode::OutOfMemory,
                      fmt::format("no {} bytes of shared memory: {}", sizeFor(world), std::strerror(errno)),
                      "GPTC_INTERFACE=lo makes ranks of one machine talk over TCP");
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    std::string why;
    if (!map(rank, fd, why))
      throw UserError(ErrorCode::OutOfMemory, "shared memory cannot be mapped: " + why,
                      "GPTC_INTERFACE=lo makes ranks of one machine talk over TCP");
    const std::string id = newToken();
    std::memcpy(mine().id, id.data(), idBytes);
  }
  ~SharedLinks() override {
    close();
    for (Segment *s : segments)
      if (s)
        munmap(s, sizeFor(world));
    if (fd >= 0)
      ::close(fd);
  }

  size_t messageBytes() const noexcept override { return 256 << 10; }
  size_t messages() const noexcept override { return 8; }
  size_t ownBytes() const noexcept override { return sizeFor(world); }

  size_t address(int, char *bytes, size_t most) noexcept override {
    const std::string text = fmt::format("{}{}/{}", std::string(mine().id, idBytes), getpid(), fd);
    if (text.size() > most)
      return 0;
    std::copy(text.begin(), text.end(), bytes);
    return text.size();
  }

  bool connect(int peer, const char *bytes, size_t n, LinkError &e) noexcept override {
    const std::string text(bytes, n);
    int process = 0, file = 0;
    if (n <= idBytes || std::sscanf(text.c_str() + idBytes, "%d/%d", &process, &file) != 2) {
      say(e, LinkError::gone, "its address is none");
      return false;
    }
    const int other = open(fmt::format("/proc/{}/fd/{}", process, file).c_str(), O_RDWR | O_CLOEXEC);
    std::string why = other < 0 ? std::strerror(errno) : "";
    bool good = other >= 0;
    if (struct stat s; good && (fstat(other, &s) != 0 || size_t(s.st_size) != sizeFor(world))) {
      good = false;
      why = "its memory has another size";
    }
    good = good && map(peer, other, why);
    if (good && std::memcmp(segments[size_t(peer)]->id, text.data(), idBytes) != 0) {
      good = false;
      why = "its memory is another one";
    }
    if (other >= 0)
      ::close(other);
    if (!good)
      say(e, LinkError::gone, "its memory cannot be shared: " + why);
    return good;
  }

  Message *send(int peer, uint64_t slot, const void *at, size_t n, LinkError &e) noexcept override {
    auto *m = new SharedMessage{{}, peer, true, slot, static_cast<char *>(const_cast<void *>(at)), n};
    queues[size_t(peer)].out.push_back(m);
    write(peer, e);
    return m;
  }
  Message *receive(int peer, uint64_t slot, void *at, size_t n, LinkError &e) noexcept override {
    auto *m = new SharedMessage{{}, peer, false, slot, static_cast<char *>(at), n};
    queues[size_t(peer)].in.push_back(m);
    return m;
  }

  bool wait(Message *message, int64_t milliseconds, LinkError &e) noexcept override {
    const auto *m = static_cast<SharedMessage *>(message);
    const auto until = Clock::now() + std::chrono::milliseconds(milliseconds);
    auto ended = [&] { return m->named && m->moved == m->bytes; };
    for (int idle = 0;; ++idle) {
      if (ended())
        return true;
      if (aborted.load(std::memory_order_relaxed)) {
        say(e, LinkError::aborted, "aborted");
        return false;
      }
      const bool gone = segments[size_t(m->peer)]->closed.load() != 0;
      if (progress(e)) {
        idle = 0;
        continue;
      }
      if (e.kind != LinkError::none)
        return false;
      if (gone) {
        say(e, LinkError::gone, "it has closed its memory");
        return false;
      }
      if (idle < spins) {
        pause();
        continue;
      }
      if (Clock::now() >= until) {
        say(e, LinkError::late, "timed out");
        close();
        return false;
      }
      sleep();
    }
  }

  void free(Message *message) noexcept override {
    auto *m = static_cast<SharedMessage *>(message);
    Queue &q = queues[size_t(m->peer)];
    std::erase(m->sends ? q.out : q.in, m);
    delete m;
  }

  void abort() noexcept override {
    aborted = true;
    ring(rank);
  }

  void close() noexcept override {
    mine().closed = 1;
    for (int peer = 0; peer < world; ++peer)
      if (peer != rank && segments[size_t(peer)])
        ring(peer);
  }
  void leave() noexcept override { close(); }

private:
  const int rank, world;
  int fd = -1;
  std::vector<Segment *> segments;
  struct Queue {
    std::deque<SharedMessage *> out, in;
  };
  std::vector<Queue> queues;
  std::atomic<bool> aborted{false};

  Segment &mine() { return *segments[size_t(rank)]; }

  bool map(int whose, int file, std::string &why) {
    void *at = mmap(nullptr, sizeFor(world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) {
      why = std::strerror(errno);
      return false;
    }
    segments[size_t(whose)] = static_cast<Segment *>(at);
    return true;
  }

  /// Wakes a sleeping rank. What it has to see must be written before.
  void ring(int peer) {
    Segment &s = *segments[size_t(peer)];
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (s.sleeps.load(std::memory_order_relaxed) == 0)
      return;
    ++s.bell;
    futex(s.bell, FUTEX_WAKE, INT_MAX, nullptr);
  }
  /// Sleeps until woken, or briefly. No wake-up is lost: the waker either sees `sleeps`, or wrote its data before the
  /// last check here.
  void sleep() {
    Segment &s = mine();
    s.sleeps = 1;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const uint32_t before = s.bell.load();
    LinkError e;
    if (!progress(e) && e.kind == LinkError::none && !aborted) {
      const timespec moment{0, 20'000'000};
      futex(s.bell, FUTEX_WAIT, before, &moment);
    }
    s.sleeps = 0;
  }

  /// Moves as much data as possible; false if nothing moved.
  bool progress(LinkError &e) {
    bool any = false;
    for (int peer = 0; peer < world; ++peer) {
      if (peer == rank)
        continue;
      any |= write(peer, e);
      any |= read(peer, e);
    }
    return any;
  }

  /// Copies n bytes between memory and the place `at` of a ring, which goes on at its beginning: in, or out of it.
  static void copy(Ring &r, uint64_t at, char *memory, size_t n, bool in) {
    const size_t place = at % ringBytes, first = std::min(n, ringBytes - place);
    auto part = [&](char *inRing, char *outside, size_t bytes) {
      std::memcpy(in ? inRing : outside, in ? outside : inRing, bytes);
    };
    part(r.bytes + place, memory, first);
    part(r.bytes, memory + first, n - first);
  }

  bool write(int peer, LinkError &e) {
    return move(queues[size_t(peer)].out, segments[size_t(peer)]->from[rank], peer, e);
  }
  bool read(int peer, LinkError &e) { return move(queues[size_t(peer)].in, mine().from[peer], peer, e); }

  /// Messages in their order, each a header and then blocks, into a ring or out of it, as far as there is room or
  /// something there. False where nothing could be moved.
  bool move(std::deque<SharedMessage *> &queue, Ring &r, int peer, LinkError &e) {
    bool any = false;
    while (!queue.empty()) {
      SharedMessage &m = *queue.front();
      std::atomic<uint64_t> &own = m.sends ? r.written : r.read;
      const uint64_t at = own.load(std::memory_order_relaxed);
      const size_t most = m.sends ? ringBytes - size_t(at - r.read.load(std::memory_order_acquire))
                                  : size_t(r.written.load(std::memory_order_acquire) - at);
      size_t n = sizeof(Header);
      if (!m.named) {
        if (most < n)
          break;
        Header h{m.slot, m.bytes};
        copy(r, at, reinterpret_cast<char *>(&h), n, m.sends);
        if (h.slot != m.slot || h.bytes != m.bytes) {
          say(e, LinkError::gone, "it sent something else than what was due");
          break;
        }
        m.named = true;
      } else {
        n = std::min({most, blockBytes, m.bytes - m.moved});
        if (n == 0)
          break;
        copy(r, at, m.at + m.moved, n, m.sends);
        m.moved += n;
      }
      own.store(at + n, std::memory_order_release);
      ring(peer);
      any = true;
      if (m.moved == m.bytes)
        queue.pop_front();
    }
    return any;
  }
};

}  // namespace

std::string machineId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  if (id.empty())
    return "";
  // Containers: a process reaches another's memory only in its own namespaces of processes and of users.
  for (const char *space : {"/proc/self/ns/pid", "/proc/self/ns/user"}) {
    char name[64] = "";
    if (readlink(space, name, sizeof name - 1) < 0)
      return "";
    id += fmt::format(" {}", name);
  }
  return fmt::format("{} {}", id, geteuid());
}

std::unique_ptr<Links> makeSharedLinks(int rank, int world) { return std::make_unique<SharedLinks>(rank, world); }

}  // namespace gptc
