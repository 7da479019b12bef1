// TensorBoard event files: TFRecords (length, masked CRC-32C, data, masked CRC-32C) of protobuf `Event` messages.
// Written by hand, because scalars need only four fields.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

class EventFile {
public:
  /// Creates DIR/events.out.tfevents.SECONDS.gptc. A resumed run adds a file; TensorBoard shows the newest value of
  /// each step. Throws UserError(Unwritable, DiskFull).
  explicit EventFile(const std::string &dir);
  ~EventFile();
  EventFile(const EventFile &) = delete;
  /// Writes one event with a scalar per name.
  void scalars(int64_t step, const std::vector<std::pair<std::string, float>> &values);

private:
  void record(const std::string &event);
  std::string path;
  int fd = -1;
};

/// CRC-32C (Castagnoli), as in RFC 3720.
uint32_t crc32c(const void *data, size_t bytes);

}  // namespace gptc
