// Forecasts what `gptrun sample` and `gptrun serve` do with a number of slots: memory to the byte, and seconds.
//
// Memory is that of the module which they run. A call takes for each kernel the longer of
//   memory      the bytes that it moves at the rate of memory, or of the cache if a whole call fits into that, and
//   arithmetic  its FLOPs at the rates of passes/analysis/cost.h, and copies of factors into panels at the rate of the
//               cache,
// and the start of a kernel. Ranks that share a model sum activations between kernels: what each sends at the rate of
// their link, beside which nothing runs. Weights are read once for all tokens of a call. Of a cache a call reads what
// its tokens see, not the whole: for tokens of one sequence once. Time on the host between calls counts nothing.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"
#include "passes/analysis/cost.h"
#include "tools/estimate/planned.h"

#include <cstdint>
#include <functional>

namespace gptc {

/// A machine, all of whose threads run one call; of several ranks the part of one.
struct ServingMachine {
  /// The rates of a call that multiplies so many rows.
  std::function<MachineRates(double rows)> rates;
  double slowdown = 1;  // factor on times of kernels
  LinkRates link;       // between ranks that share the model
};

/// What each slot is asked for. Both are at least 1, and the cache holds promptTokens + newTokens - 1 tokens.
struct ServingLoad {
  int64_t promptTokens = 512, newTokens = 128;
};

/// Seconds, by what bounds kernels.
struct CallTime {
  double memory = 0, cache = 0;  // their bytes, from memory or from the last-level cache
  double arithmetic = 0;
  double starts = 0;  // of kernels
  double links = 0;   // sums over ranks
  double seconds() const { return memory + cache + arithmetic + starts + links; }
  /// The largest part: "memory", "cache", "arithmetic", "starts" or "links".
  const char *boundBy() const;
  CallTime &operator+=(const CallTime &o);
};

struct ServingForecast {
  int64_t slots = 1;
  int64_t arena = 0, weights = 0, cache = 0;  // bytes of a rank; the arena has temporaries, too
  int64_t promptTokens = 0;
  CallTime prefill;  // one prompt while no other slot is busy, until its first new token
  CallTime decode;   // a new token for every slot, half of each one's new tokens being in the cache
  double prefillRate() const { return double(promptTokens) / prefill.seconds(); }  // tokens/s
  double decodeRate() const { return double(slots) / decode.seconds(); }           // tokens/s of all slots together
};

/// `serving`: of servingModule (tools/compiler/inference.h), for CPUs or GPUs.
ServingForecast servingForecast(const Module &serving, const ServingMachine &machine, const ServingLoad &load);

}  // namespace gptc
