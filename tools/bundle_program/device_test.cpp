// The tests of a GPU (tests/device), for machines that have one and nothing of ours: gptc-device-test.
#include <gtest/gtest.h>

int gptc_device_test_main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
