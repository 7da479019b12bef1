// GPT-2's encoding of bytes as printable characters, one per byte, in which files of byte-level BPE are written.
#pragma once

#include <string>
#include <string_view>

namespace gptc {

std::string printableBytes(std::string_view bytes);
/// False if `text` contains a character that encodes no byte.
bool bytesOfPrintable(std::string_view text, std::string &bytes);
/// The byte of GPT-2's token 0 to 255: those that print as themselves come first.
int byteOfToken(int token);

}  // namespace gptc
