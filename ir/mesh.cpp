#include "ir/mesh.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {

static std::string attributeOf(llvm::StringRef axis) { return "cut_" + axis.str(); }

std::optional<Cut> Cut::of(const State &s, llvm::StringRef axis) {
  const Attr *a = s.attrs.find(attributeOf(axis));
  auto *n = a ? std::get_if<std::vector<int64_t>>(a) : nullptr;  // the verifier asks before it has judged
  if (!n || n->size() < 4)
    return std::nullopt;
  return Cut{unsigned((*n)[0]), Dim((*n)[1], (*n)[2]), {n->begin() + 3, n->end()}};
}

void Cut::apply(State &s, llvm::StringRef axis, int64_t ranks) const {
  const bool divides = llvm::all_of(groups, [&](int64_t n) { return n % ranks == 0; });
  GPTC_CHECK(dim < s.type.rank() && s.type.dims[dim] == whole && divides, "@{} : {} does not divide by {} ranks",
             s.name, s.type.str(), ranks);
  std::vector<int64_t> n = {int64_t(dim), whole.logical, whole.padded};
  n.insert(n.end(), groups.begin(), groups.end());
  s.attrs.set(attributeOf(axis), std::move(n));
  s.type.dims[dim] = Dim(whole.padded / ranks);
}

bool isPiece(const State &s) { return s.attrs.has("cut_data") || s.attrs.has("cut_tensor"); }

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
