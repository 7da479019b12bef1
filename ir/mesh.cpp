#include "ir/mesh.h"

#include "ir/facts.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <bit>

namespace gptc {

Mesh Mesh::of(const Module &m) { return {fact<&ParallelFacts::data>(m), fact<&ParallelFacts::tensor>(m)}; }

/// The cut's attribute. Null if it is absent or no list: the verifier calls this on unchecked modules.
static const Ints *cutOf(const State &s, llvm::StringRef axis) {
  return axis == "data" ? peekFact<&StateFacts::cutData>(s) : peekFact<&StateFacts::cutTensor>(s);
}

std::optional<Cut> Cut::of(const State &s, llvm::StringRef axis) {
  const Ints *n = cutOf(s, axis);
  if (!n || n->size() < 4)
    return std::nullopt;
  return Cut{unsigned((*n)[0]), Dim((*n)[1], (*n)[2]), {n->begin() + 3, n->end()}};
}

void Cut::apply(State &s, llvm::StringRef axis, int64_t ranks) const {
  const bool divides = llvm::all_of(groups, [&](int64_t n) { return n % ranks == 0; });
  GPTC_CHECK(dim < s.type.rank() && s.type.dims[dim] == whole && divides, "@{} : {} does not divide by {} ranks",
             s.name, s.type.str(), ranks);
  Ints n = {int64_t(dim), whole.logical, whole.padded};
  n.insert(n.end(), groups.begin(), groups.end());
  if (axis == "data")
    setFact<&StateFacts::cutData>(s, n);
  else
    setFact<&StateFacts::cutTensor>(s, n);
  s.type.dims[dim] = Dim(whole.padded / ranks);
}

bool isPiece(const State &s) { return hasFact<&StateFacts::cutData>(s) || hasFact<&StateFacts::cutTensor>(s); }

int64_t LogicalParts::ofRank(const Module &m) {
  const int64_t all = fact<&ParallelFacts::logicalTensor>(m), ranks = fact<&ParallelFacts::tensor>(m);
  if (all > 1 && (!std::has_single_bit(uint64_t(all)) || all % ranks))
    throw UserError(ErrorCode::GirInvalid, fmt::format("logical_tensor = {} with tensor = {}", all, ranks),
                    "a power of two that is a multiple of the ranks works");
  return std::max<int64_t>(1, all / ranks);
}

std::optional<LogicalParts> LogicalParts::of(const Module &m, const State &s) {
  const Ints *n = peekFact<&StateFacts::logicalParts>(s);
  if (!n || n->size() < 2)
    return std::nullopt;
  const int64_t parts = ofRank(m);
  LogicalParts p{unsigned((*n)[0]), {n->begin() + 1, n->end()}};
  for (int64_t group : p.groups)
    if (group % parts)
      throw UserError(ErrorCode::GirInvalid, fmt::format("{} places of @{} do not divide by {} logical parts of a rank",
                                                         group, s.name, parts));
  return p;
}

Value *sumInTree(Builder &b, std::vector<Value *> terms) {
  GPTC_CHECK(std::has_single_bit(terms.size()), "{} terms", terms.size());
  for (; terms.size() > 1; terms.resize(terms.size() / 2))
    for (size_t i = 0; 2 * i < terms.size(); ++i)
      terms[i] = b.value(OpKind::add, {terms[2 * i], terms[2 * i + 1]});
  return terms[0];
}

Type wholeAlongData(const State &s) {
  Type t = s.type;
  if (const auto cut = Cut::of(s, "data"); cut && cut->dim < t.rank())
    t.dims[cut->dim] = cut->whole;
  return t;
}

Type wholeType(const State &s) {
  Type t = wholeAlongData(s);
  if (const auto cut = Cut::of(s, "tensor"); cut && cut->dim < t.rank())
    t.dims[cut->dim] = cut->whole;
  return t;
}

}  // namespace gptc
