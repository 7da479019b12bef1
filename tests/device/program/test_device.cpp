// The same program beside the others of a build.
#include "tests/device/cases.h"

namespace gptc::test {
const char *const standinFolder = GPTC_STANDINS, *const goldenFolder = GPTC_SOURCE_DIR "/tests/device/golden";
}

int main(int argc, char **argv) { return gptc::test::deviceTests(argc, argv); }
