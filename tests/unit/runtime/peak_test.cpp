// What MFU is a share of, with measurements that the tests make up.
#include "runtime/device/peak.h"

#include "runtime/cuda/peak.h"
#include "temp_dir.h"

#include <cmath>
#include <sys/stat.h>
#include <vector>

namespace gptc {
namespace {

/// Attempts that give these, the last one ever after.
struct Attempts {
  std::vector<double> flops;
  int made = 0;
  std::function<double()> next() {
    return [this] { return flops[std::min(size_t(made++), flops.size() - 1)]; };
  }
};

class PeakTest : public testing::Test {
protected:
  void SetUp() override { ASSERT_EQ(chmod(dir.path.c_str(), 0700), 0); }
  TempDir dir;
  std::vector<std::string> said;
  std::function<void(const std::string &)> say = [this](const std::string &text) { said.push_back(text); };
};

TEST_F(PeakTest, IsMeasuredOnceForAMachineAndAKernel) {
  Attempts first{{3e9}}, second{{5e9}}, other{{7e9}};
  const Peak p = PeakRecord(dir.path, "a machine", first.next()).get();
  EXPECT_EQ(p.flops, 3e9);
  EXPECT_EQ(p.date.size(), 10u);
  EXPECT_EQ(first.made, 3) << "three agree";
  const Peak again = PeakRecord(dir.path, "a machine", second.next()).get();
  EXPECT_EQ(again.flops, 3e9);
  EXPECT_EQ(again.date, p.date);
  EXPECT_EQ(second.made, 0);
  EXPECT_EQ(PeakRecord(dir.path, "a machine, another kernel", other.next()).get().flops, 7e9);
}

TEST_F(PeakTest, TheGreatestOfAttemptsThatDisagreeCounts) {
  Attempts busy{{1e9, 1.4e9, 2e9, 1.99e9, 1.2e9, 2.01e9, 9e9}};
  EXPECT_EQ(PeakRecord(dir.path, "a", busy.next()).get().flops, 2.01e9);
  EXPECT_EQ(busy.made, 6) << "2, 1.99 and 2.01 agree";
  Attempts never{{1e9, 2e9, 3e9, 4e9, 5e9, 6e9, 7e9, 8e9, 9e9}};
  EXPECT_EQ(PeakRecord(dir.path, "b", never.next()).get().flops, 8e9);
  EXPECT_EQ(never.made, 8);
  Attempts none{{0}};
  EXPECT_EQ(PeakRecord(dir.path, "c", none.next()).get().flops, 0) << "no way to measure";
  EXPECT_EQ(none.made, 1);
}

TEST_F(PeakTest, AnotherMeasurementOnlyRaisesIt) {
  Attempts first{{5e9}}, less{{4e9}}, more{{6e9}}, unused{{1}};
  PeakRecord(dir.path, "a", first.next()).get();
  EXPECT_EQ(PeakRecord(dir.path, "a", less.next()).again().flops, 5e9);
  EXPECT_EQ(PeakRecord(dir.path, "a", more.next()).again().flops, 6e9);
  EXPECT_EQ(PeakRecord(dir.path, "a", unused.next()).get().flops, 6e9);
}

TEST_F(PeakTest, ACacheThatKeepsNothingCostsOnlyTime) {
  for (const std::string &cache : {std::string(), dir / "file"}) {
    writeFile(dir / "file", "no folder");
    for (int run = 0; run < 2; ++run) {
      Attempts a{{3e9}};
      EXPECT_EQ(PeakRecord(cache, "a", a.next()).get().flops, 3e9);
      EXPECT_EQ(a.made, 3);
    }
  }
  // A damaged record is none.
  Attempts a{{3e9}}, b{{4e9}};
  PeakRecord(dir.path, "a", a.next()).get();
  for (const auto &entry : std::filesystem::directory_iterator(dir.path))
    if (entry.path().filename() != "file")
      damageFile(entry.path(), 45);
  EXPECT_EQ(PeakRecord(dir.path, "a", b.next()).get().flops, 4e9);
}

TEST_F(PeakTest, ARunThatExceedsThePeakRaisesItAndSaysSo) {
  Attempts low{{35e9}}, high{{57e9}};
  PeakRecord(dir.path, "a", low.next()).get();
  Utilization u(0, {}, PeakRecord(dir.path, "a", high.next()), "fp32");
  EXPECT_STREQ(u.of(), "measured");
  EXPECT_NE(u.describe().find("35 GFLOP/s in fp32, measured 20"), std::string::npos) << u.describe();
  EXPECT_EQ(u.at(30e9, say).mfu, 30. / 35);
  EXPECT_EQ(high.made, 0);
  EXPECT_TRUE(said.empty());
  EXPECT_EQ(u.at(50e9, say).mfu, 50. / 57);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("35 GFLOP/s"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("57 GFLOP/s from now on"), std::string::npos) << said[0];
  EXPECT_TRUE(std::isnan(u.at(50e9, say).measured)) << "there is no other peak beside it";
  EXPECT_EQ(said.size(), 1u);
  Attempts unused{{1}};
  EXPECT_EQ(PeakRecord(dir.path, "a", unused.next()).get().flops, 57e9) << "for later runs too";
}

TEST_F(PeakTest, NoShareAboveOneWithoutAWord) {
  Attempts same{{10e9}};
  Utilization measured(0, {}, PeakRecord("", "a", same.next()), "fp32");
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(measured.at(20e9, say).mfu, 2);
  ASSERT_EQ(said.size(), 1u) << "once, and not at every step";
  EXPECT_NE(said[0].find("MFU is above 100%"), std::string::npos) << said[0];
  EXPECT_EQ(same.made, 4 * 3) << "measured again three times at most";

  said.clear();
  Attempts never{{1}};
  Utilization given(10e9, {5e9, "some GPU"}, PeakRecord("", "a", never.next()), "fp32");
  EXPECT_STREQ(given.of(), "given");
  EXPECT_EQ(given.describe(), "");
  EXPECT_EQ(given.at(20e9, say).mfu, 2);
  EXPECT_EQ(never.made, 0) << "nothing needs it";
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("log.mfu_peak, 10 GFLOP/s"), std::string::npos) << said[0];
}

TEST_F(PeakTest, DataSheetsAreOfTypesThatTensorCoresTake) {
  EXPECT_EQ(cuda::sheetPeak("NVIDIA H200", "bf16").flops, 989e12);
  EXPECT_EQ(cuda::sheetPeak("NVIDIA H200", "bf16").of, "H200");
  EXPECT_EQ(cuda::sheetPeak("NVIDIA A100-SXM4-40GB", "tf32").flops, 156e12);
  EXPECT_EQ(cuda::sheetPeak("Tesla T4", "fp16").flops, 65e12);
  EXPECT_EQ(cuda::sheetPeak("Tesla T4", "bf16").flops, 0);
  EXPECT_EQ(cuda::sheetPeak("Tesla T4", "tf32").flops, 0);
  EXPECT_EQ(cuda::sheetPeak("stand-in sm_90", "bf16").flops, 0);
}

TEST_F(PeakTest, ADataSheetComesFirstAndTheMeasuredPeakBesideIt) {
  Attempts a{{700e12}};
  const PeakRecord record("", "a", a.next());
  Utilization u(0, {989.5e12, "NVIDIA H200"}, record, "bf16");
  EXPECT_STREQ(u.of(), "sheet");
  EXPECT_NE(u.describe().find("989.5 TFLOP/s in bf16, by the data sheet of NVIDIA H200; mfu_measured of 700.0"),
            std::string::npos)
      << u.describe();
  const Utilization::Shares s = u.at(350e12, say);
  EXPECT_EQ(s.mfu, 350 / 989.5);
  EXPECT_EQ(s.measured, 0.5);
  EXPECT_TRUE(said.empty());
  // Who asks for the measured one gets it.
  Utilization wanted(-1, {989.5e12, "NVIDIA H200"}, record, "bf16");
  EXPECT_STREQ(wanted.of(), "measured");
  EXPECT_EQ(wanted.at(350e12, say).mfu, 0.5);
  // Neither is known.
  Attempts none{{0}};
  Utilization unknown(0, {}, PeakRecord("", "a", none.next()), "bf16");
  EXPECT_STREQ(unknown.of(), "");
  EXPECT_EQ(unknown.describe(), "");
  EXPECT_TRUE(std::isnan(unknown.at(350e12, say).mfu));
  EXPECT_TRUE(said.empty());
}

}  // namespace
}  // namespace gptc
