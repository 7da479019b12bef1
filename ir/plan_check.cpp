#include "ir/plan_check.h"

#include "ir/access.h"
#include "ir/facts.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <map>
#include <set>

namespace gptc {

namespace {

/// Entry i of a list of offsets; nullopt if it is missing.
std::optional<int64_t> entry(const Ints *list, size_t i) {
  if (!list || i >= list->size())
    return std::nullopt;
  return (*list)[i];
}

/// Bytes of a tensor; nullopt if they do not fit an i64.
std::optional<int64_t> bytesOf(const Type &t) {
  int64_t n = sizeOf(t.dtype);
  for (const Dim &d : t.dims)
    if (d.padded <= 0 || __builtin_mul_overflow(n, d.padded, &n))
      return std::nullopt;
  return n;
}

/// The content that last wrote each byte. Contents are numbered from 1; 0 stands for none.
class ByteOwners {
public:
  void set(int64_t begin, int64_t end, unsigned owner) {
    if (begin >= end)
      return;
    splitAt(begin);
    splitAt(end);
    spans.erase(spans.lower_bound(begin), spans.lower_bound(end));
    spans[begin] = owner;
  }
  bool ownedBy(int64_t begin, int64_t end, unsigned owner) const {
    return all(begin, end, [&](unsigned o) { return o == owner; });
  }
  /// Whether no byte belongs to anybody else.
  bool freeFor(int64_t begin, int64_t end, unsigned owner) const {
    return all(begin, end, [&](unsigned o) { return o == owner || o == 0; });
  }

private:
  bool all(int64_t begin, int64_t end, llvm::function_ref<bool(unsigned)> isRight) const {
    if (begin >= end)
      return true;
    for (auto it = std::prev(spans.upper_bound(begin)); it != spans.end() && it->first < end; ++it)
      if (!isRight(it->second))
        return false;
    return true;
  }
  void splitAt(int64_t at) {
    auto it = std::prev(spans.upper_bound(at));
    if (it->first != at)
      spans.emplace(at, it->second);
  }
  std::map<int64_t, unsigned> spans = {{INT64_MIN, 0}};  // owner of [key, next key)
};

struct Range {
  int64_t begin = 0, end = 0;
  bool overlaps(const Range &o) const { return begin < o.end && o.begin < end; }
  bool operator==(const Range &) const = default;
};

class Checker {
public:
  explicit Checker(const Module &m) : m(m) {}
  std::vector<std::string> errors;

  void run() {
    const int64_t *bytes = peekFact<&MemoryFacts::arenaBytes>(m);
    if (!bytes || *bytes < 0) {
      errors.push_back("the module has no valid arena_bytes");
      return;
    }
    arena = *bytes;
    if (const int64_t *of = peekFact<&MemoryFacts::hostBytes>(m)) {
      host = *of;
      if (host < 0 || host > maxArenaBytes) {
        errors.push_back("the module has no valid host_bytes");
        return;
      }
    }
    for (const auto &s : m.states) {
      if (isInFiles(*s))
        continue;
      const int64_t *at = peekFact<&StateFacts::at>(*s);
      placeState(*s, at ? std::optional(*at) : std::nullopt);
    }
    if (errors.empty())
      for (const auto &f : m.functions)
        function(*f);
  }

private:
  const Module &m;
  int64_t arena = 0, host = 0;
  llvm::StringMap<Range> states;
  std::map<int64_t, std::pair<int64_t, std::string>> statesByBegin;
  static constexpr size_t maxErrors = 20;

  template <typename... A> void fail(fmt::format_string<A...> f, A &&...args) {
    if (errors.size() < maxErrors)
      errors.push_back(fmt::format(f, std::forward<A>(args)...));
  }

