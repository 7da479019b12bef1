// The small models of tests/e2e/hf and tests/e2e/labels, whose 31 tokens are words.
#pragma once

#include "support/json.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace e2e {

/// The tokens of text "t4 t7" are 4 and 7; `around`: between 2 and 3, as of [CLS] and [SEP].
inline std::string tokenizerOf31Words(bool around) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int i = 0; i < 31; ++i)
    vocab[fmt::format("t{}", i)] = i;
  auto special = [](const char *name) { return nlohmann::json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; };
  const nlohmann::json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const nlohmann::json template_ = {{"type", "TemplateProcessing"},
                                    {"single", {special("t2"), text, special("t3")}},
                                    {"pair", {special("t2"), text, special("t3")}},
                                    {"special_tokens",
                                     {{"t2", {{"id", "t2"}, {"ids", {2}}, {"tokens", {"t2"}}}},
                                      {"t3", {{"id", "t3"}, {"ids", {3}}, {"tokens", {"t3"}}}}}}};
  return nlohmann::json{{"version", "1.0"},
                        {"truncation", nullptr},
                        {"padding", nullptr},
                        {"added_tokens", nlohmann::json::array()},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                        {"post_processor", around ? template_ : nlohmann::json()},
                        {"decoder", nullptr},
                        {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "t1"}}}}
      .dump();
}

/// A folder with the files of a model, beside its golden. It has tokenizerOf31Words(around), unless the model brings a
/// tokenizer of its own.
inline void copyWordModel(const std::string &model, const std::string &to, bool around) {
  namespace fs = std::filesystem;
  fs::create_directories(to);
  std::ofstream(to + "/tokenizer.json", std::ios::binary) << tokenizerOf31Words(around);
  for (const auto &file : fs::directory_iterator(model))
    if (file.path().filename() != "golden.json")
      fs::copy(file, to, fs::copy_options::overwrite_existing);
}

/// The text whose tokens these are, as tokenizerOf31Words(false) reads it: "t4 t7".
inline std::string textOfTokens(const std::vector<int64_t> &ids) {
  std::string text;
  for (const int64_t id : ids)
    text += fmt::format("{}t{}", text.empty() ? "" : " ", id);
  return text;
}

/// The same of ids that begin and end with the tokens that tokenizerOf31Words(true) puts around a text.
inline std::string textBetween(const std::vector<int64_t> &ids) {
  return textOfTokens({ids.begin() + 1, ids.end() - 1});
}

}  // namespace e2e
