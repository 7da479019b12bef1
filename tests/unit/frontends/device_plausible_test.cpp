#include "frontends/device_plausible.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

DeviceSpec device(const char *name, double fp32, double tf32, double half, double bandwidth) {
  DeviceSpec d;
  d.name = name;
  d.fp32 = 1e12 * fp32, d.tf32 = 1e12 * tf32, d.fp16 = d.bf16 = 1e12 * half;
  d.bandwidth = 1e9 * bandwidth;
  return d;
}

/// "device.peak_bf16 989 TFLOP/s", of each complaint.
std::vector<std::string> complaints(const DeviceSpec &d) {
  std::vector<std::string> all;
  for (const Implausible &i : implausible(d)) {
    EXPECT_NE(i.message, "");
    all.push_back(std::string(i.key) + " " + i.likely);
  }
  return all;
}
using Texts = std::vector<std::string>;

TEST(DevicePlausible, SheetsAreWhatTheySay) {
  for (const DeviceSpec &d :
       {device("H100-SXM5-80GB", 67, 494.5, 989.5, 3350), device("A100-SXM4-80GB", 19.5, 156, 312, 2039),
        device("A100", 19.5, 0, 312, 1555), device("H200", 67, 0, 0, 4800), device("B200", 80, 1125, 2250, 7700),
        device("RTX 3090", 35.6, 35.6, 71, 936), device("H100", 60, 0, 600, 2000)})
    EXPECT_EQ(complaints(d), Texts()) << d.name;
}

TEST(DevicePlausible, FiguresWithSparsityAreNamedWithTheDenseOne) {
  EXPECT_EQ(complaints(device("H100", 67, 989, 1979, 3350)),
            (Texts{"device.peak_tf32 495 TFLOP/s", "device.peak_fp16 989 TFLOP/s", "device.peak_bf16 989 TFLOP/s"}));
  // Of a name that says nothing, too.
  EXPECT_EQ(complaints(device("cluster", 67, 0, 1979, 3350)),
            (Texts{"device.peak_fp16 989 TFLOP/s", "device.peak_bf16 989 TFLOP/s"}));
  EXPECT_EQ(complaints(device("mine", 19.5, 0, 624, 2039)),
            (Texts{"device.peak_fp16 312 TFLOP/s", "device.peak_bf16 312 TFLOP/s"}));
  EXPECT_EQ(complaints(device("mine", 8, 125, 250, 273)), Texts()) << "twice an A10's, and a Thor's";
  EXPECT_EQ(complaints(device("A100", 156, 156, 312, 2039)), Texts{"device.peak_fp32 19.5 TFLOP/s"});
}

TEST(DevicePlausible, AnotherPrefixIsNamed) {
  EXPECT_EQ(complaints(device("H100", 67, 495, 989, 3.35)), Texts{"device.memory_bandwidth 3.35 TB/s"});
  EXPECT_EQ(complaints(device("cluster", 67, 495, 989, 3.35)), Texts{"device.memory_bandwidth 3.35 TB/s"});
  EXPECT_EQ(complaints(device("cluster", 19.5, 0, 0, 2.039)), Texts{"device.memory_bandwidth 2.039 TB/s"});
  EXPECT_EQ(complaints(device("cluster", 0.067, 0, 989, 3350)), Texts{"device.peak_fp32 67 TFLOP/s"});
  EXPECT_EQ(complaints(device("cluster", 19500, 0, 0, 2039)), Texts{"device.peak_fp32 19.5 TFLOP/s"});
  EXPECT_EQ(complaints(device("H200", 67, 0, 0, 330)), Texts{"device.memory_bandwidth 4.8 TB/s"});
}

TEST(DevicePlausible, CpusAndWhatIsLeftOutAreNotTaken) {
  DeviceSpec cpu = device("H100", 0.574, 0, 1.15, 60);
  cpu.isCpu = true;
  EXPECT_EQ(complaints(cpu), Texts());
  cpu.bandwidth = 60e6;
  EXPECT_EQ(complaints(cpu), Texts{"device.memory_bandwidth 60 GB/s"});
  EXPECT_EQ(complaints(device("mine", 0, 0, 0, 2039)), Texts());
  EXPECT_EQ(complaints(device("mine", 20, 0, 0, 0)), Texts());
}

}  // namespace
}  // namespace gptc
