// The commands of gptc, one file each. A command's callback does its work while the command line is parsed.
#pragma once

namespace gptc {

class Command;

void addNewCommand(Command &app);
void addImportCommand(Command &app);
void addCompileCommand(Command &app);
void addConfigCommand(Command &app);
void addDataCommand(Command &app);
void addExportCommand(Command &app);
void addQuantizeCommand(Command &app);
/// `gptc certify` and `gptc verify`.
void addCertifyCommands(Command &app);
void addReportCommand(Command &app);
void addBenchCommand(Command &app);
/// The measurements of `gptc bench`.
void addMeasurements(Command &bench);
void addMatmulBench(Command &bench);
void addClusterBench(Command &bench);
void addServeBench(Command &bench);
void addTuneCommand(Command &app);
void addCacheCommand(Command &app);
void addExplainCommand(Command &app);
void addExperimentCommand(Command &app);
void addEstimateCommand(Command &app);
void addCalibrateCommand(Command &app);
void addDoctorCommand(Command &app);
void addCompletionCommand(Command &app);

}  // namespace gptc
