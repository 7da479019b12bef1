// A line for each request that a server answered.
#pragma once

#include "tools/serve/http.h"

#include <mutex>
#include <string>

namespace gptc {

/// JSON lines {"time", "client", "method", "path", "status", "seconds"} at the end of a file. Texts are not logged. If
/// a line cannot be written, a warning says so once, and requests go on.
class RequestLog {
public:
  /// `file`: "" for no log. Throws what openAppending throws.
  explicit RequestLog(const std::string &file);
  ~RequestLog();
  RequestLog(const RequestLog &) = delete;
  /// From any thread.
  void add(const HttpExchange &exchange);

private:
  const std::string file;
  int fd = -1;
  std::mutex mutex;  // of what follows
  bool hasWarned = false;
};

}  // namespace gptc
