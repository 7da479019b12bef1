// The commands of gptc, one file each. A command's callback does its work while the command line is parsed.
#pragma once

namespace CLI {
class App;
}

namespace gptc {

void addNewCommand(CLI::App &app);
void addCompileCommand(CLI::App &app);
void addConfigCommand(CLI::App &app);
void addDataCommand(CLI::App &app);
void addBenchCommand(CLI::App &app);
/// The measurements of `gptc bench`.
void addMeasurements(CLI::App &bench);
void addMatmulBench(CLI::App &bench);
void addClusterBench(CLI::App &bench);
void addTuneCommand(CLI::App &app);
void addCacheCommand(CLI::App &app);
void addExplainCommand(CLI::App &app);
void addEstimateCommand(CLI::App &app);
void addCalibrateCommand(CLI::App &app);
void addDoctorCommand(CLI::App &app);
void addCompletionCommand(CLI::App &app);

}  // namespace gptc
