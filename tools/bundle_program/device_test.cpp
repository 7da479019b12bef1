// The tests of a GPU (tests/device), for machines that have one and nothing of ours: gptc-device-test.
#include "tests/device/cases.h"

int gptc_device_test_main(int argc, char **argv) { return gptc::test::deviceTests(argc, argv); }
