#include "runtime/data/data.h"

#include "ir/random.h"
#include "runtime/data/masking.h"
#include "support/descriptors.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace gptc {
namespace {

// Random streams of the data order, far from those that import assigns to dropout and initial values.
constexpr uint32_t kOrderStream = 0xDA7A0001, kOffsetStream = 0xDA7A0002, kMaskStream = 0xDA7A0004;
constexpr uint64_t kEvalSeed = 0;
constexpr int kRounds = 6;
constexpr size_t kManyFiles = 256;   // each is a descriptor, of which a process may have 1024 at first
constexpr int64_t kPiece = 1 << 20;  // tokens per read when all are read

[[noreturn]] void invalid(const std::string &path, const std::string &what, const std::string &help) {
  throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", path, what), help);
}

}  // namespace

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
  const std::vector<std::string> paths = filesOf(pattern, key);
  if (paths.size() > kManyFiles)
    raiseDescriptorLimit();
  for (const std::string &path : paths) {
    File f{.path = path, .name = nameInPattern(path, pattern), .file = std::make_unique<InputFile>(path, key)};
    f.format = formatOf(*f.file, path, key);
    f.first = all;
    all += f.format.count;
    files.push_back(std::move(f));
  }
  if (all < minTokens)
    invalid(files.size() == 1 ? files[0].path : pattern,
            fmt::format("{} tokens, and {} are needed ({})", all, minTokens,
                        minTokens == T + 1 ? "block_size + 1" : "for one target"),
            "use more text, or a smaller model.block_size");
  // One window less than fits leaves room for any offset below T; a set too short for that keeps one window.
  epochWindows = std::max<int64_t>(1, (all - T) / T);
  offsets = std::max<int64_t>(1, std::min(T, all - epochWindows * T));
}

// Reads instead of mapping, because a signal would end the program if a mapped file were truncated.
std::vector<char> TokenData::readBytes(const File &f, int64_t start, int64_t count) {
  std::vector<char> bytes(size_t(count) * f.format.width);
  if (count && !f.file->read(f.format.byteOf(start), bytes.data(), bytes.size()))
    invalid(f.path, fmt::format("tokens {} to {} cannot be read any more", start, start + count - 1),
            "do not change token files while they are in use; run again with the file whole");
  return bytes;
}

std::vector<int64_t> TokenData::read(const File &f, int64_t start, int64_t count) {
  return f.format.tokens(readBytes(f, start, count));
}

void TokenData::copy(int64_t start, int64_t targets, int32_t *x, int32_t *y) const {
  std::vector<int64_t> tokens;
  auto f = std::upper_bound(files.begin(), files.end(), start, [](int64_t at, const File &g) { return at < g.first; });
  --f;  // the last file that begins at or before `start`: not an empty one
  for (int64_t at = start - f->first; int64_t(tokens.size()) <= targets; ++f, at = 0) {
    const std::vector<int64_t> part =
        read(*f, at, std::min(f->format.count - at, targets + 1 - int64_t(tokens.size())));
    requireKnown(*f, at, part);
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  for (int64_t i = 0; i < targets; ++i) {
    x[i] = int32_t(tokens[i]);
    y[i] = int32_t(tokens[i + 1]);
  }
}

void TokenData::requireKnown(const File &f, int64_t start, const std::vector<int64_t> &tokens) const {
  const auto bad =
      std::find_if(tokens.begin(), tokens.end(), [most = limit()](int64_t v) { return v < 0 || v >= most; });
  if (bad == tokens.end())
    return;
  const int64_t at = start + (bad - tokens.begin());
  if (*bad < 0)
    throw UserError(ErrorCode::TokenOutOfRange,
                    fmt::format("{}: token {} at position {} is negative", f.path, *bad, at),
                    "prepare the data with the model's own tokenizer");
  if (*bad < vocab)
    throw UserError(ErrorCode::TokenOutOfRange,
                    fmt::format("{}: token {} at position {} is the encoder's [MASK], the last of a vocabulary of {}",
                                f.path, *bad, at, vocab),
                    fmt::format("set model.vocab_size to {}, one more than the text has tokens", *bad + 2));
  const std::string own = "prepare the data with the model's own tokenizer";
  throw UserError(ErrorCode::TokenOutOfRange,
                  fmt::format("{}: token {} at position {} is beyond the vocabulary of {}", f.path, *bad, at, vocab),
                  *bad > std::numeric_limits<int32_t>::max()
                      ? own
                      : fmt::format("set model.vocab_size to at least {}, or {}", *bad + (maskToken < 0 ? 1 : 2), own));
}

void TokenData::checkTokens() const {
  for (const File &f : files)
    checkTokens(f);
}

void TokenData::checkTokens(const File &f) const {
  for (int64_t start = 0; start < f.format.count; start += kPiece)
    requireKnown(f, start, read(f, start, std::min(kPiece, f.format.count - start)));
}

void TokenData::requireLargest(size_t i, uint32_t largest) const {
  if (largest < limit())
    return;
  checkTokens(files[i]);
  changedUnnoticed(files[i].path, largest, limit());
}

TokenData::Content TokenData::content(size_t i, const std::atomic<bool> &givenUp) const {
  const File &f = files[i];
  Content r;
  Hasher h;
  for (int64_t start = 0; start < f.format.count && !givenUp; start += kPiece) {
    const std::vector<char> bytes = readBytes(f, start, std::min(kPiece, f.format.count - start));
    h.update(bytes.data(), bytes.size());
    r.largest = std::max(r.largest, f.format.largest(bytes));
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
    const int64_t n = std::min(most, f.format.count) & ~int64_t(1);
    if (f.format.isTold || n < least)
      continue;
    const std::vector<int64_t> tokens = read(f, 0, n);
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
  const uint64_t offset = randomBits(randomKey(seed, epoch, kOffsetStream, 0), 0) % offsets;
  copy(int64_t(offset) + w * T, T, x, y);
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
  int64_t start = w * T, targets = std::min(T, all - 1 - start);
  // If an encoder's last window is short, the preceding text serves as context.
  const int64_t before = maskToken < 0 ? 0 : std::min(start, T - targets), text = before + targets;
  copy(start - before, text, x, y);
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
    const int64_t count = f.format.count;
    h.update(&count, sizeof count);
    for (int s = 0; s < kSamples; ++s) {
      int64_t span = std::min(kSampleTokens, count), start = (count - span) / (kSamples - 1) * s;
      const std::vector<char> sample = readBytes(f, start, span);
      h.update(sample.data(), sample.size());
    }
  }
  return h.finish();
}

}  // namespace gptc
