#include "runtime/data/data_print.h"

#include "runtime/data/data.h"
#include "support/diagnostics.h"
#include "temp_dir.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

std::vector<uint16_t> counted(int n) {
  std::vector<uint16_t> t(n);
  for (int i = 0; i < n; ++i)
    t[i] = uint16_t(i % 1000);
  return t;
}

std::string bytes(const std::vector<uint16_t> &t) { return {reinterpret_cast<const char *>(t.data()), t.size() * 2}; }

struct DataPrints : ::testing::Test {
  TempDir dir;
  const std::string cache = dir / "cache";
  int64_t vocab = 1000;
  TokenData open(const std::string &pattern) const { return {dir / pattern, "data.train", vocab, 8, 9}; }
  DataPrint print(const std::string &pattern, const std::string &tokenizer = "") const {
    const TokenData d = open(pattern);
    return DataHasher(d, tokenizer, "").print();
  }
  std::string difference(const DataPrint &there, const std::string &pattern, const std::string &tokenizer = "") const {
    return differenceOf(there, print(pattern, tokenizer), open(pattern).paths(), tokenizer);
  }
  /// Bytes that are not known. What has just been written is not kept in the cache, as it may change unnoticed.
  int64_t unknownAfterHashing(const std::string &pattern, const std::string &folder) const {
    const TokenData d = open(pattern);
    for (int tries = 0; tries < 500; ++tries) {
      DataHasher hasher(d, "", folder);
      if (!hasher.bytesToHash() || folder.empty())
        return hasher.bytesToHash();
      hasher.begin();
      hasher.print();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return DataHasher(d, "", folder).bytesToHash();
  }
};

TEST_F(DataPrints, SeeEveryToken) {
  std::vector<uint16_t> t = counted(200'000);
  writeFile(dir / "a.bin", bytes(t));
  const DataPrint before = print("a.bin");
  const std::string sampled = open("a.bin").sampledFingerprint();
  EXPECT_EQ(difference(before, "a.bin"), "");
  for (size_t at : {size_t(5000), size_t(100'000), t.size() - 5000}) {
    std::swap(t[at], t[at + 1]);
    writeFile(dir / "a.bin", bytes(t));
    EXPECT_EQ(open("a.bin").sampledFingerprint(), sampled) << "the print of earlier versions sees 16 places";
    EXPECT_EQ(difference(before, "a.bin"), (dir / "a.bin") + " has other tokens, though as many") << at;
    EXPECT_NE(print("a.bin").str(), before.str());
    std::swap(t[at], t[at + 1]);
  }
  writeFile(dir / "a.bin", bytes(counted(200'001)));
  EXPECT_EQ(difference(before, "a.bin"), (dir / "a.bin") + " has 200001 tokens and had 200000");
}

TEST_F(DataPrints, AreOfNamesAndOrderButNotOfTheFolder) {
  fs::create_directories(dir / "one");
  writeFile(dir / "one/a.bin", bytes(counted(100)));
  writeFile(dir / "one/b.bin", bytes(counted(200)));
  const DataPrint before = print("one/*.bin");
  ASSERT_EQ(before.files.size(), 2u);
  EXPECT_EQ(before.files[1].name, "b.bin");
  EXPECT_EQ(print("one/b.bin").files[0].name, "b.bin");
  EXPECT_EQ(print("o*e/b.bin").files[0].name, "one/b.bin");
  fs::rename(dir / "one", dir / "two");
  EXPECT_EQ(difference(before, "two/*.bin"), "");
  EXPECT_EQ(print("two/*.bin").str(), before.str());

  EXPECT_EQ(difference(before, "two/a.bin"), "b.bin is missing: there were 2 files and are 1");
  EXPECT_EQ(difference(print("two/a.bin"), "two/*.bin"), (dir / "two/b.bin") + " is new: there were 1 files and are 2");
  fs::rename(dir / "two/a.bin", dir / "two/c.bin");
  EXPECT_EQ(difference(before, "two/*.bin"), (dir / "two/b.bin") + " stands in the place of a.bin, as file 1 of 2");
  EXPECT_NE(print("two/*.bin").str(), before.str());
  // Files that were no stream: their windows came in another order.
  DataPrint apart = print("two/*.bin");
  EXPECT_GT(apart.files[1].first, 0);
  apart.files[1].first = 0;
  EXPECT_EQ(difference(apart, "two/*.bin"), (dir / "two/c.bin") + " goes on where " + (dir / "two/b.bin") +
                                                " ends, and its windows come in another order than then");
  EXPECT_NE(print("two/*.bin").str(), apart.str());
  EXPECT_EQ(filePrintsOf(jsonOf(print("two/*.bin").files)), print("two/*.bin").files);
  // The same tokens in the other format are the same data.
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 200;
  writeFile(dir / "b.bin", std::string(reinterpret_cast<char *>(header.data()), 1024) + bytes(counted(200)));
  EXPECT_EQ(difference(print("two/b.bin"), "b.bin"), "");
}

// What a checkpoint's manifest says may be wrong though its checksum is right: other programs write such files, too.
TEST_F(DataPrints, WithValuesThatNobodyWritesAreRefused) {
  const std::string hash(64, 'a');
  const nlohmann::ordered_json good =
      jsonOf({{"a.bin", 100, hash, 0}, {"b.bin", 0, hash, 100}, {"c.bin", 7, hash, 100}});
  auto refused = [](const nlohmann::ordered_json &files) -> std::string {
    try {
      filePrintsOf(files);
    } catch (const std::invalid_argument &e) {
      return e.what();
    } catch (const nlohmann::json::exception &) {
      return "another type";
    }
    return "";
  };
  EXPECT_EQ(refused(good), "");
  EXPECT_EQ(filePrintsOf(good)[2].first, 100);
  EXPECT_EQ(filePrintsOf(nlohmann::ordered_json::array()).size(), 0u) << "unknown data";
  auto with = [&](size_t file, const char *member, const nlohmann::ordered_json &value) {
    nlohmann::ordered_json files = good;
    files[file][member] = value;
    return refused(files);
  };
  const nlohmann::ordered_json noCounts[] = {
      -1, 1.5, 100.0, true, "100", nullptr, nlohmann::ordered_json::array(), uint64_t(1) << 63};
  for (const nlohmann::ordered_json &v : noCounts) {
    EXPECT_EQ(with(1, "first", v), fmt::format("data_files[1]: \"first\" is {}, no number of tokens", v.dump()));
    EXPECT_EQ(with(0, "tokens", v), fmt::format("data_files[0]: \"tokens\" is {}, no number of tokens", v.dump()));
  }
  // Places that do not follow from the numbers of tokens: a gap, an overlap, out of order, of the first file, of one.
  EXPECT_EQ(with(2, "first", 101), "data_files[2]: \"first\" is 101, and the files before it end at token 100");
  EXPECT_EQ(with(2, "first", 99), "data_files[2]: \"first\" is 99, and the files before it end at token 100");
  EXPECT_EQ(with(1, "first", 107), "data_files[1]: \"first\" is 107, and the files before it end at token 100");
  EXPECT_EQ(with(0, "first", 1), "data_files[0]: \"first\" is 1, and the files before it end at token 0");
  EXPECT_EQ(with(2, "first", 0), "data_files[2]: \"first\" is 0, and the files before it end at token 100");
  EXPECT_EQ(with(0, "tokens", 99), "data_files[1]: \"first\" is 100, and the files before it end at token 99");
  EXPECT_EQ(with(2, "tokens", INT64_MAX), "data_files[2]: \"tokens\" is 9223372036854775807, and the files before it "
                                          "have 100: more than 2^63 - 1 in all");
  // As versions that knew no stream wrote it: all of them, or none.
  nlohmann::ordered_json apart = good;
  for (auto &f : apart)
    f.erase("first");
  EXPECT_EQ(refused(apart), "");
  apart[2]["first"] = 100;
  EXPECT_NE(refused(apart), "");

  for (const std::string &bad : {std::string(), hash.substr(1), hash + "a", std::string(64, 'A'), std::string(64, ' ')})
    EXPECT_EQ(with(1, "blake3", bad), "data_files[1]: \"blake3\" is \"" + bad + "\", no hash of 64 digits");
  EXPECT_EQ(with(1, "blake3", 5), "another type");
  EXPECT_EQ(with(1, "name", 5), "another type");
  for (const char *member : {"name", "tokens", "blake3"}) {
    nlohmann::ordered_json files = good;
    files[1].erase(member);
    EXPECT_EQ(refused(files), "another type") << member;
  }
  EXPECT_EQ(refused(good[0]).substr(0, 16), "data_files is {\"");
  EXPECT_EQ(refused(nullptr), "data_files is null, no list");
  EXPECT_EQ(refused(nlohmann::ordered_json::array({5})), "another type");
}

TEST_F(DataPrints, AreOfTheTokenizerWhereItIsKnown) {
  writeFile(dir / "a.bin", bytes(counted(100)));
  writeFile(dir / "t.json", "one");
  const DataPrint without = print("a.bin"), with = print("a.bin", dir / "t.json");
  EXPECT_EQ(difference(with, "a.bin", dir / "t.json"), "");
  EXPECT_EQ(difference(without, "a.bin", dir / "t.json"), "");
  EXPECT_EQ(difference(with, "a.bin", dir / "none.json"), "");
  EXPECT_NE(with.str(), without.str());
  writeFile(dir / "t.json", "two");
  EXPECT_EQ(difference(with, "a.bin", dir / "t.json"), (dir / "t.json") + " is another tokenizer");
}

TEST_F(DataPrints, AreKeptAsLongAsTheFileStays) {
  const std::string path = dir / "a.bin";
  writeFile(path, bytes(counted(1000)));
  EXPECT_EQ(unknownAfterHashing("a.bin", cache), 0);
  EXPECT_EQ(fs::status(cache).permissions(), fs::perms::owner_all);
  const TokenData d = open("a.bin");
  EXPECT_EQ(DataHasher(d, "", cache).print().str(), print("a.bin").str());
  EXPECT_GT(DataHasher(d, "", "").bytesToHash(), 0);
  EXPECT_GT(DataHasher(d, "", dir / "other").bytesToHash(), 0);

  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << "x";  // as long as before
  const TokenData changed = open("a.bin");
  DataHasher hasher(changed, "", cache);
  EXPECT_EQ(hasher.bytesToHash(), 2000);
  EXPECT_EQ(hasher.print().str(), print("a.bin").str());
  // Other times with the same content cost another look; a copy is another file.
  EXPECT_EQ(unknownAfterHashing("a.bin", cache), 0);
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(DataHasher(changed, "", cache).bytesToHash(), 2000);
  fs::copy_file(path, dir / "b.bin");
  const TokenData copy = open("b.bin");
  EXPECT_EQ(DataHasher(copy, "", cache).bytesToHash(), 2000);
  EXPECT_EQ(DataHasher(copy, "", cache).print().files[0].hash, print("a.bin").files[0].hash);
}

TEST_F(DataPrints, AreMadeBesideWhoGoesOn) {
  writeFile(dir / "a.bin", "");
  fs::resize_file(dir / "a.bin", 20 << 20);
  const TokenData d = open("a.bin");
  {
    DataHasher(d, "", "").begin();
  }  // is given up
  DataHasher hasher(d, "", "");
  hasher.begin();
  EXPECT_EQ(hasher.print().str(), print("a.bin").str());
  EXPECT_TRUE(hasher.ended());
  EXPECT_EQ(hasher.print().str(), print("a.bin").str()) << "once more";
  vocab = 0;
  const TokenData bad = open("a.bin");
  DataHasher failing(bad, "", "");
  failing.begin();
  EXPECT_EQ(codeThrown([&] { failing.print(); }), int(ErrorCode::TokenOutOfRange));
}

TEST_F(DataPrints, NeedNoCache) {
  writeFile(dir / "a.bin", bytes(counted(1000)));
  writeFile(dir / "no folder", "");
  const TokenData d = open("a.bin");
  testing::internal::CaptureStderr();
  EXPECT_EQ(DataHasher(d, "", dir / "no folder").print().str(), print("a.bin").str());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no folder"), std::string::npos);
}

TEST_F(DataPrints, FindTokensBeyondTheVocabulary) {
  std::vector<uint16_t> t = counted(5000);
  t[4321] = 1000, t[4500] = 2000;
  writeFile(dir / "a.bin", bytes(counted(100)));
  writeFile(dir / "b.bin", bytes(t));
  for (int known : {0, 1}) {  // and once from the cache
    const TokenData d = open("*.bin");
    DataHasher hasher(d, "", known ? cache : "");
    EXPECT_EQ(hasher.bytesToHash() == 0, known == 1);
    std::string message;
    EXPECT_EQ(codeThrown([&] { hasher.print(); }, &message), int(ErrorCode::TokenOutOfRange));
    EXPECT_EQ(message, (dir / "b.bin") + ": token 1000 at position 4321 is beyond the vocabulary of 1000");
    vocab = 2001;  // a larger one is another plan's
    EXPECT_EQ(unknownAfterHashing("*.bin", cache), 0);
    vocab = 1000;
  }
  // A file that has been changed unnoticed since is named, too, and not taken for good.
  EXPECT_EQ(codeThrown([&] { open("a.bin").requireLargest(0, 999); }), 0);
  std::string message;
  EXPECT_EQ(codeThrown([&] { open("a.bin").requireLargest(0, 1000); }, &message), int(ErrorCode::DataInvalid));
  EXPECT_EQ(message, (dir / "a.bin") +
                         ": it had token 1000, beyond the vocabulary of 1000, when it was hashed, and has "
                         "none now");
  // Of an encoder the last one is [MASK].
  const TokenData encoder(dir / "a.bin", "data.train", 100, 8, 9, 99);
  EXPECT_EQ(codeThrown([&] { DataHasher(encoder, "", "").print(); }), int(ErrorCode::TokenOutOfRange));
}

TEST_F(DataPrints, AFileCutShortMeanwhileIsNamed) {
  writeFile(dir / "a.bin", bytes(counted(1000)));
  const TokenData d = open("a.bin");
  DataHasher hasher(d, "", cache);
  fs::resize_file(dir / "a.bin", 100);
  std::string message;
  EXPECT_EQ(codeThrown([&] { hasher.print(); }, &message), int(ErrorCode::DataInvalid));
  EXPECT_NE(message.find("a.bin"), std::string::npos) << message;
}

}  // namespace
