#include "support/gguf/gguf_writer.h"

#include "support/diagnostics.h"
#include "support/gguf/gguf_file.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {
namespace {

template <typename T> void put(std::string &to, T value) {
  to.append(reinterpret_cast<const char *>(&value), sizeof value);
}
void put(std::string &to, const std::string &text) {
  put(to, uint64_t(text.size()));
  to += text;
}

template <typename T> constexpr GgufType typeOf() {
  if constexpr (std::is_same_v<T, bool>)
    return GgufType::boolean;
  else if constexpr (std::is_same_v<T, std::string>)
    return GgufType::string;
  else if constexpr (std::is_same_v<T, float>)
    return GgufType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return GgufType::f64;
  else if constexpr (sizeof(T) == 1)
    return std::is_signed_v<T> ? GgufType::i8 : GgufType::u8;
  else if constexpr (sizeof(T) == 2)
    return std::is_signed_v<T> ? GgufType::i16 : GgufType::u16;
  else if constexpr (sizeof(T) == 4)
    return std::is_signed_v<T> ? GgufType::i32 : GgufType::u32;
  else
    return std::is_signed_v<T> ? GgufType::i64 : GgufType::u64;
}

template <typename T> void putValue(std::string &to, const T &value) {
  put(to, uint32_t(typeOf<T>()));
  put(to, value);
}
template <typename T> void putValue(std::string &to, const std::vector<T> &values) {
  put(to, uint32_t(GgufType::array));
  put(to, uint32_t(typeOf<T>()));
  put(to, uint64_t(values.size()));
  for (const auto &value : values)
    put(to, T(value));
}

void putValue(std::string &to, const GgufRaw &value) { to += value.bytes; }

}  // namespace

std::optional<uint32_t> ggufFileType(GgmlType type) {
  for (const auto &[format, number] :
       {std::pair{GgmlType::f32, 0}, std::pair{GgmlType::f16, 1}, std::pair{GgmlType::q4_0, 2},
        std::pair{GgmlType::q8_0, 7}, std::pair{GgmlType::q4_k, 14}, std::pair{GgmlType::bf16, 32}})
    if (format == type)
      return number;
  return std::nullopt;
}

int64_t GgufWriter::Tensor::bytes() const {
  int64_t n = 1;
  for (const int64_t extent : shape)
    n *= extent;
  return ggmlFormat(type).bytesOf(n);
}

GgufWriter::GgufWriter(const std::string &path, const GgufKeys &keys, const std::vector<Tensor> &tensors,
                       int64_t alignment)
    : alignment(alignment), file(path) {
  std::string header = "GGUF";
  put(header, uint32_t(3));
  put(header, uint64_t(tensors.size()));
  put(header, uint64_t(keys.size()));
  for (const auto &[key, value] : keys) {
    put(header, key);
    std::visit([&](const auto &v) { putValue(header, v); }, value);
  }
  int64_t offset = 0;
  for (const Tensor &t : tensors) {
    GPTC_CHECK(!t.shape.empty() && t.shape.back() % ggmlFormat(t.type).elements == 0, "tensor {}", t.name);
    put(header, t.name);
    put(header, uint32_t(t.shape.size()));
    for (const int64_t extent : llvm::reverse(t.shape))
      put(header, uint64_t(extent));
    put(header, uint32_t(t.type));
    put(header, uint64_t(offset));
    sizes.push_back(t.bytes());
    offset += padded(sizes.back());
  }
  header.resize(size_t(padded(int64_t(header.size()))));
  file.append(header);
}

void GgufWriter::endTensors() {
  while (current < sizes.size() && written == sizes[current]) {
    const std::string zeros(size_t(padded(written) - written), 0);
    file.append(zeros);
    ++current;
    written = 0;
  }
}

void GgufWriter::write(const void *data, size_t bytes) {
  const char *from = static_cast<const char *>(data);
  for (size_t left = bytes; left;) {
    GPTC_CHECK(current < sizes.size(), "{} bytes behind the last tensor", left);
    const size_t here = std::min(left, size_t(sizes[current] - written));
    file.append({from, here});
    from += here;
    left -= here;
    written += int64_t(here);
    endTensors();
  }
}

void GgufWriter::finish() {
  GPTC_CHECK(current == sizes.size(), "tensor {} of {} has {} bytes", current, sizes.size(), written);
  file.commit();
}

}  // namespace gptc
