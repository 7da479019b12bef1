// What is wrong with JSON that other programs write and parseJson (support/json.h) does not take.
#pragma once

#include "support/json.h"

#include <string>
#include <string_view>

namespace gptc {

/// "line 5, column 12: a \u escape is half of a character" if that is why a text is no JSON to us, else "". Strings of
/// other programs may hold a surrogate without its other one; UTF-8 cannot. A text of one line is given the column
/// only. Columns are bytes, from 1, where the escape ends or soon after.
std::string halfCharacterIn(std::string_view text);

/// The JSON object that is the text of a file of a model. Throws UserError(CheckpointDamaged) with `help` if it is
/// none.
nlohmann::json objectInFile(std::string_view text, const std::string &file, const std::string &help);

/// What `e` says of the JSON text of one of our own files, in our words: "it is no JSON: line 3", "it lacks \"step\"".
std::string problemOf(const nlohmann::json::exception &e, std::string_view text);

/// A value of a file for a message, as it stands in JSON, of which a long one has the first 200 bytes.
std::string shown(const nlohmann::json &value);

}  // namespace gptc
