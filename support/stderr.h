// Printing to standard error.
#pragma once

#include <cstdio>

#include <utility>

#include <fmt/format.h>

namespace gptc {

/// Prints to standard error. Failures are ignored: a program must not end because standard error is closed or its disk
/// is full.
template <typename... T> void printError(fmt::format_string<T...> format, T &&...values) {
  std::fputs(fmt::format(format, std::forward<T>(values)...).c_str(), stderr);
}

}  // namespace gptc
