#include "frontends/tokenizer/typed_text.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace gptc {

namespace {

void shorten(std::vector<int32_t> &text, size_t kept, bool cutsBeginnings) {
  if (cutsBeginnings)
    text.erase(text.begin(), text.end() - int64_t(kept));
  else
    text.resize(kept);
}

/// Cuts a text or a pair to `room` tokens in all: the longer one first, and both to halves if neither fits one, of
/// which the longer text, of equal ones the second, has the odd token.
void cut(std::vector<std::vector<int32_t>> &texts, size_t room, bool cutsBeginnings) {
  if (texts.size() == 1)
    return shorten(texts[0], room, cutsBeginnings);
  const bool firstIsLonger = texts[0].size() > texts[1].size();
  std::vector<int32_t> &shorter = texts[firstIsLonger], &longer = texts[!firstIsLonger];
  const size_t kept = std::min(shorter.size(), room / 2);
  shorten(shorter, kept, cutsBeginnings);
  shorten(longer, room - kept, cutsBeginnings);
}

/// The tokens of a text without those around it.
std::vector<int32_t> tokensOf(const Tokenizer &tokenizer, llvm::StringRef text, const TextForm &form) {
  std::vector<int32_t> tokens;
  bool continues = false;
  for (size_t mask; !form.mask.empty() && (mask = text.find(form.mask)) != llvm::StringRef::npos; continues = true) {
    if (mask)
      tokenizer.encode(text.substr(0, mask), tokens,
                       {.parseSpecial = form.parseSpecial, .continues = continues, .continued = true});
    tokens.push_back(form.maskToken);
    text = text.drop_front(mask + form.mask.size());
  }
  if (!text.empty() || !continues)
    tokenizer.encode(text, tokens, {.parseSpecial = form.parseSpecial, .continues = continues});
  return tokens;
}

}  // namespace

TypedText typedText(const Tokenizer &tokenizer, const std::string &text, const std::optional<std::string> &pair,
                    const TextForm &form) {
  const bool isPair = pair && !pair->empty();  // as transformers takes an empty one
  const std::vector<SequencePart> parts = tokenizer.sequenceOf(isPair ? 2 : 1);
  if (parts.empty())
    throw UserError(ErrorCode::NotBuiltYet, "the tokenizer's file does not say how a pair of texts is read",
                    "take a tokenizer.json whose post_processor has a template for pairs, or give single texts");
  std::vector<std::vector<int32_t>> ids = {tokensOf(tokenizer, form.prompt + text, form)};
  if (isPair)
    ids.push_back(tokensOf(tokenizer, *pair, form));
  int64_t around = llvm::count_if(parts, [](const SequencePart &s) { return s.text < 0; }), within = 0;
  for (const std::vector<int32_t> &one : ids)
    within += int64_t(one.size());
  TypedText whole = {.isCut = around + within > form.most};
  if (whole.isCut && around >= form.most)
    throw UserError(ErrorCode::Usage,
                    fmt::format("texts are cut to {} token{}, and the tokenizer puts {} around each{}", form.most,
                                form.most == 1 ? "" : "s", around, isPair ? " pair" : ""),
                    "give a longer --context, or a model that takes longer texts");
  if (whole.isCut)
    cut(ids, size_t(form.most - around), form.cutsBeginnings);
  for (const SequencePart &part : parts) {
    if (part.text < 0)
      whole.tokens.push_back(part.token);
    else
      llvm::append_range(whole.tokens, ids[size_t(part.text)]);
    whole.types.resize(whole.tokens.size(), form.hasTypes ? part.type : 0);
  }
  return whole;
}

}  // namespace gptc
