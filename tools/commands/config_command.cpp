// gptc config: the keys of model.toml, and what a model file says.
#include "frontends/settings_reference.h"
#include "frontends/tokenizer/tokenizer.h"
#include "frontends/toml_config.h"
#include "support/diagnostics.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"

#include <filesystem>

namespace gptc {

namespace {

/// What holds with a model file. Its tokenizer may not have been made yet: then the vocabulary's size is left open, and
/// "auto" is decided as for GPT-2's.
std::string whatHolds(const std::string &model, const std::vector<std::string> &settings) {
  bool open = false;
  const Config config = loadConfig(model, settings, [&](const std::string &tokenizer) -> int64_t {
    std::error_code e;
    open = !std::filesystem::exists(tokenizer, e);
    return open ? 50257 : Tokenizer::load(tokenizer).vocabSize();
  });
  std::string text = resolvedFile(config);
  if (!open)
    return text;
  const size_t begin = text.find("\nvocab_size = ") + 1, end = text.find('\n', begin);
  return text.replace(begin, end - begin,
                      fmt::format("# vocab_size: the tokenizer's, and {} is not there yet", config.run.tokenizer));
}

}  // namespace

void addConfigCommand(Command &app) {
  Command c = app.command("config", "Lists the keys of a model file, or prints what holds with one");
  struct Options {
    std::string model;
    std::vector<std::string> settings;
    bool list = false, schema = false, markdown = false;
  };
  auto o = std::make_shared<Options>();
  c.option("model", o->model, "Checks this file and prints the value of every key, and where it comes from")
      .type("MODEL.toml");
  c.option("--set", o->settings, "Overrides a key, for example train.steps=100; may be repeated")
      .type("KEY=VALUE")
      .repeated();
  c.flag("--list", o->list, "Prints every key: type and range, [default], meaning");
  c.flag("--schema", o->schema, "Prints a JSON Schema, by which editors check and complete model files");
  c.flag("--markdown", o->markdown, "Prints docs/keys.md");
  c.run([o] {
    if (o->list + o->schema + o->markdown + !o->model.empty() != 1)
      throw UserError(ErrorCode::Usage, "gptc config takes a model file, --list, --schema or --markdown: one of them",
                      "for example gptc config --list");
    if (o->model.empty() && !o->settings.empty())
      throw UserError(ErrorCode::Usage,
                      fmt::format("--set {} needs a model file: --{} is the same for all", o->settings[0],
                                  o->list     ? "list"
                                  : o->schema ? "schema"
                                              : "markdown"),
                      "gptc config MODEL.toml --set KEY=VALUE, or leave --set out");
    if (!o->model.empty())
      return fmt::print("{}", whatHolds(o->model, o->settings));
    const KeyReference keys;
    fmt::print("{}", o->list ? keyList(keys) : o->schema ? keySchema(keys) : keysPage(keys));
  });
}

}  // namespace gptc
