// tokenizer.json of the small models of tests/e2e, which have 31 tokens.
#pragma once

#include "support/json.h"

#include <fmt/format.h>

#include <string>

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

}  // namespace e2e
