#include "runtime/data/data.h"

#include "ir/random.h"
#include "runtime/data/masking.h"
#include "support/diagnostics.h"
#include "support/labelled_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <glob.h>
#include <sys/stat.h>

namespace gptc {
namespace {

// Random streams of the data order, far from those that import assigns to dropout and initial values.
constexpr uint32_t kOrderStream = 0xDA7A0001, kOffsetStream = 0xDA7A0002, kMaskStream = 0xDA7A0004;
constexpr uint64_t kEvalSeed = 0;
constexpr int kRounds = 6;
constexpr size_t kHeaderBytes = 1024;
constexpr int64_t kPiece = 1 << 20;  // tokens per read when all are read
constexpr int32_t kLlmcMagic = 20240520, kLlmcVersion = 1, kLlmcWideMagic = 20240801, kLlmcWideVersion = 7;

[[noreturn]] void invalid(const std::string &path, const std::string &what, const std::string &help) {
  throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", path, what), help);
}

}  // namespace

std::vector<std::string> filesOf(const std::string &pattern, const std::string &key) {
  struct stat st{};
  if (::stat(pattern.c_str(), &st) == 0)
    return {pattern};  // a file name may contain [ or *
  glob_t g{};
  std::vector<std::string> r;
  if (::glob(pattern.c_str(), 0, nullptr, &g) == 0)
    r.assign(g.gl_pathv, g.gl_pathv + g.gl_pathc);
  ::globfree(&g);
  if (r.empty())
    throw UserError(ErrorCode::FileMissing, fmt::format("{}: no file {}", key, pattern),
                    "make token files with `gptc data prepare FILES.. --out DIR`");
  return r;
}

std::string nameInPattern(const std::string &path, const std::string &pattern) {
  const size_t special = path == pattern ? pattern.size() : pattern.find_first_of("*?[\\");
  const size_t slash = pattern.rfind('/', special);
  const llvm::StringRef folder = llvm::StringRef(pattern).take_front(slash == std::string::npos ? 0 : slash + 1);
  llvm::StringRef name = path;
  return name.consume_front(folder) ? name.str() : path;
}

Permutation::Permutation(int64_t n, uint64_t seed, uint64_t epoch) : n(n), seed(seed), epoch(epoch) {
  unsigned bits = n > 1 ? std::bit_width(uint64_t(n - 1)) : 1;
  halfBits = (bits + 1) / 2;
}

int64_t Permutation::operator()(int64_t index) const {
  const RandomKey key = randomKey(seed, epoch, kOrderStream, 0);
  const uint64_t mask = (uint64_t(1) << halfBits) - 1;
  uint64_t v = index;
  do {
    uint64_t left = v >> halfBits, right = v & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      uint64_t next = left ^ (randomBits(key, round << 32 | right) & mask);
      left = right;
      right = next;
    }
    v = left << halfBits | right;
  } while (v >= uint64_t(n));
  return v;
}

TokenData::TokenData(const std::string &pattern, const std::string &key, int64_t vocab, int64_t blockSize,
                     int64_t minTokens, int64_t maskToken)
    : vocab(vocab), T(blockSize), maskToken(maskToken) {
  for (const std::string &path : filesOf(pattern, key)) {
    File f{path,
           nameInPattern(path, pattern),
           std::make_unique<InputFile>(path, key),
           0,
           2,
           0,
           epochWindows,
           allWindows,
           0,
           0,
           0};
    readFormat(f);
    if (f.count < minTokens)
      invalid(path,
              fmt::format("{} tokens, and {} are needed ({})", f.count, minTokens,
                          minTokens == T + 1 ? "block_size + 1" : "for one target"),
              "use more text, or a smaller model.block_size");
    // One window less than fits leaves room for any offset below T; a file too short for that keeps one window.
    f.windows = std::max<int64_t>(1, (f.count - T) / T);
    f.offsets = std::max<int64_t>(1, std::min(T, f.count - f.windows * T));
    f.evalWindows = (f.count - 1 + T - 1) / T;
    epochWindows += f.windows;
    allWindows += f.evalWindows;
    files.push_back(std::move(f));
  }
}

