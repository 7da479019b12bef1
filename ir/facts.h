// Typed access to the facts of modules, functions, states and groups. In text, facts are attributes. ir/facts.def lists
// each with its type, its name in text, its default, its limits, its writer and its meaning.
//
//   if (fact<&BatchFacts::accumulate>(m) > 1) ...            reads one; an absent one has the default
//   const auto optimizer = factsOf<OptimizerFacts>(m);       reads all of a struct
//   setFact<&PhaseFacts::lowered>(m, true);                  writes one
//   writeFacts(m, BatchFacts{...});                          writes all of a struct
//
// Reading a fact throws InternalError if the attribute has another kind, and UserError(GirInvalid) if its word is
// unknown. The verifier rejects both first.
#pragma once

#include "ir/choices.h"
#include "ir/graph.h"
#include "ir/kernel/recipe_kind.h"
#include "support/enum_words.h"

namespace gptc {

// ---- words ----------------------------------------------------------------------------------------------------------

enum class StateKind {
  param,
  moment,     // of an optimizer
  grad,       // the sum of gradients so far
  counter,    // step, seed, loss scale
  cache,      // KV cache: keys or values of earlier tokens
  low,        // a copy of a parameter in a narrower dtype
  whole,      // a parameter gathered from the pieces of all ranks
  packed,     // a weight in panels
  quantized,  // the numbers, the scales or the supers of a weight in 8 or 4 bits
  anchor,     // a parameter as the last outer step left it, the same on all ranks
};
template <>
inline constexpr auto wordsOf<StateKind> =
    std::to_array({"param", "moment", "grad", "counter", "cache", "low", "whole", "packed", "quantized", "anchor"});

enum class Memory { host, files };
template <> inline constexpr auto wordsOf<Memory> = std::to_array({"host", "files"});

enum class Initial { zeros, ones, normal, constant };
template <> inline constexpr auto wordsOf<Initial> = std::to_array({"zeros", "ones", "normal", "const"});

// ---- the structs of facts.def ---------------------------------------------------------------------------------------

using Ints = std::vector<int64_t>;

#define GPTC_FACTS(S, carrier)                                                                                         \
  struct S {                                                                                                           \
    using Carrier = carrier;
#define GPTC_FACT(S, type, member, ...) GPTC_FACT_MEMBER(type, member, __VA_ARGS__)
#define GPTC_FACT_UNLESS(S, type, member, ...) GPTC_FACT_MEMBER(type, member, __VA_ARGS__)
#define GPTC_FACT_MEMBER(type, member, name, otherwise, ...) type member = otherwise;
#define GPTC_FACTS_END(S, carrier)                                                                                     \
  bool operator==(const S &) const = default;                                                                          \
  }                                                                                                                    \
  ;
#include "ir/facts.def"
#undef GPTC_FACT_MEMBER

/// Attribute name, type and default of a member.
template <auto member> struct FactAt;
#define GPTC_FACTS(S, carrier)
#define GPTC_FACT(S, type, member, ...) GPTC_FACT_AT(S, type, member, __VA_ARGS__)
#define GPTC_FACT_UNLESS(S, type, member, ...) GPTC_FACT_AT(S, type, member, __VA_ARGS__)
#define GPTC_FACT_AT(S, type, member, text, otherwise, ...)                                                            \
  template <> struct FactAt<&S::member> {                                                                              \
    using Holder = S;                                                                                                  \
    using Value = type;                                                                                                \
    static constexpr const char *name = text;                                                                          \
    static Value absent() { return otherwise; }                                                                        \
  };
#define GPTC_FACTS_END(S, carrier)
#include "ir/facts.def"
#undef GPTC_FACT_AT

template <auto member> using CarrierOf = typename FactAt<member>::Holder::Carrier;

// ---- reading and writing --------------------------------------------------------------------------------------------

/// The value of the attribute `name`; `absent` if there is none. Instantiated for the types in facts.def.
template <typename T> T readFact(const AttrMap &attrs, const char *name, const T &absent);
/// Sets the attribute `name` to `value`, or removes it if `value` is std::nullopt. Instantiated for the types in
/// facts.def.
template <typename T> void writeFact(AttrMap &attrs, const char *name, const T &value);

template <auto member> auto fact(const CarrierOf<member> &of) {
  return readFact(of.attrs, FactAt<member>::name, FactAt<member>::absent());
}
/// Whether the attribute is present.
template <auto member> bool hasFact(const CarrierOf<member> &of) { return of.attrs.has(FactAt<member>::name); }
/// The value without a copy; null if the attribute is absent or has another kind. Not for enums.
template <auto member> const typename FactAt<member>::Value *peekFact(const CarrierOf<member> &of) {
  const Attr *a = of.attrs.find(FactAt<member>::name);
  return a ? std::get_if<typename FactAt<member>::Value>(a) : nullptr;
}
template <auto member>
void setFact(CarrierOf<member> &of, const std::type_identity_t<typename FactAt<member>::Value> &value) {
  writeFact(of.attrs, FactAt<member>::name, value);
}
template <auto member> void eraseFact(CarrierOf<member> &of) { of.attrs.erase(FactAt<member>::name); }

template <typename S> S factsOf(const typename S::Carrier &of);
/// Writes every member; removes the attribute of a GPTC_FACT_UNLESS member with the default value. Other attributes
/// stay.
template <typename S> void writeFacts(typename S::Carrier &of, const S &facts);

#define GPTC_FACTS(S, carrier)                                                                                         \
  template <> S factsOf<S>(const carrier &of);                                                                         \
  template <> void writeFacts<S>(carrier & of, const S &facts);
#define GPTC_FACT(...)
#define GPTC_FACT_UNLESS(...)
#define GPTC_FACTS_END(S, carrier)
#include "ir/facts.def"

/// Adds a state of this kind, initialised with zeros. The name must be new (else InternalError).
State *addState(Module &m, llvm::StringRef name, Type type, StateKind kind);
/// Sets the recipe that makes the kernel of a group.
inline void setKind(Op &group, RecipeKind kind) { setFact<&GroupFacts::kind>(group, std::string(nameOf(kind))); }
/// The kind of a state; nullopt if it has none.
inline std::optional<StateKind> kindOf(const State &s) { return fact<&StateFacts::kind>(s); }
/// The recipe of a group; nullopt if no recipe has the name in its attribute `kind`, which codegen's groupProblem
/// reports.
inline std::optional<RecipeKind> kindOf(const Op &group) {
  return parseWord<RecipeKind>(fact<&GroupFacts::kind>(group));
}

// ---- the table ------------------------------------------------------------------------------------------------------

/// The range of a number; NaN is outside.
struct Limits {
  double low, high;
  bool openLow = false, openHigh = false;
  bool contain(double x) const { return (openLow ? x > low : x >= low) && (openHigh ? x < high : x <= high); }
  /// "1 to 8", "above 0, at most 1", "0 or more".
  std::string text() const;
};

/// One line of facts.def.
struct FactSpec {
  enum Kind { Bool, Int, Float, String, Ints } kind;
  const char *group;  // the struct's name
  const char *name;
  std::optional<Limits> limits;
  llvm::ArrayRef<const char *> words;  // of an enum
  const char *writer;
  const char *meaning;
  bool unlessDefault;  // writeFacts leaves it out if it has its default

