// gptc data prepare with text from standard input, and the line that follows its work on a terminal.
#include "runtime/data/data.h"
#include "support/json.h"
#include "tests/support/harness.h"
#include "tests/support/oracles.h"
#include "tools/commands/prepare_line.h"

#include "llvm/ADT/StringRef.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

using namespace e2e;
namespace fs = std::filesystem;

namespace {

struct Prepare : testing::Test {
  Workplace w;

  Result shell(const std::string &command) {
    const char *path = std::getenv("PATH");
    return Process({"/bin/sh", "-c", fmt::format("cd '{}' && {}", w.path(""), command)},
                   {{"PATH", fmt::format("{}:{}", GPTC_BIN_DIR, path ? path : "")}}, w.path("said.txt"))
        .wait();
  }
  /// Everything in a folder, by name.
  std::map<std::string, std::string> filesIn(const std::string &folder) const {
    std::map<std::string, std::string> files;
    for (const auto &e : fs::directory_iterator(w.path(folder)))
      files[e.path().filename()] = readFile(e.path());
    return files;
  }
};

/// Three and a half blocks of text.
std::string someText() {
  std::string text;
  for (int i = 0; text.size() < (7 << 19); ++i)
    text += fmt::format("{}: the naïve boats of {} women,\n", i, i * i % 97);
  return text;
}

struct MegatronsData : Prepare {
  static constexpr int kDocuments = 3000;
  /// Prepares the documents of documents.json, which has their tokens, into a folder named as the format.
  void prepare(const std::string &format) {
    std::string lines;
    nlohmann::json documents;
    for (int i = 0; i < kDocuments; ++i) {
      std::string text = fmt::format("boat {}", i);
      text.append(size_t(i * i % 997), char('a' + i % 26));
      lines += fmt::format("{{\"text\": \"{}\"}}\n", text);
      documents.push_back(std::vector<uint8_t>(text.begin(), text.end()));
    }
    writeFile(w.path("a.jsonl"), lines);
    writeFile(w.path("documents.json"), documents.dump());
    const Result r = shell(
        fmt::format("gptc data prepare a.jsonl --tokenizer byte --val-fraction 0 --format {0} --out {0}", format));
    ASSERT_EQ(r.code, 0) << r.output;
  }
};

TEST_F(MegatronsData, IsTheStreamOfOtherFormatsWithItsDocuments) {
  constexpr int kBlock = 8;
  prepare("nanogpt");
  prepare("megatron");
  const gptc::TokenData ours(w.path("megatron/train"), "data.train", 256, kBlock, kBlock + 1),
      plain(w.path("nanogpt/train.bin"), "data.train", 256, kBlock, kBlock + 1);
  ASSERT_EQ(ours.tokens(), plain.tokens());
  for (int64_t i = 0; i < plain.evalWindows(); ++i) {
    int32_t x[kBlock], y[kBlock], plainX[kBlock], plainY[kBlock];
    ASSERT_EQ(ours.evalWindow(i, x, y), plain.evalWindow(i, plainX, plainY));
    ASSERT_TRUE(std::equal(x, x + kBlock, plainX) && std::equal(y, y + kBlock, plainY)) << i;
  }
  const std::string file = w.path("megatron/train.bin");
  EXPECT_EQ(gptc::formatOf(gptc::InputFile(file, "data.train"), file, "data.train").documents, int64_t(kDocuments));
}

TEST_F(MegatronsData, IsReadByMegatronCore) {
  prepare("megatron");
  const gptc::test::Compared read = gptc::test::compareBy(
      "tests/e2e/megatron_compare.py", fmt::format("'{}' '{}'", w.path("megatron/train"), w.path("documents.json")));
  if (read.isMissing())
    GTEST_SKIP() << read.said;
  EXPECT_EQ(read.code, 0) << read.said;
}

// With a split, or a tokenizer to be learned, the text is read more than once: it is kept; otherwise it passes through.
TEST_F(Prepare, StandardInputGivesTheFilesOfTheTextsFile) {
  writeFile(w.path("a.txt"), someText());
  std::string lines;
  for (int i = 0; i < 300; ++i)
    lines += fmt::format("{{\"id\": {0}, \"text\": \"boat {0}\\nof the wall\"}}\n", i);
  writeFile(w.path("a.jsonl"), lines);
  ASSERT_EQ(shell("gptc data prepare a.txt --tokenizer bpe:300 --out learned && gzip -k a.txt").code, 0);
  for (const char *how : {"--tokenizer bpe:300", "--tokenizer char", "--tokenizer byte --val-fraction 0.5",
                          "--tokenizer learned/tokenizer.json --val-fraction 0", "--tokenizer bpe:280 --val a.jsonl"})
    for (const char *name : {"a.txt", "a.jsonl", "a.txt.gz"}) {
      const Result r = shell(fmt::format("gptc data prepare {} {} --out from-file", name, how));
      ASSERT_EQ(r.code, 0) << r.output;
      for (const char *from : {"cat {} | gptc data prepare -", "gptc data prepare - < {}"}) {
        const std::string command = fmt::format("{} {} --out from-stdin", fmt::format(fmt::runtime(from), name), how);
        const Result in = shell(command);
        EXPECT_EQ(in.code, 0) << command << "\n" << in.output;
        EXPECT_TRUE(filesIn("from-stdin") == filesIn("from-file")) << command;
        fs::remove_all(w.path("from-stdin"));
      }
      fs::remove_all(w.path("from-file"));
    }
}

TEST_F(Prepare, StandardInputHasItsErrors) {
  writeFile(w.path("a.txt"), "the boats\n");
  auto said = [&](const std::string &command, int code, const std::string &what) {
    const Result r = shell(command);
    EXPECT_EQ(r.code, code) << command << "\n" << r.output;
    EXPECT_NE(r.output.find(what), std::string::npos) << command << "\n" << r.output;
    EXPECT_FALSE(fs::exists(w.path("out/train.bin"))) << command;
  };
  said("cat a.txt | gptc data prepare - - --tokenizer byte --out out", 2, "standard input (-) is named twice");
  said("cat a.txt | gptc data prepare - --val - --tokenizer byte --out out", 2, "standard input (-) is named twice");
  said("gptc data prepare - --tokenizer byte --out out < /dev/null", 3, "error[GPTC0302]");
  said("printf '{\"text\": \"a\"}\\n{\"txt\": 1}\\n' | gptc data prepare - --tokenizer byte --out out", 3,
       ":2: no \"text\"");
}

/// What a line writes into a file.
struct Written {
  std::FILE *file = std::tmpfile();
  ~Written() { std::fclose(file); }
  /// What was written since the last call.
  std::string take() {
    std::fflush(file);
    std::string text(size_t(std::ftell(file) - at), 0);
    std::fseek(file, at, SEEK_SET);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
    std::fseek(file, 0, SEEK_END);
    at = std::ftell(file);
    return text;
  }
  long at = 0;
};

TEST(PrepareLine, HasTheShareTheRateAndTheTimeThatIsLeft) {
  using std::chrono::milliseconds;
  Written out;
  gptc::PrepareLine line(out.file);
  const gptc::PrepareLine::Clock::time_point start{};
  constexpr int64_t mib = 1 << 20;
  auto shown = [&](const char *doing, int64_t done, int64_t of, int ms) {
    line.show({doing, done, of}, start + milliseconds(ms));
    return out.take();
  };
  auto over = [](const std::string &text) { return "\r\033[K" + text; };
  const std::string first = "counting 20.0 MiB of 400.0 MiB (5%)",
                    second = "counting 40.0 MiB of 400.0 MiB (10%), 10.0 MiB/s, 0:36 left",
                    third = "encoding 60.0 MiB of 400.0 MiB (15%)",
                    fourth = "encoding 400.0 MiB of 400.0 MiB (100%), 170.0 MiB/s";
  EXPECT_EQ(shown("counting", 20 * mib, 400 * mib, 0), over(first));
  EXPECT_EQ(shown("counting", 30 * mib, 400 * mib, 199), "") << "too early";
  EXPECT_EQ(shown("counting", 40 * mib, 400 * mib, 2000), over(second));
  // Other work has a rate of its own, from what was there when it began.
  EXPECT_EQ(shown("encoding", 60 * mib, 400 * mib, 3000), over(third));
  EXPECT_EQ(shown("encoding", 400 * mib, 400 * mib, 5000), over(fourth));
  line.clear();
  EXPECT_EQ(out.take(), over(""));
  line.clear();
  EXPECT_EQ(out.take(), "");
  // Of standard input nobody knows the end.
  EXPECT_EQ(shown("learning", 0, 0, 6000), over("learning 0 B"));
  EXPECT_EQ(shown("learning", 3 * mib, 0, 7000), over("learning 3072.0 KiB, 3072.0 KiB/s"));
}

TEST_F(Prepare, OnlyATerminalHasTheLine) {
  writeFile(w.path("a.txt"), someText());
  const std::string command = "gptc data prepare a.txt --tokenizer bpe:300 --out out 2>";
  ASSERT_EQ(shell(command + "err.txt").code, 0);
  EXPECT_EQ(readFile(w.path("err.txt")), "");
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0)
    GTEST_SKIP() << "no terminals here";
  const std::string name = ::ptsname(terminal);
  const int other = ::open(name.c_str(), O_RDWR | O_NOCTTY);  // keeps what the program wrote when it has ended
  ASSERT_EQ(shell(command + name).code, 0);
  ASSERT_EQ(::write(other, "#", 1), 1);
  std::string shown;
  char text[4096];
  for (ssize_t n; shown.find('#') == std::string::npos && (n = ::read(terminal, text, sizeof text)) > 0;)
    shown.append(text, size_t(n));
  ::close(other);
  ::close(terminal);
  EXPECT_EQ(shown.rfind("\r\033[Kcounting ", 0), 0u) << shown;
  EXPECT_NE(shown.find(" of "), std::string::npos) << shown;
  EXPECT_NE(shown.find("%)"), std::string::npos) << shown;
  EXPECT_TRUE(llvm::StringRef(shown).ends_with("\r\033[K#")) << "taken away at the end: " << shown;
}

}  // namespace
