// Common subexpression elimination.
//
//   1. Walk each function in order and give every op a key: its kind, attributes, operands, result types and, for a
//      read, the state and the number of writes to it so far. So two reads are equal only if no write of the state
//      stands between them.
//   2. Replace an op whose key was seen before by the first such op. It stands earlier, so dominance holds.
// Every op but writes and terminators is a pure function of its key. That includes random numbers, as seed, step and
// stream are in the key. The pass skips fused ops, as it runs before fusion.
#include "passes/pass.h"

#include "llvm/ADT/Hashing.h"

#include <unordered_map>

namespace gptc {

static llvm::hash_code hashOf(const Attr &a) {
  return std::visit(
      [](const auto &v) -> llvm::hash_code {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::vector<int64_t>>)
          return llvm::hash_combine_range(v.begin(), v.end());
        else if constexpr (std::is_same_v<T, double>)
          return std::hash<double>()(v);
        else
          return llvm::hash_value(v);
      },
      a);
}

/// Equality, of floats bit by bit: +0 and -0 are different constants, and a NaN equals itself.
static bool sameBits(const Attr &a, const Attr &b) {
  const double *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
  return x && y ? std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y) : a == b;
}

static bool sameAttrs(const AttrMap &a, const AttrMap &b) {
  auto i = a.begin(), j = b.begin();
  for (; i != a.end() && j != b.end(); ++i, ++j)
    if (i->first != j->first || !sameBits(i->second, j->second))
      return false;
  return i == a.end() && j == b.end();
}

static size_t keyHash(const Op &op, unsigned version) {
  llvm::hash_code h = llvm::hash_combine(unsigned(op.kind), llvm::StringRef(op.state), version,
                                         llvm::hash_combine_range(op.operands().begin(), op.operands().end()));
  for (const auto &[name, value] : op.attrs)
    h = llvm::hash_combine(h, name, hashOf(value));
  return h;
}

static bool sameKey(const Op &a, const Op &b) {
  if (a.kind != b.kind || a.state != b.state || a.operands() != b.operands() || a.numResults() != b.numResults() ||
      !sameAttrs(a.attrs, b.attrs))
    return false;
  for (unsigned i = 0; i < a.numResults(); ++i)
    if (a.result(i)->type != b.result(i)->type)
      return false;
  return true;
}

bool cse(Module &m, const PassOptions &) {
  bool changed = false;
  for (auto &f : m.functions) {
    struct Seen {
      Op *op;
      unsigned version;
    };
    std::unordered_multimap<size_t, Seen> seen;
    llvm::StringMap<unsigned> writes;
    for (Op *op = f->body.front(), *next; op; op = next) {
      next = op->next();
      if (op->is(OpKind::write))
        ++writes[op->state];
      if (op->isOneOf(OpKind::write, OpKind::ret, OpKind::yield, OpKind::fused))
        continue;
      unsigned version = op->is(OpKind::read) ? writes.lookup(op->state) : 0;
      size_t hash = keyHash(*op, version);
      Op *same = nullptr;
      for (auto [it, end] = seen.equal_range(hash); it != end; ++it)
        if (it->second.version == version && sameKey(*it->second.op, *op))
          same = it->second.op;
      if (!same) {
        seen.insert({hash, {op, version}});
        continue;
      }
      for (unsigned i = 0; i < op->numResults(); ++i)
        op->result(i)->replaceAllUsesWith(same->result(i));
      op->erase();
      changed = true;
    }
  }
  return changed;
}

}  // namespace gptc
