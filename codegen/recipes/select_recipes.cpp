// select-recipes: gives every fused op its schedule and the bytes of its workspaces.
//
//   1. A fused op whose schedule already names its recipe and fits its kind of target keeps it: a plan or a tuner chose
//      it. Any other op gets a measured schedule, else the recipe's default for the target.
//   2. The kernel is built once for the sizes of its workspaces, which memory planning needs. Groups with equal keys
//      are built only once.
#include "codegen/codegen.h"
#include "codegen/recipes/recipe.h"

#include "ir/facts.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/bit.h"

#include <map>
#include <optional>

namespace gptc {

std::vector<int64_t> streamsOf(const Op &fused) {
  std::vector<int64_t> streams;
  for (const Op &op : *fused.body)
    if (op.attrs.has("stream") && !llvm::is_contained(streams, op.attrs.getInt("stream")))
      streams.push_back(op.attrs.getInt("stream"));
  return streams;
}

namespace {

/// A text of a group's kind, schedule, members and types. type(t) writes a type.
template <typename F> std::string groupText(const Op &fused, const std::string &schedule, F type) {
  std::string key;
  const std::vector<int64_t> streams = streamsOf(fused);
  auto put = [&](const auto &v) { fmt::format_to(std::back_inserter(key), "{} ", v); };
  auto putAttr = [&](const Attr &attr) {
    put(attr.index());  // 1 and 1.0 are two values
    if (auto *v = std::get_if<double>(&attr))
      put(llvm::bit_cast<uint64_t>(*v));
    else if (auto *v = std::get_if<std::string>(&attr))
      put(fmt::format("{}:{}", v->size(), *v));
    else if (auto *v = std::get_if<std::vector<int64_t>>(&attr))
      put(fmt::format("{}", fmt::join(*v, ",")));
    else if (auto *v = std::get_if<bool>(&attr))
      put(*v);
    else
      put(std::get<int64_t>(attr));
  };
  put(fact<&GroupFacts::kind>(fused));
  put(schedule);
  if (runsOnHost(fused))
    put("host");
  put(fmt::format("{}", fmt::join(fact<&GroupFacts::inPlace>(fused), ",")));
  llvm::DenseMap<const Value *, unsigned> number;
  for (const auto &a : fused.body->args) {
    number.try_emplace(a.get(), number.size());
    put(type(a->type));
  }
  for (const Op &op : *fused.body) {
    put(unsigned(op.kind));
    for (const Value *v : op.operands())
      put(number.lookup(v));
    for (const auto &[name, value] : op.attrs) {
      put(name);
      if (name == "stream")  // which of the arguments, not what it holds
        put(llvm::find(streams, std::get<int64_t>(value)) - streams.begin());
      else
        putAttr(value);
    }
    for (unsigned i = 0; i < op.numResults(); ++i) {
      number.try_emplace(op.result(i), number.size());
      put(type(op.result(i)->type));
    }
    key += '\n';
  }
  return key;
}

}  // namespace

std::string groupKey(const Op &fused) {
  return groupText(fused, fact<&GroupFacts::schedule>(fused), [](const Type &t) { return t.str(); });
}

GroupShape groupShape(const Op &fused) {
  GroupShape p;
  p.family = groupText(fused, "", [&](const Type &t) {
    for (const Dim &d : t.dims) {
      p.extents.push_back(d.logical);
      p.extents.push_back(d.padded);
    }
    return fmt::format("{}:{}", nameOf(t.dtype).str(), t.rank());
  });
  return p;
}

bool selectRecipes(Module &m, const Target &target, ScheduleSource *measured) {
  struct Choice {
    std::string schedule;
    std::vector<int64_t> ws;
  };
  std::map<std::string, Choice> known;
  std::optional<Target> host;
  auto targetOf = [&](const Op &op) -> const Target & {
    return !runsOnHost(op) ? target : host ? *host : host.emplace(hostTarget());
  };
  bool changed = false;
  for (auto &f : m.functions) {
    for (Op &op : f->body) {
      if (!op.is(OpKind::fused))
        continue;
      std::string key = groupKey(op);
      auto [it, isNew] = known.try_emplace(key);
      if (isNew) {
        Schedule s;
        std::string text = fact<&GroupFacts::schedule>(op);
        // A schedule for a GPU cannot be used on a CPU, nor the reverse.
        if (text.empty() || !Schedule::parse(text, s) || s.recipe != kindOf(op) ||
            (s.threads > 0) != targetOf(op).isCuda()) {
          std::optional<Schedule> best = measured && !runsOnHost(op) ? measured->find(op, target) : std::nullopt;
          s = best ? *best : defaultSchedule(op, targetOf(op));
        }
        it->second = {s.str(), lowerGroup(op, s, targetOf(op)).workspaceBytes};
      }
      if (fact<&GroupFacts::schedule>(op) == it->second.schedule && fact<&GroupFacts::ws>(op) == it->second.ws)
        continue;
      setFact<&GroupFacts::schedule>(op, it->second.schedule);
      setFact<&GroupFacts::ws>(op, it->second.ws);
      changed = true;
    }
  }
  return changed;
}

}  // namespace gptc
