// Cases for a device. Each is recorded by itself, and one that fails hides no other: cases run in a process of their
// own, and after an error of the driver, a crash or a case that does not end, a new one goes on behind it.
#pragma once

#include "tests/device/device.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace gptc::test {

/// What a case has found.
struct Finding {
  std::string problem;  // "" where all is as it should be
  std::string said;     // what it has to say then
  std::string skipped;  // why it could not run
  bool isDead = false;  // this process can use the device no more
};

struct DeviceCase {
  std::string name;                          // of no other case of the test
  std::map<std::string, std::string> about;  // for the record: op, dtype, kernel, ...
  std::function<Finding(TestDevice &)> run;
};

/// Of the device, which another process has asked, so that processes forked from this one can open it. The test fails
/// where there is none.
const DeviceInfo &deviceInfo();

/// Calls `compile`, which must leave its code in the cache of deviceInfo(), in another process, and returns what it
/// returns. NVRTC opens the driver for itself, after which no process forked from this one can use a GPU; code from the
/// cache needs no NVRTC. std::runtime_error if the process ends before its time.
std::vector<std::string> compileElsewhere(const std::function<std::vector<std::string>()> &compile);

/// Whether the case is asked for (--cases); all are without that.
bool isAskedFor(const std::string &test, const std::string &name);
/// Whether nothing is to run (--prepare).
bool onlyPrepares();
/// Whether memory that kernels need not read is to be left uninitialised (--uninitialised), and nothing compared.
bool leavesUninitialised();

struct Outcomes {
  int passed = 0, failed = 0, skipped = 0;
  std::map<std::string, int> said;  // how many have said it
  std::string why;                  // of one that was skipped
};
/// Runs the cases that are asked for; a test failure for each that fails, with its name.
Outcomes runCases(const std::string &test, const std::vector<DeviceCase> &cases);
/// Adds a line to the results: of a test as a whole.
void record(const std::string &test, const std::map<std::string, double> &figures);

/// Of the build that the program belongs to: libraries that stand in for NVIDIA's, and expected texts. Null in the
/// program of tools/bundle.
extern const char *const standinFolder, *const goldenFolder;

/// The whole program: its options, then GoogleTest's. Its exit code.
int deviceTests(int argc, char **argv);

}  // namespace gptc::test
