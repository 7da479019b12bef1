// A heartbeat as JSON, for readers on other machines.
#pragma once

#include "runtime/launch/pulse.h"
#include "support/json.h"

#include <algorithm>

namespace gptc {

inline nlohmann::json pulseJson(const PulseView &p) {
  return {{"beats", p.beats},       {"progress", p.progress}, {"cpuMs", p.cpuMs},
          {"step", p.step},         {"begin", p.begin},       {"state", uint32_t(p.state)},
          {"waitsFor", p.waitsFor}, {"place", p.place},       {"doing", p.doing}};
}

/// Throws nlohmann::json::exception if `j` is no heartbeat.
inline PulseView pulseOf(const nlohmann::json &j) {
  PulseView p;
  j.at("beats").get_to(p.beats);
  j.at("progress").get_to(p.progress);
  j.at("cpuMs").get_to(p.cpuMs);
  j.at("step").get_to(p.step);
  j.at("begin").get_to(p.begin);
  p.state = PulseView::State(std::min(j.at("state").get<uint32_t>(), uint32_t(PulseView::State::paced)));
  j.at("waitsFor").get_to(p.waitsFor);
  j.at("place").get_to(p.place);
  j.at("doing").get_to(p.doing);
  return p;
}

}  // namespace gptc
