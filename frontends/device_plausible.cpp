#include "frontends/device_plausible.h"

#include "ir/gpu_sheets.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>

namespace gptc {

namespace {

struct Peak {
  const char *key;
  double value;
  double GpuSheet::*onSheet;  // in TFLOP/s
};

/// FLOPs per byte of memory traffic. Today's GPUs have 10 (fp32, data centre) to 900.
constexpr double leastFlopsPerByte = 0.1, leastOfGpus = 2, mostFlopsPerByte = 5000;
/// Ratio to fp32 above which fp32 is mistyped: tensor cores are 4 to 35 times as fast.
constexpr double mostBesideFp32 = 100;
/// Memory bandwidth in bytes/s, from an old laptop's to more than any data sheet's.
constexpr double leastBandwidth = 5e9, leastOfGpuMemory = 20e9, mostBandwidth = 50e12;

bool near(double a, double b, double by) { return std::abs(a - b) <= by * b; }

/// The value with another prefix, if that is close to the data sheet's.
double otherPrefix(double value, double sheet) {
  for (double f : {1e3, 1e-3, 1e6, 1e-6})
    if (near(value * f, sheet, 0.35))
      return value * f;
  return 0;
}

class Check {
public:
  explicit Check(const DeviceSpec &d) : d(d), sheet(d.isCpu ? nullptr : gpuSheet(d.name)) {}

  std::vector<Implausible> run() {
    if (!d.isCpu)
      for (const Peak &p : peaks())
        if (p.value > 0 && !(sheet ? againstSheet(p) : againstSparsity(p)))
          good = std::max(good, p.value);
    if (!d.isCpu && d.fp32 > 0 && good > mostBesideFp32 * d.fp32 && out.empty()) {
      out.push_back({"device.peak_fp32", fmt::format("no GPU has {} in a narrower type beside that", formatFlops(good)),
                     fmt::format("{:.0f} times less", good / d.fp32), formatFlops(1e3 * d.fp32)});
      return out;
    }
    if (d.bandwidth > 0)
      bandwidth();
    return out;
  }

private:
  const DeviceSpec &d;
  const GpuSheet *sheet;
  double good = 0;  // the largest plausible peak
  std::vector<Implausible> out;

  std::vector<Peak> peaks() const {
    return {{"device.peak_fp32", d.fp32, &GpuSheet::fp32},
            {"device.peak_tf32", d.tf32, &GpuSheet::tf32},
            {"device.peak_fp16", d.fp16, &GpuSheet::half},
            {"device.peak_bf16", d.bf16, &GpuSheet::half}};
  }

  static std::string sparse(const Peak &p, const GpuSheet &s) {
    return fmt::format("twice the dense peak of the {}, {}: that is with sparsity, or with sums in fp16", s.name.str(),
                       formatFlops(1e12 * s.*p.onSheet));
  }

  /// Compares a peak with the data sheet; returns whether it complained.
  bool againstSheet(const Peak &p) {
    const double dense = 1e12 * sheet->*p.onSheet;
    if (near(p.value, 2 * dense, 0.04)) {
      out.push_back({p.key, sparse(p, *sheet), "wanted is the dense peak", formatFlops(dense)});
      return true;
    }
    const double meant = otherPrefix(p.value, dense);
    if (p.value <= 1.5 * dense && !meant)
      return false;
    out.push_back({p.key, fmt::format("the {} has {}", sheet->name.str(), formatFlops(dense)),
                   "by the data sheet, dense and with sums in fp32", formatFlops(meant > 0 ? meant : dense)});
    return true;
  }

  bool againstSparsity(const Peak &p) {
    auto is = [&](double factor) {
      return llvm::find_if(gpuSheets(), [&](const GpuSheet &s) {
        return s.arch != "sm_75" && p.onSheet != &GpuSheet::fp32 && near(p.value, factor * 1e12 * s.*p.onSheet, 2e-3);
      });
    };
    const auto *s = is(2);
    if (s == gpuSheets().end() || is(1) != gpuSheets().end())
      return false;
    out.push_back({p.key, sparse(p, *s), "wanted is the dense peak", formatFlops(1e12 * s->*p.onSheet)});
    return true;
  }

  void bandwidth() {
    const char *key = "device.memory_bandwidth";
    if (sheet) {
      const double there = 1e9 * sheet->dram;
      const double meant = otherPrefix(d.bandwidth, there);
      if (meant > 0 || d.bandwidth > 2 * there || d.bandwidth < there / 4)
        out.push_back({key, fmt::format("the {} has {}", sheet->name.str(), formatBandwidth(there)),
                       "by the data sheet", formatBandwidth(meant > 0 ? meant : there)});
      return;
    }
    const double peak = std::max({d.isCpu ? d.bf16 : good, d.isCpu ? d.fp16 : good, d.fp32});
    const double least = d.isCpu ? leastBandwidth : leastOfGpuMemory;
    const double flopsPerByte = peak / d.bandwidth;
    auto balanced = [&](double bandwidth) {
      return peak / bandwidth <= mostFlopsPerByte && peak / bandwidth >= (d.isCpu ? leastFlopsPerByte : leastOfGpus) &&
             bandwidth <= mostBandwidth;
    };
    if (!(peak > 0) || balanced(d.bandwidth))
      return;
    const bool many = flopsPerByte > mostFlopsPerByte;
    const std::string says =
        fmt::format("no device does {} FLOPs for each byte that it reads",
                    flopsPerByte < 10 ? fmt::format("{:.2g}", flopsPerByte) : fmt::format("{:.0f}", flopsPerByte));
    // Of two incompatible figures, the one is wrong that no memory can have.
    if (d.bandwidth >= least && d.bandwidth <= mostBandwidth && many) {
      const Peak *worst = nullptr;
      const std::vector<Peak> all = peaks();
      for (const Peak &p : all)
        if (p.value == peak)
          worst = &p;
      if (worst)
        out.push_back({worst->key, says, fmt::format("memory_bandwidth is {}", formatBandwidth(d.bandwidth)),
                       formatFlops(peak / 1e3)});
      return;
    }
    const double other = d.bandwidth * (many ? 1e3 : 1e-3);
    out.push_back(
        {key, says, fmt::format("the peak is {}", formatFlops(peak)), balanced(other) ? formatBandwidth(other) : ""});
  }
};

}  // namespace

std::vector<Implausible> implausible(const DeviceSpec &d) { return Check(d).run(); }

}  // namespace gptc
