// How `gptc estimate` shows forecasts of training: a table with notes, or JSON.
#pragma once

#include "support/json.h"
#include "tools/estimate/forecast.h"

#include <string>
#include <vector>

namespace gptc {

/// All of one forecast.
nlohmann::ordered_json jsonOf(const Estimate &e, const RunTokens &tokens, const ClusterConfig &c);

/// A line for each forecast, below a line of headings. A star marks what no log has tried.
std::string tableOf(const std::vector<Estimate> &all, const RunTokens &tokens, const ClusterConfig &c);

/// Paragraphs below the table: how sure `best` is, if it fits; and what the star means.
std::vector<std::string> notesOf(const std::vector<Estimate> &all, const Estimate &best, const RunTokens &tokens,
                                 const ClusterConfig &c);

/// Of what the memory consists that does not suffice: a line for each forecast.
std::vector<std::string> memoryNotesOf(const std::vector<Estimate> &all, const ClusterConfig &c);

}  // namespace gptc
