#include "frontends/gguf/sentencepiece_scores.h"

#include "frontends/tokenizer/sentencepiece.h"
#include "frontends/tokenizer/utf8.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/StringSet.h"

#include <fmt/format.h>

namespace gptc {
namespace {

using json = nlohmann::json;

/// A token, and the lengths of the left parts that make it.
using Made = std::pair<std::string, std::vector<size_t>>;

/// What merges make, by rank. A token is there again if others are made between two of its merges.
std::vector<Made> madeBy(const PieceMerges &merges) {
  std::vector<Made> made;
  for (const auto &[left, right] : merges) {
    std::string token = left + right;
    if (made.empty() || made.back().first != token)
      made.emplace_back(std::move(token), std::vector<size_t>());
    made.back().second.push_back(left.size());
  }
  for (Made &m : made)
    llvm::sort(m.second);
  return made;
}

/// llama.cpp joins neighbours to any token, a control token too, and characters that are no tokens as well.
std::string joinedWithoutMerge(const GgufVocabulary &v) {
  llvm::StringSet<> pieces;
  for (size_t id = 0; id < v.tokens.size(); ++id)
    if (v.types[id] == GgufVocabulary::normal)
      pieces.insert(v.tokens[id]);
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    const llvm::StringRef token = v.tokens[id];
    const bool normal = v.types[id] == GgufVocabulary::normal;
    if (v.types[id] == GgufVocabulary::userDefined)  // taken out of a text before
      continue;
    if (!normal && isOneCodePoint(token))
      return fmt::format("the token \"{}\", which is one character and none of the text", v.tokens[id]);
    for (const size_t at : splitsOf(token)) {
      const llvm::StringRef left = token.take_front(at), right = token.drop_front(at);
      const bool areTokens = pieces.contains(left) && pieces.contains(right);
      if ((pieces.contains(left) || isOneCodePoint(left)) && (pieces.contains(right) || isOneCodePoint(right)) &&
          !(normal && areTokens))
        return fmt::format("the token \"{}\", which llama.cpp makes of \"{}\" and \"{}\"", v.tokens[id], left.str(),
                           right.str());
    }
  }
  return "";
}

}  // namespace

std::optional<FirstSpace> firstSpaceOf(const json &tokenizer) {
  const json &pre = part(tokenizer, "pre_tokenizer"), &normalizer = part(tokenizer, "normalizer");
  json steps = json::array();
  if (part(normalizer, "type") == "Sequence")
    steps = part(normalizer, "normalizers");
  else if (!normalizer.is_null())
    steps.push_back(normalizer);
  bool prepends = false, marksSpaces = false;
  for (const json &step : steps) {
    const json &type = part(step, "type");
    if (type == "Prepend" && part(step, "prepend") == kSpaceMark && !prepends)
      prepends = true;
    else if (type == "Replace" && part(part(step, "pattern"), "String") == " " && part(step, "content") == kSpaceMark)
      marksSpaces = true;
    else
      return std::nullopt;
  }
  if (pre.is_null())
    return !marksSpaces ? std::nullopt : std::optional(prepends ? FirstSpace::always : FirstSpace::none);
  if (part(pre, "type") != "Metaspace" || part(pre, "replacement") != kSpaceMark || part(pre, "split") != false ||
      prepends)
    return std::nullopt;
  const json &scheme = part(pre, "prepend_scheme");
  const bool never = scheme.is_null() ? part(pre, "add_prefix_space") == false : scheme == "never";
  return never ? FirstSpace::none : FirstSpace::unlessThere;
}

std::string scoreByMerges(GgufVocabulary &v, const PieceMerges &merges, const std::string &file) {
  if (std::string joined = joinedWithoutMerge(v); !joined.empty())
    return joined;
  const std::vector<Made> made = madeBy(merges);
  llvm::StringMap<size_t> ranks;
  for (const Made &m : made)
    ranks.try_emplace(m.first, ranks.size());
  // Different scores, since of equal ones llama.cpp takes the leftmost; whole numbers below 2^24 are exact.
  v.scores.assign(v.tokens.size(), 0);
  size_t behind = ranks.size();
  for (size_t id = 0; id < v.tokens.size(); ++id)
    if (v.types[id] == GgufVocabulary::normal) {
      const auto it = ranks.find(v.tokens[id]);
      v.scores[id] = -float(it == ranks.end() ? behind++ : it->second);
    }
  const SentencePieceModel model = parseSentencePiece(Tokenizer::fromGguf(v, file).file().content, file);
  if (std::string problem = sentencePieceJsonProblem(model); !problem.empty())
    return fmt::format("what does not come back from there: {}", problem);
  const json again = parseJson(sentencePieceJson(model, false, false));
  PieceMerges back;
  for (const json &m : part(part(again, "model"), "merges"))
    back.emplace_back(m[0].get<std::string>(), m[1].get<std::string>());
  const std::vector<Made> madeAgain = madeBy(back);
  const auto [now, then] = std::mismatch(made.begin(), made.end(), madeAgain.begin(), madeAgain.end());
  if (now == made.end() && then == madeAgain.end())
    return "";
  return fmt::format("merges that no scores say, at the token \"{}\"", now == made.end() ? then->first : now->first);
}

}  // namespace gptc
