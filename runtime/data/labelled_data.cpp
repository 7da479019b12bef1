#include "runtime/data/labelled_data.h"

#include "runtime/data/data.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "support/words.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gptc {

namespace {

static_assert(std::endian::native == std::endian::little, "files of texts are little-endian");

constexpr int64_t kPiece = 1 << 20;  // tokens, or ends of texts, per read when all are read
constexpr const char *kAgain = "make it again with `gptc data prepare --labels`";
constexpr const char *kSame = "name the labels.json beside the file in data.labels and compile again, or make the file "
                              "again with `gptc data prepare --labels` and the model's";

[[noreturn]] void invalid(const std::string &path, const std::string &what, const std::string &help = kAgain) {
  throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", path, what), help);
}

uint32_t idOf(uint32_t word) { return word & uint32_t(LabelledHeader::kMostIds - 1); }
uint32_t typeOf(uint32_t word) { return word >> LabelledHeader::kTypeShift; }

bool isCount(int64_t n, int64_t least) { return n >= least && n <= LabelledHeader::kMost; }

}  // namespace

LabelledData::LabelledData(const std::string &pattern, const std::string &key, LabelledLimits l)
    : limits(std::move(l)) {
  for (const std::string &path : filesOf(pattern, key)) {
    File f{path, nameInPattern(path, pattern), std::make_unique<InputFile>(path, key), {}, texts, {}, {}};
    open(f);
    texts += f.header.texts;
    files.push_back(std::move(f));
  }
}

void LabelledData::read(const File &f, int64_t at, void *to, size_t bytes) {
  if (bytes && !f.file->read(size_t(at), to, bytes))
    invalid(f.path, fmt::format("bytes {} to {} cannot be read any more", at, at + int64_t(bytes) - 1),
            "do not change files while they are in use; run again with the file whole");
}

void LabelledData::open(File &f) const {
  LabelledHeader &h = f.header;
  const size_t size = f.file->size();
  h.magic = 0;
  if (size >= size_t(LabelledHeader::kBytes))
    read(f, 0, &h, sizeof h);
  if (h.magic != LabelledHeader::kMagic)
    invalid(f.path, "no file of texts with labels, which a model with labels learns");
  if (h.version != LabelledHeader::kVersion)
    invalid(f.path, fmt::format("a file of texts of version {}; {} is known", h.version, LabelledHeader::kVersion));
  const bool counts = isCount(h.texts, 1) && isCount(h.tokens, h.texts) && isCount(h.nameBytes, 1);
  if (counts && (h.problem < 0 || h.problem >= int32_t(wordsOf<ProblemType>.size())))
    invalid(f.path, fmt::format("damaged: its header promises labels of kind {}", h.problem));
  const int32_t least = h.problem == LabelledHeader::kOneLabel ? 2 : 1;
  if (counts &&
      (h.nameBytes > LabelledHeader::kMostNameBytes || h.labels < least || h.labels > LabelledHeader::kMostLabels))
    invalid(f.path,
            fmt::format("damaged: its header promises {} labels, with names of {} bytes", h.labels, h.nameBytes));
  if (!counts || size != size_t(h.bytes()))
    invalid(f.path, fmt::format("truncated, or damaged: its header promises {} texts of {} tokens, and it has {} bytes",
                                h.texts, h.tokens, size));
  if (h.problem != int32_t(limits.problem))
    invalid(f.path,
            fmt::format("its labels are for {}, and the model's for {}", nameOf(ProblemType(h.problem)),
                        nameOf(limits.problem)),
            kSame);
  if (h.labels != limits.labels)
    invalid(f.path, fmt::format("its texts have {} labels, and the model tells {}", h.labels, limits.labels), kSame);
  requireNames(f);
  readEnds(f);
  readLabels(f);
}

