#include "runtime/device/arena.h"

#include "support/cpus.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/thread_pool.h"

#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace gptc {
namespace {

constexpr int64_t kHuge = 2 << 20;
constexpr unsigned char kCanary = 0xC5;

int64_t pageBytes() { return ::sysconf(_SC_PAGESIZE); }

/// The number after `key` in a file of "key number" lines; -1 if there is none.
int64_t fieldOf(const std::string &path, llvm::StringRef key) {
  FileText f = readTextFile(path, 1 << 20);
  if (!f.ok)
    return -1;
  llvm::SmallVector<llvm::StringRef, 64> lines;
  llvm::StringRef(f.text).split(lines, '\n');
  for (llvm::StringRef line : lines)
    if (line.consume_front(key)) {
      int64_t n;
      line = line.ltrim(": \t");
      if (!line.consumeInteger(10, n))
        return n;
    }
  return -1;
}

/// Free bytes of the control group `dir`: its limit minus its use, where page cache that can be dropped is not counted.
int64_t groupRoom(const std::string &dir, const char *limitFile, const char *usageFile, const char *cacheKey) {
  const int64_t unlimited = std::numeric_limits<int64_t>::max();
  int64_t limit = fieldOf(dir + "/" + limitFile, ""), usage = fieldOf(dir + "/" + usageFile, "");
  if (limit < 0 || usage < 0)
    return unlimited;  // "max", or the file does not exist
  int64_t cache = std::max<int64_t>(0, fieldOf(dir + "/memory.stat", cacheKey));
  return std::max<int64_t>(0, limit - usage + cache);
}

}  // namespace

int64_t availableMemory() {
  int64_t room = std::numeric_limits<int64_t>::max();
  if (int64_t kb = fieldOf("/proc/meminfo", "MemAvailable"); kb >= 0)
    room = kb * 1024;
  FileText statm = readTextFile("/proc/self/statm", 4096);
  llvm::SmallVector<llvm::StringRef, 8> pages;
  llvm::StringRef(statm.text).split(pages, ' ');
  // Fields of that file: the whole address space, and data with the stack.
  for (auto [limit, field] : {std::pair(RLIMIT_AS, 0u), {RLIMIT_DATA, 5u}}) {
    rlimit r{};
    int64_t used = 0;
    if (::getrlimit(limit, &r) != 0 || r.rlim_cur == RLIM_INFINITY)
      continue;
    if (statm.ok && field < pages.size())
      (void)pages[field].getAsInteger(10, used);
    room = std::min<int64_t>(room, std::max<int64_t>(0, int64_t(r.rlim_cur) - used * pageBytes()));
  }
  FileText groups = readTextFile("/proc/self/cgroup", 1 << 16);
  llvm::SmallVector<llvm::StringRef, 16> lines;
  llvm::StringRef(groups.text).split(lines, '\n');
  for (llvm::StringRef line : lines) {
    auto [id, rest] = line.split(':');
    auto [controllers, group] = rest.split(':');
    bool v1 = controllers.contains("memory");
    if (!controllers.empty() && !v1)
      continue;
    // A limit of any parent binds, so walk up to the root. Inside a container the path may not exist, but the root
    // does.
    for (std::string path = group.str();;) {
      std::string dir = (v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup") + path;
      room = std::min(room, v1 ? groupRoom(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                               : groupRoom(dir, "memory.max", "memory.current", "inactive_file"));
      if (path.empty() || path == "/")
        break;
      path.erase(path.rfind('/'));
    }
  }
  return room;
}

int64_t residentMemory() {
  FileText statm = readTextFile("/proc/self/statm", 4096);
  int64_t total = 0, resident = 0;
  llvm::StringRef text = statm.text;
  if (!statm.ok || text.consumeInteger(10, total) || (text = text.ltrim(), text.consumeInteger(10, resident)))
    return 0;
  return resident * pageBytes();
}

Arena::Arena(int64_t bytes, ThreadPool *pool) : planned(bytes) {
  GPTC_CHECK(bytes > 0, "an arena of {} bytes", bytes);
  const int64_t page = pageBytes();
  mapped = (bytes + page - 1) / page * page;
  auto gb = [](int64_t n) { return fmt::format("{:.2f} GB ({} bytes)", n / 1e9, n); };
  if (int64_t room = availableMemory(); room < mapped)
    throw UserError(ErrorCode::OutOfMemory,
                    fmt::format("the plan needs {} of memory and {} are available", gb(bytes), gb(room)),
                    "compile with a smaller train.micro_batch (the global batch and the result stay the same), or end "
                    "other programs");

  // Address space is free: reserve enough to start the arena on a huge page.
  reservedBytes = mapped + 2 * page + kHuge;
  void *p = ::mmap(nullptr, reservedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw UserError(ErrorCode::OutOfMemory,
                    fmt::format("the system refuses {} of address space: {}", gb(reservedBytes), strerror(errno)),
                    "check `ulimit -v`");
  reserved = static_cast<std::byte *>(p);
  uintptr_t start = (reinterpret_cast<uintptr_t>(p) + page + kHuge - 1) / kHuge * kHuge;
  base = reinterpret_cast<std::byte *>(start);
  if (::mprotect(base, mapped, PROT_READ | PROT_WRITE) != 0) {
    int error = errno;
    ::munmap(reserved, reservedBytes);
    throw UserError(ErrorCode::OutOfMemory, fmt::format("the system refuses {}: {}", gb(mapped), strerror(error)),
                    "check `ulimit -v` and vm.overcommit_memory");
  }
  (void)::madvise(base, mapped, MADV_HUGEPAGE);
  // Threads take tasks as they come, so no page has a thread to be near to; but all nodes' bandwidth can be used.
  if (pool && pool->nodes().size() > 1)
    (void)spreadOverNodes(base, mapped, pool->nodes());

  struct Touch {
    std::byte *base;
    int64_t bytes, page;
  } touch{base, mapped, page};
  auto work = [](void *arg, int64_t begin, int64_t end) {
    auto &t = *static_cast<Touch *>(arg);
    for (int64_t i = begin * kHuge; i < std::min(end * kHuge, t.bytes); i += t.page)
      *reinterpret_cast<volatile char *>(t.base + i) = 0;
  };
  int64_t tasks = (mapped + kHuge - 1) / kHuge;
  if (pool)
    pool->run(tasks, work, &touch);
  else
    work(&touch, 0, tasks);
  std::memset(base + planned, kCanary, mapped - planned);
}

Arena::~Arena() {
  if (reserved)
    ::munmap(reserved, reservedBytes);
}

bool Arena::intact() const {
  return std::all_of(base + planned, base + mapped, [](std::byte b) { return b == std::byte(kCanary); });
}

}  // namespace gptc
