// gptrun fill-mask: tokens in place of masks, against the logits that transformers computes (hf/*/golden.json, by
// hf/make.py), and against its pipeline.
#include "tests/support/harness.h"
#include "tests/support/headless.h"
#include "tests/support/json_lines.h"
#include "tests/support/oracles.h"
#include "tests/support/word_models.h"

#include "support/json.h"

#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

using namespace e2e;
using gptc::test::objectLines;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::string models = GPTC_SOURCE_DIR "/tests/e2e/";

/// That of 31 words whose first four and 28 have BERT's names; `added`: they are tokens before words are told apart.
std::string tokenizerWithMask(bool added) {
  std::string text = tokenizerOf31Words(true);
  json tokens = json::array();
  for (const auto &[id, name] : {std::pair(0, "[PAD]"), std::pair(1, "[UNK]"), std::pair(2, "[CLS]"),
                                 std::pair(3, "[SEP]"), std::pair(28, "[MASK]")}) {
    const std::string old = fmt::format("\"t{}\"", id);
    for (size_t at; (at = text.find(old)) != std::string::npos;)
      text.replace(at, old.size(), fmt::format("\"{}\"", name));
    tokens.push_back({{"id", id},
                      {"content", name},
                      {"single_word", false},
                      {"lstrip", id == 28},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", true}});
  }
  json tokenizer = json::parse(text);
  if (added)
    tokenizer["added_tokens"] = tokens;
  else
    tokenizer["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};  // which cuts [MASK] into three
  return tokenizer.dump();
}

struct FillMaskTest : ::testing::Test {
  /// A copy of a model with a tokenizer of words, in which t28 is the mask.
  std::string folder(const std::string &name, bool around = true) {
    const std::string to = w.path(name);
    copyWordModel(models + "hf/" + name, to, around);
    writeFile(to + "/tokenizer_config.json", R"({"mask_token": "t28"})");
    return to;
  }
  std::string fileOf(const std::vector<std::string> &lines) {
    writeFile(w.path("texts.txt"), llvm::join(lines, "\n") + "\n");
    return w.path("texts.txt");
  }
  Result run(std::vector<std::string> args) {
    args.insert(args.begin(), "fill-mask");
    return w.gptrun(args);
  }
  /// The lines of a run that must succeed.
  std::vector<json> fill(std::vector<std::string> args) {
    const Result r = run(std::move(args));
    EXPECT_EQ(r.code, 0) << r.output;
    return objectLines(r.output);
  }
  void refuses(const std::vector<std::string> &args, int code, const std::string &message) {
    const Result r = run(args);
    EXPECT_EQ(r.code, code) << message << "\n" << r.output;
    EXPECT_NE(r.output.find(message), std::string::npos) << message << "\n" << r.output;
  }

  Workplace w;
};

/// Tokens and scores, without what the tokens are called.
json choicesOf(const json &line) {
  json all = json::array();
  for (const json &mask : line.at("masks"))
    for (const json &choice : mask.at("choices"))
      all.push_back({mask.at("place"), choice.at("token"), choice.at("score")});
  return all;
}

TEST_F(FillMaskTest, ScoresAreThoseOfTransformers) {
  for (const std::string name : {"bert", "modernbert"}) {
    const json golden = json::parse(readFile(models + "hf/" + name + "/golden.json"));
    std::vector<int64_t> ids = golden.at("ids"), places;
    ids.pop_back();
    std::vector<std::string> words;
    for (size_t i = 0; i < ids.size(); ++i) {
      words.push_back(fmt::format("t{}", ids[i]));
      if (ids[i] == 28)
        places.push_back(int64_t(i));
    }
    ASSERT_GE(places.size(), 3u);
    const std::vector<json> lines =
        fill({folder(name, false), "--precision", "fp32", "--top", "31", "--text", llvm::join(words, " ")});
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].at("text"), 0);
    EXPECT_EQ(lines[0].at("tokens"), ids.size());
    const json &masks = lines[0].at("masks");
    ASSERT_EQ(masks.size(), places.size());
    for (size_t m = 0; m < masks.size(); ++m) {
      EXPECT_EQ(masks[m].at("place"), places[m]);
      const std::vector<double> logits = golden.at("logits").at(size_t(places[m]));
      double sum = 0, before = 1;
      for (const double logit : logits)
        sum += std::exp(logit);
      const json &choices = masks[m].at("choices");
      ASSERT_EQ(choices.size(), 31u);
      for (const json &choice : choices) {
        const auto token = choice.at("token").get<size_t>();
        const double score = choice.at("score");
        EXPECT_NEAR(score, std::exp(logits.at(token)) / sum, 5e-5) << name << " " << places[m] << " " << choice;
        EXPECT_EQ(choice.at("text"), fmt::format("t{}", token));
        EXPECT_LE(score, before);
        before = score;
      }
      words[size_t(places[m])] = choices[0].at("text");
    }
    EXPECT_EQ(lines[0].at("filled"), llvm::join(words, " ")) << "as tokenizers writes tokens without a decoder";
  }
}

TEST_F(FillMaskTest, ATextHasTheSameBitsAloneAndAmongOthers) {
  std::vector<std::string> texts;
  for (int i = 0; i < 21; ++i) {  // together more masks than a call fills
    std::string text = "t28";
    for (int j = 0; j < i % 7; ++j)
      text += (i + j) % 3 ? fmt::format(" t{}", 4 + (5 * i + 3 * j) % 20) : " t28";
    texts.push_back(text);
  }
  for (const char *name : {"bert", "modernbert"})
    for (const char *precision : {"fp32", "bf16"}) {
      const std::string dir = folder(name);
      const auto masksBy = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {dir, "--precision", precision, "--top", "4"});
        std::vector<std::string> all;
        for (const json &line : fill(std::move(more)))
          all.push_back(line.at("masks").dump());
        return all;
      };
      const std::vector<std::string> together = masksBy({"--texts", fileOf(texts)});
      ASSERT_EQ(together.size(), texts.size());
      EXPECT_EQ(masksBy({"--batch", "4", "--threads", "1", "--texts", fileOf(texts)}), together) << name << precision;
      for (const size_t i : {0, 6, 20})
        EXPECT_EQ(masksBy({"--text", texts[i]}), std::vector{together[i]}) << name << precision << i;
    }
}

