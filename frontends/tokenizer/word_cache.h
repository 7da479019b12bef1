// Tokens of words that were seen before.
#pragma once

#include "llvm/ADT/StringMap.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace gptc {

class WordCache {
public:
  /// Appends the tokens of a word; `make(ids)` appends them if they are not known.
  template <typename Make> void encode(std::string_view word, std::vector<int32_t> &out, Make make) {
    // Words repeat; long ones are rare and not worth keeping.
    constexpr size_t longest = 64, most = 1 << 20;
    if (word.size() > longest)
      return make(out);
    const auto [it, fresh] = found.try_emplace(word);
    if (fresh) {
      const size_t start = ids.size();
      try {
        make(ids);
      } catch (...) {
        ids.resize(start);
        found.erase(it);
        throw;
      }
      it->second = {uint32_t(start), uint32_t(ids.size() - start)};
    }
    const auto [start, count] = it->second;
    out.insert(out.end(), ids.begin() + start, ids.begin() + start + count);
    if (found.size() >= most || ids.size() > (size_t(1) << 28)) {
      found.clear();
      ids.clear();
    }
  }

private:
  struct Range {
    uint32_t start, count;
  };
  llvm::StringMap<Range> found;
  std::vector<int32_t> ids;
};

}  // namespace gptc