  /// Why `value` cannot be the value of this fact: "must be an integer", "= 0 is out of range; 1 to 8 works", `= "foo"
  /// is not known; "tree" and "fast" are`; "" if it can.
  std::string problem(const Attr &value) const;
};

/// All facts of a kind of carrier, in the order of facts.def. Those of groups are attributes of the op `fused`.
llvm::ArrayRef<FactSpec> moduleFacts();
llvm::ArrayRef<FactSpec> functionFacts();
llvm::ArrayRef<FactSpec> stateFacts();
/// The fact of that name; null if there is none.
const FactSpec *findFact(llvm::ArrayRef<FactSpec> facts, llvm::StringRef name);

/// Prefix of the module attributes in which passes record their decisions (passes/decisions.h). After the prefix any
/// name is allowed; the values are strings.
constexpr llvm::StringLiteral decisionPrefix = "decision.";

/// Problems with the attributes of the module itself, one line each: an unknown name (with the nearest known one), a
/// wrong kind, a number or word outside the fact's limits. Empty if there are none.
std::vector<std::string> moduleFactProblems(const Module &m);
/// "a state has no attribute 'dekay'; did you mean 'decay'?", with the nearest known fact if one is near enough.
std::string unknownFact(llvm::ArrayRef<FactSpec> facts, const char *carrier, const std::string &name);

}  // namespace gptc
