#include "frontends/parameter_groups.h"

#include "ir/facts.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <cmath>

namespace gptc {

bool matchesPattern(llvm::StringRef pattern, llvm::StringRef name) {
  // On a mismatch, the last `*` takes one more character.
  size_t p = 0, n = 0, star = llvm::StringRef::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != llvm::StringRef::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.drop_front(p).find_first_not_of('*') == llvm::StringRef::npos;
}

namespace {

bool matches(const ParameterGroup &g, const State &s) {
  return llvm::any_of(g.patterns, [&](const auto &p) { return matchesPattern(p.first, s.name); });
}

std::vector<State *> parametersOf(const Module &m) {
  std::vector<State *> all;
  for (const auto &s : m.states)
    if (kindOf(*s) == StateKind::param)
      all.push_back(s.get());
  return all;
}

/// "h.3.ln_1.bias" -> "h.*.ln_1.bias".
std::string ofAnyLayer(llvm::StringRef name) {
  std::string out;
  llvm::SmallVector<llvm::StringRef, 8> parts;
  name.split(parts, '.');
  for (llvm::StringRef part : parts)
    out += (out.empty() ? "" : ".") + (llvm::all_of(part, llvm::isDigit) ? std::string("*") : part.str());
  return out;
}

/// `what`: what all are, "parameter".
Diagnostic noSuch(const char *what, const std::string &pattern, const SourceLoc &where, llvm::ArrayRef<State *> all) {
  std::vector<std::string> names;
  for (const State *s : all) {
    const std::string any = ofAnyLayer(s->name);
    names.insert(names.end(), {s->name, any, "*." + llvm::StringRef(s->name).rsplit('.').second.str()});
    for (size_t dot = any.find('.'); dot != std::string::npos; dot = any.find('.', dot + 1))
      names.push_back(any.substr(0, dot) + ".*");
  }
  const std::string near = nearestWord(pattern, names);
  return {
      ErrorCode::UnknownValue,
      fmt::format("no {} is called {:?}", what, pattern),
      where,
      near.empty() ? "" : fmt::format("did you mean {:?}?", near),
      {fmt::format("names are those of checkpoints without \"transformer.\", such as {} or {}, and * stands for any "
                   "text",
                   all.front()->name, all[all.size() / 2]->name)}};
}

}  // namespace

void applyGroups(const Config &config, Module &m) {
  const std::vector<ParameterGroup> &groups = config.optimizer.groups;
  if (groups.empty())
    return;
  const std::vector<State *> all = parametersOf(m);
  std::vector<Diagnostic> problems;
  std::vector<int64_t> members(groups.size());
  bool trains = false;
  for (const ParameterGroup &g : groups)
    for (const auto &[pattern, where] : g.patterns)
      if (llvm::none_of(all, [&, &pattern = pattern](const State *s) { return matchesPattern(pattern, s->name); }))
        problems.push_back(noSuch("parameter", pattern, where, all));
  for (State *s : all) {
    size_t last = groups.size();
    for (size_t i = 0; i < groups.size(); ++i)
      if (matches(groups[i], *s))
        last = i;
    trains |= last == groups.size() || !groups[last].frozen;
    if (last == groups.size())
      continue;
    const ParameterGroup &g = groups[last];
    ++members[last];
    setFact<&TrainedFacts::group>(*s, int64_t(last));
    if (g.frozen) {
      setFact<&TrainedFacts::frozen>(*s, true);
      continue;
    }
    if (g.lrScale != 1)
      setFact<&TrainedFacts::lrScale>(*s, g.lrScale);
    if (g.weightDecay)
      setFact<&TrainedFacts::weightDecay>(*s, g.weightDecay);
    if (g.betas) {
      setFact<&TrainedFacts::beta1>(*s, g.betas->first);
      setFact<&TrainedFacts::beta2>(*s, g.betas->second);
    }
  }
  for (size_t i = 0; problems.empty() && i < groups.size(); ++i)
    if (members[i] == 0)
      problems.push_back({ErrorCode::Contradiction,
                          fmt::format("group {} of optimizer.group has no parameters", i + 1),
                          groups[i].patterns[0].second,
                          "all that it matches belongs to later groups",
                          {"a parameter belongs to the last group that matches it: put this one behind them"}});
  if (problems.empty() && !trains)
    problems.push_back({ErrorCode::Contradiction,
                        "every parameter is frozen",
                        groups.back().patterns[0].second,
                        "nothing is left to train",
                        {"frozen = false, or patterns that leave some parameters"}});
  if (!problems.empty())
    throw UserError(problems);
}

namespace {

/// The layers above a parameter; those of embeddings are below all.
int64_t layersAbove(llvm::StringRef name, int64_t layers) {
  int64_t layer = 0;
  if (name.consume_front("h.") && !name.split('.').first.getAsInteger(10, layer))
    return layers - layer;
  const bool embedding = name.starts_with("wte.") || name.starts_with("wpe.") || name.starts_with("wtt.") ||
                         name.starts_with("word_embeddings_layernorm.");
  return embedding ? layers + 1 : 0;
}

}  // namespace

void applyLayerDecay(const Config &config, Module &m) {
  const double decay = config.optimizer.layerDecay;
  if (decay == 1)
    return;
  for (State *s : parametersOf(m)) {
    const int64_t above = layersAbove(s->name, config.model.nLayer);
    if (above && !fact<&TrainedFacts::frozen>(*s))
      setFact<&TrainedFacts::lrScale>(*s, fact<&TrainedFacts::lrScale>(*s) * std::pow(decay, double(above)));
  }
}

void applyEightBits(const Config &config, Module &m) {
  std::vector<State *> all;
  for (const auto &s : m.states)
    if (isLayerMatrix(*s))
      all.push_back(s.get());
  std::vector<Diagnostic> problems;
  for (const auto &[pattern, where] : config.precision.eightBits) {
    bool any = false;
    for (State *s : all)
      if (matchesPattern(pattern, s->name)) {
        setFact<&StateFacts::eightBits>(*s, true);
        any = true;
      }
    if (!any && !all.empty())
      problems.push_back(noSuch("matrix of a layer", pattern, where, all));
  }
  if (!problems.empty())
    throw UserError(problems);
}

std::vector<std::string> describeGroups(const Config &config, const Module &m) {
  const std::vector<ParameterGroup> &groups = config.optimizer.groups;
  std::vector<std::string> lines;
  if (const double decay = config.optimizer.layerDecay; decay != 1)
    lines.push_back(fmt::format("layer_decay {:g}: lr x {:.3g} of embeddings, {:.3g} of layer 0, {:.3g} of layer {}",
                                decay, std::pow(decay, double(config.model.nLayer + 1)),
                                std::pow(decay, double(config.model.nLayer)), decay, config.model.nLayer - 1));
  if (groups.empty())
    return lines;
  struct Size {
    int64_t tensors = 0, elements = 0;
  };
  std::vector<Size> sizes(groups.size() + 1);
  for (const State *s : parametersOf(m)) {
    Size &of = sizes[size_t(fact<&TrainedFacts::group>(*s).value_or(int64_t(groups.size())))];
    ++of.tensors;
    of.elements += wholeType(*s).elements();
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::string what = "all others";
    if (i < groups.size()) {
      const ParameterGroup &g = groups[i];
      std::vector<std::string> patterns, settings;
      for (const auto &p : g.patterns)
        patterns.push_back(p.first);
      if (g.frozen)
        settings.push_back("frozen");
      if (!g.frozen && g.lrScale != 1)
        settings.push_back(fmt::format("lr x {:g}", g.lrScale));
      if (!g.frozen && g.weightDecay)
        settings.push_back(fmt::format("weight_decay {:g}", *g.weightDecay));
      if (!g.frozen && g.betas)
        settings.push_back(fmt::format("betas {:g}, {:g}", g.betas->first, g.betas->second));
      what = fmt::format("{}: {}", fmt::join(patterns, " "),
                         settings.empty() ? "as all others" : fmt::format("{}", fmt::join(settings, ", ")));
    }
    if (sizes[i].tensors)
      lines.push_back(fmt::format("{}; {} tensors, {} parameters", what, sizes[i].tensors, sizes[i].elements));
  }
  return lines;
}

}  // namespace gptc
