// Reads and writes GPT-2's merges file and tokenizer.json in the format of Hugging Face's `tokenizers` (model type
// BPE). All four kinds fit: byte and char are BPE without merges, char without the ByteLevel step.
#include "frontends/tokenizer.h"
#include "frontends/utf8.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>

namespace gptc {

Tokenizer Tokenizer::fromMerges(const std::string &file) {
  const std::string content = readInput(file, "merges file");
  Tokenizer t;
  t.addByteAlphabet(true);
  t.indexAlphabet();
  std::unordered_map<std::string, int32_t> ids;
  for (size_t i = 0; i < t.pieces.size(); ++i)
    ids[t.pieces[i]] = int32_t(i);

  llvm::SmallVector<llvm::StringRef, 0> lines;
  llvm::StringRef(content).split(lines, '\n');
  for (size_t n = 0; n < lines.size(); ++n) {
    const llvm::StringRef line = lines[n].rtrim('\r');
    if ((n == 0 && line.starts_with("#version")) || (line.empty() && n + 1 == lines.size()))
      continue;
    auto bad = [&](const std::string &why) {
      SourceLoc at{file, unsigned(n + 1), 1, unsigned(std::max<size_t>(1, line.size())), line.str()};
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
    const int32_t into = int32_t(t.pieces.size());
    if (!ids.emplace(a + b, into).second)
      bad("this merge was made by an earlier line");
    t.pieces.push_back(a + b);
    t.addMerge(l->second, r->second, into);
  }
  if (t.merges.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} holds no merges", file), "GPT-2's file has 50000");
  t.addEndOfText();
  return t;
}

std::string Tokenizer::json() const {
  using Json = nlohmann::ordered_json;
  const Json level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", splitWords}};
  auto written = [&](int32_t id) { return byteLevel ? printableBytes(pieces[id]) : pieces[id]; };
  Json vocab = Json::object(), pairs = Json::array();
  for (int32_t id = 0; id < vocabSize(); ++id)
    if (id != eot && !pieces[id].empty())
      vocab.get_ref<Json::object_t &>().emplace_back(written(id), id);  // operator[] would compare all earlier names
  for (const Merge &m : merges)
    pairs.push_back(written(m.left) + " " + written(m.right));
  Json added = Json::array();
  if (eot >= 0)
    added.push_back({{"id", eot},
                     {"content", pieces[eot]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  Json file = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", added},
               {"normalizer", nullptr},
               {"pre_tokenizer", byteLevel ? level : Json()},
               {"post_processor", nullptr},
               {"decoder", byteLevel ? level : Json{{"type", "Fuse"}}},
               {"model",
                {{"type", "BPE"},
                 {"dropout", nullptr},
                 {"unk_token", nullptr},
                 {"continuing_subword_prefix", nullptr},
                 {"end_of_word_suffix", nullptr},
                 {"fuse_unk", false},
                 {"byte_fallback", false},
                 {"vocab", vocab},
                 {"merges", pairs}}}};
  return file.dump(1) + "\n";
}

Tokenizer Tokenizer::load(const std::string &file) { return fromJson(readInput(file, "tokenizer"), file); }

Tokenizer Tokenizer::fromJson(const std::string &text, const std::string &file) {
  using Json = nlohmann::json;
  auto bad = [&](const std::string &why) {
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} is no tokenizer that gptc can use: {}", file, why),
                    "`gptc data prepare` writes one; Hugging Face's tokenizer.json of a byte-level BPE works too");
  };
  auto later = [&](const std::string &what) {
    throw UserError(ErrorCode::NotBuiltYet, fmt::format("{} uses {}, which is not built yet", file, what),
                    "byte-level BPE without normalizer works today");
  };
  const Json j = Json::parse(text, nullptr, false);
  if (j.is_discarded() || !j.is_object())
    bad("it is not JSON");
  static const Json absent;
  auto part = [](const Json &of, const char *name) -> const Json & {
    auto it = of.find(name);  // end() if `of` is no object
    return it == of.end() ? absent : *it;
  };
  const Json &model = part(j, "model"), &level = part(j, "pre_tokenizer");
  const Json &vocab = part(model, "vocab"), &merges = part(model, "merges"), &added = part(j, "added_tokens");
  if (part(model, "type") != "BPE")
    bad("its model is not of type BPE");
  if (!vocab.is_object() || !merges.is_array())
    bad("model.vocab or model.merges is missing");
  if (!part(j, "normalizer").is_null())
    later("a normalizer");
  if (!level.is_null() && part(level, "type") != "ByteLevel")
    later("a pre_tokenizer other than ByteLevel");
  if (part(level, "add_prefix_space") == true)
    later("add_prefix_space");
  if (part(model, "byte_fallback") == true)
    later("byte_fallback");
  for (const char *name : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    if (const Json &v = part(model, name); !v.is_null() && v != "" && !(v.is_number() && v == 0))
      later(name);

  Tokenizer t;
  t.byteLevel = !level.is_null();
  t.splitWords = t.byteLevel && part(level, "use_regex") != false;
  constexpr int64_t most = 1 << 24;
  auto place = [&](const Json &id, std::string piece) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= most)
      bad(fmt::format("the id of {} is no token number", piece));
    const size_t n = id.get<size_t>();
    if (t.pieces.size() <= n)
      t.pieces.resize(n + 1);
    if (!t.pieces[n].empty() && t.pieces[n] != piece)
      bad(fmt::format("token {} stands there twice", n));
    t.pieces[n] = std::move(piece);
    return int32_t(n);
  };
  std::unordered_map<std::string, int32_t> ids;  // as written in the file
  for (auto &[written, id] : vocab.items()) {
    std::string piece = written;
    // The vocabulary may contain special tokens as plain text.
    const bool special = added.is_array() && std::any_of(added.begin(), added.end(),
                                                         [&](const Json &a) { return part(a, "content") == written; });
    if (t.byteLevel && !special && !bytesOfPrintable(written, piece))
      bad(fmt::format("\"{}\" is not written in byte-level characters", written));
    ids[written] = place(id, piece);
  }
  if (added.is_array())
    for (const Json &a : added)
      if (const Json &content = part(a, "content"); content.is_string()) {
        int32_t id = place(part(a, "id"), content);
        if (content == "<|endoftext|>")
          t.eot = id;
      }
  if (t.pieces.empty())
    bad("its vocabulary is empty");
  t.indexAlphabet();

  for (const Json &m : merges) {
    std::string left, right;
    if (m.is_string()) {
      auto [l, r] = llvm::StringRef(m.get_ref<const std::string &>()).split(' ');
      left = l.str();
      right = r.str();
    } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
      left = m[0];
      right = m[1];
    }
    auto l = ids.find(left), r = ids.find(right), both = ids.find(left + right);
    if (l == ids.end() || r == ids.end() || both == ids.end())
      bad(fmt::format("merge {} of \"{}\" and \"{}\" is not in the vocabulary", t.merges.size(), left, right));
    t.addMerge(l->second, r->second, both->second);
  }
  return t;
}

}  // namespace gptc
