// Models that fill masks in texts: which folders hold one, and the token that stands for what is to be filled.
#pragma once

#include <cstdint>
#include <string>

namespace gptc {

class Tokenizer;

/// Whether what config.json of the folder names has a head for masked tokens: a class ...ForMaskedLM or
/// ...ForPreTraining. Where it names no class, the weights decide. Throws UserError(Contradiction) if it has none,
/// `causal` or not.
void requireMaskedHead(const std::string &dir, bool causal);

/// The token of a mask.
struct MaskToken {
  std::string text;
  int32_t id = -1;
  bool isParsed = false;  // the tokenizer itself makes it of the text, where control tokens are parsed
};

/// That of the tokenizer in `file`, of a model of `vocabSize` tokens whose weights are in the folder of `initFrom`:
/// mask_token of tokenizer_config.json, else [MASK] or <mask>. Throws UserErrors Contradiction if the vocabulary has no
/// such token, and modelTokens' own.
MaskToken maskTokenOf(const Tokenizer &tokenizer, const std::string &file, const std::string &initFrom,
                      int64_t vocabSize);

}  // namespace gptc
