// Tokenizers that gptc makes itself, GPT-2's merges, and how they are written as tokenizer.json, which `tokenizers` of
// Hugging Face reads. All kinds fit: byte and char are BPE without merges, char without the ByteLevel step.
#include "frontends/tokenizer/json_parts.h"
#include "frontends/tokenizer/pipeline.h"
#include "frontends/tokenizer/printable.h"
#include "frontends/tokenizer/training.h"
#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <unordered_map>

namespace gptc {

void addByteAlphabet(Pipeline &p, bool gpt2Order) {
  for (int i = 0; i < 256; ++i)
    p.pieces.push_back(std::string(1, char(gpt2Order ? byteOfToken(i) : i)));
}

void addControl(Pipeline &p, BpeParts &bpe, const std::string &name) {
  AddedToken t;
  t.id = int32_t(p.pieces.size());
  t.content = name;
  t.special = true;
  p.pieces.push_back(name);
  bpe.added.push_back(std::move(t));
}

namespace {

using Json = nlohmann::ordered_json;

/// Ids of tokens that stand beside the vocabulary.
std::vector<bool> besides(const Pipeline &p, const BpeParts &bpe) {
  std::vector<bool> of(p.pieces.size());
  for (const AddedToken &t : bpe.added)
    of[size_t(t.id)] = true;
  return of;
}

Json byteLevelJson(const BpeParts &bpe) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", bpe.splitWords && bpe.pattern.empty()}};
}

Json preTokenizerJson(const BpeParts &bpe) {
  Json level = byteLevelJson(bpe);
  Json steps = Json::array();
  if (bpe.digitsAlone)
    steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (!bpe.pattern.empty())
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", bpe.pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  if (steps.empty())
    return level;
  steps.push_back(std::move(level));
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace

std::string bpeJson(const Pipeline &p, const BpeParts &bpe) {
  auto written = [&](int32_t id) { return p.bytes ? printableBytes(p.pieces[size_t(id)]) : p.pieces[size_t(id)]; };
  Json vocab = Json::object(), pairs = Json::array(), added = Json::array();
  const std::vector<bool> beside = besides(p, bpe);
  for (int32_t id = 0; size_t(id) < p.pieces.size(); ++id)
    if (!beside[size_t(id)] && !p.pieces[size_t(id)].empty())
      vocab.get_ref<Json::object_t &>().emplace_back(written(id), id);  // operator[] would compare all earlier names
  for (const auto &[left, right] : bpe.merges)
    pairs.push_back(written(left) + " " + written(right));
  for (const AddedToken &t : bpe.added)
    added.push_back(addedTokenJson(t));
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false}};
  if (bpe.ignoreMerges)
    model["ignore_merges"] = true;
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(pairs);
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", p.bytes ? preTokenizerJson(bpe) : Json()},
                     {"post_processor", postProcessorJson(p.single, [&](int32_t id) { return p.pieces[size_t(id)]; })},
                     {"decoder", p.bytes ? byteLevelJson(bpe) : Json{{"type", "Fuse"}}},
                     {"model", std::move(model)}};
  return file.dump(1) + "\n";
}

