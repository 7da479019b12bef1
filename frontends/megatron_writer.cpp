#include "frontends/megatron_writer.h"

#include "support/diagnostics.h"
#include "support/files.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace gptc {
namespace {

static_assert(std::endian::native == std::endian::little, "indices are little-endian");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr uint8_t kInt32 = 4, kUint16 = 8;

template <typename T> std::string_view bytesOf(const T *data, size_t count) {
  return {reinterpret_cast<const char *>(data), count * sizeof(T)};
}

}  // namespace

MegatronIndexWriter::MegatronIndexWriter(const std::string &path, size_t width, int64_t most)
    : file(path), width(width), most(most) {
  GPTC_CHECK(width == 2 || width == 4, "tokens of {} bytes", width);
}

void MegatronIndexWriter::beginDocument(int64_t at) {
  if (isOpen)
    endDocument(at);
  isOpen = true;
  begin = at;
}

void MegatronIndexWriter::endDocument(int64_t at) {
  int64_t left = at - begin;
  do {
    const int64_t length = std::min(left, most);
    lengths.push_back(int32_t(length));
    left -= length;
    if (left > 0)
      continued.push_back(int64_t(lengths.size()));
  } while (left > 0);
}

template <typename T, typename F> void MegatronIndexWriter::append(size_t count, F value) {
  constexpr size_t inPiece = 1 << 16;
  std::vector<T> piece;
  for (size_t i = 0; i < count; ++i) {
    piece.push_back(value(i));
    if (piece.size() == inPiece || i + 1 == count) {
      file.append(bytesOf(piece.data(), piece.size()));
      piece.clear();
    }
  }
}

void MegatronIndexWriter::finish(int64_t tokens) {
  if (isOpen)
    endDocument(tokens);
  const uint8_t type = width == 2 ? kUint16 : kInt32;
  const uint64_t counts[] = {lengths.size(), lengths.size() - continued.size() + 1};
  file.append(kMagic);
  file.append(bytesOf(&kVersion, 1));
  file.append(bytesOf(&type, 1));
  file.append(bytesOf(counts, 2));
  file.append(bytesOf(lengths.data(), lengths.size()));
  int64_t place = 0;
  append<int64_t>(lengths.size(), [&](size_t i) {
    const int64_t here = place;
    place += int64_t(lengths[i]) * int64_t(width);
    return here;
  });
  int64_t bound = -1;
  auto next = continued.begin();
  append<int64_t>(counts[1], [&](size_t) {
    for (++bound; next != continued.end() && *next == bound; ++next)
      ++bound;
    return bound;
  });
  file.finish();
}

std::string megatronIndexOf(const std::string &tokenFile) {
  llvm::StringRef name = tokenFile;
  name.consume_back(".bin");
  return name.str() + ".idx";
}

void removeMegatronIndex(const std::string &tokenFile) {
  const std::string path = megatronIndexOf(tokenFile);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored))
    return;
  std::string begin(kMagic.size(), '\0');
  try {
    if (InputFile(path, "index").read(0, begin.data(), begin.size()) && begin == kMagic)
      std::filesystem::remove(path, ignored);
  } catch (const UserError &) {
    // Readers of the tokens cannot open it either, and say so.
  }
}

}  // namespace gptc
