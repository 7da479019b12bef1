// Runs emitted CUDA text on the host and watches it. Each thread of a block is a fiber; a block runs by itself, its
// threads one after another up to the next barrier or shuffle. Found are
//   - accesses outside of a buffer, misaligned vector accesses, stores to a parameter that is only read;
//   - races: two accesses to one byte, at least one of them a store, by threads of different blocks, or by threads of
//     one block with no barrier between. For each byte the last writer and the readers since are known, with the number
//     of barriers that their block had passed;
//   - shared memory that is read before the block has stored to it (it is also filled with NaN);
//   - threads that wait for others which never come: a barrier, shuffle or warp's operation that not all reach, or not
//     at the same line. Those of warps order nothing;
//   - accesses of global memory before waitForPrevious, by threads that let the next kernel start;
//   - accesses to bytes to which an asynchronous copy is under way: it stores when its thread has waited for it, and no
//     earlier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct SimtMemory;

namespace gptc::simt {

/// Text compiled by the C++ compiler of the machine (CXX, else c++), loaded into this process.
class HostModule {
public:
  using Thread = void (*)(SimtMemory *const *params);
  /// `kernels`: names in GPTC_KERNEL. `options`: of the compiler, as "-DGPTC_PERTURB". Throws std::runtime_error with
  /// the compiler's words.
  HostModule(const std::string &text, const std::vector<std::string> &kernels, const std::string &options = "");
  ~HostModule();
  Thread find(const std::string &kernel) const;
  /// Whether there is a compiler.
  static bool possible();

private:
  std::string folder;
  void *library = nullptr;
};

struct Param {
  std::string name;
  void *data;  // aligned to 16 bytes at least
  int64_t bytes;
  bool written;
  bool watched = true;  // for races; else only for bounds and alignment
};

/// The memory at an address that a kernel takes from a table; nullopt if nothing begins there.
using Resolve = std::function<std::optional<Param>(uint64_t address)>;

/// Whether every thread of the last launch has waited for the kernels in front (waitForPrevious).
extern bool allWaited;

/// Runs the blocks in order, or from the last to the first, threads likewise. Parameters with the same `data` share
/// memory. `sharedBytes`: of shared memory beside what the kernel declares. Empty when all went well, else what was
/// found first.
std::string launch(HostModule::Thread kernel, const std::vector<Param> &params, int64_t blocks, int threads,
                   bool backwards = false, int64_t sharedBytes = 0, const Resolve &resolve = {});

}  // namespace gptc::simt