void TokenData::readFormat(File &f) {
  const std::string again = "make it again with `gptc data prepare`";
  const size_t size = f.file->size();
  if (size == 0)
    invalid(f.path, "the file is empty", again);
  int32_t header[4] = {};
  if (size >= sizeof header && !f.file->read(0, header, sizeof header))
    invalid(f.path, "its header cannot be read", again);
  const auto [magic, version, low, high] = header;
  if (magic == kLlmcMagic || magic == kLlmcWideMagic) {
    const bool wide = magic == kLlmcWideMagic;
    if (version != (wide ? kLlmcWideVersion : kLlmcVersion))
      invalid(f.path,
              fmt::format("an llm.c file of magic {} and version {}; 20240520 version 1 (uint16 tokens) and 20240801 "
                          "version 7 (uint32 tokens) are known",
                          magic, version),
              again);
    f.width = wide ? 4 : 2;
    f.start = kHeaderBytes;
    f.count = int64_t(uint64_t(uint32_t(high)) << 32 | uint32_t(low));
    if (size < kHeaderBytes || f.count < 0 || uint64_t(f.count) != (size - kHeaderBytes) / f.width ||
        (size - kHeaderBytes) % f.width)
      invalid(f.path,
              fmt::format("truncated: its header promises {} tokens of {} bits, it has {} bytes after the header",
                          f.count, 8 * f.width, size < kHeaderBytes ? 0 : size - kHeaderBytes),
              again);
    return;
  }
  if (magic == LabelledHeader::kMagic)
    invalid(f.path, "a file of texts with labels, which only a classifier learns",
            "name its labels.json: data.labels, or prepare the data without --labels");
  if (std::memcmp(header, "\x93NUMPY", 6) == 0)
    invalid(f.path, "an array of NumPy's, with a header",
            "write its elements alone, as 16-bit numbers: array.astype('uint16').tofile(FILE)");
  if (size % 2)
    invalid(f.path, fmt::format("{} bytes, an odd number: truncated, or no file of 16-bit tokens", size), again);
  f.count = int64_t(size / 2);
}

int64_t TokenData::tokens() const {
  int64_t n = 0;
  for (const File &f : files)
    n += f.count;
  return n;
}

// Reads instead of mapping, because a signal would end the program if a mapped file were truncated.
std::vector<char> TokenData::readBytes(const File &f, int64_t start, int64_t count) {
  std::vector<char> bytes(size_t(count) * f.width);
  if (!f.file->read(f.start + size_t(start) * f.width, bytes.data(), bytes.size()))
    invalid(f.path, fmt::format("tokens {} to {} cannot be read any more", start, start + count - 1),
            "do not change token files while they are in use; run again with the file whole");
  return bytes;
}

namespace {

std::vector<uint32_t> tokensOf(const std::vector<char> &bytes, size_t width) {
  std::vector<uint32_t> tokens(bytes.size() / width);
  if (width == sizeof(uint32_t)) {
    std::memcpy(tokens.data(), bytes.data(), bytes.size());
    return tokens;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint16_t t;
    std::memcpy(&t, bytes.data() + i * sizeof t, sizeof t);
    tokens[i] = t;
  }
  return tokens;
}

}  // namespace

std::vector<uint32_t> TokenData::read(const File &f, int64_t start, int64_t count) {
  return tokensOf(readBytes(f, start, count), f.width);
}

void TokenData::copy(const File &f, int64_t start, int64_t targets, int32_t *x, int32_t *y) const {
  const std::vector<uint32_t> tokens = read(f, start, targets + 1);
  requireKnown(f, start, tokens);
  for (int64_t i = 0; i < targets; ++i) {
    x[i] = int32_t(tokens[i]);
    y[i] = int32_t(tokens[i + 1]);
  }
}

void TokenData::requireKnown(const File &f, int64_t start, const std::vector<uint32_t> &tokens) const {
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [most = limit()](uint32_t v) { return v >= most; });
  if (bad == tokens.end())
    return;
  const int64_t at = start + (bad - tokens.begin());
  if (*bad < vocab)
    throw UserError(ErrorCode::TokenOutOfRange,
                    fmt::format("{}: token {} at position {} is the encoder's [MASK], the last of a vocabulary of {}",
                                f.path, *bad, at, vocab),
                    fmt::format("set model.vocab_size to {}, one more than the text has tokens", int64_t(*bad) + 2));
  throw UserError(ErrorCode::TokenOutOfRange,
                  fmt::format("{}: token {} at position {} is beyond the vocabulary of {}", f.path, *bad, at, vocab),
                  fmt::format("set model.vocab_size to at least {}, or prepare the data with the model's own tokenizer",
                              int64_t(*bad) + (maskToken < 0 ? 1 : 2)));
}

void TokenData::checkTokens() const {
  for (const File &f : files)
    checkTokens(f);
}

void TokenData::checkTokens(const File &f) const {
  for (int64_t start = 0; start < f.count; start += kPiece)
    requireKnown(f, start, read(f, start, std::min(kPiece, f.count - start)));
}