TEST_F(FillMaskTest, ObjectsPairsAndCounts) {
  const std::string dir = folder("bert"), file = w.path("texts.jsonl");
  fs::copy(models + "labels/pair/tokenizer.json", dir, fs::copy_options::overwrite_existing);
  writeFile(file, "{\"text\": \"t4 t5\", \"text_pair\": \"t6 t28\", \"id\": \"a\"}\n{\"text\": \"t28 t28\"}\n");
  const auto lines = fill({dir, "--jsonl", "--texts", file});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("id"), "a");
  EXPECT_FALSE(lines[0].contains("text"));
  EXPECT_EQ(lines[0].at("masks").at(0).at("place"), 5) << "behind [CLS], two words, [SEP] and one word";
  EXPECT_EQ(lines[1].at("text"), 1);
  EXPECT_EQ(lines[1].at("masks").size(), 2u);
  EXPECT_EQ(lines[1].at("masks").at(1).at("choices").size(), 5u) << "by default";
  EXPECT_EQ(choicesOf(fill({dir, "--text", "t4 t5", "--text-pair", "t6 t28"}).at(0)), choicesOf(lines[0]));
  EXPECT_EQ(fill({dir, "--top", "99", "--text", "t28"}).at(0).at("masks").at(0).at("choices").size(), 31u);
  // The second of a pair has a type of its own, unless the tokenizer gives none.
  writeFile(dir + "/tokenizer_config.json", R"({"mask_token": "t28", "model_input_names": ["input_ids"]})");
  EXPECT_NE(choicesOf(fill({dir, "--text", "t4 t5", "--text-pair", "t6 t28"}).at(0)), choicesOf(lines[0]));
  refuses({dir, "--top", "0", "--text", "t28"}, 2, "--top");
  refuses({dir}, 2, "which texts?");
}

// However the mask is told apart: as a word, as a token that is added, and by its text alone.
TEST_F(FillMaskTest, TheMaskIsTheTokenizers) {
  const std::string dir = folder("bert");
  const json want = choicesOf(fill({dir, "--text", "t4 t28 t7 t28"}).at(0));
  for (const bool added : {true, false})
    for (const char *config : {"{}", R"({"mask_token": {"content": "[MASK]", "lstrip": true}})"}) {
      writeFile(dir + "/tokenizer.json", tokenizerWithMask(added));
      writeFile(dir + "/tokenizer_config.json", config);
      const json line = fill({dir, "--text", "t4[MASK] t7 [MASK]"}).at(0);
      EXPECT_EQ(choicesOf(line), want) << added << config;
      EXPECT_EQ(line.at("tokens"), 6);
    }
  refuses({dir, "--text", "t4 t28"}, 3, "the text: no [MASK] stands in the text");
  writeFile(dir + "/tokenizer_config.json", R"({"mask_token": "[GAP]"})");
  refuses({dir, "--text", "t4"}, 3, "has no token \"[GAP]\", which is the mask_token of tokenizer_config.json");
  writeFile(dir + "/tokenizer.json", tokenizerOf31Words(true));
  writeFile(dir + "/tokenizer_config.json", "{}");
  refuses({dir, "--text", "t4"}, 3, "names no mask_token, and has neither [MASK] nor <mask>");
}

