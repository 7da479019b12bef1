#include "tools/serve/http.h"

#include "support/diagnostics.h"
#include "support/plugin.h"

namespace gptc {

std::unique_ptr<HttpServer> listenHttp(const HttpOptions &options) {
  static const Plugin plugin = loadPlugin({.file = "libgptc_http.so",
                                           .entry = httpEntry,
                                           .needing = "gptrun serve needs",
                                           .library = "cpp-httplib",
                                           .package = "libcpp-httplib-dev",
                                           .runtime = "libcpp-httplib0.11",
                                           .without = "gptrun sample --prompts needs none of it"});
  if (!plugin.entry)
    throw UserError(ErrorCode::TargetUnavailable, plugin.why, plugin.help);
  std::string why;
  HttpServer *const server = reinterpret_cast<MakeHttpServer *>(plugin.entry)(options, why);
  if (!server)
    throw UserError(ErrorCode::Usage, fmt::format("cannot listen on {}:{}: {}", options.host, options.port, why),
                    "choose others: --host, --port (0: a free one)");
  return std::unique_ptr<HttpServer>(server);
}

}  // namespace gptc
