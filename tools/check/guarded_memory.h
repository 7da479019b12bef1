// Memory of tensors that ends at a protected page, and calls of code that may touch it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// Slots of memory between protected pages. A tensor lies at the end of its slot, so that the first byte past it
/// faults, or at the beginning, so that the last byte before it does; what is left of its pages is a red zone.
class GuardedMemory {
public:
  enum Edge { end, begin };
  GuardedMemory();
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory &) = delete;
  GuardedMemory &operator=(const GuardedMemory &) = delete;

  /// Frees all slots.
  void clear() { used.clear(); }
  /// The next slot's memory, `bytes` long, filled with 0xff bytes (NaN; -1). InternalError past the last slot.
  std::byte *take(size_t bytes, Edge edge);
  /// Whether all red zones hold what take() left there.
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

/// Runs `code` on this thread; says at which address it faulted, if it did (SIGSEGV, SIGBUS), or that it divided by
/// zero (SIGFPE) or ran what is no instruction (SIGILL). `code` must own nothing that would need a destructor then.
std::optional<std::string> faultOf(const std::function<void()> &code);

}  // namespace gptc