void LabelledData::readLabels(File &f) const {
  const LabelledHeader &h = f.header;
  const auto words = size_t(h.wordsOfText());
  f.labels.resize(f.ends.size() * words);
  read(f, h.labelsAt(), f.labels.data(), f.labels.size() * sizeof(int32_t));
  const int32_t inLast = h.labels % 32;  // labels of the last word; 0: all 32
  for (size_t i = 0; i < f.ends.size(); ++i) {
    const int32_t last = f.labels[words * i + words - 1];
    switch (limits.problem) {
    case ProblemType::single_label_classification:
      if (last < 0 || last >= limits.labels)
        invalid(f.path, fmt::format("damaged: text {} has the label {} of {}", i, last, limits.labels));
      break;
    case ProblemType::multi_label_classification:
      if (inLast && uint32_t(last) >> inLast)
        invalid(f.path, fmt::format("damaged: text {} has a label beyond {}", i, limits.labels));
      break;
    case ProblemType::regression:
      if (!std::isfinite(std::bit_cast<float>(last)))
        invalid(f.path, fmt::format("damaged: text {} has a label that is no finite number", i));
    }
  }
}

void LabelledData::readEnds(File &f) const {
  const LabelledHeader &h = f.header;
  int64_t begin = 0, longest = 0;
  for (int64_t first = 0; first < h.texts; first += kPiece) {
    const int64_t last = std::min(first + kPiece, h.texts);
    f.ends.resize(size_t(last));
    read(f, h.endsAt() + 8 * first, f.ends.data() + first, size_t(last - first) * sizeof(int64_t));
    for (int64_t i = first; i < last; ++i) {
      const int64_t end = f.ends[size_t(i)];
      if (end <= begin || end > h.tokens)
        invalid(f.path, fmt::format("damaged: text {} ends at token {} of {}", i, end, h.tokens));
      const int64_t length = end - begin;
      if (length > limits.blockSize)
        invalid(f.path,
                fmt::format("text {} has {} tokens, and the model sees {} (block_size)", i, length, limits.blockSize),
                fmt::format("make it again with `gptc data prepare --context {}`, or write a larger model.block_size",
                            limits.blockSize));
      longest = std::max(longest, length);
      begin = end;
    }
  }
  if (begin != h.tokens)
    invalid(f.path, fmt::format("damaged: its texts have {} tokens of {}", begin, h.tokens));
  if (longest != h.longest)
    invalid(f.path, fmt::format("damaged: its longest text has {} tokens, by its header {}", longest, h.longest));
}

void LabelledData::requireNames(const File &f) const {
  std::string text(size_t(f.header.nameBytes), '\0');
  read(f, f.header.namesAt(), text.data(), text.size());
  std::vector<std::string> there;
  const nlohmann::json list = parseJsonOrDiscard<nlohmann::json>(text);
  for (const nlohmann::json &name : list.is_array() ? list : nlohmann::json::array())
    there.push_back(name.is_string() ? name.get<std::string>() : "");
  if (there.empty() || int64_t(there.size()) != f.header.labels)
    invalid(f.path, "damaged: it does not name its labels");
  const bool differ = !limits.names.empty() && there != limits.names;
  if (!differ)
    return;
  const int64_t at =
      std::mismatch(there.begin(), there.end(), limits.names.begin(), limits.names.end()).first - there.begin();
  std::string what = fmt::format("its labels are {}, and the model's {}", quotedSome(there), quotedSome(limits.names));
  if (const size_t i = size_t(at); i < std::min(there.size(), limits.names.size()))
    what += fmt::format(": label {} is \"{}\", and the model's \"{}\"", i, there[i], limits.names[i]);
  invalid(f.path, what, kSame);
}

std::vector<uint32_t> LabelledData::words(const File &f, int64_t begin, int64_t count) const {
  std::vector<uint32_t> found(static_cast<size_t>(count));
  read(f, f.header.tokensAt() + 4 * begin, found.data(), found.size() * sizeof(uint32_t));
  for (size_t i = 0; i < found.size(); ++i) {
    if (idOf(found[i]) < limits.vocab && typeOf(found[i]) < std::max<int64_t>(1, limits.types))
      continue;
    const int64_t text = std::upper_bound(f.ends.begin(), f.ends.end(), begin + int64_t(i)) - f.ends.begin();
    throw UserError(ErrorCode::TokenOutOfRange,
                    fmt::format("{}: text {} has token {} of type {}, and the model {} tokens of {} types", f.path,
                                text, idOf(found[i]), typeOf(found[i]), limits.vocab, limits.types),
                    "prepare the data with the model's own tokenizer");
  }
  return found;
}

