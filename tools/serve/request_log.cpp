#include "tools/serve/request_log.h"

#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/stderr.h"
#include "support/words.h"

#include <unistd.h>

namespace gptc {

namespace {

constexpr size_t longestPath = 256;  // bytes of what clients choose

}  // namespace

RequestLog::RequestLog(const std::string &file) : file(file), fd(file.empty() ? -1 : openAppending(file)) {}

RequestLog::~RequestLog() {
  if (fd >= 0)
    ::close(fd);
}

void RequestLog::add(const HttpExchange &e) {
  if (fd < 0)
    return;
  const nlohmann::ordered_json line = {{"time", timeNow()},
                                       {"client", e.client},
                                       {"method", e.method.substr(0, longestPath)},
                                       {"path", e.path.substr(0, longestPath)},
                                       {"status", e.status},
                                       {"seconds", e.seconds}};
  const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(mutex);
  try {
    appendAll(fd, file, text);
  } catch (const UserError &error) {
    if (!std::exchange(hasWarned, true))
      printError("warning: requests are not logged: {}\n", error.diagnostics[0].message);
  }
}

}  // namespace gptc
