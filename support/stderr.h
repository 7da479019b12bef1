// What programs say beside their results.
#pragma once

#include <cstdio>

#include <utility>

#include <fmt/format.h>

namespace gptc {

/// Prints to standard error. Where nobody can read it, as it is closed or its disk is full, nothing is lost that a
/// program should end for.
template <typename... T> void printError(fmt::format_string<T...> format, T &&...values) {
  std::fputs(fmt::format(format, std::forward<T>(values)...).c_str(), stderr);
}

}  // namespace gptc
