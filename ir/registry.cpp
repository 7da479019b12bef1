#include "ir/opdef.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <array>
#include <memory>

namespace gptc {

#define GPTC_OP(name) OpDef define_##name();
#include "ir/ops.def"
#undef GPTC_OP

namespace {

constexpr const char *kindNames[] = {
#define GPTC_OP(name) #name,
#include "ir/ops.def"
#undef GPTC_OP
};
constexpr size_t numKinds = std::size(kindNames);

/// Former names of ops. The parser still accepts them; the printer does not write them.
constexpr std::pair<const char *, OpKind> formerNames[] = {
    {"gelu", OpKind::gelu_tanh},
    {"gelu_grad", OpKind::gelu_tanh_grad},
    {"gelu_erf", OpKind::gelu_exact},
    {"gelu_erf_grad", OpKind::gelu_exact_grad},
};

class Registry {
public:
  static const Registry &get() {
    static const Registry registry;
    return registry;
  }
  std::array<std::unique_ptr<const OpDef>, numKinds> byKind;
  std::vector<const OpDef *> all;

private:
  Registry() {
#define GPTC_OP(name) add(OpKind::name, define_##name());
#include "ir/ops.def"
#undef GPTC_OP
  }
  void add(OpKind kind, OpDef def) {
    GPTC_CHECK(def.kind == kind && def.name == nameOf(kind), "define_{} is about another op", kindNames[size_t(kind)]);
    auto owned = std::make_unique<const OpDef>(std::move(def));
    all.push_back(owned.get());
    byKind[size_t(kind)] = std::move(owned);
  }
};

bool matches(const Attr &value, AttrSpec::Kind kind) {
  switch (kind) {
  case AttrSpec::Bool:
    return std::holds_alternative<bool>(value);
  case AttrSpec::Int:
    return std::holds_alternative<int64_t>(value);
  case AttrSpec::Float:
    return std::holds_alternative<double>(value) || std::holds_alternative<int64_t>(value);
  case AttrSpec::String:
    return std::holds_alternative<std::string>(value);
  case AttrSpec::Ints:
    return std::holds_alternative<std::vector<int64_t>>(value);
  }
  return false;
}

const char *describe(AttrSpec::Kind kind) {
  switch (kind) {
  case AttrSpec::Bool:
    return "true or false";
  case AttrSpec::Int:
    return "an integer";
  case AttrSpec::Float:
    return "a number";
  case AttrSpec::String:
    return "a string";
  case AttrSpec::Ints:
    return "a list of integers";
  }
  return "";
}

}  // namespace

llvm::StringRef nameOf(OpKind kind) { return kind == OpKind::ret ? "return" : kindNames[size_t(kind)]; }

std::optional<OpKind> parseOpKind(llvm::StringRef name) {
  static const llvm::StringMap<OpKind> kinds = [] {
    llvm::StringMap<OpKind> map;
    for (size_t i = 0; i < numKinds; ++i)
      map[nameOf(OpKind(i))] = OpKind(i);
    for (auto [name, kind] : formerNames)
      map.try_emplace(name, kind);
    return map;
  }();
  auto it = kinds.find(name);
  return it == kinds.end() ? std::nullopt : std::optional(it->second);
}

std::optional<OpKind> nearestOpKind(llvm::StringRef word) {
  std::vector<std::string> known;
  for (size_t i = 0; i < numKinds; ++i)
    known.push_back(nameOf(OpKind(i)).str());
  for (auto [name, kind] : formerNames)
    known.push_back(name);
  return parseOpKind(nearestWord(word.lower(), known));
}

const OpDef &opDef(OpKind kind) { return *Registry::get().byKind[size_t(kind)]; }

llvm::ArrayRef<const OpDef *> allOpDefs() { return Registry::get().all; }

std::optional<unsigned> OpDef::operandIndex(llvm::StringRef operand) const {
  for (unsigned i = 0; i < operands.size(); ++i)
    if (operands[i].name == operand)
      return i;
  return std::nullopt;
}

unsigned OpDef::requiredOperands() const {
  return unsigned(llvm::count_if(operands, [](const OperandSpec &s) { return !s.optional && s.name != "..."; }));
}

std::optional<unsigned> OpDef::beginningOf(unsigned result) const {
  const unsigned i = requiredOperands() + result;
  return i < operands.size() && operands[i].begins ? std::optional(i) : std::nullopt;
}

bool OpDef::hasAttr(llvm::StringRef attr) const {
  return llvm::any_of(attrs, [&](const AttrSpec &s) { return s.name == attr; });
}

unsigned summedTokenDims(const Op &op) {
  const auto &sum = op.def().tokenSum;
  return sum ? sum(op) : 0;
}

std::string checkSignature(const Op &op) {
  const OpDef &def = op.def();
  const bool any = !def.operands.empty() && def.operands.back().name == "...";
  const size_t required = def.requiredOperands(), most = any ? SIZE_MAX : def.operands.size();
  size_t n = op.numOperands();
  if (n < required || n > most) {
    if (required == most)
      return fmt::format("takes {} operands, not {}", required, n);
    if (most == SIZE_MAX)
      return fmt::format("takes at least {} operands, not {}", required, n);
    return fmt::format("takes {} to {} operands, not {}", required, most, n);
  }
  for (const auto &[name, value] : op.attrs) {
    const AttrSpec *spec = nullptr;
    for (const AttrSpec &s : def.attrs)
      if (s.name == name)
        spec = &s;
    if (!spec)
      return fmt::format("has no attribute '{}'", name);
    if (!matches(value, spec->kind))
      return fmt::format("attribute '{}' must be {}", name, describe(spec->kind));
  }
  for (const AttrSpec &spec : def.attrs)
    if (spec.required && !op.attrs.has(spec.name))
      return fmt::format("attribute '{}' is missing", spec.name);
  return "";
}

const char *nameOf(FusionKind kind) {
  switch (kind) {
  case FusionKind::pointwise:
    return "pointwise";
  case FusionKind::gather:
    return "gather";
  case FusionKind::row:
    return "row";
  case FusionKind::fold:
    return "fold";
  case FusionKind::reduce_all:
    return "reduce_all";
  case FusionKind::matmul:
    return "matmul";
  case FusionKind::pack:
    return "pack";
  case FusionKind::attention:
    return "attention";
  case FusionKind::scatter:
    return "scatter";
  case FusionKind::choice:
    return "choice";
  case FusionKind::collective:
    return "collective";
  case FusionKind::view:
    return "view";
  case FusionKind::structure:
    return "structure";
  }
  GPTC_UNREACHABLE("fusion {}", int(kind));
}

std::optional<RecipeKind> recipeOf(OpKind kind) {
  const FusionKind fusion = opDef(kind).fusion;
  if (fusion == FusionKind::gather)
    return RecipeKind::pointwise;
  // attention, attention_grad and attention_cached have a recipe each; views and structure have none.
  return parseWord<RecipeKind>(fusion == FusionKind::attention ? nameOf(kind) : llvm::StringRef(nameOf(fusion)));
}

}  // namespace gptc
