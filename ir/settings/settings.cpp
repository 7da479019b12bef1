#include "ir/settings/settings.h"

#include "llvm/ADT/STLExtras.h"

#include <type_traits>

namespace gptc {

void WordMember::set(const std::string &word) const {
  const size_t i = llvm::find(words, word) - words.begin();
  GPTC_CHECK(i < words.size(), "{}", word);
  assign(at, i);
}

namespace {

/// Collects the lines of the table.
struct Rows {
  std::vector<Setting> all;

  template <typename M, typename... More>
  void operator()(const char *key, M &&member, ValueType type, const char *meaning, More... more) {
    Setting s{key, {}, std::move(type), meaning, {}, {}};
    if constexpr (Worded<std::remove_reference_t<M>>)
      s.member = WordMember(member);
    else if constexpr (std::is_lvalue_reference_v<M>)
      s.member = &member;
    else
      s.member = member;  // std::monostate: no plain member
    (take(s, std::move(more)), ...);
    all.push_back(std::move(s));
  }

private:
  static void take(Setting &s, Otherwise o) { s.otherwise = std::move(o); }
  static void take(Setting &s, InPlan p) { s.inPlan = std::move(p); }
};

}  // namespace

std::vector<Setting> keysOf(Settings &s) {
  Rows rows;
  allKeys(rows, s);
  return std::move(rows.all);
}

std::vector<Setting> keysOf(ParameterGroup &g) {
  Rows rows;
  groupKeys(rows, g);
  return std::move(rows.all);
}

void eachKept(RunSettings &run, const std::function<void(const Setting &)> &with) {
  Settings s;
  s.run = run;
  for (const Setting &row : keysOf(s))
    if (!row.inPlan.name.empty())
      with(row);
  run = std::move(s.run);
}

void eachPath(RunSettings &run, const std::function<void(std::string &path)> &with) {
  eachKept(run, [&](const Setting &row) {
    if (auto *path = std::get_if<std::string *>(&row.member);
        path && std::holds_alternative<values::Path>(row.type) && !(*path)->empty())
      with(**path);
  });
  if (const size_t colon = run.initFrom.find(':'); colon != std::string::npos) {
    std::string path = run.initFrom.substr(colon + 1);
    if (!path.empty())
      with(path);
    run.initFrom = run.initFrom.substr(0, colon + 1) + path;
  }
}

}  // namespace gptc
