// Memory that ends at a protected page, and calls of code that may overrun it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// Slots of memory between protected pages. A tensor lies at the end of its slot, so that the byte after it faults, or
/// at the beginning, so that the byte before it does. The rest of its pages is a red zone.
class GuardedMemory {
public:
  enum Edge { end, begin };
  GuardedMemory();
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory &) = delete;
  GuardedMemory &operator=(const GuardedMemory &) = delete;

  /// Frees all slots.
  void clear() { used.clear(); }
  /// Returns `bytes` bytes in the next slot, filled with 0xff (NaN; -1). Throws InternalError if no slot is left.
  std::byte *take(size_t bytes, Edge edge);
  /// Whether all red zones are unchanged.
  bool intact() const;

private:
  struct Slot {
    std::byte *first, *last;  // whole pages
    std::byte *data;
    size_t bytes;
  };
  std::byte *base = nullptr;
  std::vector<Slot> used;
};

/// Runs `code` on this thread. Returns the fault that it raised, if any: SIGSEGV or SIGBUS with the address, SIGFPE
/// (division by zero), or SIGILL. Destructors in `code` do not run after a fault.
std::optional<std::string> faultOf(const std::function<void()> &code);

}  // namespace gptc
