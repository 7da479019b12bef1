// What servers say, for terminals and reports.
#pragma once

#include "support/json.h"

#include <string>
#include <string_view>

namespace gptc::load {

/// The beginning of a text as one line of at most 200 of its bytes, in UTF-8, without control characters, which a
/// terminal would obey.
std::string plainText(std::string_view text);

/// The message of an answer that is an error: OpenAI's {"error": {"message": ...}}, or {"error": "..."}, {"message":
/// ...} or {"detail": ...} as others have it; else the JSON itself. Plain.
std::string messageOf(const nlohmann::json &answer);

}  // namespace gptc::load
