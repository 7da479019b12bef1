// What the machine can do at best, measured: the denominator of MFU, and the roofs of the roofline.
#pragma once

#include "codegen/codegen.h"
#include "support/thread_pool.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// Independent chains of vector FMAs in registers, no memory, on all threads of the pool together. Counts an FMA as
/// two. With operands in bf16, dot products of pairs where the CPU has them (four each); else they are converted, and
/// the peak is that of f32.
class PeakLoop {
public:
  PeakLoop(ThreadPool &pool, const Target &target, DType operands = DType::f32);
  /// FLOP/s of one run of about a third of a millisecond: what the clock allows at this moment. A CPU lowers it under
  /// heavy load, so that what runs beside a product for a while is not what a rested machine can do.
  double run();

private:
  ThreadPool &pool;
  Jit jit;
  CompiledPhase phase;
  std::vector<float> in{0.5f, 1.0f}, out;
  double flops = 0;  // of a run
};

/// What a measured peak depends on beside the machine: the loop's kernel, and the compiler that makes code of it.
std::string peakSource(const Target &target, DType operands = DType::f32);

/// FLOP/s: the best of runs of a PeakLoop, about 50 ms in all. One attempt of PeakRecord's (runtime/device/peak.h).
double measurePeakFlops(ThreadPool &pool, const Target &target, DType operands = DType::f32);

/// Bytes/s between memory and all threads of the pool together, in arrays that caches cannot hold (three, each at least
/// 128 MiB and four times the last-level cache, in large pages), by kernels of the emitter's. Counts what the program
/// names: stores go past the caches, so that no line is read in order to be written, as a plain memcpy does: that moves
/// half as much again as it names.
struct MemorySpeed {
  double read = 0;   // sums of one array
  double copy = 0;   // one array read, one written
  double triad = 0;  // a = b + s c (McCalpin 1995, STREAM): two read, one written
  /// What no kernel that memory limits can much exceed: the largest of them.
  double best() const { return read > triad ? (read > copy ? read : copy) : (triad > copy ? triad : copy); }
};

/// Measures memory again and again, in turn with something else.
class MemoryProbe {
public:
  MemoryProbe(ThreadPool &pool, const Target &target);
  ~MemoryProbe();
  /// One run of each, a few milliseconds.
  MemorySpeed once();

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// The best of several runs of each.
MemorySpeed measureMemory(ThreadPool &pool, const Target &target);

}  // namespace gptc