TEST_F(FillMaskTest, PlansToo) {
  const std::string learned = "the dog is by the door, the fox is in the box, no cub is here";
  w.useText(learned);
  const std::string encoder = w.compile("encoder", {"train.steps=2", "model.preset=encoder"}),
                    decoder = w.compile("decoder", {"train.steps=2"}), out = w.path("out");
  w.train(encoder, "out");
  const std::string text = "th[MASK] do[MASK]";
  const auto lines = fill({encoder, "--out-dir", out, "--top", "999", "--text", text});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].at("tokens"), 7);
  const json &masks = lines[0].at("masks");
  ASSERT_EQ(masks.size(), 2u);
  EXPECT_EQ(masks[0].at("place"), 2);
  EXPECT_EQ(masks[1].at("place"), 6);
  const std::string a = masks[0].at("choices")[0].at("text"), b = masks[1].at("choices")[0].at("text");
  EXPECT_EQ(lines[0].at("filled"), "th" + a + " do" + b);
  for (const json &mask : masks) {
    // The last token is the mask, which the tokenizer lacks.
    EXPECT_EQ(mask.at("choices").size(), std::set<char>(learned.begin(), learned.end()).size());
    double sum = 0;
    for (const json &choice : mask.at("choices"))
      sum += choice.at("score").get<double>();
    EXPECT_GT(sum, 0.5);
    EXPECT_LT(sum, 1) << "of all tokens, the mask among them";
  }
  EXPECT_EQ(
      fill({encoder, "--out-dir", out, "--checkpoint", out + "/checkpoints/latest", "--top", "999", "--text", text}),
      lines);
  // The weights of the first step say something else.
  w.train(encoder, "other", {"--steps", "1"});
  EXPECT_NE(choicesOf(fill({encoder, "--out-dir", w.path("other"), "--top", "999", "--text", text}).at(0)),
            choicesOf(lines[0]));
  refuses({encoder, "--out-dir", out, "--text", "the dog"}, 3, "no [MASK] stands in the text");
  w.train(decoder, "out-decoder");
  refuses({decoder, "--out-dir", w.path("out-decoder"), "--text", text}, 3, "fills no masks: it continues texts");
}

// The last row of the model is beyond the tokenizer's vocabulary, and one number within it has no text. The
// first is likelier than any word, the second than most.
TEST_F(FillMaskTest, TokensWithoutTextFillNoMask) {
  const std::string dir = folder("bert"), text = "t19 t28 t27 t12 t28 t9 t28";
  const std::set<int> needed = {0, 1, 2, 3, 28, 19, 27, 12, 9};
  std::string weights = readFile(dir + "/model.safetensors");
  uint64_t size;
  std::memcpy(&size, weights.data(), sizeof size);
  const size_t end = json::parse(weights.substr(8, size)).at("cls.predictions.bias").at("data_offsets").at(1);
  weights.replace(8 + size + end - 2, 2, "\xc0\x40");  // 6, of bf16
  writeFile(dir + "/model.safetensors", weights);
  const json all = fill({dir, "--top", "31", "--text", text}).at(0).at("masks");
  ASSERT_EQ(all.size(), 3u);
  const json &first = all[0].at("choices");
  ASSERT_EQ(first.at(0).at("token"), 30);
  const auto likely = std::find_if(first.begin() + 1, first.end(),
                                   [&](const json &choice) { return !needed.count(choice.at("token").get<int>()); });
  ASSERT_NE(likely, first.end());
  const int hole = likely->at("token").get<int>();

  json tokenizer = json::parse(readFile(dir + "/tokenizer.json"));
  for (const int token : {30, hole})
    tokenizer["model"]["vocab"].erase(fmt::format("t{}", token));
  writeFile(dir + "/tokenizer.json", tokenizer.dump());
  for (const size_t top : {1, 3, 31}) {
    const json line = fill({dir, "--top", std::to_string(top), "--text", text}).at(0);
    ASSERT_EQ(line.at("masks").size(), 3u);
    std::vector<std::string> words = {"t19", "", "t27", "t12", "", "t9", ""};
    for (size_t m = 0; m < 3; ++m) {
      json want = json::array();  // with the same scores, which are among all tokens of the model
      for (const json &choice : all[m].at("choices"))
        if (choice.at("token") != 30 && choice.at("token") != hole && want.size() < top)
          want.push_back(choice);
      ASSERT_EQ(want.size(), std::min<size_t>(top, 29));
      EXPECT_EQ(line.at("masks")[m].at("choices"), want) << top << " " << m;
      words[std::array{1, 4, 6}[m]] = want[0].at("text");
    }
    // What stands around the text is no control token of this tokenizer.
    words.insert(words.begin(), "t2");
    words.emplace_back("t3");
    EXPECT_EQ(line.at("filled"), llvm::join(words, " ")) << top;
  }
}

