#include "tools/check/guarded_memory.h"

#include "support/diagnostics.h"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <mutex>
#include <sys/mman.h>

namespace gptc {

namespace {

constexpr size_t page = 4096, slotBytes = size_t(64) << 20, slots = 96;
constexpr std::byte zone{0xA5};

thread_local sigjmp_buf landing;
thread_local volatile sig_atomic_t armed = 0;
thread_local volatile sig_atomic_t signalSeen = 0;
thread_local void *volatile faultAddress = nullptr;

void onFault(int signal, siginfo_t *info, void *) {
  if (!armed) {
    ::signal(signal, SIG_DFL);  // not ours: the repeated fault ends the process
    return;
  }
  signalSeen = signal;
  faultAddress = info->si_addr;
  siglongjmp(landing, 1);
}

}  // namespace

GuardedMemory::GuardedMemory() {
  void *p =
      ::mmap(nullptr, slots * (slotBytes + page) + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  GPTC_CHECK(p != MAP_FAILED, "no address space for guarded memory: {}", strerror(errno));
  base = static_cast<std::byte *>(p);
  for (size_t i = 0; i < slots; ++i)
    GPTC_CHECK(::mprotect(base + page + i * (slotBytes + page), slotBytes, PROT_READ | PROT_WRITE) == 0,
               "guarded memory: {}", strerror(errno));
}

GuardedMemory::~GuardedMemory() { ::munmap(base, slots * (slotBytes + page) + page); }

std::byte *GuardedMemory::take(size_t bytes, Edge edge) {
  GPTC_CHECK(used.size() < slots && bytes <= slotBytes, "{} bytes as tensor {} of a kernel", bytes, used.size());
  std::byte *first = base + page + used.size() * (slotBytes + page), *last = first + slotBytes;
  const size_t whole = (bytes + page - 1) / page * page;
  if (edge == end)
    first = last - whole;
  else
    last = first + whole;
  std::byte *data = edge == end ? last - bytes : first;
  std::memset(first, int(zone), whole);
  std::memset(data, 0xff, bytes);
  used.push_back({first, last, data, bytes});
  return data;
}

bool GuardedMemory::intact() const {
  return std::all_of(used.begin(), used.end(), [](const Slot &s) {
    auto isZone = [](std::byte b) { return b == zone; };
    return std::all_of(s.first, s.data, isZone) && std::all_of(s.data + s.bytes, s.last, isZone);
  });
}

std::optional<std::string> faultOf(const std::function<void()> &code) {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction a{};
    a.sa_sigaction = onFault;
    a.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL})
      ::sigaction(signal, &a, nullptr);
  });
  if (sigsetjmp(landing, 1) == 0) {
    armed = 1;
    code();
    armed = 0;
    return std::nullopt;
  }
  armed = 0;
  if (signalSeen == SIGFPE)
    return "divides by zero";
  if (signalSeen == SIGILL)
    return "runs an instruction that this machine does not have";
  return fmt::format("faults at address {}", static_cast<void *>(faultAddress));
}

}  // namespace gptc
