// A set of strings with an id each, walked byte by byte: for the pieces that begin a text.
#pragma once

#include "llvm/ADT/DenseMap.h"

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace gptc {

class ByteTrie {
public:
  ByteTrie() { first.fill(0); }
  /// A string again replaces its id. The empty string is ignored.
  void add(std::string_view key, int32_t id) {
    if (key.empty())
      return;
    uint32_t node = 0;
    for (char c : key) {
      uint32_t next = step(node, uint8_t(c));
      if (!next) {
        next = uint32_t(ids.size());
        ids.push_back(-1);
        if (node == 0)
          first[uint8_t(c)] = next;
        else
          edges[keyOf(node, uint8_t(c))] = next;
      }
      node = next;
    }
    ids[node] = id;
  }
  bool empty() const { return ids.size() == 1; }
  bool beginsWith(uint8_t byte) const { return first[byte]; }
  /// Calls found(length, id) for every string that begins the text, shortest first.
  template <typename Found> void prefixes(std::string_view text, Found found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = step(node, uint8_t(text[i]));
      if (!node)
        return;
      if (ids[node] >= 0)
        found(i + 1, ids[node]);
    }
  }

private:
  static uint64_t keyOf(uint32_t node, uint8_t byte) { return uint64_t(node) << 8 | byte; }
  uint32_t step(uint32_t node, uint8_t byte) const { return node == 0 ? first[byte] : edges.lookup(keyOf(node, byte)); }
  std::array<uint32_t, 256> first;  // 0: none; the root is nobody's child
  llvm::DenseMap<uint64_t, uint32_t> edges;
  std::vector<int32_t> ids = {-1};
};

}  // namespace gptc
