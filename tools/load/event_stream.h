// Server-sent events, as the HTML standard has them (9.2.6), from bytes in whatever pieces they come.
#pragma once

#include "llvm/ADT/STLFunctionalExtras.h"

#include <string>
#include <string_view>

namespace gptc::load {

class EventStream {
public:
  using Event = llvm::function_ref<void(const std::string &data)>;

  static constexpr size_t mostData = size_t(16) << 20;  // bytes of an event, and of a line

  /// Takes the next bytes, and calls `event` with the data of each event that they end. Lines end in LF, CR or both.
  /// Comments, other fields and events without data are passed over. Throws Failure beyond the limit.
  void take(std::string_view bytes, Event event);

private:
  void endLine(Event event);

  std::string line, data;
  bool hasData = false;
  bool isFirstLine = true;   // which may begin with a byte order mark
  bool afterReturn = false;  // a CR ended the last line, to which a LF belongs
};

}  // namespace gptc::load