TEST_F(FillMaskTest, WhatFillsNoMasksIsExplained) {
  const std::string dir = folder("bert"), text = "t4 t28";
  // Lines before one without a mask are filled.
  const Result r = run({dir, "--texts", fileOf({text, "t5 t6", text})});
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_EQ(objectLines(r.output).size(), 1u) << r.output;
  EXPECT_NE(r.output.find("texts.txt, line 2: no t28 stands in the text"), std::string::npos) << r.output;
  EXPECT_EQ(r.output.find("cut to"), std::string::npos) << r.output;
  refuses({dir, "--context", "4", "--text", "t4 t5 t28"}, 3, "no t28 stands in the text, which is cut to 4 tokens");
  refuses({dir, "--context", "2", "--text", text}, 2, "the tokenizer puts 2 around each");
  refuses({w.path("nowhere"), "--text", text}, 3, "there is no ");
  writeFile(w.path("file.gguf"), std::string("GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24));
  refuses({w.path("file.gguf"), "--text", text}, 3, "holds no head for masked tokens");
  refuses({folder("llama"), "--text", text}, 3, "no head for masked tokens, architectures is [\"LlamaForCausalLM\"]");
  const json good = json::parse(readFile(dir + "/config.json"));
  const auto named = [&](const json &names) {
    json changed = good;
    changed["architectures"] = names;
    writeFile(dir + "/config.json", changed.dump());
  };
  for (const char *name : {"BertModel", "BertForSequenceClassification"}) {
    named(json::array({name}));
    refuses({dir, "--text", text}, 3,
            fmt::format("config.json: no head for masked tokens, architectures is [\"{}\"]", name));
  }
  for (const json &names :
       {json::array({"BertForPreTraining"}), json(), json::array()}) {  // as Google's, and where none is
    named(names);
    EXPECT_EQ(fill({dir, "--text", text}).size(), 1u) << names;
  }
  const std::string whole = readFile(dir + "/model.safetensors");
  writeFile(dir + "/model.safetensors", withoutHead(whole));
  refuses({dir, "--text", text}, 5, "`gptrun embed` takes them");
  // A bias of the head that is not finite: that of the last token.
  uint64_t size;
  std::memcpy(&size, whole.data(), sizeof size);
  const json header = json::parse(whole.substr(8, size));
  const size_t end = header.at("cls.predictions.bias").at("data_offsets").at(1);
  std::string broken = whole;
  broken.replace(8 + size + end - 2, 2, "\xc0\x7f");  // of bf16
  writeFile(dir + "/model.safetensors", broken);
  refuses({dir, "--text", text}, 4, "the logits in place of a mask are not finite");
}

TEST_F(FillMaskTest, ThePipelineOfTransformersFillsTheSame) {
  for (const char *name : {"bert", "modernbert"}) {
    const std::string dir = folder(name);
    writeFile(dir + "/tokenizer.json", tokenizerWithMask(true));
    writeFile(dir + "/tokenizer_config.json",
              R"({"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "[MASK]", "cls_token": "[CLS]",
                  "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 20})");
    const std::string texts = fileOf({"t4[MASK] t7", "[MASK]", "t9 [MASK] t4 t5 [MASK][MASK] t6", "t5 t6 t7 [MASK]"});
    const Result r = run({dir, "--precision", "fp32", "--texts", texts});
    ASSERT_EQ(r.code, 0) << r.output;
    std::string lines;
    for (const json &line : objectLines(r.output))
      lines += line.dump() + "\n";
    writeFile(w.path("filled.jsonl"), lines);
    for (const std::string &version : gptc::test::transformersPaths()) {
      const gptc::test::Compared compared = gptc::test::compareBy(
          "tests/e2e/fill_compare.py", fmt::format("'{}' '{}' '{}'", dir, texts, w.path("filled.jsonl")), version);
      if (compared.isMissing())
        GTEST_SKIP() << "no Python with transformers and PyTorch: " << compared.said;
      EXPECT_EQ(compared.code, 0) << name << "\n" << compared.said;
      std::printf("%s", compared.said.c_str());
    }
  }
}

}  // namespace