Tokenizer finishByteLevel(std::unique_ptr<Pipeline> p, const BpeParts &bpe, const std::string &where) {
  p->bytes = true;
  BpeOptions options;
  options.bytes = true;
  options.ignoreMerges = bpe.ignoreMerges;
  auto model = std::make_unique<Bpe>(options);
  const std::vector<bool> beside = besides(*p, bpe);
  for (size_t id = 0; id < p->pieces.size(); ++id)
    if (!beside[id] && !p->pieces[id].empty())
      model->add(p->pieces[id], int32_t(id));
  for (size_t i = 0; i < bpe.merges.size(); ++i)
    model->addMerge(bpe.merges[i].first, bpe.merges[i].second, bpe.into[i],
                    bpe.ranks.empty() ? int32_t(i) : bpe.ranks[i]);
  model->finish(p->pieces);
  p->kind = model->hasMerges() ? "bpe" : "byte";
  p->model = std::move(model);
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  if (bpe.digitsAlone)
    steps.push_back(digits(true));
  if (bpe.splitWords) {
    if (const FirstWord words = bpe.pattern.empty() ? firstWord : wordsOfPattern(bpe.pattern))
      steps.push_back(splitByHand(words));
    else
      steps.push_back(
          splitOn(Regex(bpe.pattern, where), SplitBehavior::isolated, false, cutsBeforeLineFeed(bpe.pattern)));
  }
  if (!steps.empty())
    p->preTokenizer = allOf(std::move(steps));
  for (const AddedToken &t : bpe.added) {
    p->added.add(t, t.content);
    if (t.special)
      p->setControl(t.id);
  }
  p->findEndOfText();
  p->cutsAnywhere = bpe.merges.empty() && p->added.empty();
  if (p->file.content.empty())
    p->file = {"tokenizer.json", bpeJson(*p, bpe)};
  return Tokenizer(std::shared_ptr<const Pipeline>(std::move(p)));
}

Tokenizer Tokenizer::bytes() {
  auto p = std::make_unique<Pipeline>();
  addByteAlphabet(*p, false);
  return finishByteLevel(std::move(p), {}, "");
}

Tokenizer Tokenizer::characters(const CharacterSet &used) {
  auto p = std::make_unique<Pipeline>();
  auto model = std::make_unique<Bpe>(BpeOptions{});
  for (uint32_t c = 0; c < 0x110000; ++c)
    if (used.holds(c)) {
      std::string text;
      appendUtf8(text, c);
      model->add(text, int32_t(p->pieces.size()));
      p->pieces.push_back(std::move(text));
    }
  model->finish(p->pieces);
  p->kind = "char";
  p->model = std::move(model);
  p->cutsAnywhere = true;
  p->file = {"tokenizer.json", bpeJson(*p, {})};
  return Tokenizer(std::shared_ptr<const Pipeline>(std::move(p)));
}

Tokenizer Tokenizer::fromMerges(const std::string &file) {
  const std::string content = readInput(file, "merges file", kTokenizerLimit);
  auto p = std::make_unique<Pipeline>();
  addByteAlphabet(*p, true);
  std::unordered_map<std::string, int32_t> ids;
  for (size_t i = 0; i < p->pieces.size(); ++i)
    ids[p->pieces[i]] = int32_t(i);

  BpeParts bpe;
  llvm::SmallVector<llvm::StringRef, 0> lines;
  llvm::StringRef(content).split(lines, '\n');
  for (size_t n = 0; n < lines.size(); ++n) {
    const llvm::StringRef line = lines[n].rtrim('\r');
    if ((n == 0 && line.starts_with("#version")) || (line.empty() && n + 1 == lines.size()))
      continue;
    auto bad = [&](const std::string &why) {
      const SourceLoc at{file, unsigned(n + 1), 1, unsigned(std::max<size_t>(1, line.size())), line.str()};
      throw UserError(
          Diagnostic{ErrorCode::DataInvalid,
                     "this is no merges file of GPT-2",
                     at,
                     why,
                     {"each line holds two pieces with one space between them, in the order of the merges"}});
    };
    auto [left, right] = line.split(' ');
    std::string a, b;
    if (left.empty() || right.empty() || !bytesOfPrintable(left.str(), a) || !bytesOfPrintable(right.str(), b))
      bad("not two pieces");
    auto l = ids.find(a), r = ids.find(b);
    if (l == ids.end() || r == ids.end())
      bad("this piece was not made by an earlier line");
    const int32_t into = int32_t(p->pieces.size());
    if (!ids.emplace(a + b, into).second)
      bad("this merge was made by an earlier line");
    p->pieces.push_back(a + b);
    bpe.merges.emplace_back(l->second, r->second);
    bpe.into.push_back(into);
  }
  if (bpe.merges.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} holds no merges", file), "GPT-2's file has 50000");
  addControl(*p, bpe, kEndOfText);
  return finishByteLevel(std::move(p), bpe, file);
}

}  // namespace gptc