void TokenData::requireLargest(size_t i, uint32_t largest) const {
  if (largest >= limit())
    checkTokens(files[i]);
}

TokenData::Content TokenData::content(size_t i, const std::atomic<bool> &givenUp) const {
  const File &f = files[i];
  Content r;
  Hasher h;
  for (int64_t start = 0; start < f.count && !givenUp; start += kPiece) {
    const std::vector<char> bytes = readBytes(f, start, std::min(kPiece, f.count - start));
    h.update(bytes.data(), bytes.size());
    for (uint32_t t : tokensOf(bytes, f.width))
      r.largest = std::max(r.largest, t);
  }
  r.hash = h.finish();
  return r;
}

std::vector<std::string> TokenData::paths() const {
  std::vector<std::string> r;
  for (const File &f : files)
    r.push_back(f.path);
  return r;
}

std::vector<std::string> TokenData::names() const {
  std::vector<std::string> r;
  for (const File &f : files)
    r.push_back(f.name);
  return r;
}

void TokenData::requireNarrowTokens() const {
  constexpr int64_t least = 64, most = 4096;
  for (const File &f : files) {
    const int64_t n = std::min(most, f.count) & ~int64_t(1);
    if (f.start > 0 || n < least)  // a header tells the format
      continue;
    const std::vector<uint32_t> tokens = read(f, 0, n);
    bool low = false, high = false;
    for (size_t i = 0; i < tokens.size(); i += 2) {
      low |= tokens[i] != 0;
      high |= tokens[i + 1] != 0;
    }
    if (low && !high)
      invalid(
          f.path,
          fmt::format("every second of its first {} 16-bit numbers is 0, as in a file of wider tokens", tokens.size()),
          "a file without header has 16 bits a token; `gptc data prepare` makes token files from text");
  }
}

void TokenData::window(uint64_t seed, int64_t g, int32_t *x, int32_t *y) const {
  const uint64_t epoch = g / epochWindows;
  int64_t w = Permutation(epochWindows, seed, epoch)(g % epochWindows);
  size_t i = files.size() - 1;
  while (files[i].firstWindow > w)
    --i;
  const File &f = files[i];
  uint64_t offset = randomBits(randomKey(seed, epoch, kOffsetStream, i), 0) % f.offsets;
  copy(f, offset + (w - f.firstWindow) * T, T, x, y);
  if (maskToken >= 0)
    maskTokens(randomKey(seed, 0, kMaskStream, g), T, int32_t(maskToken), x, y);
}

int64_t TokenData::targets(uint64_t seed, int64_t first, int64_t count) const {
  if (maskToken < 0)
    return count * T;
  int64_t n = 0;
  for (int64_t g = first; g < first + count; ++g)
    n += maskedTargets(randomKey(seed, 0, kMaskStream, g), T);
  return n;
}

int64_t TokenData::evalWindow(int64_t w, int32_t *x, int32_t *y) const {
  size_t i = files.size() - 1;
  while (files[i].firstEvalWindow > w)
    --i;
  const File &f = files[i];
  int64_t start = (w - f.firstEvalWindow) * T, targets = std::min(T, f.count - 1 - start);
  // If an encoder's last window is short, the preceding text serves as context.
  const int64_t before = maskToken < 0 ? 0 : std::min(start, T - targets), text = before + targets;
  copy(f, start - before, text, x, y);
  std::fill(x + text, x + T, maskToken < 0 ? 0 : int32_t(maskToken));
  std::fill(y + text, y + T, -1);
  if (maskToken >= 0) {
    std::fill(y, y + before, -1);
    const RandomKey key = randomKey(kEvalSeed, 1, kMaskStream, w);
    targets = maskTokens(key, targets, int32_t(maskToken), x + before, y + before);
  }
  return targets;
}

void TokenData::emptyRow(const SequenceRow &row) const {
  std::fill_n(row.x, T, 0);
  std::fill_n(row.y, T, -1);
}

std::string TokenData::sampledFingerprint() const {
  constexpr int kSamples = 16;
  constexpr int64_t kSampleTokens = 2048;
  Hasher h;
  for (const File &f : files) {
    h.update(&f.count, sizeof f.count);
    for (int s = 0; s < kSamples; ++s) {
      int64_t span = std::min(kSampleTokens, f.count), start = (f.count - span) / (kSamples - 1) * s;
      const std::vector<char> sample = readBytes(f, start, span);
      h.update(sample.data(), sample.size());
    }
  }
  return h.finish();
}

}  // namespace gptc
