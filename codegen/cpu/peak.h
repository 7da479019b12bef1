// Measures the machine's peak FLOP/s and memory bandwidth: the denominator of MFU, and the roofs of the roofline.
#pragma once

#include "codegen/codegen.h"
#include "support/thread_pool.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// Runs independent chains of vector FMAs in registers, without memory accesses, on all threads of the pool. An FMA
/// counts as two FLOP. With bf16 operands the loop uses dot products of pairs (four FLOP per lane) if the target has
/// them (Target::bf16Dot); else bf16 is converted to f32, and the loop measures the peak of f32.
class PeakLoop {
public:
  PeakLoop(ThreadPool &pool, const Target &target, DType operands = DType::f32);
  /// FLOP/s of one run of about a third of a millisecond, at the clock rate of the moment. A CPU lowers its clock under
  /// heavy load: a run in the middle of other work measures less than one on an idle machine.
  double run();

private:
  ThreadPool &pool;
  Jit jit;
  CompiledPhase phase;
  std::vector<float> in{0.5f, 1.0f}, out;
  double flops = 0;  // FLOP of one run
};

/// What a measured peak depends on beside the machine, as text: LLVM's version and the loop's kernel.
std::string peakSource(const Target &target, DType operands = DType::f32);

/// FLOP/s: the best run of a PeakLoop within about 50 ms. PeakRecord (runtime/device/peak.h) makes several such
/// attempts.
double measurePeakFlops(ThreadPool &pool, const Target &target, DType operands = DType::f32);

/// Bytes/s between memory and all threads of the pool together, measured with kernels of this compiler on three arrays
/// that caches cannot hold (each at least 128 MiB and four times the last-level cache, in large pages). Counts the
/// bytes that the kernel loads and stores. Stores bypass the caches, so no cache line is read before it is written; a
/// plain memcpy does read it, and moves half as much again as it counts.
struct MemorySpeed {
  double read = 0;   // sums of one array: one read
  double copy = 0;   // one array read, one written
  double triad = 0;  // a = b + s c (McCalpin 1995, STREAM): two read, one written
  /// The largest of the three. A kernel that memory limits cannot be much faster.
  double best() const { return read > triad ? (read > copy ? read : copy) : (triad > copy ? triad : copy); }
};

/// Measures memory repeatedly, so that a caller can alternate it with other measurements. The constructor throws
/// UserError(OutOfMemory) if the arrays cannot be mapped.
class MemoryProbe {
public:
  MemoryProbe(ThreadPool &pool, const Target &target);
  ~MemoryProbe();
  /// One run of each kernel, a few milliseconds.
  MemorySpeed once();

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// The best of 3 to 10 runs of each kernel. Throws as MemoryProbe does.
MemorySpeed measureMemory(ThreadPool &pool, const Target &target);

}  // namespace gptc
