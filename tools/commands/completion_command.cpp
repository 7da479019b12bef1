// gptc completion: scripts by which a shell completes what is typed after gptc, gptrun, gptc-opt and gptc-reduce.
#include "tools/commands/command_line.h"
#include "tools/commands/command_tree.h"
#include "tools/commands/commands.h"

#include <memory>

namespace gptc {

void addCompletionCommand(CLI::App &app) {
  CLI::App *c = app.add_subcommand("completion", "Prints what completes command lines in a shell");
  auto shell = std::make_shared<std::string>();
  c->add_option("shell", *shell, "Which one")->required()->check(CLI::IsMember(completionShells()));
  c->footer("bash: source <(gptc completion bash)     in ~/.bashrc\n"
            "zsh:  source <(gptc completion zsh)      in ~/.zshrc, behind compinit\n"
            "fish: gptc completion fish | source      in ~/.config/fish/config.fish");
  c->callback([&app, shell] {
    const std::string text = completionScript(commandTree(app), *shell);
    std::fwrite(text.data(), 1, text.size(), stdout);
    printCompletionsBeside(app.get_name(), *shell);
  });
}

}  // namespace gptc
