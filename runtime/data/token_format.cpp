#include "runtime/data/token_format.h"

#include "runtime/data/megatron_index.h"
#include "support/diagnostics.h"
#include "support/labelled_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace gptc {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr size_t kHeaderBytes = 1024;
constexpr int32_t kLlmcMagic = 20240520, kLlmcVersion = 1, kLlmcWideMagic = 20240801, kLlmcWideVersion = 7;
constexpr const char *kAgain = "make it again with `gptc data prepare`";

[[noreturn]] void invalid(const std::string &path, const std::string &what, const std::string &help = kAgain) {
  throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", path, what), help);
}

/// Calls f(token) for each token of a piece.
template <typename T, typename F> void eachAs(const std::vector<char> &piece, F f) {
  for (size_t at = 0; at + sizeof(T) <= piece.size(); at += sizeof(T)) {
    T t;
    std::memcpy(&t, piece.data() + at, sizeof t);
    f(int64_t(t));
  }
}

template <typename F> void each(const TokenFormat &format, const std::vector<char> &piece, F f) {
  switch (format.width) {
  case 1:
    return format.isSigned ? eachAs<int8_t>(piece, f) : eachAs<uint8_t>(piece, f);
  case 2:
    return format.isSigned ? eachAs<int16_t>(piece, f) : eachAs<uint16_t>(piece, f);
  case 4:
    return format.isSigned ? eachAs<int32_t>(piece, f) : eachAs<uint32_t>(piece, f);
  default:
    return eachAs<int64_t>(piece, f);
  }
}

/// The format that the header of an llm.c file tells.
TokenFormat llmcFormat(const int32_t (&header)[4], size_t size, const std::string &path) {
  const auto [magic, version, low, high] = header;
  const bool wide = magic == kLlmcWideMagic;
  if (version != (wide ? kLlmcWideVersion : kLlmcVersion))
    invalid(path, fmt::format("an llm.c file of magic {} and version {}; 20240520 version 1 (uint16 tokens) and "
                              "20240801 version 7 (uint32 tokens) are known",
                              magic, version));
  TokenFormat f{.start = kHeaderBytes, .width = wide ? size_t(4) : size_t(2), .isTold = true};
  f.count = int64_t(uint64_t(uint32_t(high)) << 32 | uint32_t(low));
  if (size < kHeaderBytes || f.count < 0 || uint64_t(f.count) != (size - kHeaderBytes) / f.width ||
      (size - kHeaderBytes) % f.width)
    invalid(path, fmt::format("truncated: its header promises {} tokens of {} bits, it has {} bytes after the header",
                              f.count, 8 * f.width, size < kHeaderBytes ? 0 : size - kHeaderBytes));
  return f;
}

}  // namespace

std::vector<int64_t> TokenFormat::tokens(const std::vector<char> &piece) const {
  std::vector<int64_t> all;
  all.reserve(piece.size() / width);
  each(*this, piece, [&](int64_t token) { all.push_back(token); });
  return all;
}

uint32_t TokenFormat::largest(const std::vector<char> &piece) const {
  constexpr uint32_t most = std::numeric_limits<uint32_t>::max();
  uint32_t largest = 0;
  each(*this, piece, [&](int64_t token) {
    largest = std::max(largest, token < 0 || token > int64_t(most) ? most : uint32_t(token));
  });
  return largest;
}

std::string TokenFormat::reading() const {
  return fmt::format("{}{} bytes at {}", isSigned ? "signed " : "", width, start);
}

TokenFormat formatOf(const InputFile &file, const std::string &path, const std::string &key) {
  const size_t size = file.size();
  if (size == 0)
    invalid(path, "the file is empty");
  if (const std::string index = megatronIndexBeside(path); !index.empty())
    return readMegatronIndex(index, path, size, key);
  int32_t header[4] = {};
  if (size >= sizeof header && !file.read(0, header, sizeof header))
    invalid(path, "its header cannot be read");
  if (header[0] == kLlmcMagic || header[0] == kLlmcWideMagic)
    return llmcFormat(header, size, path);
  if (header[0] == LabelledHeader::kMagic)
    invalid(path, "a file of texts with labels, which only a classifier learns",
            "name its labels.json: data.labels, or prepare the data without --labels");
  if (std::memcmp(header, "MMIDIDX", 8) == 0)
    invalid(path, "an index of Megatron-LM's, and no tokens", "name the .bin that belongs to it");
  if (std::memcmp(header, "\x93NUMPY", 6) == 0)
    invalid(path, "an array of NumPy's, with a header",
            "write its elements alone, as 16-bit numbers: array.astype('uint16').tofile(FILE)");
  if (size % 2)
    invalid(path, fmt::format("{} bytes, an odd number: truncated, or no file of 16-bit tokens", size));
  return {.count = int64_t(size / 2)};
}

}  // namespace gptc
