#include "runtime/collectives/share_text.h"

namespace gptc {

std::string shareText(Communicator &ranks, std::string text) {
  auto bytes = int64_t(text.size());
  ranks.run({{Collective::Kind::broadcast, &bytes, &bytes, 1, DType::i64}}, SumOrder::fast);
  // In place, as whole words: a large text is held once.
  const size_t words = (size_t(bytes) + 3) / 4;
  text.resize(4 * words);
  if (words > 0)
    ranks.run({{Collective::Kind::broadcast, text.data(), text.data(), words, DType::u32}}, SumOrder::fast);
  text.resize(size_t(bytes));
  return text;
}

}  // namespace gptc
