#include "runtime/train/tensorboard.h"

#include "support/files.h"

#include <array>
#include <chrono>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace gptc {
namespace {

// Protobuf wire format: a key (field number << 3 | kind), then the value.
enum Kind { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void putVarint(std::string &s, uint64_t v) {
  for (; v >= 128; v >>= 7)
    s += char(v | 128);
  s += char(v);
}

void putKey(std::string &s, int field, Kind kind) { putVarint(s, field << 3 | kind); }

template <typename T> void putRaw(std::string &s, T v) { s.append(reinterpret_cast<const char *>(&v), sizeof v); }

void putBytes(std::string &s, int field, const std::string &v) {
  putKey(s, field, bytes);
  putVarint(s, v.size());
  s += v;
}

/// Event.wall_time (1).
std::string newEvent() {
  std::string s;
  putKey(s, 1, fixed64);
  putRaw(s, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  return s;
}

uint32_t masked(const std::string &s) {
  uint32_t c = crc32c(s.data(), s.size());
  return (c >> 15 | c << 17) + 0xa282ead8u;
}

}  // namespace

uint32_t crc32c(const void *data, size_t size) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k)
        c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t c = ~0u;
  for (auto *p = static_cast<const uint8_t *>(data), *end = p + size; p != end; ++p)
    c = c >> 8 ^ table[(c ^ *p) & 255];
  return ~c;
}

EventFile::EventFile(const std::string &dir) {
  makeDirs(dir);
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  path = fmt::format("{}/events.out.tfevents.{}.gptc", dir, seconds.count());
  fd = openAppending(path);
  std::string event = newEvent();
  putBytes(event, 3, "brain.Event:2");  // Event.file_version
  record(event);
}

EventFile::~EventFile() {
  if (fd >= 0)
    ::close(fd);
}

void EventFile::scalars(int64_t step, const std::vector<std::pair<std::string, float>> &values) {
  std::string summary;
  for (auto &[tag, v] : values) {
    std::string value;  // Summary.Value: tag (1), simple_value (2)
    putBytes(value, 1, tag);
    putKey(value, 2, fixed32);
    putRaw(value, v);
    putBytes(summary, 1, value);
  }
  std::string event = newEvent();
  putKey(event, 2, varint);  // Event.step
  putVarint(event, step);
  putBytes(event, 5, summary);
  record(event);
}

void EventFile::record(const std::string &event) {
  std::string length, text;
  putRaw(length, uint64_t(event.size()));
  text = length;
  putRaw(text, masked(length));
  text += event;
  putRaw(text, masked(event));
  appendAll(fd, path, text);
}

}  // namespace gptc
