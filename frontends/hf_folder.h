// The files that make a folder of weights a model of Hugging Face's: config.json, generation_config.json, and those of
// the tokenizer. They are data for AutoModelForCausalLM and AutoTokenizer, and never name code.
#pragma once

#include "frontends/hf_families.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

class Tokenizer;

struct HfFolder {
  std::map<std::string, std::string> files;  // name -> text
  std::vector<std::string> differing;        // HfDescription::differing; then config.json is gptc's own
  std::string tokenizerProblem;              // why no file holds the tokenizer; "" if one does, or there is none
};

/// `tokenizer`: path of a tokenizer.json, which the folder gets as it is, of a model of SentencePiece, or of a GGUF
/// file, which become one; "" for none. A model of SentencePiece that tokenizer.json cannot hold is left out: both
/// versions of transformers convert a tokenizer.model that lies in a folder, and give other ids without a word. Special
/// tokens are those that tokenizer_config.json, generation_config.json and config.json beside it name, as other
/// programs write them, or the GGUF file; without these only <|endoftext|>, which begins and ends a text as in GPT-2.
/// What is missing then the folder of `initFrom`, model.init_from, may name (frontends/hf_tokens.h). Their chat
/// template goes along, and so does how they have texts cut and typed (frontends/hf_text_form.h). `labels`: as
/// describeForHf takes them. Throws UserError(FileMissing, DataInvalid), and those of Tokenizer::load for a GGUF file.
HfFolder describeFolder(const ModelConfig &model, const std::string &tokenizer, const std::string &initFrom = "",
                        const std::vector<std::string> &labels = {});

/// What the files of a tokenizer say of the texts of its model.
struct ModelTokens {
  std::vector<int32_t> ends;                               // each of them ends a text
  std::vector<std::pair<std::string, std::string>> named;  // bos_token, eos_token, ..., and their texts
  std::string chatTemplate;                                // in Jinja; "": none
};

/// `tokenizer`: what was loaded from `file`. `initFrom`: as above, of a model of `vocabSize` tokens. Throws as
/// describeFolder does.
ModelTokens modelTokens(const std::string &file, const Tokenizer &tokenizer, const std::string &initFrom,
                        int64_t vocabSize);

}  // namespace gptc
