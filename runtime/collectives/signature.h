// Describes what a rank is about to do, for comparison with other ranks before data is exchanged.
#pragma once

#include "runtime/collectives/communicator.h"

#include <vector>

namespace gptc {

/// A collective without its memory.
struct CallSignature {
  Collective::Kind kind;
  DType dtype;
  SumOrder order;
  uint8_t unused = 0;
  int32_t root;
  uint64_t count;
  bool operator==(const CallSignature &) const = default;
  std::string str() const;
};
static_assert(sizeof(CallSignature) == 16);

std::vector<CallSignature> signatureOf(llvm::ArrayRef<Collective> calls, SumOrder order);
/// Mixes bits: different inputs rarely collide.
uint64_t mix(uint64_t a, uint64_t b);
uint64_t hashOf(llvm::ArrayRef<CallSignature> calls);

/// How two ranks differ: "rank 0 runs all_reduce of 8 f32, rank 1 runs a barrier".
std::string differenceOf(int rank, llvm::ArrayRef<CallSignature> calls, int other,
                         llvm::ArrayRef<CallSignature> others);

}  // namespace gptc