void LabelledData::trainingRow(uint64_t seed, int64_t g, const SequenceRow &row) const {
  evalRow(Permutation(texts, seed, uint64_t(g / texts))(g % texts), row);
}

int64_t LabelledData::targets(uint64_t, int64_t, int64_t count) const { return count * targetsOfText(); }

int64_t LabelledData::evalRow(int64_t number, const SequenceRow &row) const {
  size_t i = files.size() - 1;
  while (files[i].first > number)
    --i;
  const File &f = files[i];
  const size_t text = size_t(number - f.first);
  const int64_t begin = f.beginOf(text), length = f.ends[text] - begin;
  const std::vector<uint32_t> found = words(f, begin, length);
  emptyRow(row);
  for (int64_t t = 0; t < length; ++t) {
    row.x[t] = int32_t(idOf(found[size_t(t)]));
    row.types[t] = int32_t(typeOf(found[size_t(t)]));
    row.documents[2 * t] = 0;
    row.documents[2 * t + 1] = length;
  }
  const int32_t *right = &f.labels[text * size_t(f.header.wordsOfText())];
  if (limits.problem == ProblemType::multi_label_classification)
    for (int64_t l = 0; l < limits.labels; ++l)
      row.y[l] = int32_t(uint32_t(right[l / 32]) >> l % 32 & 1);
  else if (limits.problem == ProblemType::regression)
    row.number[0] = std::bit_cast<float>(right[0]);
  else
    row.y[0] = right[0];
  return targetsOfText();
}

void LabelledData::emptyRow(const SequenceRow &row) const {
  if (row.number)
    row.number[0] = 0;
  else
    std::fill_n(row.y, targetsOfText(), -1);
  for (int64_t t = 0; t < limits.blockSize; ++t) {
    row.x[t] = row.types[t] = 0;
    row.documents[2 * t] = t;
    row.documents[2 * t + 1] = t + 1;
  }
}

void LabelledData::checkTokens() const {
  for (const File &f : files)
    checkFile(f);
}

std::string LabelledData::note() const {
  int64_t longest = 0;
  for (const File &f : files)
    longest = std::max<int64_t>(longest, f.header.longest);
  return 2 * longest > limits.blockSize
             ? ""
             : fmt::format(
                   "the longest text has {} tokens, and each takes model.block_size = {}: a smaller one is faster",
                   longest, limits.blockSize);
}

void LabelledData::checkFile(const File &f) const {
  for (int64_t begin = 0; begin < f.header.tokens; begin += kPiece)
    words(f, begin, std::min(kPiece, f.header.tokens - begin));
}

void LabelledData::requireLargest(size_t i, uint32_t largest) const {
  if (largest < limits.vocab)
    return;
  checkFile(files[i]);
  changedUnnoticed(files[i].path, largest, limits.vocab);
}

TrainingData::Content LabelledData::content(size_t i, const std::atomic<bool> &givenUp) const {
  const File &f = files[i];
  Content r;
  Hasher h;
  const int64_t endOfTokens = f.header.tokensAt() + 4 * f.header.tokens;
  std::vector<uint32_t> piece(static_cast<size_t>(kPiece));
  for (int64_t at = f.header.tokensAt(); at < f.header.bytes() && !givenUp; at += 4 * kPiece) {
    const int64_t bytes = std::min(4 * kPiece, f.header.bytes() - at);
    read(f, at, piece.data(), size_t(bytes));
    h.update(piece.data(), size_t(bytes));
    for (int64_t t = 0; t < std::min(bytes, endOfTokens - at) / 4; ++t)
      r.largest = std::max(r.largest, idOf(piece[size_t(t)]));
  }
  r.hash = h.finish();
  return r;
}

std::vector<std::string> LabelledData::paths() const {
  std::vector<std::string> r;
  for (const File &f : files)
    r.push_back(f.path);
  return r;
}

std::vector<std::string> LabelledData::names() const {
  std::vector<std::string> r;
  for (const File &f : files)
    r.push_back(f.name);
  return r;
}

}  // namespace gptc
