// Enum classes whose enumerators have words, which stand for them in the text of modules, in settings and in messages.
//
//   enum class Norm { layernorm, rmsnorm };
//   template <> inline constexpr auto wordsOf<Norm> = std::to_array({"layernorm", "rmsnorm"});
#pragma once

#include "llvm/ADT/StringRef.h"

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

/// The words of an enum, in the order of its enumerators, whose values must be 0, 1, 2, ...
template <typename E> inline constexpr std::nullptr_t wordsOf = nullptr;

template <typename E>
concept Worded = !std::is_same_v<std::remove_cv_t<decltype(wordsOf<E>)>, std::nullptr_t>;

template <Worded E> constexpr std::string_view nameOf(E e) { return wordsOf<E>[size_t(e)]; }

/// The enumerator with this word; nullopt if there is none.
template <Worded E> std::optional<E> parseWord(llvm::StringRef word) {
  for (size_t i = 0; i < wordsOf<E>.size(); ++i)
    if (word == wordsOf<E>[i])
      return E(i);
  return std::nullopt;
}

/// All words of an enum, in the order of its enumerators.
template <Worded E> std::vector<std::string> allWords() { return {wordsOf<E>.begin(), wordsOf<E>.end()}; }

}  // namespace gptc
