#include "frontends/r_corpus.h"

#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include "llvm/ADT/StringExtras.h"

#include <zlib.h>

#include <optional>

namespace gptc {

namespace {

[[noreturn]] void damaged(const std::string &file, const std::string &why) {
  throw UserError(ErrorCode::DataInvalid, fmt::format("{} is no R data file that gptc can read: {}", file, why));
}

/// Big-endian reader of a serialised object.
class Xdr {
public:
  Xdr(std::string_view data, const std::string &file) : data(data), file(file) {}
  std::string_view bytes(size_t n) {
    if (n > data.size())
      damaged(file, "an object ends early");
    std::string_view b = data.substr(0, n);
    data.remove_prefix(n);
    return b;
  }
  int32_t integer() {
    std::string_view b = bytes(4);
    uint32_t v = 0;
    for (char c : b)
      v = v << 8 | uint8_t(c);
    return int32_t(v);
  }

private:
  std::string_view data;
  const std::string &file;
};

/// Lines of a character vector; nullopt for any other object.
std::optional<std::string> characterVector(std::string_view object, const std::string &file) {
  constexpr int characters = 9, vector = 16, latin1 = 1 << 14;
  Xdr in(object, file);
  if (in.bytes(2) != "X\n")
    damaged(file, "an object is not in XDR form");
  const int version = in.integer();
  in.integer();  // version of R that wrote it
  in.integer();  // oldest version of R that reads it
  if (version == 3)
    in.bytes(size_t(in.integer()));  // name of the native encoding
  else if (version != 2)
    damaged(file, fmt::format("serialization version {}", version));
  if ((in.integer() & 0xff) != vector)
    return std::nullopt;
  std::string text;
  for (int32_t n = in.integer(); n > 0; --n) {
    const int flags = in.integer();
    const int32_t length = in.integer();
    if ((flags & 0xff) != characters)
      damaged(file, "a character vector holds something else");
    if (length >= 0) {  // -1: NA
      std::string_view line = in.bytes(size_t(length));
      if (flags & latin1)
        for (char c : line)
          appendUtf8(text, uint8_t(c));
      else
        text += line;
    }
    text += '\n';
  }
  return text;
}

std::string inflateRecord(std::string_view &data, const std::string &file) {
  if (data.size() < 4)
    damaged(file, "it ends early");
  uint32_t size = 0;
  for (int i = 0; i < 4; ++i)
    size = size << 8 | uint8_t(data[i]);
  data.remove_prefix(4);
  if (size > 1u << 30)
    damaged(file, "an object of more than 1 GiB");
  std::string content(size, '\0');
  z_stream z{};
  if (inflateInit(&z) != Z_OK)
    throw std::bad_alloc();
  z.next_in = reinterpret_cast<Bytef *>(const_cast<char *>(data.data()));
  z.avail_in = uInt(std::min<size_t>(data.size(), UINT32_MAX));
  z.next_out = reinterpret_cast<Bytef *>(content.data());
  z.avail_out = size;
  const int status = inflate(&z, Z_FINISH);
  const size_t used = z.total_in, made = z.total_out;
  inflateEnd(&z);
  if (status != Z_STREAM_END || made != size)
    damaged(file, "a compressed object is damaged");
  data.remove_prefix(used);
  return content;
}

/// "PRIDE AND PREJUDICE" -> "pride-and-prejudice".
std::string titleOf(std::string_view text) {
  std::string name;
  for (char c : text) {
    if (c == '\n' && !name.empty())
      break;
    if (llvm::isAlnum(c))
      name += llvm::toLower(c);
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  while (!name.empty() && name.back() == '-')
    name.pop_back();
  return name.empty() ? "text" : name.substr(0, 80);
}

}  // namespace

std::vector<std::pair<std::string, int64_t>> extractRTexts(const std::string &rdb, const std::string &outDir) {
  const std::string content = readInput(rdb, "R data file");
  std::vector<std::string> texts;
  for (std::string_view data = content; !data.empty();)
    if (auto text = characterVector(inflateRecord(data, rdb), rdb))
      texts.push_back(std::move(*text));
  if (texts.empty())
    damaged(rdb, "it holds no text");
  makeFolder(outDir);
  std::vector<std::pair<std::string, int64_t>> written;
  for (const std::string &text : texts) {
    const std::string file = outDir + "/" + titleOf(text) + ".txt";
    writeFileAtomically(file, text);
    written.emplace_back(file, int64_t(text.size()));
  }
  return written;
}

}  // namespace gptc
