#include "support/files.h"

#include "runtime/checkpoint/safetensors.h"
#include "runtime/train/metrics.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "support/words.h"
#include "temp_dir.h"
#include "tests/support/json_lines.h"

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <regex>
#include <sstream>
#include <sys/ioctl.h>
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

TEST(ReadTextFile, TakesAsManyBytesAsTheLimitAndNoMore) {
  TempDir dir;
  std::ofstream(dir / "x") << "12345";
  EXPECT_EQ(readTextFile(dir / "x", 5).text, "12345");
  const FileText longer = readTextFile(dir / "x", 4);
  EXPECT_FALSE(longer.ok);
  EXPECT_FALSE(longer.why.empty());
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

TEST(Safetensors, ValuesOfOtherTypesAreNamed) {
  const TempDir dir;
  auto said = [&](const std::string &header) {
    const uint64_t n = header.size();
    writeFile(dir / "t", std::string(reinterpret_cast<const char *>(&n), 8) + header + std::string(8, 'x'));
    std::string message;
    const int code = codeThrown([&] { SafetensorsFile f(dir / "t"); }, &message);
    const size_t begin = (dir / "t is no valid safetensors file: ").size();
    return code ? fmt::format("{} {}", code, message.substr(std::min(begin, message.size()))) : "";
  };
  auto tensor = [&](const char *dtype, const char *shape, const char *offsets) {
    return said(fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets));
  };
  EXPECT_EQ(tensor("\"F32\"", "[2, 1]", "[0, 8]"), "");
  for (const char *shape : {"[2.0,1]", "[2,1.5]", "[2.9,1]", "[-2,1]", "[18446744073709551615,1]", "[true,2]",
                            "[\"2\",1]", "[null]", "2", "{\"a\":2}", "null"})
    EXPECT_EQ(tensor("\"F32\"", shape, "[0,8]"),
              fmt::format("504 shape of tensor a is {}, where a list of whole numbers is needed", shape));
  for (const char *offsets : {"[0.0,8]", "[0.5,8.5]", "[0,8.0]", "[0,8,8]", "[8]", "[]", "[false,8]", "8", "null"})
    EXPECT_EQ(tensor("\"F32\"", "[2,1]", offsets),
              fmt::format("504 data_offsets of tensor a is {}, where two whole numbers are needed", offsets));
  for (const char *dtype : {"3", "[\"F32\"]", "null"})
    EXPECT_EQ(tensor(dtype, "[2,1]", "[0,8]"),
              fmt::format("504 dtype of tensor a is {}, where a text is needed", dtype));
  EXPECT_EQ(tensor("\"F8_E4M3\"", "[8.5]", "[0,8]"),
            "504 shape of tensor a is [8.5], where a list of whole numbers is needed")
      << "of an unknown dtype too";
  EXPECT_EQ(said(R"({"__metadata__":{"format":"pt"}})"), "");
  for (const char *words : {R"({"format":3})", "[]", "3", "null"})
    EXPECT_EQ(said(fmt::format(R"({{"__metadata__":{}}})", words)),
              fmt::format("504 __metadata__ is {}, where an object of texts is needed", words));
  EXPECT_EQ(said("{]"), "504 its header is no JSON object");
  EXPECT_EQ(said("[1]"), "504 its header is no JSON object");
  // A long value has its beginning, up to a whole character.
  EXPECT_EQ(
      tensor(fmt::format("[\"x{}\"]", fmt::join(std::vector<std::string>(300, "\u00e9"), "")).c_str(), "[8]", "[0,8]"),
      fmt::format("504 dtype of tensor a is [\"x{}..., where a text is needed",
                  fmt::join(std::vector<std::string>(98, "\u00e9"), "")));
}

TEST(MetricsLog, WhatIsNotFiniteIsNull) {
  TempDir dir;
  MetricsLog log(dir.path, 0);
  log.step({1, INFINITY, 1e-3f, -INFINITY, 10, 100, NAN});
  const std::string text = readFile(dir / "log.jsonl");
  EXPECT_EQ(text.substr(0, text.find(", \"time\"")),
            "{\"step\": 1, \"loss\": null, \"lr\": 0.001, \"grad_norm\": null, \"ms\": 10, \"tokens_per_s\": 100, "
            "\"mfu\": null");
  StepMetrics m{2, 1, 1e-3f, 1, 10, 100, 0.405};
  m.mfuMeasured = 0.52;
  log.step(m);
  EXPECT_NE(readFile(dir / "log.jsonl").find("\"mfu\": 0.405, \"mfu_measured\": 0.52, \"time\""), std::string::npos);
}

