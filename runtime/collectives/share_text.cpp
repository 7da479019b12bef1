#include "runtime/collectives/share_text.h"

#include <cstring>

namespace gptc {

std::string shareText(Communicator &ranks, const std::string &text) {
  const bool speaks = ranks.rank == 0;
  int64_t bytes = speaks ? int64_t(text.size()) : 0;
  ranks.run({{Collective::Kind::broadcast, &bytes, &bytes, 1, DType::i64}}, SumOrder::fast);
  std::string shared(size_t(bytes), '\0');
  if (bytes == 0)
    return shared;
  std::vector<uint32_t> words((size_t(bytes) + 3) / 4, 0);
  if (speaks)
    std::memcpy(words.data(), text.data(), size_t(bytes));
  ranks.run({{Collective::Kind::broadcast, words.data(), words.data(), words.size(), DType::u32}}, SumOrder::fast);
  std::memcpy(shared.data(), words.data(), size_t(bytes));
  return shared;
}

}  // namespace gptc
