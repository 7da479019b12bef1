#include "tools/planner/gir_file.h"

#include "codegen/codegen.h"
#include "ir/opdef.h"
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
constexpr std::pair<const char *, const char *> meanings[] = {{"name", "name"},
                                                              {"n_layer", "model.n_layer"},
                                                              {"n_head", "model.n_head"},
                                                              {"n_kv_head", "model.n_kv_head"},
                                                              {"n_embd", "model.n_embd"},
                                                              {"vocab_size", "model.vocab_size"},
                                                              {"block_size", "model.block_size"},
                                                              {"ffn_dim", "model.ffn_dim"},
                                                              {"norm", "model.norm"},
                                                              {"norm_eps", "model.norm_eps"},
                                                              {"activation", "model.activation"},
                                                              {"position", "model.position"},
                                                              {"causal", "model.causal"},
                                                              {"bias", "model.bias"},
                                                              {"tie_embeddings", "model.tie_embeddings"},
                                                              {"embedding_norm", "model.embedding_norm"},
                                                              {"micro_batch", "train.micro_batch"},
                                                              {"steps", "train.steps"},
                                                              {"grad_clip", "train.grad_clip"},
                                                              {"schedule", "optimizer.schedule"},
                                                              {"lr", "optimizer.lr"},
                                                              {"warmup", "optimizer.warmup_steps"},
                                                              {"min_lr_ratio", "optimizer.min_lr_ratio"},
                                                              {"eps", "optimizer.eps"},
                                                              {"weight_decay", "optimizer.weight_decay"},
                                                              {"optimizer", "optimizer.name"},
                                                              {"momentum", "optimizer.momentum"},
                                                              {"nesterov", "optimizer.nesterov"},
                                                              {"relative_step", "optimizer.relative_step"},
                                                              {"first_moment", "optimizer.first_moment"},
                                                              {"compute", "precision.compute"},
                                                              {"optimizer_state", "precision.optimizer_state"},
                                                              {"remat", "compile.remat"},
                                                              {"pack_weights", "compile.pack_weights"}};

/// The attributes of `m` as key=value. Throws UserError(GirInvalid) for bad attributes that have no key in model.toml.
std::vector<std::string> settingsOf(const Module &m, const std::string &path) {
  for (const char *name : {"accumulate", "fold", "prefill", "mask_token", "arena_bytes"})
    if (const Attr *a = m.attrs.find(name)) {
      const int64_t *n = std::get_if<int64_t>(a);
      if (!n || *n < 0)
        unfit(path, fmt::format("module attribute {} = {} is no count", name, textOf(*a)), "write a whole number");
    }
  std::vector<std::string> all;
  for (auto &[attribute, key] : meanings)
    if (const Attr *a = m.attrs.find(attribute)) {
      if (*a == Attr(std::string("auto")) && llvm::StringRef(attribute) != "remat")
        unfit(path, fmt::format("module attribute {} = \"auto\": a module has decided", attribute), "write the value");
      all.push_back(fmt::format("{}={}", key, textOf(*a)));
    }
  if (const Attr *first = m.attrs.find("beta1"), *second = m.attrs.find("beta2"); first && second)
    all.push_back(fmt::format("optimizer.betas=[{}, {}]", textOf(*first), textOf(*second)));
  double tokens = 1;
  for (const char *name : {"block_size", "micro_batch", "accumulate"}) {
    const Attr *a = m.attrs.find(name);
    tokens *= a && std::holds_alternative<int64_t>(*a) ? double(std::get<int64_t>(*a)) : 0;
  }
  if (tokens > 0)
    all.push_back(fmt::format("train.global_batch_tokens={:.0f}", std::min(tokens, 0x1p62)));
  return all;
}

void replaceKeys(std::string &text) {
  auto replace = [&](llvm::StringRef key, llvm::StringRef name) {
    for (size_t at = 0; (at = text.find(key.str(), at)) != std::string::npos; at += name.size())
      text.replace(at, key.size(), name.str());
  };
  for (auto &[attribute, key] : meanings)
    if (key != llvm::StringRef(attribute))
      replace(key, attribute);
  replace("optimizer.betas", "[beta1, beta2]");
  replace("train.global_batch_tokens", "block_size x micro_batch x accumulate");
}

/// Passes and runtime trust attributes, so each is checked here against the schema of model.toml.
void checkAttributes(const Module &m, const std::string &path) {
  try {
    std::vector<std::string> settings = settingsOf(m, path);
    llvm::erase(settings, "precision.compute=\"tf32\"");  // its target is not known here
    loadConfig(".gir", settings, [](const std::string &) { return int64_t(0); });
  } catch (const UserError &e) {
    std::vector<Diagnostic> found;
    for (Diagnostic d : e.diagnostics) {
      if (d.code == ErrorCode::GirInvalid)
        throw;
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
  checkAttributes(*m, path);  // before the verifier, which knows less about them
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
      open |= recipeOf(op.kind) != nullptr;
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
    if (key == "compile.remat" && m.attrs.has("decision.remat.all"))
      throw UserError(ErrorCode::Usage, fmt::format("{} cannot be set: {} has been through the pass remat", s, path),
                      "give a module from before, or compile model.toml");
  }
  for (const char *name : {"block_size", "micro_batch", "accumulate", "n_layer", "n_head", "n_embd", "vocab_size"})
    if (m.attrs.getInt(name) < 1)
      unfit(path, fmt::format("module attribute {} is missing or not positive", name),
            "frontends/model_builder.h lists the attributes of a training module");
  std::vector<std::string> all = settingsOf(m, path);
  if (!m.attrs.has("steps"))
    all.push_back("train.steps=1");
  all.insert(all.end(), settings.begin(), settings.end());
  return loadConfig(path, all, [](const std::string &) { return int64_t(0); });
}

}  // namespace gptc
