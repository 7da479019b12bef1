#include "frontends/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unistd.h>
#include <vector>
#include <zlib.h>
#include <zstd.h>

namespace gptc {
namespace {

constexpr size_t kBuffer = 1 << 18;

/// A file, by pread where it can be sought: another source of the same descriptor does not disturb it.
class Plain : public ByteSource {
public:
  explicit Plain(int fd) : fd(fd), seekable(::lseek(fd, 0, SEEK_CUR) >= 0) {}
  ~Plain() override { ::close(fd); }
  int64_t read(char *to, int64_t bytes) override {
    int64_t done = 0;
    while (done < bytes) {
      const size_t most = size_t(std::min<int64_t>(bytes - done, 1 << 26));
      const ssize_t n = seekable ? ::pread(fd, to + done, most, at) : ::read(fd, to + done, most);
      if (n < 0 && errno == EINTR)
        continue;
      if (n < 0) {
        why = strerror(errno);
        return done ? done : -1;
      }
      if (n == 0)
        break;
      done += n;
      at += n;
    }
    return done;
  }
  int64_t consumed() const override { return at; }

private:
  int fd;
  bool seekable;
  int64_t at = 0;
};

/// Puts back the bytes by which a format was told.
class Peeked : public ByteSource {
public:
  explicit Peeked(std::unique_ptr<ByteSource> from) : from(std::move(from)) {}
  std::string peek(int64_t bytes) {
    ahead.resize(size_t(bytes));
    const int64_t n = from->read(ahead.data(), bytes);
    ahead.resize(size_t(std::max<int64_t>(n, 0)));
    failed = n < 0;
    return ahead;
  }
  int64_t read(char *to, int64_t bytes) override {
    const int64_t first = std::min<int64_t>(bytes, int64_t(ahead.size()));
    std::memcpy(to, ahead.data(), size_t(first));
    ahead.erase(0, size_t(first));
    const int64_t n = failed ? -1 : from->read(to + first, bytes - first);
    why = from->why;
    return n < 0 && !first ? n : first + std::max<int64_t>(n, 0);
  }
  int64_t consumed() const override { return from->consumed(); }

private:
  std::unique_ptr<ByteSource> from;
  std::string ahead;
  bool failed = false;
};

class Compressed : public ByteSource {
public:
  explicit Compressed(std::unique_ptr<ByteSource> from) : from(std::move(from)) {}
  int64_t consumed() const override { return from->consumed(); }

protected:
  /// More compressed bytes; false at the end or if reading fails, which sets `why`.
  bool fill() {
    buffer.resize(kBuffer);
    const int64_t n = from->read(buffer.data(), int64_t(kBuffer));
    if (n < 0)
      why = from->why;
    buffer.resize(size_t(std::max<int64_t>(n, 0)));
    return n > 0;
  }
  /// What was read before counts first; the next call reports the failure.
  int64_t fail(const std::string &reason, int64_t done) {
    if (why.empty())
      why = reason;
    failed = true;
    return done ? done : -1;
  }
  std::unique_ptr<ByteSource> from;
  std::vector<char> buffer;
  bool failed = false;
};

/// RFC 1952: one member after another.
class Gzip : public Compressed {
public:
  explicit Gzip(std::unique_ptr<ByteSource> from) : Compressed(std::move(from)) {
    inflateInit2(&z, 16 + MAX_WBITS);  // 16: gzip only
  }
  ~Gzip() override { inflateEnd(&z); }
  int64_t read(char *to, int64_t bytes) override {
    int64_t done = 0;
    if (failed)
      return -1;
    while (done < bytes) {
      if (z.avail_in == 0) {
        if (!fill()) {
          if (!why.empty() || !atMember)
            return fail("its gzip data are cut off", done);
          break;
        }
        z.next_in = reinterpret_cast<Bytef *>(buffer.data());
        z.avail_in = uInt(buffer.size());
      }
      z.next_out = reinterpret_cast<Bytef *>(to + done);
      const uInt room = uInt(std::min<int64_t>(bytes - done, 1 << 30));
      z.avail_out = room;
      atMember = false;
      const int code = inflate(&z, Z_NO_FLUSH);
      done += room - z.avail_out;
      if (code == Z_STREAM_END) {
        inflateReset(&z);
        atMember = true;
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return fail(std::string("its gzip data are damaged: ") + (z.msg ? z.msg : zError(code)), done);
      }
    }
    return done;
  }

private:
  z_stream z{};
  bool atMember = true;  // nothing of a member was read yet
};

/// RFC 8878: one frame after another.
class Zstandard : public Compressed {
public:
  explicit Zstandard(std::unique_ptr<ByteSource> from) : Compressed(std::move(from)), stream(ZSTD_createDStream()) {}
  ~Zstandard() override { ZSTD_freeDStream(stream); }
  int64_t read(char *to, int64_t bytes) override {
    int64_t done = 0;
    if (failed)
      return -1;
    while (done < bytes) {
      if (in.pos == in.size && !flushing) {
        if (!fill()) {
          if (!why.empty() || !atFrame)
            return fail("its Zstandard data are cut off", done);
          break;
        }
        in = {buffer.data(), buffer.size(), 0};
      }
      ZSTD_outBuffer out{to + done, size_t(bytes - done), 0};
      const size_t code = ZSTD_decompressStream(stream, &out, &in);
      if (ZSTD_isError(code))
        return fail(std::string("its Zstandard data are damaged: ") + ZSTD_getErrorName(code), done);
      done += int64_t(out.pos);
      atFrame = code == 0;
      flushing = !atFrame && out.pos == out.size;  // more of the same input may be waiting
    }
    return done;
  }

private:
  ZSTD_DStream *stream;
  ZSTD_inBuffer in{};
  bool atFrame = true, flushing = false;
};

}  // namespace

std::unique_ptr<ByteSource> openSource(int fd) {
  auto plain = std::make_unique<Peeked>(std::make_unique<Plain>(fd));
  const std::string magic = plain->peek(4);
  if (magic.compare(0, 2, "\x1f\x8b") == 0)
    return std::make_unique<Gzip>(std::move(plain));
  if (magic == "\x28\xb5\x2f\xfd")
    return std::make_unique<Zstandard>(std::move(plain));
  return plain;
}

}  // namespace gptc
