#include "tools/planner/gir_file.h"

#include "codegen/codegen.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <iostream>
#include <sstream>

namespace gptc {

bool isGirFile(const std::string &path) { return llvm::StringRef(path).ends_with(".gir"); }

namespace {

[[noreturn]] void unfit(const std::string &path, const std::string &what, const std::string &help) {
  Diagnostic d;
  d.code = ErrorCode::GirInvalid;
  d.message = what;
  d.where.file = path;
  d.help.push_back(help);
  throw UserError(d);
}

/// Module attributes and the keys of model.toml with the same meaning, whose kinds and ranges apply here too.
const std::vector<std::pair<llvm::StringRef, llvm::StringRef>> &meanings() {
  static const auto all = [] {
    std::vector<std::pair<llvm::StringRef, llvm::StringRef>> pairs;
    for (const FactSpec &f : moduleFacts())
      if (const llvm::StringRef key = f.writer; llvm::is_contained(configKeys(), key) &&
                                                !key.starts_with("parallel.") && key != "optimizer.betas" &&
                                                key != "train.global_batch_tokens")
        pairs.push_back({f.name, key});
    return pairs;
  }();
  return all;
}

/// Words of our own for what the facts reject and model.toml lets pass: "auto", and counts that have no key. Throws
/// UserError(GirInvalid). The verifier names all else.
void checkUndecided(const Module &m, const std::string &path) {
  for (const auto &[name, value] : m.attrs) {
    const FactSpec *f = findFact(moduleFacts(), name);
    if (!f || f->problem(value).empty())
      continue;
    if (value == Attr(std::string("auto")))
      unfit(path, fmt::format("module attribute {} = \"auto\": a module has decided", name), "write the value");
    if (f->kind == FactSpec::Int && !llvm::is_contained(configKeys(), f->writer))
      unfit(path, fmt::format("module attribute {} = {} is no count", name, textOf(value)), "write a whole number");
  }
}

/// The attributes of `m` as key=value.
std::vector<std::string> settingsOf(const Module &m) {
  std::vector<std::string> all;
  for (auto &[attribute, key] : meanings())
    if (const Attr *a = m.attrs.find(attribute))
      all.push_back(fmt::format("{}={}", key.str(), textOf(*a)));
  if (const Attr *first = m.attrs.find(FactAt<&OptimizerFacts::beta1>::name),
      *second = m.attrs.find(FactAt<&OptimizerFacts::beta2>::name);
      first && second)
    all.push_back(fmt::format("optimizer.betas=[{}, {}]", textOf(*first), textOf(*second)));
  double tokens = 1;
  for (const int64_t *n : {peekFact<&ModelFacts::blockSize>(m), peekFact<&BatchFacts::microBatch>(m),
                           peekFact<&BatchFacts::accumulate>(m)})
    tokens *= n ? double(*n) : 0;
  if (tokens > 0)
    all.push_back(fmt::format("train.global_batch_tokens={:.0f}", std::min(tokens, 0x1p62)));
  return all;
}

void replaceKeys(std::string &text) {
  auto replace = [&](llvm::StringRef key, llvm::StringRef name) {
    for (size_t at = 0; (at = text.find(key.str(), at)) != std::string::npos; at += name.size())
      text.replace(at, key.size(), name.str());
  };
  for (auto &[attribute, key] : meanings())
    if (key != attribute)
      replace(key, attribute);
  replace("optimizer.betas", "[beta1, beta2]");
  replace("train.global_batch_tokens", "block_size x micro_batch x accumulate");
}

/// Passes and runtime trust attributes, so those with a key are checked against the schema of model.toml, whose ranges
/// are narrower than those of facts.
void checkAttributes(const Module &m, const std::string &path) {
  checkUndecided(m, path);
  try {
    std::vector<std::string> settings = settingsOf(m);
    llvm::erase(settings, "precision.compute=\"tf32\"");  // its target is not known here
    loadConfig("", settings, [](const std::string &) { return int64_t(0); });
  } catch (const UserError &e) {
    std::vector<Diagnostic> found;
    for (Diagnostic d : e.diagnostics) {
      if (d.where.file != "--set")  // a missing key; not every module is for training
        continue;
      d.code = ErrorCode::GirInvalid;
      d.where = SourceLoc();
      d.where.file = path;
      d.message = "module attribute " + d.message;
      for (std::string *text : {&d.message, &d.label})
        replaceKeys(*text);
      for (std::string &help : d.help)
        replaceKeys(help);
      found.push_back(d);
    }
    if (!found.empty())
      throw UserError(found);
  }
}

/// `key` of a key=value.
llvm::StringRef keyOf(const std::string &setting) { return llvm::StringRef(setting).split('=').first.trim(); }

/// Whether a key defines how to run a module rather than what it is.
bool isForRuns(llvm::StringRef key) {
  static const char *const decided[] = {"model.", "train.", "optimizer.", "precision.", "parallel."};
  return key == "model.init_from" || key == "train.seed" || key == "train.on_nonfinite" ||
         llvm::none_of(decided, [&](const char *prefix) { return key.starts_with(prefix); });
}

}  // namespace

std::unique_ptr<Module> loadGir(const std::string &path) {
  std::string text;
  if (path == "-") {
    std::stringstream in;
    in << std::cin.rdbuf();
    text = in.str();
  } else {
    text = readInput(path, "module");
  }
  std::unique_ptr<Module> m = parseModule(text, path == "-" ? "<stdin>" : path);
  checkAttributes(*m, path);  // before the verifier, which knows neither keys nor their ranges
  std::vector<std::string> errors = verify(*m);
  for (const auto &f : m->functions)
    for (const Op &op : f->body)
      if (errors.empty() && op.is(OpKind::fused))
        if (std::string problem = groupProblem(op); !problem.empty())
          errors.push_back(fmt::format("@{}: {}", f->name, problem));
  if (errors.empty())
    return m;
  Diagnostic d;
  d.code = ErrorCode::GirInvalid;
  d.message = errors[0];
  d.where.file = path;
  for (size_t i = 1; i < errors.size() && i < 10; ++i)
    d.notes.push_back(errors[i]);
  throw UserError(d);
}

const char *firstPassFor(const Module &m, const std::string &path) {
  if (m.function("forward"))
    return "canonicalize";
  if (!m.function("train_step") && !(m.function("accumulate") && m.function("update")))
    unfit(path, "the module has none of @forward, @train_step, @accumulate with @update: there is nothing to train",
          "`gptc compile model.toml --dump-dir DIR` writes modules of every phase");
  bool groups = false, open = false;
  for (const auto &f : m.functions)
    for (const Op &op : f->body) {
      groups |= op.is(OpKind::fused);
      open |= recipeOf(op.kind).has_value();
    }
  if (groups && open)
    unfit(path, "some ops stand in groups and others do not",
          "run the pass 'fuse' on it first: gptc-opt --passes=fuse");
  return groups ? "order" : "optimizer";  // does nothing if the optimizer is there already
}

Config configOfGir(const Module &m, const std::string &path, const std::vector<std::string> &settings) {
  for (const std::string &s : settings) {
    const llvm::StringRef key = keyOf(s);
    if (!isForRuns(key) && llvm::is_contained(configKeys(), key))
      throw UserError(ErrorCode::Usage, fmt::format("{} cannot be set: {} says it itself", s, path),
                      "out_dir, train.seed, train.on_nonfinite, compile.remat, model.init_from and the keys of data, "
                      "eval, checkpoint and log can be set; else compile model.toml, or change the module");
    if (key == "compile.remat" && isDecided(m, "remat", "all"))
      throw UserError(ErrorCode::Usage, fmt::format("{} cannot be set: {} has been through the pass remat", s, path),
                      "give a module from before, or compile model.toml");
  }
  const auto model = factsOf<ModelFacts>(m);
  const auto batch = factsOf<BatchFacts>(m);
  const bool accumulates = hasFact<&BatchFacts::accumulate>(m);
  for (const auto &[name, value] : {std::pair{FactAt<&ModelFacts::blockSize>::name, model.blockSize},
                                    {FactAt<&BatchFacts::microBatch>::name, batch.microBatch},
                                    {FactAt<&BatchFacts::accumulate>::name, accumulates ? batch.accumulate : 0},
                                    {FactAt<&ModelFacts::nLayer>::name, model.nLayer},
                                    {FactAt<&ModelFacts::nHead>::name, model.nHead},
                                    {FactAt<&ModelFacts::nEmbd>::name, model.nEmbd},
                                    {FactAt<&ModelFacts::vocabSize>::name, model.vocabSize}})
    if (value < 1)
      unfit(path, fmt::format("module attribute {} is missing or not positive", name),
            "frontends/model_builder.h lists the attributes of a training module");
  std::vector<std::string> all = settingsOf(m);
  if (!hasFact<&OptimizerFacts::steps>(m))
    all.push_back("train.steps=1");
  all.insert(all.end(), settings.begin(), settings.end());
  return loadConfig(path, all, [](const std::string &) { return int64_t(0); });
}

}  // namespace gptc
