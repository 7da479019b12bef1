// The memory block that a plan runs in: exactly the planned bytes, rounded up to pages, between two guard pages.
//
//   PROT_NONE page | planned bytes ........ canary up to the page's end | PROT_NONE page
//
// A store just before the arena or past its last page faults at once. intact() detects a store into the rest of the
// last page.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptc {

class ThreadPool;

class Arena {
public:
  /// Maps zeroed memory, in huge pages if the system has them, and touches it, in parallel if there is a pool. If the
  /// pool's threads are on several memory nodes, the pages are spread over these. Throws UserError(OutOfMemory), with
  /// the numbers, before it touches anything, if the machine or its control group has less than that available.
  explicit Arena(int64_t bytes, ThreadPool *pool = nullptr);
  ~Arena();
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;

  std::byte *data() const { return base; }
  std::byte *at(int64_t offset) const { return base + offset; }
  /// The planned bytes; the allocation differs only by the rounding to a page.
  int64_t bytes() const { return planned; }
  /// Whether the rest of the last page is unchanged.
  bool intact() const;

private:
  std::byte *reserved = nullptr;
  std::byte *base = nullptr;
  int64_t planned = 0, mapped = 0, reservedBytes = 0;
};

/// Bytes that this process can allocate without swapping or being killed: the least of MemAvailable, the room in its
/// control groups (v2 and v1) and their parents, RLIMIT_AS and RLIMIT_DATA.
int64_t availableMemory();
/// Resident bytes of this process.
int64_t residentMemory();

}  // namespace gptc
