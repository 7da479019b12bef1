// gptc completion: scripts by which a shell completes what is typed after gptc, gptrun, gptc-opt and gptc-reduce.
#include "tools/commands/command_line.h"
#include "tools/commands/command_tree.h"
#include "tools/commands/commands.h"

#include <memory>

namespace gptc {

void addCompletionCommand(Command &app) {
  Command c = app.command("completion", "Prints what completes command lines in a shell");
  auto shell = std::make_shared<std::string>();
  c.option("shell", *shell, "Which one").required().oneOf(completionShells());
  c.footer("bash: source <(gptc completion bash)     in ~/.bashrc\n"
           "zsh:  source <(gptc completion zsh)      in ~/.zshrc, behind compinit\n"
           "fish: gptc completion fish | source      in ~/.config/fish/config.fish");
  c.run([app, shell] {
    const std::string text = completionScript(app.tree(), *shell);
    std::fwrite(text.data(), 1, text.size(), stdout);
    printCompletionsBeside(app.name(), *shell);
  });
}

}  // namespace gptc
