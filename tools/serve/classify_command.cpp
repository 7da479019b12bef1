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

/// The probability that each label is right, whatever the others are.
std::vector<double> sigmoid(const std::vector<float> &logits) {
  std::vector<double> p;
  for (const float x : logits)
    p.push_back(1 / (1 + std::exp(-double(x))));
  return p;
}

std::vector<double> scoresOf(const std::vector<float> &logits, LabelScores how) {
  switch (how) {
  case LabelScores::softmax:
    return softmax(logits);
  case LabelScores::sigmoid:
    return sigmoid(logits);
  case LabelScores::identity:
    return {logits.begin(), logits.end()};
  }
  GPTC_UNREACHABLE("scores {}", int(how));
}

class Classification {
public:
  Classification(Executor &executor, const Tokenizer &tokenizer, const HfLabels &labels, TextForm form,
                 const ClassifyCommand &command)
      : classifier(executor, labels.pooling == ClassifierPooling::mean ? Pooling::mean : Pooling::cls),
        tokenizer(tokenizer), labels(labels), form(std::move(form)), command(command) {
    if (command.threshold >= 0 && !mayBeSeveral())
      throw UserError(ErrorCode::Usage,
                      fmt::format("--threshold: the model's problem_type is {}", nameOf(labels.problem)),
                      fmt::format("leave it out; it is for {}", nameOf(ProblemType::multi_label_classification)));
    GPTC_CHECK(classifier.labels() == int64_t(labels.names.size()), "{} labels have names", labels.names.size());
    for (const std::string &name : labels.names)
      names.push_back(nlohmann::json(name).dump());
    const int64_t context = classifier.context();
    this->form.most = this->form.most ? std::min(this->form.most, context) : context;
  }

  void run() {
    TextBatches(command.input, tokenizer, form, [&](const TextBatch &batch) {
      const auto logits = classifier.logits(batch.tokens, batch.types);
      for (size_t i = 0; i < batch.size(); ++i)
        write(batch.ids[i], batch.tokens[i].size(), logits[i]);
    }).run();
  }

private:
  bool mayBeSeveral() const { return labels.problem == ProblemType::multi_label_classification; }

  /// `,"labels":[..]`, those that are right; "" where one is.
  std::string rightOnes(const std::vector<double> &p) const {
    if (!mayBeSeveral())
      return "";
    const double threshold = command.threshold >= 0 ? command.threshold : kUsualThreshold;
    std::vector<std::string> right;
    for (size_t i = 0; i < p.size(); ++i)
      if (p[i] > threshold)
        right.push_back(names[i]);
    return fmt::format(",\"labels\":[{}]", fmt::join(right, ","));
  }

  void write(const std::string &id, size_t tokens, const std::vector<float> &logits) {
    const std::vector<double> p = scoresOf(logits, labels.scores);
    std::vector<size_t> shown(p.size());
    std::iota(shown.begin(), shown.end(), size_t(0));
    const bool isNumber = labels.problem == ProblemType::regression;
    const size_t best = size_t(std::max_element(p.begin(), p.end()) - p.begin());
    if (command.top) {
      llvm::stable_sort(shown, [&](size_t a, size_t b) { return p[a] > p[b]; });
      shown.resize(std::min(shown.size(), size_t(command.top)));
    }
    std::string scores;
    for (const size_t i : shown)
      scores += fmt::format("{}{}:{}", scores.empty() ? "" : ",", names[i], float(p[i]));
    const std::string which = id.empty() ? fmt::format("\"text\":{}", written) : "\"id\":" + id,
                      label = isNumber ? "" : fmt::format(",\"label\":{}", names[best]),
                      score = isNumber && p.size() > 1 ? "" : fmt::format(",\"score\":{}", float(p[best]));
    ++written;
    const std::string line =
        fmt::format("{{{},\"tokens\":{}{}{}{},\"scores\":{{{}}}{}}}\n", which, tokens, label, score, rightOnes(p),
                    scores, command.logits ? ",\"logits\":" + numbersOf(logits) : "");
    std::fwrite(line.data(), 1, line.size(), stdout);
  }

  Classifier classifier;
  const Tokenizer &tokenizer;
  const HfLabels &labels;
  TextForm form;
  const ClassifyCommand &command;
  std::vector<std::string> names;  // as JSON
  int64_t written = 0;
};

}  // namespace

void addClassifyOptions(Command classify, ClassifyCommand &command) {
  addPairOptions(classify, addTextOptions(classify, command.input, "labels"), command.input);
  classify.option("--top", command.top, "scores of so many labels, best first; default: of all, in the model's order")
      .within(int64_t(1), int64_t(1) << 16);
  classify
      .option("--threshold", command.threshold, "where several labels may be right: the score above which one is [0.5]")
      .within(0.0, 1.0);
  classify.flag("--logits", command.logits, "logits, too, in the model's order");
}

void classifyTexts(Executor &executor, const Tokenizer &tokenizer, const HfLabels &labels, TextForm form,
                   const ClassifyCommand &command) {
  Classification(executor, tokenizer, labels, std::move(form), command).run();
}

}  // namespace gptc
