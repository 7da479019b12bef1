#include "runtime/data/megatron_index.h"

#include "support/diagnostics.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sys/stat.h>
#include <vector>

namespace gptc {

namespace {

static_assert(std::endian::native == std::endian::little, "indices are little-endian");

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr size_t kVersionAt = sizeof kMagic, kTypeAt = kVersionAt + 8, kSequencesAt = kTypeAt + 1,
                 kBoundsAt = kSequencesAt + 8, kHeaderBytes = kBoundsAt + 8;
constexpr uint64_t kVersion = 1;
constexpr size_t kLengthBytes = sizeof(int32_t), kPlaceBytes = sizeof(int64_t);
constexpr int64_t kPiece = 1 << 18;  // entries per read
constexpr const char *kAgain = "make both files again with Megatron-LM's tools/preprocess_data.py, or copy both again";

/// Of the types that have a code, in the order of the codes, which begin at 1.
struct TokenType {
  const char *name;
  size_t width;  // 0: no whole numbers
  bool isSigned;
};
constexpr TokenType kTypes[] = {{"uint8", 1, false},   {"int8", 1, true},   {"int16", 2, true},
                                {"int32", 4, true},    {"int64", 8, true},  {"float64", 0, false},
                                {"float32", 0, false}, {"uint16", 2, false}};

/// An index that is being read.
class Reader {
public:
  Reader(const std::string &path, const std::string &tokenFile, size_t bytes, const std::string &key)
      : file(path, key), path(path), tokenFile(tokenFile), bytes(int64_t(bytes)) {}

  TokenFormat read() {
    readHeader();
    readSequences();
    readDocuments();
    format.isTold = true;
    return format;
  }

private:
  [[noreturn]] void invalid(const std::string &what, const std::string &help = kAgain) const {
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", path, what), help);
  }

  template <typename T> void read(size_t at, T *to, size_t count) const {
    if (count && !file.read(at, to, count * sizeof(T)))
      invalid(fmt::format("bytes {} to {} cannot be read", at, at + count * sizeof(T) - 1));
  }
  template <typename T> T number(size_t at) const {
    T n = 0;
    read(at, &n, 1);
    return n;
  }

  void readHeader() {
    const uint64_t size = file.size();
    char magic[sizeof kMagic] = {};
    read(0, magic, std::min<size_t>(size, sizeof magic));
    if (std::memcmp(magic, kMagic, sizeof magic) != 0)
      invalid("no index of Megatron-LM's, which begins with MMIDIDX and two zeros",
              fmt::format("make it again with tools/preprocess_data.py of Megatron-LM; if it does not belong to {}, "
                          "rename it",
                          tokenFile));
    if (size < kHeaderBytes)
      invalid(fmt::format("truncated: it has {} bytes, and its header alone {}", size, kHeaderBytes));
    if (const auto version = number<uint64_t>(kVersionAt); version != kVersion)
      invalid(fmt::format("an index of version {}; {} is known", version, kVersion));
    const auto code = number<uint8_t>(kTypeAt);
    if (code < 1 || code > std::size(kTypes))
      invalid(fmt::format("its tokens are of type {}; 1 to {} are known", code, std::size(kTypes)));
    const TokenType &type = kTypes[code - 1];
    if (!type.width)
      invalid(fmt::format("its tokens are of type {} ({}), and tokens are whole numbers", code, type.name));
    format.width = type.width;
    format.isSigned = type.isSigned;
    const auto sequences = number<uint64_t>(kSequencesAt), bounds = number<uint64_t>(kBoundsAt);
    const uint64_t left = size - kHeaderBytes, each = kLengthBytes + kPlaceBytes;
    const bool fit = sequences <= left / each && bounds <= left / kPlaceBytes;
    const uint64_t promised = fit ? sequences * each + bounds * kPlaceBytes : UINT64_MAX;
    if (fit && sequences && left == promised + sequences)
      invalid("an index of a multimodal data set, with a mode of each sequence; only text is read",
              "make an index of the text alone");
    if (promised != left)
      invalid(fmt::format("{}: its header promises {} sequences and {} bounds of documents, it has {} bytes after the "
                          "header",
                          promised > left ? "truncated" : "damaged", sequences, bounds, left));
    if (!sequences || !bounds)
      invalid("it has no sequences", "give Megatron-LM's tools/preprocess_data.py more text");
    sequenceCount = int64_t(sequences);
    format.documents = int64_t(bounds) - 1;
  }