TEST(MetricsLog, EachLineHasItsTime) {
  TempDir dir;
  const std::string before = timeNow();
  MetricsLog log(dir.path, 0);
  log.step({1, 2, 1e-3f, 1, 10, 100, 0.5, 65536});
  log.evaluation(1, 1.25);
  const std::string after = timeNow();
  const auto lines = test::jsonLines(readFile(dir / "log.jsonl"));
  for (const nlohmann::json &line : lines) {
    const std::string time = line.value("time", "");
    EXPECT_TRUE(std::regex_match(time, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)"))) << line;
    EXPECT_LE(before, time);
    EXPECT_LE(time, after);
  }
  EXPECT_EQ(lines.size(), 2u);
}

TEST(FitLine, LeavesOutTheLeastImportantFirst) {
  const LineField fields[] = {{"step 7", 9}, {"lr 1e-3", 1}, {"", 5}, {"loss 2.5", 8}, {"3 ms", 4}};
  EXPECT_EQ(fitLine(fields, 99), "step 7  lr 1e-3  loss 2.5  3 ms");
  EXPECT_EQ(fitLine(fields, 31), "step 7  lr 1e-3  loss 2.5  3 ms");
  EXPECT_EQ(fitLine(fields, 30), "step 7  loss 2.5  3 ms");
  EXPECT_EQ(fitLine(fields, 21), "step 7  loss 2.5");
  EXPECT_EQ(fitLine(fields, 15), "step 7");
  EXPECT_EQ(fitLine(fields, 3), "ste");
}

/// What ProgressLine writes to a terminal of so many columns.
class Screen {
public:
  explicit Screen(unsigned short columns) : terminal(posix_openpt(O_RDWR | O_NOCTTY)) {
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
      return;
    out = std::fopen(ptsname(terminal), "w");
    resize(columns);
  }
  ~Screen() {
    if (out)
      std::fclose(out);
    close(terminal);
  }
  void resize(unsigned short columns) const {
    winsize w{};
    w.ws_row = 24;
    w.ws_col = columns;
    ioctl(terminal, TIOCSWINSZ, &w);
  }
  /// Each time that the line was written anew.
  std::vector<std::string> lines() const {
    // What is written takes a moment to come through: up to a mark at the end.
    std::fputs("#", out);
    std::fflush(out);
    std::string shown;
    char text[4096];
    while (shown.empty() || shown.back() != '#') {
      const ssize_t n = read(terminal, text, sizeof text);
      if (n <= 0)
        break;
      shown.append(text, size_t(n));
    }
    std::istringstream all(shown.substr(0, shown.find('#')));
    std::vector<std::string> lines;
    for (std::string line; std::getline(all, line, '\r');)
      if (!line.empty())
        lines.push_back(line);
    return lines;
  }
  FILE *out = nullptr;

private:
  const int terminal;
};

TEST(ProgressLine, FitsIntoTheTerminal) {
  const StepMetrics m{1234, 3.1234f, 1e-3f, 0.52f, 24.1, 132400, 0.341, 65536};
  for (unsigned short columns : {200, 80, 40}) {
    const Screen screen(columns);
    if (!screen.out)
      GTEST_SKIP() << "no terminals here";
    ProgressLine line(screen.out, 20000);
    line.show(m, 47000, 1 << 30, true);
    line.show(m, 46000, 1 << 30, true);
    const std::vector<std::string> lines = screen.lines();
    ASSERT_EQ(lines.size(), 2u);
    for (const std::string &l : lines) {
      EXPECT_LT(l.size(), columns) << l;
      EXPECT_EQ(l.find('\n'), std::string::npos) << l;
      for (const char *field : {"step 1234/20000", "loss 3.1234", "left"})
        EXPECT_NE(l.find(field), std::string::npos) << l;
      EXPECT_EQ(l.find("tok/s") != std::string::npos, columns > 40) << l;
      EXPECT_EQ(l.find("GB") != std::string::npos, columns > 80) << l;
    }
  }
}

TEST(ProgressLine, SeesThatItsPipeHasNoReader) {
  const auto old = std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  FILE *out = fdopen(ends[1], "w");
  {
    ProgressLine line(out, 20000);
    EXPECT_FALSE(line.closed());
    line.print("a line\n");
    EXPECT_FALSE(line.closed());
    close(ends[0]);
    line.print("another\n");
    EXPECT_TRUE(line.closed());
  }
  std::fclose(out);
  std::signal(SIGPIPE, old);
}

TEST(ProgressLine, FollowsTheWindow) {
  const StepMetrics m{1234, 3.1234f, 1e-3f, 0.52f, 24.1, 132400, 0.341};
  const Screen screen(120);
  if (!screen.out)
    GTEST_SKIP() << "no terminals here";
  ProgressLine line(screen.out, 20000);
  line.show(m, 47000, 1 << 30, true);
  screen.resize(50);
  line.show(m, 47000, 1 << 30, true);
  const std::vector<std::string> lines = screen.lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_GT(lines[0].size(), 80u);
  EXPECT_LT(lines[1].size(), 50u) << lines[1];
}

TEST(ProgressLine, CoversALongerOne) {
  const Screen screen(200);
  if (!screen.out)
    GTEST_SKIP() << "no terminals here";
  ProgressLine line(screen.out, 10);
  line.show({9, 123456, 1e-3f, 12345, 1234, 100, 0.5}, 1e9, 1 << 30, true);
  line.show({10, 1, 1e-3f, 1, 1, 1, 0.5}, 0, 1 << 30, true);
  const std::vector<std::string> lines = screen.lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_GE(lines[1].size(), lines[0].size());
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
      text.substr(0, text.find(", \"time\"")),
      R"({"step": 1, "loss": 0.1, "lr": 0.001, "grad_norm": null, "ms": 12.346, "tokens_per_s": 100, "mfu": 0.5)");
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

TEST(LiesWithin, FollowsLinksAndDots) {
  TempDir dir;
  fs::create_directories(dir / "in/deep");
  fs::create_directories(dir / "in-beside");
  fs::create_directory_symlink("../in-beside", dir / "in/away");
  fs::create_directory_symlink("deep", dir / "in/link");
  fs::create_directory_symlink("../nowhere", dir / "in/dangling");
  writeFile(dir / "in/file", "");
  auto within = [&](const char *path) { return liesWithin(dir / path, dir / "in"); };
  for (const char *path : {"in", "in/", "in/.", "in/deep", "in/new", "in/new/newer", "in/new/", "in/link/new",
                           "in/deep/../new", "in-beside/../in/new", "in/away/../in/new", "in/./new"})
    EXPECT_TRUE(within(path)) << path;
  for (const char *path : {".", "in-beside", "in-beside/new", "in/..", "in/../x", "in/away", "in/away/new",
                           "in/away/../x", "in/new/../x", "in/new/../../x", "in/dangling", "in/dangling/new", "other"})
    EXPECT_FALSE(within(path)) << path;
  EXPECT_EQ(linkOutOf(dir / "in/deep", dir / "in"), "");
  EXPECT_EQ(linkOutOf(dir / "in/new", dir / "in"), "");
  fs::create_directories(dir / "in/deep/deeper");
  fs::create_symlink("../../file", dir / "in/deep/deeper/good");
  EXPECT_EQ(linkOutOf(dir / "in/deep", dir / "in"), "");
  fs::create_symlink("../../../x", dir / "in/deep/deeper/bad");
  EXPECT_EQ(linkOutOf(dir / "in/deep", dir / "in"), dir / "in/deep/deeper/bad");
}

TEST(FormatDuration, ReadsWell) {
  EXPECT_EQ(formatDuration(7.2), "0:07");
  EXPECT_EQ(formatDuration(125), "2:05");
  EXPECT_EQ(formatDuration(3723), "1:02:03");
  EXPECT_EQ(formatDuration(90000), "1 d 1:00:00");
  EXPECT_EQ(formatDuration(NAN), "?");
}

}  // namespace
