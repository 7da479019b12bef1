// tiktoken's rank files and Mistral's tekken.json. A word that is a token is that token. Else neighbours merge whose
// concatenation is a token, the lowest rank first: a merge's rank is that of the token that it makes.
#include "frontends/tokenizer/patterns.h"
#include "frontends/tokenizer/pipeline.h"
#include "support/diagnostics.h"
#include "support/json.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Base64.h"

namespace gptc {
namespace {

/// Control tokens that stand behind the ranks, from their number on.
std::vector<std::string> controlTokens(const std::string &pattern) {
  if (pattern == "gpt2")
    return {kEndOfText};
  if (pattern == "cl100k")
    return {kEndOfText, "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"};
  if (pattern == "llama3")
    return {"<|begin_of_text|>", "<|end_of_text|>"};
  return {kEndOfText};
}

void addToken(Pipeline &p, int64_t id, const std::string &base64, const std::string &where) {
  std::vector<char> bytes;
  if (llvm::Error e = llvm::decodeBase64(base64, bytes)) {
    llvm::consumeError(std::move(e));
    bytes.clear();
  }
  if (bytes.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: \"{}\" is no base64 of a token", where, base64),
                    "get the file again");
  p.place(id, std::string(bytes.begin(), bytes.end()), where);
}

/// All pairs whose concatenation is a token. Every byte must be one.
Tokenizer finishRanks(std::unique_ptr<Pipeline> p, BpeParts bpe, const std::string &where) {
  llvm::StringMap<int32_t> ids;
  std::vector<bool> control(p->pieces.size());
  for (const AddedToken &t : bpe.added)
    control[size_t(t.id)] = true;
  for (size_t id = 0; id < p->pieces.size(); ++id)
    if (!control[id] && !p->pieces[id].empty() && !ids.try_emplace(p->pieces[id], int32_t(id)).second)
      throw UserError(ErrorCode::DataInvalid,
                      fmt::format("{}: tokens {} and {} are the same", where, ids[p->pieces[id]], id),
                      "get the file again");
  for (int b = 0; b < 256; ++b)
    if (!ids.count(std::string(1, char(b))))
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}: no token for byte {:#04x}", where, b),
                      "get the file again; tiktoken's have one for each byte");
  bpe.ignoreMerges = true;
  for (size_t id = 0; id < p->pieces.size(); ++id) {
    if (control[id])
      continue;
    const llvm::StringRef text = p->pieces[id];
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = ids.find(text.take_front(cut)), right = ids.find(text.drop_front(cut));
      if (left == ids.end() || right == ids.end())
        continue;
      bpe.merges.emplace_back(left->second, right->second);
      bpe.into.push_back(int32_t(id));
      bpe.ranks.push_back(int32_t(id));
    }
  }
  return finishByteLevel(std::move(p), bpe, where);
}

}  // namespace

Tokenizer Tokenizer::fromTiktoken(const std::string &content, const std::string &file, const std::string &pattern) {
  auto p = std::make_unique<Pipeline>();
  llvm::StringRef rest = content;
  for (size_t line = 1; !rest.empty(); ++line) {
    const auto [text, after] = rest.split('\n');
    rest = after;
    const llvm::StringRef entry = text.trim();
    if (entry.empty())
      continue;
    const auto [base64, number] = entry.split(' ');
    const std::string where = fmt::format("{}:{}", file, line);
    int64_t rank = -1;
    if (number.trim().getAsInteger(10, rank))
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}: no token with its rank", where),
                      "each line of tiktoken's ranks holds a token in base64, a space and a number");
    addToken(*p, rank, base64.str(), where);
  }
  if (p->pieces.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} holds no ranks", file), "get the file again");
  BpeParts bpe;
  for (const std::string &name : controlTokens(pattern))
    addControl(*p, bpe, name);
  bpe.pattern = pattern == "gpt2"     ? ""
                : pattern == "cl100k" ? patterns::cl100k
                : pattern == "llama3" ? patterns::llama3
                                      : patterns::o200k;
  return finishRanks(std::move(p), std::move(bpe), file);
}

Tokenizer Tokenizer::fromTekken(const std::string &text, const std::string &file) {
  using Json = nlohmann::json;
  auto bad = [&](const std::string &why) -> UserError {
    return {ErrorCode::DataInvalid, fmt::format("{} is no tokenizer that gptc can use: {}", file, why),
            "Mistral's tekken.json has config, vocab and special_tokens"};
  };
  const Json j = parseJsonOrDiscard(text);
  if (!j.is_object())
    throw bad("it is not JSON");
  auto number = [&](const Json &of, const char *name) {
    const auto it = of.find(name);
    if (it == of.end() || !it->is_number_integer() || it->get<int64_t>() < 0 || it->get<int64_t>() >= kMostTokens)
      throw bad(fmt::format("{} is no whole number below {}", name, kMostTokens));
    return it->get<int64_t>();
  };
  auto word = [&](const Json &of, const char *name) {
    const auto it = of.find(name);
    if (it == of.end() || !it->is_string())
      throw bad(fmt::format("{} is no text", name));
    return it->get<std::string>();
  };
  const auto config = j.find("config"), vocab = j.find("vocab");
  if (config == j.end() || vocab == j.end() || !vocab->is_array())
    throw bad("config or vocab is missing");
  const int64_t size = number(*config, "default_vocab_size"), control = number(*config, "default_num_special_tokens");
  if (control > size)
    throw bad("it has more control tokens than tokens");
  auto p = std::make_unique<Pipeline>();
  BpeParts bpe;
  // Control tokens come first; the file may name them.
  constexpr const char *first[] = {"<unk>", "<s>", "</s>"};
  for (int64_t id = 0; id < control; ++id)
    addControl(*p, bpe, id < 3 ? first[id] : fmt::format("<SPECIAL_{}>", id));
  if (const auto named = j.find("special_tokens"); named != j.end() && named->is_array())
    for (const Json &entry : *named) {
      const int64_t id = number(entry, "rank");
      if (id >= control)
        throw bad(fmt::format("control token {} of {}", id, control));
      p->pieces[size_t(id)] = bpe.added[size_t(id)].content = word(entry, "token_str");
    }
  for (size_t rank = 0; rank < vocab->size() && int64_t(rank) + control < size; ++rank) {
    const Json &entry = (*vocab)[rank];
    if (number(entry, "rank") != int64_t(rank))
      throw bad(fmt::format("entry {} of vocab has rank {}", rank, number(entry, "rank")));
    addToken(*p, int64_t(rank) + control, word(entry, "token_bytes"), file);
  }
  p->file = {"tekken.json", text};
  bpe.pattern = word(*config, "pattern");
  return finishRanks(std::move(p), std::move(bpe), file);
}

}  // namespace gptc
