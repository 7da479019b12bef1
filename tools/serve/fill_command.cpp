#include "tools/serve/fill_command.h"

#include "runtime/serve/mask_filler.h"
#include "runtime/serve/token_scores.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "tools/serve/completion.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace gptc {

namespace {

/// What is not UTF-8 of it becomes U+FFFD.
std::string quoted(const std::string &text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Filling {
public:
  Filling(Executor &executor, const Tokenizer &tokenizer, const MaskToken &mask, TextForm form,
          const FillCommand &command)
      : filler(executor), tokenizer(tokenizer), names(tokenizer), mask(mask), form(std::move(form)), command(command) {
    // What the model has beyond the tokenizer's vocabulary fills its rows up; numbers without text are none of a
    // tokenizer's either.
    for (int64_t token = 0; token < filler.vocabulary(); ++token)
      withoutText += tokenizer.text(int32_t(token)).empty();
    const int64_t context = filler.context();
    this->form.most = this->form.most ? std::min(this->form.most, context) : context;
    if (!mask.isParsed) {
      this->form.mask = mask.text;
      this->form.maskToken = mask.id;
    }
  }

  void run() {
    TextBatches(
        command.input, tokenizer, form, [&](const TextBatch &batch) { fill(batch); },
        [&](const TypedText &text) { return whyNot(text); })
        .run();
  }

private:
  std::string whyNot(const TypedText &text) const {
    if (llvm::is_contained(text.tokens, mask.id))
      return "";
    return fmt::format("no {} stands in the text{}", mask.text,
                       text.isCut ? fmt::format(", which is cut to {} tokens", form.most) : "");
  }

  void fill(const TextBatch &batch) {
    std::vector<std::vector<int64_t>> places(batch.size());
    for (size_t text = 0; text < batch.size(); ++text)
      for (size_t i = 0; i < batch.tokens[text].size(); ++i)
        if (batch.tokens[text][i] == mask.id)
          places[text].push_back(int64_t(i));
    std::vector<int32_t> filled;
    std::string masks;
    filler.fill(batch.tokens, batch.types, places, [&](size_t text, size_t number, llvm::ArrayRef<float> logits) {
      if (number == 0) {
        filled = batch.tokens[text];
        masks.clear();
      }
      const size_t place = size_t(places[text][number]);
      const std::vector<std::pair<int32_t, float>> top = likeliest(logits);
      filled[place] = top.front().first;
      masks += fmt::format("{}{{\"place\":{},\"choices\":[{}]}}", number ? "," : "", place, choicesOf(top));
      if (number + 1 == places[text].size())
        write(batch.ids[text], filled, masks);
    });
  }

  /// Of the tokens that have a text. Probabilities are those among all, as of transformers' pipeline.
  std::vector<std::pair<int32_t, float>> likeliest(llvm::ArrayRef<float> logits) const {
    const auto best = int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
    std::vector<std::pair<int32_t, float>> top = scoresOf(logits, best, command.top + withoutText).top;
    llvm::erase_if(top, [&](const auto &scored) { return tokenizer.text(scored.first).empty(); });
    top.resize(std::min(top.size(), size_t(command.top)));
    return top;
  }

  std::string choicesOf(const std::vector<std::pair<int32_t, float>> &top) const {
    std::string all;
    for (const auto &[token, logProbability] : top)
      all += fmt::format("{}{{\"token\":{},\"text\":{},\"score\":{}}}", all.empty() ? "" : ",", token,
                         quoted(names(token)), float(std::exp(double(logProbability))));
    return all;
  }

  /// The text of tokens without control tokens.
  std::string textOf(const std::vector<int32_t> &tokens) const {
    std::vector<int32_t> shown;
    llvm::copy_if(tokens, std::back_inserter(shown), [&](int32_t token) { return !tokenizer.isControl(token); });
    return tokenizer.decode(shown);
  }

  void write(const std::string &id, const std::vector<int32_t> &filled, const std::string &masks) {
    const std::string which = id.empty() ? fmt::format("\"text\":{}", written) : "\"id\":" + id;
    ++written;
    const std::string line = fmt::format("{{{},\"tokens\":{},\"filled\":{},\"masks\":[{}]}}\n", which, filled.size(),
                                         quoted(textOf(filled)), masks);
    std::fwrite(line.data(), 1, line.size(), stdout);
  }

  MaskFiller filler;
  const Tokenizer &tokenizer;
  const TokenNames names;
  const MaskToken &mask;
  TextForm form;
  const FillCommand &command;
  int64_t withoutText = 0;  // of the model's tokens
  int64_t written = 0;
};

}  // namespace

void addFillOptions(Command fill, FillCommand &command) {
  addPairOptions(fill, addTextOptions(fill, command.input, "tokens"), command.input);
  fill.option("--top", command.top,
              fmt::format("so many tokens for each mask, likeliest first, of those that have a text; default: {}",
                          command.top))
      .within(int64_t(1), int64_t(1) << 16);
}

void fillMasks(Executor &executor, const Tokenizer &tokenizer, const MaskToken &mask, TextForm form,
               const FillCommand &command) {
  Filling(executor, tokenizer, mask, std::move(form), command).run();
}

}  // namespace gptc
