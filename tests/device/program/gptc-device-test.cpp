// The program of tools/bundle: it knows no build folder.
#include "tests/device/cases.h"

namespace gptc::test {
const char *const standinFolder = nullptr, *const goldenFolder = nullptr;
}

int main(int argc, char **argv) { return gptc::test::deviceTests(argc, argv); }
