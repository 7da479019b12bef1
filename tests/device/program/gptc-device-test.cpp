#include "tests/device/cases.h"

int main(int argc, char **argv) { return gptc::test::deviceTests(argc, argv); }
