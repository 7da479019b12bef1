#include "runtime/serve/beam_search.h"

#include "runtime/serve/token_scores.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gptc {
namespace {

class Search {
public:
  Search(CachedModel &model, const std::vector<int32_t> &prompt, const BeamOptions &o)
      : model(model), prompt(prompt), o(o), limit(std::min(o.maxTokens, model.context() - int64_t(prompt.size()))) {}

  std::vector<Hypothesis> run() {
    readPrompt();
    for (int64_t length = 1; !beams.empty() && length <= limit; ++length) {
      extend();
      if (beams.empty() || length == limit || isDecided())
        break;
      read();
    }
    for (Beam &b : beams)
      complete(std::move(b));
    return std::move(found);
  }

private:
  struct Beam {
    Hypothesis text;
    double sum = 0;  // of log-probabilities
    int64_t slot = 0;
    int64_t result = 0;  // what follows it
  };
  struct Candidate {
    size_t beam;
    int32_t token;
    float logProbability;
    double sum;
  };

  double scoreOf(const Beam &b) const {
    return b.sum / std::pow(double(std::max<size_t>(1, b.text.tokens.size())), o.lengthPenalty);
  }

  void readPrompt() {
    const HowToChoose how{};
    const int64_t n = prompt.size();
    for (int64_t at = 0; at < n;) {
      const int64_t end = std::min(n, at + model.most());
      model.read(CachedModel::Part{.slot = 0, .tokens = prompt, .begin = at, .end = end, .hows = how});
      at = end;
    }
    beams.resize(1);
  }

  /// Replaces the beams by their likeliest continuations. Complete ones leave; so twice as many are looked at.
  void extend() {
    std::vector<Candidate> all;
    for (size_t i = 0; i < beams.size(); ++i) {
      llvm::ArrayRef<float> logits = model.logits(beams[i].result);
      if (o.tokens > 0)
        logits = logits.take_front(size_t(o.tokens));
      for (const auto &[token, logProbability] : scoresOf(logits, 0, 2 * o.beams).top)
        all.push_back({i, token, logProbability, beams[i].sum + double(logProbability)});
    }
    std::stable_sort(all.begin(), all.end(), [](const Candidate &a, const Candidate &b) { return a.sum > b.sum; });
    all.resize(std::min(all.size(), size_t(2 * o.beams)));
    std::vector<Beam> next;
    for (size_t i = 0; i < all.size() && int64_t(next.size()) < o.beams; ++i) {
      const Candidate &c = all[i];
      Beam b = beams[c.beam];
      b.text.tokens.push_back(c.token);
      b.text.logProbabilities.push_back(c.logProbability);
      b.sum = c.sum;
      if (c.token != o.endToken)
        next.push_back(std::move(b));
      else if (int64_t(i) < o.beams)
        complete(std::move(b));
    }
    beams = std::move(next);
  }

  void complete(Beam b) {
    b.text.score = scoreOf(b);
    const auto place = llvm::find_if(found, [&](const Hypothesis &h) { return h.score < b.text.score; });
    found.insert(place, std::move(b.text));
    if (int64_t(found.size()) > o.beams)
      found.pop_back();
  }

  bool isDecided() const {
    return int64_t(found.size()) == o.beams &&
           llvm::all_of(beams, [&](const Beam &b) { return scoreOf(b) <= found.back().score; });
  }

  /// Gives every beam a slot of its own with what it has in common with its past, and reads its last token.
  void read() {
    std::vector<bool> taken(size_t(model.slots()), false);
    std::vector<Beam *> forked;
    for (Beam &b : beams)
      if (taken[size_t(b.slot)])
        forked.push_back(&b);
      else
        taken[size_t(b.slot)] = true;
    const int64_t held = int64_t(prompt.size() + beams[0].text.tokens.size()) - 1;
    for (Beam *b : forked) {
      const auto free = llvm::find(taken, false);
      const int64_t slot = free - taken.begin();
      model.copy(b->slot, slot, held);
      b->slot = slot;
      *free = true;
    }
    const HowToChoose how{};
    std::vector<std::vector<int32_t>> texts;
    for (const Beam &b : beams) {
      texts.push_back(prompt);
      texts.back().insert(texts.back().end(), b.text.tokens.begin(), b.text.tokens.end());
    }
    std::vector<CachedModel::Part> parts;
    for (size_t i = 0; i < beams.size(); ++i) {
      parts.push_back(
          {.slot = beams[i].slot, .tokens = texts[i], .begin = held, .end = held + 1, .hows = how, .isNew = true});
      beams[i].result = int64_t(i);
    }
    model.read(parts);
  }

  CachedModel &model;
  const std::vector<int32_t> &prompt;
  const BeamOptions &o;
  const int64_t limit;
  std::vector<Beam> beams;
  std::vector<Hypothesis> found;  // the best complete ones, by score
};

}  // namespace

std::vector<Hypothesis> beamSearch(CachedModel &model, const std::vector<int32_t> &prompt, const BeamOptions &options) {
  GPTC_CHECK(!prompt.empty() && int64_t(prompt.size()) < model.context() && options.beams >= 1 &&
                 options.beams <= model.slots() && options.maxTokens >= 1,
             "{} tokens, {} beams, {} slots", prompt.size(), options.beams, model.slots());
  return Search(model, prompt, options).run();
}

}  // namespace gptc