  /// The range of `bytes` bytes at `at`; nullopt, with an error, if it is not inside an arena.
  std::optional<Range> range(std::optional<int64_t> at, std::optional<int64_t> bytes, const std::string &what) {
    if (!at) {
      fail("{} has no offset", what);
    } else if (!bytes || *bytes < 0) {
      fail("{} has an impossible size", what);
    } else if (*at < 0 || *at % planAlignment) {
      fail("{} is at {}, no multiple of {}", what, *at, planAlignment);
    } else if (*at >= hostArena) {
      if (*bytes <= host && *at - hostArena <= host - *bytes)
        return Range{*at, *at + *bytes};
      fail("{} takes {} bytes at {} of the host's arena of {}", what, *bytes, *at - hostArena, host);
    } else if (*bytes > arena || *at > arena - *bytes) {
      fail("{} takes {} bytes at {}, outside of an arena of {}", what, *bytes, *at, arena);
    } else {
      return Range{*at, *at + *bytes};
    }
    return std::nullopt;
  }

  void placeState(const State &s, std::optional<int64_t> at) {
    auto r = range(at, bytesOf(s.type), "state @" + s.name);
    if (!r)
      return;
    if ((r->begin >= hostArena) != livesOnHost(s))
      fail("state @{} lies in the wrong memory", s.name);
    auto next = statesByBegin.lower_bound(r->begin);
    if (next != statesByBegin.end() && next->first < r->end)
      fail("states @{} and @{} overlap", s.name, next->second.second);
    if (next != statesByBegin.begin() && std::prev(next)->second.first > r->begin)
      fail("states @{} and @{} overlap", std::prev(next)->second.second, s.name);
    statesByBegin[r->begin] = {r->end, s.name};
    states[s.name] = *r;
  }

  struct Content {
    Range where;
    unsigned owner = 0;
  };

  void function(const Function &f) {
    ByteOwners owners;
    llvm::DenseMap<const Value *, Content> contents;
    llvm::StringMap<unsigned> stateOwner;
    llvm::DenseMap<const Op *, std::vector<Content>> workspaces;
    unsigned next = 1;
    for (const auto &s : m.states) {
      if (isInFiles(*s))
        continue;
      Range r = states[s->name];
      stateOwner[s->name] = next;
      owners.set(r.begin, r.end, next++);
    }
    for (size_t i = 0; i < f.body.args.size(); ++i) {
      const Value &a = *f.body.args[i];
      auto r = range(entry(peekFact<&FunctionFacts::argsAt>(f), i), bytesOf(a.type),
                     fmt::format("argument {} of @{}", i, f.name));
      if (!r)
        return;
      if (r->begin >= hostArena)
        fail("argument {} of @{} lies in the host's arena", i, f.name);
      owners.set(r->begin, r->end, next);
      contents[&a] = {*r, next++};
    }

    unsigned number = 0;
    Launch launch;
    for (const Op &op : f.body) {
      std::string where =
          fmt::format("@{}, op {} ({}{}{})", f.name, number++, op.name().str(), op.loc.empty() ? "" : " ", op.loc);
      std::vector<Content> in;
      for (unsigned i = 0; i < op.numOperands(); ++i) {
        in.push_back(contents.lookup(op.operand(i)));
        if (op.is(OpKind::done) && i > 0 && in[i].owner && in[i].where == in[0].where)
          continue;  // the collective's result replaces its operand in memory
        if (!in.back().owner || !owners.ownedBy(in.back().where.begin, in.back().where.end, in.back().owner))
          fail("{}: operand {} was overwritten before its last use", where, i);
      }
      switch (op.kind) {
      case OpKind::read: {
        if (const State *s = m.state(op.state); s && isInFiles(*s))
          fail("{}: @{} has no memory", where, op.state);
        Range r = states.lookup(op.state);
        contents[op.result()] = {r, stateOwner.lookup(op.state)};
        break;
      }
      case OpKind::write:
        if (in[0].where != states.lookup(op.state))
          fail("{}: the value was not computed in place of @{}", where, op.state);
        stateOwner[op.state] = in[0].owner;
        break;
      case OpKind::done:
        for (const Content &c : workspaces.lookup(op.operand(0)->def))
          if (!owners.ownedBy(c.where.begin, c.where.end, c.owner))
            fail("{}: a workspace was overwritten before the collectives were done", where);
        [[fallthrough]];
      case OpKind::reshape: {
        auto r = range(entry(peekFact<&GroupFacts::at>(op), 0), bytesOf(op.result()->type), where);
        if (!r)
          return;
        if (*r != in[0].where)
          fail("{}: a view does not lie where its operand lies", where);
        contents[op.result()] = {*r, in[0].owner};
        break;
      }
      case OpKind::ret:
        break;
      case OpKind::fused:
        checkMemory(f, op, where);
        if (!group(op, in, owners, contents, workspaces[&op], next, where))
          return;
        startTogether(op, in, contents, workspaces[&op], launch, where);
        break;
      default:
        fail("{}: stands outside of a group", where);
        return;
      }
      if (errors.size() >= maxErrors)
        return;
    }
    for (const auto &s : m.states) {
      if (isInFiles(*s))
        continue;
      Range r = states[s->name];
      if (!owners.ownedBy(r.begin, r.end, stateOwner[s->name]))
        fail("@{}: state @{} does not hold its content at the end", f.name, s->name);
    }
  }

