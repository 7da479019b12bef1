// gptc: compiles model descriptions into plans, and prepares data for them.
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/commands/main_guard.h"

int main(int argc, char **argv) {
  return gptc::guardedMain([&] {
    gptc::CommandLine app("gptc", "Compiles a GPT and its training recipe into a plan that gptrun runs.");
    app.requireCommand();
    app.helpOfAll();
    gptc::addNewCommand(app);
    gptc::addImportCommand(app);
    gptc::addCompileCommand(app);
    gptc::addConfigCommand(app);
    gptc::addDataCommand(app);
    gptc::addExportCommand(app);
    gptc::addQuantizeCommand(app);
    gptc::addExplainCommand(app);
    gptc::addCertifyCommands(app);
    gptc::addReportCommand(app);
    gptc::addBenchCommand(app);
    gptc::addTuneCommand(app);
    gptc::addExperimentCommand(app);
    gptc::addCacheCommand(app);
    gptc::addEstimateCommand(app);
    gptc::addCalibrateCommand(app);
    gptc::addDoctorCommand(app);
    gptc::addCompletionCommand(app);
    return app.parse(argc, argv).value_or(0);
  });
}
