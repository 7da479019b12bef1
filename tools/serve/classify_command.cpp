#include "tools/serve/classify_command.h"

#include "runtime/serve/classifier.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "tools/serve/embed_command.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace gptc {

namespace {

/// exp(x) / sum of exp.
std::vector<double> softmax(const std::vector<float> &logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  for (const float x : logits)
    p.push_back(std::exp(double(x) - double(top)));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double &x : p)
    x /= sum;
  return p;
}

class Classification {
public:
  Classification(Executor &executor, const Tokenizer &tokenizer, const std::vector<std::string> &labels,
                 const ClassifyCommand &command)
      : classifier(executor), tokenizer(tokenizer), command(command) {
    GPTC_CHECK(classifier.labels() == int64_t(labels.size()), "{} labels have names", labels.size());
    for (const std::string &name : labels)
      names.push_back(nlohmann::json(name).dump());
  }

  void run() {
    TextBatches(
        command.input, classifier.context(),
        [&](const std::string &text, bool continued) {
          std::vector<int32_t> tokens;
          tokenizer.encode(text, tokens, {.addSpecial = true, .continued = continued});
          return tokens;
        },
        [&](llvm::ArrayRef<std::vector<int32_t>> texts) {
          const auto logits = classifier.logits(texts);
          for (size_t i = 0; i < texts.size(); ++i)
            write(texts[i].size(), logits[i]);
        })
        .run();
  }

private:
  void write(size_t tokens, const std::vector<float> &logits) {
    const std::vector<double> p = softmax(logits);
    std::vector<size_t> shown(p.size());
    std::iota(shown.begin(), shown.end(), size_t(0));
    const size_t best = size_t(std::max_element(p.begin(), p.end()) - p.begin());
    if (command.top) {
      llvm::stable_sort(shown, [&](size_t a, size_t b) { return p[a] > p[b]; });
      shown.resize(std::min(shown.size(), size_t(command.top)));
    }
    std::string scores;
    for (const size_t i : shown)
      scores += fmt::format("{}{}:{}", scores.empty() ? "" : ",", names[i], float(p[i]));
    const std::string line =
        fmt::format("{{\"text\":{},\"tokens\":{},\"label\":{},\"score\":{},\"scores\":{{{}}}{}}}\n", written++, tokens,
                    names[best], float(p[best]), scores, command.logits ? ",\"logits\":" + numbersOf(logits) : "");
    std::fwrite(line.data(), 1, line.size(), stdout);
  }

  Classifier classifier;
  const Tokenizer &tokenizer;
  const ClassifyCommand &command;
  std::vector<std::string> names;  // as JSON
  int64_t written = 0;
};

}  // namespace

void addClassifyOptions(Command classify, ClassifyCommand &command) {
  addTextOptions(classify, command.input, "labels");
  classify.option("--top", command.top, "scores of so many labels, best first; default: of all, in the model's order")
      .within(int64_t(1), int64_t(1) << 16);
  classify.flag("--logits", command.logits, "logits, too, in the model's order");
}

void classifyTexts(Executor &executor, const Tokenizer &tokenizer, const std::vector<std::string> &labels,
                   const ClassifyCommand &command) {
  Classification(executor, tokenizer, labels, command).run();
}

}  // namespace gptc
