// A digest of the tokens that were taken, in order: ranks that continue the same texts must have the same.
#pragma once

#include <cstdint>

namespace gptc {

/// FNV-1a, token by token.
class TokenDigest {
public:
  void add(int32_t token) { digest = (digest ^ uint64_t(uint32_t(token))) * 0x100000001b3; }
  uint64_t value() const { return digest; }

private:
  uint64_t digest = 0xcbf29ce484222325;
};

}  // namespace gptc
