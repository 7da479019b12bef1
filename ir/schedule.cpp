#include "ir/schedule.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <limits>

namespace gptc {

namespace {

/// Calls f(name, field) for each size of a schedule, in the order of its text.
template <typename S, typename F> void forEachField(S &s, F f) {
  f("vec", s.vec);
  f("unroll", s.unroll);
  f("task", s.task);
  f("mr", s.mr);
  f("nr", s.nr);
  f("mc", s.mc);
  f("nc", s.nc);
  f("kc", s.kc);
  f("qb", s.qb);
  f("kb", s.kb);
  f("packA", s.packA);
  f("packB", s.packB);
}

bool isRecipeName(llvm::StringRef s) {
  return !s.empty() &&
         llvm::all_of(s, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

}  // namespace

std::string Schedule::str() const {
  std::string s = recipe;
  forEachField(*this, [&](const char *name, auto value) {
    if (value)
      s += std::string(" ") + name + "=" + std::to_string(int64_t(value));
  });
  return s;
}

bool Schedule::parse(llvm::StringRef text, Schedule &out) {
  llvm::SmallVector<llvm::StringRef, 12> words;
  text.split(words, ' ', -1, /*KeepEmpty=*/false);
  if (words.empty() || !isRecipeName(words[0]))
    return false;
  Schedule s;
  s.recipe = words[0].str();
  for (llvm::StringRef word : llvm::ArrayRef(words).drop_front()) {
    auto [name, digits] = word.split('=');
    bool known = false;
    bool good = true;
    forEachField(s, [&, name = name, digits = digits](const char *field, auto &value) {
      if (name != field)
        return;
      known = true;
      using T = std::remove_reference_t<decltype(value)>;
      int64_t parsed = 0;
      good =
          !value && !digits.getAsInteger(10, parsed) && parsed > 0 && parsed <= int64_t(std::numeric_limits<T>::max());
      value = T(parsed);
    });
    if (!known || !good)
      return false;
  }
  out = std::move(s);
  return true;
}

}  // namespace gptc
