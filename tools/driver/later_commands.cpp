#include "tools/driver/command_line.h"
#include "tools/driver/commands.h"

namespace gptc {

void addLaterCommands(CLI::App &app) {
  const std::pair<const char *, const char *> commands[] = {
{"import", "Takes over Hugging Face weights"},
                                                            {"export", "Writes weights for other programs"},
                                                            {"report", "Summarises runs"}};
  for (auto &[name, what] : commands) {
    CLI::App *c = app.add_subcommand(name, std::string(what) + " (not built yet)");
    c->group("Later");
    c->allow_extras();
    c->callback([name = std::string(name)] {
      throw UserError(ErrorCode::NotBuiltYet, fmt::format("gptc {} is not built yet", name),
                      "compile, estimate, calibrate, tune, cache, explain, bench, data and doctor work today");
    });
  }
}

}  // namespace gptc
