// Names of machines, in the short form that Slurm writes: "n[01-03,7],gpu5" is n01, n02, n03, n7 and gpu5.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// The hosts of such a list, in its order; nullopt where it is none: an open bracket, an empty name, a range that runs
/// backwards, more than a million names, or a name that no host can have (which ssh might take for an option).
/// Brackets may stand anywhere in a name and more than once; leading zeros are kept.
std::optional<std::vector<std::string>> parseHostList(const std::string &text);

/// Slurm's counts per machine: "2(x3),1" is 2, 2, 2, 1; nullopt where it is no such list.
std::optional<std::vector<int>> parseTasksPerNode(const std::string &text);

/// A decimal number from `least` to `most`; nullopt for anything else, signs and blanks included.
std::optional<long> parseNumber(const std::string &text, long least, long most);

}  // namespace gptc
