#include "frontends/tokenizer/printable.h"

#include "frontends/tokenizer/utf8.h"

#include <array>
#include <vector>

namespace gptc {
namespace {

struct PrintableTable {
  std::array<uint32_t, 256> character;
  std::array<int, 512> byte;
  std::vector<int> order;

  PrintableTable() {
    byte.fill(-1);
    auto printsAsItself = [](int b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad); };
    uint32_t next = 256;
    for (int b = 0; b < 256; ++b)
      character[b] = printsAsItself(b) ? b : next++;
    for (bool first : {true, false})
      for (int b = 0; b < 256; ++b)
        if (printsAsItself(b) == first)
          order.push_back(b);
    for (int b = 0; b < 256; ++b)
      byte[character[b]] = b;
  }
};

const PrintableTable &printable() {
  static const PrintableTable table;
  return table;
}

}  // namespace

int byteOfToken(int token) { return printable().order[size_t(token)]; }

std::string printableBytes(std::string_view bytes) {
  std::string out;
  for (char c : bytes)
    appendUtf8(out, printable().character[uint8_t(c)]);
  return out;
}

bool bytesOfPrintable(std::string_view text, std::string &bytes) {
  bytes.clear();
  while (!text.empty()) {
    CodePoint c = firstCodePoint(text);
    if (c.value >= printable().byte.size() || printable().byte[c.value] < 0)
      return false;
    bytes += char(printable().byte[c.value]);
    text.remove_prefix(c.length);
  }
  return true;
}

}  // namespace gptc
