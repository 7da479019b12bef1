#include "frontends/data_prepare.h"

#include "frontends/tokenizer.h"
#include "frontends/utf8.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include "llvm/ADT/StringRef.h"

#include <bit>
#include <cstring>
#include <filesystem>

namespace gptc {

namespace {

using Texts = std::vector<std::string_view>;
constexpr int64_t largestVocab = 1 << 16;

/// The parsed value of --tokenizer, checked before any file is read.
struct Wanted {
  enum Kind { characters, bytes, bpe, merges, file } kind;
  int64_t vocab = 0;
  std::string path;
};

Wanted parseTokenizer(const std::string &text) {
  const llvm::StringRef s = text;
  auto [name, rest] = s.split(':');
  if (s == "char")
    return {Wanted::characters};
  if (s == "byte")
    return {Wanted::bytes};
  if (name == "gpt2" && !rest.empty())
    return {Wanted::merges, 0, rest.str()};
  if (s.ends_with(".json"))
    return {Wanted::file, 0, text};
  int64_t vocab;
  if (name == "bpe" && !rest.getAsInteger(10, vocab)) {
    if (vocab < 257 || vocab > largestVocab)
      throw UserError(ErrorCode::Usage,
                      fmt::format("--tokenizer bpe:{}: the vocabulary must be 257 to {}", vocab, largestVocab),
                      "256 bytes, the merges, and <|endoftext|>; tokens are stored in 16 bits. bpe:4096 suits a few "
                      "megabytes of text");
    return {Wanted::bpe, vocab};
  }
  throw UserError(ErrorCode::Usage, fmt::format("--tokenizer {} is not known", text),
                  "char, byte, bpe:4096, gpt2:MERGES_FILE, or a tokenizer.json");
}

std::string readText(const std::string &file, bool anyBytes) {
  std::string text = readInput(file, "text file");
  if (text.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("text file {} is empty", file), "leave it out, or fill it");
  if (anyBytes)
    return text;
  if (size_t at = findInvalidUtf8(text); at != std::string::npos)
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("{} is no UTF-8 text: byte {:#04x} at offset {} (line {})", file, uint8_t(text[at]), at,
                                1 + llvm::StringRef(text).take_front(at).count('\n')),
                    "convert it, for example `iconv -f latin1 -t utf8`, or use --tokenizer byte");
  return text;
}

Tokenizer makeTokenizer(const Wanted &wanted, const Texts &train, const Texts &all) {
  switch (wanted.kind) {
  case Wanted::characters:
    return Tokenizer::characters(all);
  case Wanted::bytes:
    return Tokenizer::bytes();
  case Wanted::bpe:
    return Tokenizer::train(train, wanted.vocab);
  case Wanted::merges:
    return Tokenizer::fromMerges(wanted.path);
  case Wanted::file:
    return Tokenizer::load(wanted.path);
  }
  GPTC_UNREACHABLE("tokenizer kind {}", int(wanted.kind));
}

/// Moves the last `fraction` of all characters to `val`.
void split(Texts &train, Texts &val, double fraction, bool bytes) {
  auto lengthOf = [&](std::string_view t) { return bytes ? int64_t(t.size()) : countCodePoints(t); };
  int64_t total = 0;
  for (std::string_view t : train)
    total += lengthOf(t);
  int64_t left = int64_t(double(total) * (1 - fraction));
  Texts kept;
  for (std::string_view t : train) {
    const int64_t n = lengthOf(t);
    const size_t cut = left >= n ? t.size() : bytes ? left : bytesOfCodePoints(t, left);
    if (cut)
      kept.push_back(t.substr(0, cut));
    if (cut < t.size())
      val.push_back(t.substr(cut));
    left -= std::min(left, n);
  }
  train = std::move(kept);
}

std::vector<int32_t> encodeAll(const Texts &texts, const Tokenizer &tokenizer) {
  std::vector<int32_t> tokens;
  for (std::string_view text : texts) {
    if (!tokens.empty() && tokenizer.endOfText() >= 0)
      tokens.push_back(tokenizer.endOfText());
    tokenizer.encode(text, tokens);
  }
  return tokens;
}

void writeTokens(const std::string &file, const std::vector<int32_t> &tokens, bool llmc) {
  static_assert(std::endian::native == std::endian::little, "token files are little-endian");
  std::string content;
  if (llmc) {
    int32_t header[256] = {20240520, 1, int32_t(tokens.size())};
    content.assign(reinterpret_cast<const char *>(header), sizeof header);
  }
  const size_t start = content.size();
  content.resize(start + 2 * tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint16_t t = uint16_t(tokens[i]);
    std::memcpy(content.data() + start + 2 * i, &t, 2);
  }
  writeFileAtomically(file, content);
}

int64_t bytesOf(const Texts &texts) {
  int64_t n = 0;
  for (std::string_view t : texts)
    n += int64_t(t.size());
  return n;
}

}  // namespace

PrepareResult prepareData(const PrepareOptions &options) {
  const Wanted wanted = parseTokenizer(options.tokenizer);
  if (options.format != "nanogpt" && options.format != "llmc")
    throw UserError(ErrorCode::Usage, fmt::format("--format {} is not known", options.format), "nanogpt or llmc");
  if (!(options.valFraction >= 0 && options.valFraction < 1))
    throw UserError(ErrorCode::Usage, fmt::format("--val-fraction {} is out of range", options.valFraction),
                    "at least 0 and below 1");

  const bool bytes = wanted.kind == Wanted::bytes;
  std::vector<std::string> contents;
  for (const std::string &f : options.files)
    contents.push_back(readText(f, bytes));
  for (const std::string &f : options.valFiles)
    contents.push_back(readText(f, bytes));
  Texts train(contents.begin(), contents.begin() + options.files.size());
  Texts val(contents.begin() + options.files.size(), contents.end());
  if (val.empty() && options.valFraction > 0)
    split(train, val, options.valFraction, bytes);
  if (train.empty())
    throw UserError(ErrorCode::DataInvalid, "no text is left to train on",
                    "give more text or a smaller --val-fraction");

  Texts all = train;
  all.insert(all.end(), val.begin(), val.end());
  const Tokenizer tokenizer = makeTokenizer(wanted, train, all);
  if (tokenizer.vocabSize() > largestVocab)
    throw UserError(ErrorCode::TooLarge,
                    fmt::format("a vocabulary of {} does not fit the 16 bits of a token file", tokenizer.vocabSize()),
                    "use bpe:N with N up to 65536, or byte");

  // Encode everything before replacing the first file, so that bad text changes no file.
  const std::vector<int32_t> trainTokens = encodeAll(train, tokenizer), valTokens = encodeAll(val, tokenizer);
  const PrepareResult result{tokenizer.describe(),      tokenizer.vocabSize(), int64_t(trainTokens.size()),
                             int64_t(valTokens.size()), bytesOf(train),        bytesOf(val)};
  makeFolder(options.outDir);
  const bool llmc = options.format == "llmc";
  writeTokens(options.outDir + "/train.bin", trainTokens, llmc);
  std::error_code ignored;  // a val.bin of an earlier run would not fit this tokenizer
  if (!val.empty())
    writeTokens(options.outDir + "/val.bin", valTokens, llmc);
  else
    std::filesystem::remove(options.outDir + "/val.bin", ignored);
  writeFileAtomically(options.outDir + "/tokenizer.json", tokenizer.json());
  return result;
}

}  // namespace gptc