  /// The groups of one launch so far.
  struct Launch {
    int64_t number = 0;
    unsigned groups = 0;
    ByteOwners stores;  // by group, counted from 1
    std::vector<std::pair<Range, unsigned>> loads;
    std::set<int64_t> earlier;  // any number, so no DenseSet
  };

  /// Groups of one launch (GroupFacts::launch) must stand together, and none may store where another one loads or
  /// stores.
  void startTogether(const Op &op, llvm::ArrayRef<Content> in, const llvm::DenseMap<const Value *, Content> &contents,
                     llvm::ArrayRef<Content> workspaces, Launch &launch, const std::string &where) {
    const int64_t number = fact<&GroupFacts::launch>(op);
    if (number != launch.number) {
      Launch next;
      next.number = number;
      next.earlier = std::move(launch.earlier);
      if (number && !next.earlier.insert(number).second)
        fail("{}: launch {} has ended before", where, number);
      launch = std::move(next);
    }
    if (!number)
      return;
    if (!mayStartTogether(op))
      fail("{}: a group of kind {} starts alone, not in launch {}", where, fact<&GroupFacts::kind>(op), number);
    const unsigned self = ++launch.groups;
    std::vector<Range> stores;
    for (const Content &c : workspaces)
      stores.push_back(c.where);
    for (unsigned i = 0; i < op.numResults(); ++i)
      stores.push_back(contents.lookup(op.result(i)).where);
    bool clashes = false;
    for (const Content &c : in) {
      clashes |= !launch.stores.freeFor(c.where.begin, c.where.end, self);
      launch.loads.push_back({c.where, self});
    }
    for (const Range &r : stores) {
      clashes |= !launch.stores.freeFor(r.begin, r.end, self);
      for (const auto &[load, by] : launch.loads)
        clashes |= by != self && load.overlaps(r);
      launch.stores.set(r.begin, r.end, self);
    }
    if (clashes)
      fail("{}: stores where another group of launch {} loads or stores, or loads where one stores", where, number);
  }

  /// Groups of the GPU must not use the host's arena; groups of the host must fit a slot.
  void checkMemory(const Function &f, const Op &op, const std::string &where) {
    if (runsOnHost(op)) {
      if (kindOf(op) != RecipeKind::pointwise)
        fail("{}: a group of kind {} is none for the host", where, fact<&GroupFacts::kind>(op));
      if (const auto *ws = peekFact<&GroupFacts::ws>(op); ws && !ws->empty())
        fail("{}: a group of the host with workspaces", where);
      if (errors.empty() && stagingBytes(m, f, op) > hostSlotBytes(m))
        fail("{}: no room for what comes to the host and goes back", where);
      return;
    }
    auto onHost = [&](const Value *v) { return plannedOffset(m, f, *v).value_or(0) >= hostArena; };
    for (unsigned i = 0; i < op.numOperands(); ++i)
      if (onHost(op.operand(i)))
        fail("{}: operand {} lies in the host's arena", where, i);
    for (unsigned i = 0; i < op.numResults(); ++i)
      if (onHost(op.result(i)))
        fail("{}: result {} lies in the host's arena", where, i);
    for (int64_t at : fact<&GroupFacts::wsAt>(op))
      if (at >= hostArena)
        fail("{}: a workspace lies in the host's arena", where);
  }

