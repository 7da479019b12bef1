// Lines of JSON, as programs print and log them.
#pragma once

#include "support/json.h"

#include <sstream>
#include <string>
#include <vector>

namespace gptc::test {

/// Each line, all of which must be JSON: throws nlohmann::json::exception otherwise.
inline std::vector<nlohmann::json> jsonLines(const std::string &text) {
  std::vector<nlohmann::json> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    all.push_back(parseJson(line));
  return all;
}

/// The objects of an output that has notes between them.
inline std::vector<nlohmann::json> objectLines(const std::string &text) {
  std::vector<nlohmann::json> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with('{'))
      all.push_back(parseJson(line));
  return all;
}

}  // namespace gptc::test
