#include "tools/check/outcome.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>

namespace gptc {

Outcome interpretCalls(const Module &m, const Inputs &in) {
  Outcome out;
  out.states = statesFor(m, in.seed);
  for (const Call &call : in.calls) {
    const Function *f = m.function(call.function);
    GPTC_CHECK(f, "@{} is gone", call.function);
    out.results.push_back(interpret(*f, call.args, out.states));
  }
  return out;
}

bool holdsNarrow(const Module &m) {
  std::function<bool(const Block &)> in = [&](const Block &b) {
    for (const Op &op : b) {
      for (unsigned i = 0; i < op.numResults(); ++i)
        if (isNarrow(op.result(i)->type.dtype))
          return true;
      if (op.body && in(*op.body))
        return true;
    }
    return false;
  };
  return llvm::any_of(m.functions, [&](const auto &f) { return in(f->body); });
}

std::string forEachPair(const Outcome &a, const Outcome &b,
                        const std::function<void(const std::string &, const Tensor &, const Tensor &)> &f) {
  if (a.results.size() != b.results.size())
    return "another number of calls";
  for (size_t c = 0; c < a.results.size(); ++c) {
    if (a.results[c].size() != b.results[c].size())
      return fmt::format("call {} yields {} results instead of {}", c, b.results[c].size(), a.results[c].size());
    for (size_t r = 0; r < a.results[c].size(); ++r) {
      const Tensor &x = a.results[c][r], &y = b.results[c][r];
      if (x.data.size() != y.data.size())
        return fmt::format("result {} of call {} has another shape", r, c);
      f(fmt::format("result {} of call {}", r, c), x, y);
    }
  }
  std::vector<llvm::StringRef> names;
  for (const auto &entry : a.states)
    names.push_back(entry.first());
  llvm::sort(names);
  for (llvm::StringRef name : names) {
    auto other = b.states.find(name);
    if (other == b.states.end() || other->second.data.size() != a.states.lookup(name).data.size())
      return fmt::format("state @{} is gone or has another shape", name.str());
    f("@" + name.str(), a.states.find(name)->second, other->second);
  }
  return "";
}

std::string differenceOf(const Outcome &a, const Outcome &b) {
  std::string found;
  std::string missing = forEachPair(a, b, [&](const std::string &name, const Tensor &x, const Tensor &y) {
    for (size_t i = 0; i < x.data.size() && found.empty(); ++i)
      if (!(x.data[i] == y.data[i] || (std::isnan(x.data[i]) && std::isnan(y.data[i]))))
        found = fmt::format("{} [{}]: {} instead of {}", name, i, y.data[i], x.data[i]);
  });
  return missing.empty() ? found : missing;
}

}  // namespace gptc
