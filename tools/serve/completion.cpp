#include "tools/serve/completion.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
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
    listed[i + 1].scores = scores[i];
}

bool Completion::token(int32_t id, const TokenScores *scores) {
  ++made;
  list(id, scores);
  sawEnd = !request.ignoreEnd && llvm::is_contained(request.ends, id);
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
  if (request.logProbs)
    listed.push_back({id, characters, scores ? std::optional(*scores) : std::nullopt});
}

json Completion::logProbabilities(size_t from) const {
  if (!request.logProbs)
    return nullptr;
  json tokens = json::array(), own = json::array(), top = json::array(), offsets = json::array();
  for (const Listed &l : llvm::ArrayRef(listed).drop_front(from)) {
    tokens.push_back((*names)(l.token));
    offsets.push_back(l.offset);
    own.push_back(l.scores ? json(l.scores->logProbability) : json());
    top.push_back(nullptr);
    if (!l.scores || *request.logProbs == 0)
      continue;
    top.back() = json::object();
    for (const auto &[id, logProbability] : l.scores->top)
      top.back()[(*names)(id)] = logProbability;
  }
  return {{"tokens", tokens}, {"token_logprobs", own}, {"top_logprobs", top}, {"text_offset", offsets}};
}

json Completion::chatLogProbabilities(size_t from) const {
  if (!request.logProbs)
    return nullptr;
  auto entry = [&](int32_t id, double logProbability) -> json {
    const std::string &text = tokenizer.text(id);
    return {{"token", (*names)(id)},
            {"logprob", logProbability},
            {"bytes", std::vector<int>(reinterpret_cast<const unsigned char *>(text.data()),
                                       reinterpret_cast<const unsigned char *>(text.data()) + text.size())}};
  };
  json content = json::array();
  for (const Listed &l : llvm::ArrayRef(listed).drop_front(from)) {
    content.push_back(entry(l.token, l.scores ? l.scores->logProbability : 0));
    json &top = content.back()["top_logprobs"] = json::array();
    for (const auto &[id, logProbability] :
         l.scores && *request.logProbs > 0 ? l.scores->top : decltype(l.scores->top)())
      top.push_back(entry(id, logProbability));
  }
  return {{"content", content}};
}

}  // namespace gptc
