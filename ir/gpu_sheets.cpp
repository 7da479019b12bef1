#include "ir/gpu_sheets.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <tuple>

namespace gptc {

// From NVIDIA's data sheets and architecture white papers. Ordered by architecture; the largest GPU of each comes
// first.
static constexpr GpuSheet sheets[] = {
    {"T4", "sm_75", 8.1, 8.1, 65, 320, 4, 16, 40},  // Turing has no bf16 and tf32 units: fp32's rates
    {"A100", "sm_80", 19.5, 156, 312, 2039, 40, 80, 108},
    {"A100 PCIe", "sm_80", 19.5, 156, 312, 1935, 40, 80, 108},
    {"A100 40GB", "sm_80", 19.5, 156, 312, 1555, 40, 40, 108},
    {"A800", "sm_80", 19.5, 156, 312, 2039, 40, 80, 108},
    {"A30", "sm_80", 10.3, 82, 165, 933, 24, 24, 56},
    {"RTX 3090", "sm_86", 35.6, 35.6, 71, 936, 6, 24, 82},
    {"A40", "sm_86", 37.4, 74.8, 149.7, 696, 6, 48, 84},
    {"RTX A6000", "sm_86", 38.7, 77.4, 154.8, 768, 6, 48, 84},
    {"A10", "sm_86", 31.2, 62.5, 125, 600, 6, 24, 72},
    {"Orin", "sm_87", 5.3, 21, 43, 205, 4, 32, 16},
    {"L40S", "sm_89", 91.6, 183, 362, 864, 96, 48, 142},
    {"L40", "sm_89", 90.5, 90.5, 181, 864, 96, 48, 142},
    {"L4", "sm_89", 30.3, 60, 121, 300, 48, 24, 58},
    {"RTX 6000 Ada", "sm_89", 91.1, 182, 364, 960, 96, 48, 142},
    {"RTX 4090", "sm_89", 82.6, 82.6, 165, 1008, 72, 24, 128},
    {"H100", "sm_90", 67, 495, 989, 3350, 50, 80, 132},
    {"H100 PCIe", "sm_90", 51, 378, 756, 2000, 50, 80, 114},
    {"H100 NVL", "sm_90", 60, 418, 835, 3938, 50, 94, 132},
    {"H800", "sm_90", 67, 495, 989, 3350, 50, 80, 132},
    {"H200", "sm_90", 67, 495, 989, 4800, 50, 141, 132},
    {"H200 NVL", "sm_90", 60, 418, 835, 4800, 50, 141, 132},
    {"H20", "sm_90", 44, 74, 148, 4000, 60, 96, 78},
    {"GH200", "sm_90", 67, 495, 989, 4900, 50, 96, 132},
    {"B200", "sm_100", 80, 1125, 2250, 8000, 126, 180, 148},
    {"GB200", "sm_100", 80, 1250, 2500, 8000, 126, 186, 148},
    {"B300", "sm_103", 80, 1250, 2500, 8000, 126, 262, 160},
    {"GB300", "sm_103", 80, 1250, 2500, 8000, 126, 277, 160},
    {"Thor", "sm_110", 8, 125, 250, 273, 32, 128, 20},
    {"RTX 5090", "sm_120", 104.8, 104.8, 209.5, 1792, 96, 32, 170},
};

bool multipliesEights(llvm::StringRef arch) {
  unsigned number = 0;
  return arch.consume_front("sm_") && !arch.consumeInteger(10, number) && number >= eightsFrom;
}

int GpuSheet::fp32Lanes() const { return arch == "sm_75" || arch == "sm_80" ? 64 : 128; }

llvm::ArrayRef<GpuSheet> gpuSheets() { return sheets; }

/// "NVIDIA H100 80GB HBM3" -> nvidia, h100, 80gb, hbm3.
static std::vector<std::string> wordsOf(llvm::StringRef name) {
  std::vector<std::string> words(1);
  for (char c : name)
    if (std::isalnum(uint8_t(c)))
      words.back() += char(std::tolower(uint8_t(c)));
    else if (!words.back().empty())
      words.emplace_back();
  return words;
}

const GpuSheet *gpuSheet(llvm::StringRef name) {
  const std::vector<std::string> has = wordsOf(name);
  for (const char *other : {"laptop", "mobile", "mig", "max", "ti", "super", "d"})
    if (llvm::is_contained(has, other))
      return nullptr;
  const GpuSheet *best = nullptr;
  size_t most = 0;
  for (const GpuSheet &s : sheets) {
    const std::vector<std::string> asked = wordsOf(s.name);
    if (asked.size() > most && llvm::all_of(asked, [&](const std::string &w) { return llvm::is_contained(has, w); })) {
      best = &s;
      most = asked.size();
    }
  }
  return best;
}

const GpuSheet *leastMemory(llvm::StringRef arch) {
  arch = arch.rtrim("af");
  const GpuSheet *least = nullptr;
  for (const GpuSheet &s : sheets)
    if (s.arch == arch && (!least || s.memory < least->memory))
      least = &s;
  return least;
}

const GpuSheet &largestGpu(llvm::StringRef arch) {
  arch = arch.rtrim("af");
  auto number = [](llvm::StringRef a) { return std::tuple(a.size(), a); };
  const GpuSheet *g = sheets;
  for (const GpuSheet &s : sheets)
    if (number(g->arch) < number(s.arch) && number(s.arch) <= number(arch))
      g = &s;
  return *g;
}

}  // namespace gptc
