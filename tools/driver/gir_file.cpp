#include "tools/driver/gir_file.h"

#include "ir/diagnostics.h"
#include "ir/opdef.h"

#include "llvm/ADT/STLExtras.h"

#include <fstream>
#include <iostream>
#include <sstream>

namespace gptc {

static std::string readInput(const std::string &path) {
  std::stringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream in(path, std::ios::binary);
  if (!in || !(text << in.rdbuf() || in.peek() == EOF))
    throw UserError(ErrorCode::FileMissing, fmt::format("cannot read {}", path), "give a .gir file");
  return text.str();
}

bool isGirFile(const std::string &path) { return llvm::StringRef(path).ends_with(".gir"); }

std::unique_ptr<Module> loadGir(const std::string &path) {
  std::unique_ptr<Module> m = parseModule(readInput(path), path == "-" ? "<stdin>" : path);
  std::vector<std::string> errors = verify(*m);
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

[[noreturn]] static void unfit(const std::string &path, const std::string &what, const std::string &help) {
  Diagnostic d;
  d.code = ErrorCode::GirInvalid;
  d.message = what;
  d.where.file = path;
  d.help.push_back(help);
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
  return groups ? "order" : "optimizer";  // which does nothing where it stands already
}

Config configOfGir(const Module &m, const std::string &path, const std::vector<std::string> &settings) {
  static const char *const own[] = {
      "model.",         "optimizer.", "precision.", "parallel.", "train.global_batch_tokens", "train.micro_batch",
      "train.grad_clip"};
  for (const std::string &s : settings)
    for (const char *key : own)
      if (llvm::StringRef(s).starts_with(key))
        throw UserError(ErrorCode::Usage, fmt::format("{} cannot be set: {} says it itself", s, path),
                        "compile model.toml, or change the module");
  auto number = [&](const char *attribute) {
    const int64_t n = m.attrs.getInt(attribute);
    if (n < 1)
      unfit(path, fmt::format("module attribute {} is missing or not positive", attribute),
            "frontends/model_builder.h lists the attributes of a training module");
    return n;
  };
  const int64_t block = number("block_size"), batch = number("micro_batch"), times = number("accumulate"),
                heads = number("n_head");
  std::vector<std::string> all = {fmt::format("name={}", m.attrs.getString("name", "module")),
                                  fmt::format("model.n_layer={}", number("n_layer")),
                                  fmt::format("model.n_head={}", heads),
                                  fmt::format("model.n_kv_head={}", m.attrs.getInt("n_kv_head", heads)),
                                  fmt::format("model.n_embd={}", number("n_embd")),
                                  fmt::format("model.vocab_size={}", number("vocab_size")),
                                  fmt::format("model.block_size={}", block),
                                  fmt::format("train.steps={}", m.attrs.getInt("steps", 1)),
                                  fmt::format("train.micro_batch={}", batch),
                                  fmt::format("train.global_batch_tokens={}", block * batch * times)};
  all.insert(all.end(), settings.begin(), settings.end());
  return loadConfig(path, all, [](const std::string &) { return int64_t(0); });
}

}  // namespace gptc
