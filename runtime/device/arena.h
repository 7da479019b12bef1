// The one block of memory that a plan runs in: exactly the planned bytes, rounded to pages, between two guard pages.
//
//   PROT_NONE page | planned bytes ........ canary up to the page's end | PROT_NONE page
//
// A store just before the arena or past its last page faults at once; one into the rest of the last page is found by
// intact().
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptc {

class ThreadPool;

class Arena {
public:
  /// Maps and touches the memory, in parallel where a pool is given, in huge pages where the system has them; content
  /// is zero. Throws UserError(OutOfMemory), with the numbers, before touching anything when the machine or its control
  /// group has less than that available.
  explicit Arena(int64_t bytes, ThreadPool *pool = nullptr);
  ~Arena();
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;

  std::byte *data() const { return base; }
  std::byte *at(int64_t offset) const { return base + offset; }
  /// Planned bytes, which are those allocated but for the rounding to a page.
  int64_t bytes() const { return planned; }
  /// Whether nobody wrote into the rest of the last page.
  bool intact() const;

private:
  std::byte *reserved = nullptr;
  std::byte *base = nullptr;
  int64_t planned = 0, mapped = 0, reservedBytes = 0;
};

/// Bytes that this process may still allocate without swapping or being killed: the least of MemAvailable, of what the
/// control groups (v2 and v1) above it leave, and of RLIMIT_AS and RLIMIT_DATA.
int64_t availableMemory();
/// Resident bytes of this process.
int64_t residentMemory();

}  // namespace gptc
