// Weights of the small encoders of tests/e2e as transformers saves an encoder alone.
#pragma once

#include "support/json.h"

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <cstring>
#include <string>

namespace e2e {

/// A file of safetensors of BERT or ModernBERT without the tensors of its head, under the names that a model without a
/// head has.
inline std::string withoutHead(const std::string &file) {
  uint64_t size;
  std::memcpy(&size, file.data(), sizeof size);
  const nlohmann::ordered_json header = nlohmann::ordered_json::parse(file.substr(8, size));
  nlohmann::ordered_json kept;
  std::string data;
  for (const auto &[name, tensor] : header.items()) {
    const llvm::StringRef n = name;
    if (n == "__metadata__" || n.starts_with("cls.") || n.starts_with("head.") || n.starts_with("decoder."))
      continue;
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    nlohmann::ordered_json t = tensor;
    t["data_offsets"] = {data.size(), data.size() + end - begin};
    data += file.substr(8 + size + begin, end - begin);
    kept[n.starts_with("bert.") ? name.substr(5) : n.starts_with("model.") ? name.substr(6) : name] = t;
  }
  std::string text = kept.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  size = text.size();
  return std::string(reinterpret_cast<const char *>(&size), 8) + text + data;
}

}  // namespace e2e
