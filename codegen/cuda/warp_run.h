// Runs a kernel's machine code for one warp, without a GPU, and times it: how often each instruction runs, which pipes
// it takes, how many loads are under way, and how long the warp takes if every load that misses the cache takes the
// latency of memory.
//
// Two neighbouring lanes are executed, the first two of a warp: from their addresses follows whether an access of the
// warp is one piece, one element for all lanes, or one sector for each lane. Both follow the branches of the first.
// Loads give plausible values for the parameter's type, small numbers for integers. An address that depends on such a
// value counts as found nowhere in a cache. A branch whose condition is unknown is not taken, and counted.
//
// Instructions are issued in order, at most one a cycle, each when its operands are there. Latencies of the pipes: Luo
// et al. 2024 (Hopper), Jia et al. 2018 (Volta), rounded.
#pragma once

#include "codegen/cuda/sass.h"
#include "ir/type.h"

#include <cstdint>
#include <vector>

namespace gptc {

struct WarpLaunch {
  int64_t block = 0;    // index of the block
  int threads = 32;     // of a block
  int warp = 0;         // in its block
  int sm = 90;          // compute capability, which says where the parameters lie
  int fp32Lanes = 128;  // of an SM
  struct Parameter {
    DType dtype = DType::f32;
    bool isInL2 = false;  // other blocks have loaded it
    double growth = -1;   // integers: element n is n times this, rounded down; below 0: anything
  };
  std::vector<Parameter> parameters;
  double memoryLatency = 600, l2Latency = 270;  // cycles until a load is there
  int64_t cacheBytes = 4096;                    // the warp's part of the L1 cache
};

/// Cycles of a pipe of a quarter of an SM that one warp takes.
struct WarpPipes {
  double issue = 0;   // one instruction a cycle
  double alu = 0;     // integers, comparisons, selections: 16 lanes a cycle
  double fma = 0;     // f32, and products of integers: 32 lanes, 16
  double fp64 = 0;    // 16 lanes
  double xu = 0;      // reciprocals, exponentials, conversions of f64: 4 lanes
  double memory = 0;  // loads and stores of all kinds, shuffles: 128 bytes in four cycles
  double tensor = 0;
  double most() const;
  WarpPipes &operator+=(const WarpPipes &o);
};

/// An access of global memory, as often as it ran.
struct WarpAccess {
  int parameter = -1;  // whose memory it is; -1: unknown
  bool isStore = false;
  int bytes = 0;       // of a lane
  int lanes = 32;      // that access different elements: 1 or 32
  int sectors = 0;     // of 32 bytes, of the warp, the first time it ran
  int64_t times = 0;   // executed
  int64_t missed = 0;  // loads: sectors were not in the warp's part of the L1 cache
  double moved() const { return double(times) * bytes * lanes; }  // bytes of the warp
};

struct WarpRun {
  double cycles = 0;  // from the first instruction to the last
  WarpPipes pipes;
  int64_t instructions = 0;
  std::vector<WarpAccess> accesses;
  double loadsInFlight = 0;  // mean number while at least one is under way
  int64_t spills = 0;        // loads and stores of local memory
  int64_t unknownBranches = 0;
  bool isCut = false;  // the run was ended after as many instructions as are tried
};

WarpRun runWarp(const SassFunction &f, const WarpLaunch &launch);

}  // namespace gptc
