#include "tools/serve/completion.h"

#include "support/diagnostics.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/Support/JSON.h"

#include <algorithm>

namespace gptc {

using nlohmann::json;

TokenNames::TokenNames(const Tokenizer &tokenizer) {
  llvm::StringMap<int> count;
  const auto vocab = int32_t(tokenizer.vocabSize());
  for (int32_t token = 0; token < vocab; ++token)
    ++count[tokenizer.text(token)];
  for (int32_t token = 0; token < vocab; ++token) {
    const std::string &text = tokenizer.text(token);
    const bool plain = !text.empty() && count[text] == 1 && llvm::json::isUTF8(text) &&
                       !llvm::StringRef(text).starts_with("token_id:");
    names.push_back(plain ? text : fmt::format("token_id:{}", token));
  }
}

std::string TokenNames::operator()(int32_t token) const {
  return token >= 0 && size_t(token) < names.size() ? names[size_t(token)] : fmt::format("token_id:{}", token);
}

Completion::Completion(const CompletionRequest &request, const Tokenizer &tokenizer, const TokenNames *names)
    : request(request), tokenizer(tokenizer), names(names), stream(tokenizer), stops(request.stops) {
  // What a token adds may depend on those before it, also where the prompt is not shown.
  for (int32_t token : request.prompt) {
    if (request.echo)
      list(token, nullptr);
    const std::string text = stream.push(token);
    if (request.echo)
      say(text, false);
  }
  if (request.echo && !request.logProbs && !request.text.empty())
    said = request.text;  // as it was given, which some tokenizers change
}

void Completion::prompt(const std::vector<TokenScores> &scores) {
  for (size_t i = 0; i < scores.size(); ++i)
    setScores(i + 1, scores[i]);
}

bool Completion::token(int32_t id, const TokenScores *scores) {
  ++made;
  list(id, scores);
  sawEnd = id == tokenizer.endOfText() && !request.ignoreEnd;
  if (!sawEnd)
    say(stream.push(id), true);
  return !sawEnd && !stops.found();
}

void Completion::end() {
  if (!stops.found())
    say(stream.finish(), true);
  said += stops.finish();
  reason = sawEnd || stops.found() ? "stop" : "length";
}

/// Characters are counted as they come from the tokens: a token begins behind those before it.
void Completion::say(const std::string &text, bool untilStop) {
  characters += std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  said += untilStop ? stops.push(text) : text;
}

void Completion::list(int32_t id, const TokenScores *scores) {
  if (!request.logProbs)
    return;
  listed.push_back((*names)(id));
  offsets.push_back(characters);
  own.push_back(nullptr);
  top.push_back(nullptr);
  if (scores)
    setScores(own.size() - 1, *scores);
}

void Completion::setScores(size_t i, const TokenScores &scores) {
  own[i] = scores.logProbability;
  if (*request.logProbs == 0)
    return;
  top[i] = json::object();
  for (const auto &[id, logProbability] : scores.top)
    top[i][(*names)(id)] = logProbability;
}

json Completion::logProbabilities(size_t from) const {
  if (!request.logProbs)
    return nullptr;
  auto rest = [&](const json &all) { return json(all.begin() + ptrdiff_t(from), all.end()); };
  return {{"tokens", rest(listed)},
          {"token_logprobs", rest(own)},
          {"top_logprobs", rest(top)},
          {"text_offset", rest(offsets)}};
}

}  // namespace gptc
