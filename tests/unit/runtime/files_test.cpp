#include "runtime/files.h"

#include "ir/diagnostics.h"
#include "runtime/metrics.h"
#include "runtime/safetensors.h"
#include "temp_dir.h"

#include <cmath>
#include <cstdlib>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

TEST(AtomicDir, AppearsWholeReplacesAndCleansUp) {
  TempDir dir;
  auto write = [](AtomicDir &d, const std::string &text) {
    SyncedFile f(d.file("x"));
    f.write(text.data(), text.size());
    f.finish();
  };
  {
    AtomicDir d(dir / "out");
    write(d, "one");
    EXPECT_FALSE(fs::exists(dir / "out"));
  }
  EXPECT_TRUE(fs::is_empty(dir.path)) << "an abandoned folder must vanish";
  {
    AtomicDir d(dir / "out");
    write(d, "one");
    d.commit();
  }
  EXPECT_EQ(readFile(dir / "out/x"), "one");
  {
    AtomicDir d(dir / "out");
    write(d, "two");
    d.commit();
  }
  EXPECT_EQ(readFile(dir / "out/x"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), fs::directory_iterator()), 1);
}

TEST(SyncedFile, ErrorsHaveCodes) {
  TempDir dir;
  EXPECT_EQ(codeThrown([&] { SyncedFile f(dir / "no/such/folder"); }), int(ErrorCode::Unwritable));
  auto fill = [] {
    SyncedFile f("/dev/full");
    f.write("x", 1);
  };
  EXPECT_EQ(codeThrown(fill), int(ErrorCode::DiskFull));
}

TEST(Safetensors, RoundTrip) {
  TempDir dir;
  const float a[6] = {1, 2, 3, 4, 5, 6};
  const int64_t step = 42;
  {
    SafetensorsWriter w(dir / "t.safetensors", {{"a", DType::f32, {2, 3}}, {"step", DType::i64, {}}},
                        {{"format", "pt"}});
    w.write(a, sizeof a);
    w.write(&step, sizeof step);
    EXPECT_EQ(w.finish(), blake3(readFile(dir / "t.safetensors")));
  }
  SafetensorsFile f(dir / "t.safetensors");
  ASSERT_TRUE(f.find("a") && f.find("step"));
  EXPECT_FALSE(f.find("b"));
  float b[6];
  f.read(*f.find("a"), b);
  EXPECT_TRUE(std::equal(a, a + 6, b));
  EXPECT_EQ(f.find("a")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(InputFile(dir / "t.safetensors", "test").hash(), blake3(readFile(dir / "t.safetensors")));
  // Data must be aligned for readers that map it.
  uint64_t header;
  std::memcpy(&header, readFile(dir / "t.safetensors").data(), 8);
  EXPECT_EQ(header % 8, 0u);
}

TEST(Safetensors, DamageIsRefused) {
  TempDir dir;
  auto open = [&](const std::string &header, size_t data, uint64_t length = 0) {
    uint64_t n = length ? length : header.size();
    writeFile(dir / "t", std::string(reinterpret_cast<char *>(&n), 8) + header + std::string(data, 'x'));
    return codeThrown([&] { SafetensorsFile f(dir / "t"); });
  };
  const int damaged = int(ErrorCode::CheckpointDamaged);
  EXPECT_EQ(open(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8), 0);
  EXPECT_EQ(open(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7), damaged);
  EXPECT_EQ(open(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), damaged);
  EXPECT_EQ(open(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), damaged);
  EXPECT_EQ(open(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})", 8),
            damaged);
  EXPECT_EQ(open(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", 8), damaged);
  EXPECT_EQ(
      open(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
          8),
      damaged);
  EXPECT_EQ(open("{]", 8), damaged);
  EXPECT_EQ(open("[1]", 8), damaged);
  EXPECT_EQ(open(R"({"a":3})", 8), damaged);
  EXPECT_EQ(open("{}", 0, 1ull << 60), damaged);
  writeFile(dir / "t", "abc");
  EXPECT_EQ(codeThrown([&] { SafetensorsFile f(dir / "t"); }), damaged);
}

TEST(MetricsLog, WhatIsNotFiniteIsNull) {
  TempDir dir;
  MetricsLog log(dir.path, 0);
  log.step({1, INFINITY, 1e-3f, -INFINITY, 10, 100, NAN});
  EXPECT_EQ(readFile(dir / "log.jsonl"),
            "{\"step\": 1, \"loss\": null, \"lr\": 0.001, \"grad_norm\": null, \"ms\": 10, \"tokens_per_s\": 100, "
            "\"mfu\": null}\n");
}

TEST(ProgressLine, CoversALongerOne) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
    GTEST_SKIP() << "no terminals here";
  FILE *out = std::fopen(ptsname(terminal), "w");
  ASSERT_NE(out, nullptr);
  {
    ProgressLine line(out, 10);
    line.show({9, 123456, 1e-3f, 12345, 1234, 100, 0.5}, 1e9, 1 << 30, true);
    line.show({10, 1, 1e-3f, 1, 1, 1, 0.5}, 0, 1 << 30, true);
  }
  char text[4096];
  const ssize_t n = read(terminal, text, sizeof text);
  std::fclose(out);
  close(terminal);
  ASSERT_GT(n, 0);
  const std::string shown(text, size_t(n));
  const size_t second = shown.find('\r', 1);
  ASSERT_NE(second, std::string::npos) << shown;
  EXPECT_GE(shown.size() - second, second) << shown;
}

TEST(MetricsLog, KeepsWhatIsBeforeTheCheckpoint) {
  TempDir dir;
  {
    MetricsLog log(dir.path, 0);
    for (int s = 1; s <= 4; ++s)
      log.step({s, 0.1f * s, 1e-3f, NAN, 12.3456, 100, 0.5});
    log.evaluation(4, 1.25);
  }
  std::string text = readFile(dir / "log.jsonl");
  EXPECT_EQ(
      text.substr(0, text.find('\n')),
      R"({"step": 1, "loss": 0.1, "lr": 0.001, "grad_norm": null, "ms": 12.346, "tokens_per_s": 100, "mfu": 0.5})");
  writeFile(dir / "log.jsonl", text + R"({"step": 5, "lo)");
  {
    MetricsLog log(dir.path, 4);
    EXPECT_EQ(log.lastEvaluation(), 4);
  }
  EXPECT_EQ(readFile(dir / "log.jsonl"), text) << "a half-written line goes";
  {
    MetricsLog log(dir.path, 2);
    EXPECT_EQ(log.lastEvaluation(), -1);
    log.step({3, 9, 0, 0, 0, 0, 0});
  }
  std::string kept = readFile(dir / "log.jsonl");
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 3);
  EXPECT_NE(kept.find("\"loss\": 9"), std::string::npos);
}

TEST(FormatDuration, ReadsWell) {
  EXPECT_EQ(formatDuration(7.2), "0:07");
  EXPECT_EQ(formatDuration(125), "2:05");
  EXPECT_EQ(formatDuration(3723), "1:02:03");
  EXPECT_EQ(formatDuration(90000), "1 d 1:00:00");
  EXPECT_EQ(formatDuration(NAN), "?");
}

}  // namespace