  void readSequences() {
    const size_t lengthsAt = kHeaderBytes, placesAt = lengthsAt + size_t(sequenceCount) * kLengthBytes;
    const auto width = int64_t(format.width);
    std::vector<int32_t> lengths;
    std::vector<int64_t> places;
    int64_t at = 0;  // byte of the token file
    for (int64_t first = 0; first < sequenceCount; first += kPiece) {
      const auto count = size_t(std::min(kPiece, sequenceCount - first));
      lengths.resize(count);
      places.resize(count);
      read(lengthsAt + size_t(first) * kLengthBytes, lengths.data(), count);
      read(placesAt + size_t(first) * kPlaceBytes, places.data(), count);
      for (size_t i = 0; i < count; ++i) {
        const int64_t sequence = first + int64_t(i);
        if (lengths[i] < 0)
          invalid(fmt::format("damaged: sequence {} has {} tokens", sequence, lengths[i]));
        if (places[i] != at)
          invalid(fmt::format("damaged: sequence {} begins at byte {} of {}, and those before it end at byte {}",
                              sequence, places[i], tokenFile, at));
        if (lengths[i] > (bytes - at) / width)
          invalid(fmt::format("sequence {} has {} tokens of {} bits at byte {} of {}, which has {} bytes: the file is "
                              "truncated, or the index is another's",
                              sequence, lengths[i], 8 * width, at, tokenFile, bytes));
        at += lengths[i] * width;
      }
    }
    if (at != bytes)
      invalid(
          fmt::format("its sequences end at byte {} of {}, which has {} bytes: the index is another's, or truncated",
                      at, tokenFile, bytes));
    format.count = at / width;
  }

  void readDocuments() {
    const size_t boundsAt = kHeaderBytes + size_t(sequenceCount) * (kLengthBytes + kPlaceBytes);
    const int64_t bounds = *format.documents + 1;
    std::vector<int64_t> piece;
    int64_t before = 0;
    for (int64_t first = 0; first < bounds; first += kPiece) {
      piece.resize(size_t(std::min(kPiece, bounds - first)));
      read(boundsAt + size_t(first) * kPlaceBytes, piece.data(), piece.size());
      for (size_t i = 0; i < piece.size(); ++i) {
        const int64_t bound = first + int64_t(i);
        if (piece[i] < before || piece[i] > sequenceCount || (bound == 0 && piece[i] != 0))
          invalid(fmt::format("damaged: bound {} of its documents is sequence {} of {}, and the bound before it {}",
                              bound, piece[i], sequenceCount, before));
        before = piece[i];
      }
    }
    if (before != sequenceCount)
      invalid(fmt::format("damaged: its documents end at sequence {} of {}", before, sequenceCount));
  }

  InputFile file;
  const std::string path, tokenFile;
  const int64_t bytes;  // of the token file
  int64_t sequenceCount = 0;
  TokenFormat format;
};

}  // namespace

std::string megatronIndexBeside(const std::string &tokenFile) {
  llvm::StringRef name = tokenFile;
  if (!name.consume_back(".bin"))
    return "";
  std::string path = name.str() + ".idx";
  struct stat st{};
  return ::stat(path.c_str(), &st) == 0 ? path : "";
}

TokenFormat readMegatronIndex(const std::string &path, const std::string &tokenFile, size_t bytes,
                              const std::string &key) {
  return Reader(path, tokenFile, bytes, key).read();
}

}  // namespace gptc
