// Parses machine names in Slurm's short form: "n[01-03,7],gpu5" is n01, n02, n03, n7 and gpu5.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// The hosts of a list, in order. Brackets may occur anywhere in a name and more than once; leading zeros are kept.
/// nullopt for an open bracket, an empty name, a descending range, more than a million names, or a name that no host
/// can have (ssh might take it for an option).
std::optional<std::vector<std::string>> parseHostList(const std::string &text);

/// Slurm's counts per machine: "2(x3),1" is 2, 2, 2, 1; nullopt if the text is no such list.
std::optional<std::vector<int>> parseTasksPerNode(const std::string &text);

/// A decimal number from `least` to `most`; nullopt for anything else, including signs and blanks.
std::optional<long> parseNumber(const std::string &text, long least, long most);

}  // namespace gptc