  bool group(const Op &op, llvm::ArrayRef<Content> in, ByteOwners &owners,
             llvm::DenseMap<const Value *, Content> &contents, std::vector<Content> &workspaces, unsigned &next,
             const std::string &where) {
    std::vector<Range> taken;  // workspaces and results so far
    auto take = [&](Range r, const char *what, size_t i) {
      for (const Range &t : taken)
        if (t.overlaps(r))
          fail("{}: {} {} overlaps another result or workspace", where, what, i);
      taken.push_back(r);
    };
    const auto *sizes = peekFact<&GroupFacts::ws>(op);
    for (size_t i = 0; sizes && i < sizes->size(); ++i) {
      auto r = range(entry(peekFact<&GroupFacts::wsAt>(op), i), (*sizes)[i], fmt::format("{}: workspace {}", where, i));
      if (!r)
        return false;
      take(*r, "workspace", i);
      for (size_t j = 0; j < in.size(); ++j)
        if (r->overlaps(in[j].where))
          fail("{}: workspace {} overlaps operand {}", where, i, j);
      owners.set(r->begin, r->end, next);
      workspaces.push_back({*r, next++});
    }
    for (unsigned i = 0; i < op.numResults(); ++i) {
      auto r = range(entry(peekFact<&GroupFacts::at>(op), i), bytesOf(op.result(i)->type),
                     fmt::format("{}: result {}", where, i));
      if (!r)
        return false;
      take(*r, "result", i);
      for (unsigned j = 0; j < in.size(); ++j)
        if (r->overlaps(in[j].where) && !(*r == in[j].where && mayShare(op, i, j)))
          fail("{}: result {} overlaps operand {}", where, i, j);
      if (auto j = inPlaceOperand(op, i); j && *r != in[*j].where)
        fail("{}: result {} does not lie where operand {} lies", where, i, *j);
      owners.set(r->begin, r->end, next);
      contents[op.result(i)] = {*r, next++};
    }
    return true;
  }
};

}  // namespace

std::optional<int64_t> plannedOffset(const Module &m, const Function &f, const Value &v) {
  if (!v.def)
    return entry(peekFact<&FunctionFacts::argsAt>(f), v.index);
  if (v.def->is(OpKind::read)) {
    const State *s = m.state(v.def->state);
    const int64_t *at = s ? peekFact<&StateFacts::at>(*s) : nullptr;
    return at ? std::optional(*at) : std::nullopt;
  }
  return entry(peekFact<&GroupFacts::at>(*v.def), v.index);
}

int64_t hostSlotBytes(const Module &m) {
  int64_t states = 0;
  for (const auto &s : m.states)
    if (livesOnHost(*s))
      states = std::max(states, fact<&StateFacts::at>(*s) - hostArena + s->type.bytes());
  states = (states + planAlignment - 1) / planAlignment * planAlignment;
  return std::max<int64_t>(0, fact<&MemoryFacts::hostBytes>(m) - states) / 2;
}

int64_t stagingBytes(const Module &m, const Function &f, const Op &group) {
  int64_t bytes = 0;
  auto count = [&](const Value *v) {
    if (plannedOffset(m, f, *v).value_or(0) < hostArena)
      bytes += (v->type.bytes() + planAlignment - 1) / planAlignment * planAlignment;
  };
  for (const Value *v : group.operands())
    count(v);
  for (unsigned i = 0; i < group.numResults(); ++i)
    count(group.result(i));
  return bytes;
}

std::vector<std::string> checkPlan(const Module &m) {
  Checker c(m);
  c.run();
  return std::move(c.errors);
}

}  // namespace gptc
