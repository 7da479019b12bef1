#include "runtime/collectives/gloo.h"
#include "runtime/collectives/communicator.h"
#include "support/diagnostics.h"
#include "support/plugin.h"

namespace gptc {

namespace {

const Plugin &plugin() {
  static const Plugin p = loadPlugin({.file = "libgptc_gloo.so",
                                      .entry = linksEntry,
                                      .needing = "ranks on several machines, or over TCP, need",
                                      .library = "Gloo",
                                      .package = "libgloo-dev",
                                      .runtime = "libgloo0",
                                      .without = "ranks of one machine need none of it"});
  return p;
}

}  // namespace

std::string whyNoGloo() { return plugin().why; }

std::unique_ptr<Links> makeGlooLinks(const LinksOptions &options, LinkError &e) {
  const Plugin &p = plugin();
  if (!p.entry)
    throw UserError(ErrorCode::TargetUnavailable, p.why, p.help);
  return std::unique_ptr<Links>(reinterpret_cast<MakeLinks *>(p.entry)(options, e));
}

}  // namespace gptc
