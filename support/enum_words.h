// Enum classes whose enumerators are words: in the text of modules, in settings, in messages.
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

/// The words of an enum, one for each enumerator in its order. Enumerators count from 0.
template <typename E> inline constexpr std::nullptr_t wordsOf = nullptr;

template <typename E>
concept Worded = !std::is_same_v<std::remove_cv_t<decltype(wordsOf<E>)>, std::nullptr_t>;

template <Worded E> constexpr std::string_view nameOf(E e) { return wordsOf<E>[size_t(e)]; }

/// The enumerator that `word` names.
template <Worded E> std::optional<E> parseWord(llvm::StringRef word) {
  for (size_t i = 0; i < wordsOf<E>.size(); ++i)
    if (word == wordsOf<E>[i])
      return E(i);
  return std::nullopt;
}

/// All words of an enum, in its order.
template <Worded E> std::vector<std::string> allWords() { return {wordsOf<E>.begin(), wordsOf<E>.end()}; }

}  // namespace gptc
