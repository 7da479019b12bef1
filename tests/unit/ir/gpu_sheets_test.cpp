#include "ir/gpu_sheets.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

std::string nameOf(const char *device) {
  const GpuSheet *s = gpuSheet(device);
  return s ? s->name.str() : "";
}

TEST(GpuSheets, AreFoundByTheNamesOfDriversAndOfPeople) {
  const std::pair<const char *, const char *> names[] = {
      {"NVIDIA H100 80GB HBM3", "H100"},
      {"NVIDIA H100 PCIe", "H100 PCIe"},
      {"NVIDIA H100 NVL", "H100 NVL"},
      {"H100-SXM5-80GB", "H100"},
      {"NVIDIA H200", "H200"},
      {"NVIDIA A100-SXM4-80GB", "A100"},
      {"NVIDIA A100-SXM4-40GB", "A100 40GB"},
      {"NVIDIA A100 80GB PCIe", "A100 PCIe"},
      {"a100", "A100"},
      {"NVIDIA A10", "A10"},
      {"NVIDIA A10G", ""},
      {"Tesla T4", "T4"},
      {"NVIDIA L40S", "L40S"},
      {"NVIDIA RTX A6000", "RTX A6000"},
      {"NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"},
      {"NVIDIA GeForce RTX 4090", "RTX 4090"},
      {"NVIDIA GeForce RTX 4090 Laptop GPU", ""},
      {"NVIDIA GeForce RTX 4090 D", ""},
      {"NVIDIA GeForce RTX 3090 Ti", ""},
      {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""},
      {"cluster", ""},
      {"", ""},
  };
  for (auto &[device, sheet] : names)
    EXPECT_EQ(nameOf(device), sheet) << device;
  for (const GpuSheet &s : gpuSheets())
    EXPECT_EQ(gpuSheet(s.name), &s) << s.name.str();
}

TEST(GpuSheets, OfAnArchitectureTheOneWithLeastMemory) {
  EXPECT_EQ(leastMemory("sm_90a")->memory, 80);
  EXPECT_EQ(leastMemory("sm_80")->name, "A30");
  EXPECT_EQ(leastMemory("sm_99"), nullptr);
  EXPECT_EQ(gpuSheet("NVIDIA H200")->memory, 141);
  for (const GpuSheet &s : gpuSheets())
    EXPECT_TRUE(s.memory >= 16 && s.memory <= 300) << s.name.str();
}

TEST(GpuSheets, ClocksFollowFromTheFiguresOfF32) {
  EXPECT_NEAR(1e-9 * gpuSheet("A100")->clock(), 1.41, 0.01);
  EXPECT_NEAR(1e-9 * gpuSheet("H200")->clock(), 1.98, 0.01);
  EXPECT_NEAR(1e-9 * gpuSheet("T4")->clock(), 1.59, 0.01);
  EXPECT_NEAR(1e-9 * gpuSheet("RTX 4090")->clock(), 2.52, 0.01);
  for (const GpuSheet &s : gpuSheets())
    EXPECT_TRUE(s.clock() > 1.2e9 && s.clock() < 2.6e9) << s.name.str() << " " << s.clock();
}

TEST(GpuSheets, OfAnArchitectureTheLargest) {
  const std::pair<const char *, const char *> archs[] = {
      {"sm_75", "T4"},    {"sm_80", "A100"},  {"sm_86", "RTX 3090"}, {"sm_89", "L40S"},
      {"sm_90a", "H100"}, {"sm_99", "H100"},  {"sm_100", "B200"},    {"sm_100f", "B200"},
      {"sm_103", "B300"}, {"sm_110", "Thor"}, {"sm_121", "RTX 5090"}};
  for (auto &[arch, name] : archs)
    EXPECT_EQ(largestGpu(arch).name, name) << arch;
}

}  // namespace
}  // namespace gptc
