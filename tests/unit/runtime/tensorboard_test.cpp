#include "runtime/train/tensorboard.h"

#include "support/diagnostics.h"
#include "temp_dir.h"

#include <cstring>

using namespace gptc;

namespace {

TEST(Crc32c, KnownAnswers) {
  // RFC 3720, appendix B.4, and the usual check value.
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43u);
}

TEST(EventFile, RecordsAreFramedAndHoldTheScalars) {
  TempDir dir;
  {
    EventFile f(dir / "events");
    f.scalars(300, {{"loss", 1.5f}, {"lr", 0.25f}});
  }
  std::string file = readFile(std::filesystem::directory_iterator(dir / "events")->path().string());
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    uint64_t length;
    std::memcpy(&length, &file[at], 8);
    auto unmask = [](uint32_t m) { return m -= 0xa282ead8u, m << 15 | m >> 17; };
    uint32_t crc;
    std::memcpy(&crc, &file[at + 8], 4);
    EXPECT_EQ(unmask(crc), crc32c(&file[at], 8));
    std::memcpy(&crc, &file[at + 12 + length], 4);
    EXPECT_EQ(unmask(crc), crc32c(&file[at + 12], length));
    records.push_back(file.substr(at + 12, length));
    at += 16 + length;
  }
  ASSERT_EQ(records.size(), 2u);
  EXPECT_NE(records[0].find("brain.Event:2"), std::string::npos);
  // wall_time; step = 300 as varint; summary { value { tag simple_value } value { ... } }
  EXPECT_EQ(records[1].substr(9), std::string("\x10\xac\x02"
                                              "\x2a\x18"
                                              "\x0a\x0b\x0a\x04loss\x15\x00\x00\xc0\x3f"
                                              "\x0a\x09\x0a\x02lr\x15\x00\x00\x80\x3e",
                                              29));
}

}  // namespace
