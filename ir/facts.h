// What modules, functions, states and groups say about themselves, with types. Their text holds facts as attributes;
// ir/facts.def lists every one with its type, its name in text, its default, its limits, its writer and its meaning.
//
//   if (fact<&BatchFacts::accumulate>(m) > 1) ...            reads one; what is absent is the default
//   const auto optimizer = factsOf<OptimizerFacts>(m);       reads all of a struct
//   setFact<&PhaseFacts::lowered>(m, true);                  writes one
//   writeFacts(m, BatchFacts{...});                          writes all of a struct
//
// Reading a fact whose attribute is of another kind is an InternalError, and of an unknown word a UserError
// (GirInvalid); the verifier rejects both first.
#pragma once

#include "ir/graph.h"
#include "support/enum_words.h"

namespace gptc {

// ---- words ----------------------------------------------------------------------------------------------------------

enum class Norm { layernorm, rmsnorm };
template <> inline constexpr auto wordsOf<Norm> = std::to_array({"layernorm", "rmsnorm"});

enum class Activation { gelu_tanh, gelu, relu, relu2, silu, swiglu, geglu };
template <>
inline constexpr auto wordsOf<Activation> = std::to_array({"gelu_tanh", "gelu", "relu", "relu2", "silu", "swiglu",
                                                           "geglu"});

enum class Position { learned, rope, alibi, none };
template <> inline constexpr auto wordsOf<Position> = std::to_array({"learned", "rope", "alibi", "none"});

enum class OptimizerKind { adamw, sgd, adafactor };
template <> inline constexpr auto wordsOf<OptimizerKind> = std::to_array({"adamw", "sgd", "adafactor"});

enum class LrSchedule { cosine, wsd, linear, constant };
template <> inline constexpr auto wordsOf<LrSchedule> = std::to_array({"cosine", "wsd", "linear", "constant"});

enum class Compute { fp32, bf16, fp16, tf32 };
template <> inline constexpr auto wordsOf<Compute> = std::to_array({"fp32", "bf16", "fp16", "tf32"});

enum class MomentType { fp32, bf16 };
template <> inline constexpr auto wordsOf<MomentType> = std::to_array({"fp32", "bf16"});

/// In what order ranks add: that of a binary tree, or the engine's.
enum class ReduceOrder { tree, fast };
template <> inline constexpr auto wordsOf<ReduceOrder> = std::to_array({"tree", "fast"});

enum class Offload { none, optimizer };
template <> inline constexpr auto wordsOf<Offload> = std::to_array({"none", "optimizer"});

enum class StateKind {
  param,
  moment,   // of an optimizer
  grad,     // the sum of gradients so far
  counter,  // steps, seeds, the scale of the loss
  cache,    // keys or values of earlier tokens
  low,      // a copy of a parameter in a narrower dtype
  whole,    // all ranks' pieces of a parameter
  packed,   // a weight in panels
};
template <>
inline constexpr auto wordsOf<StateKind> = std::to_array({"param", "moment", "grad", "counter", "cache", "low", "whole",
                                                          "packed"});

/// The recipes of codegen/recipes: what makes the kernel of a group.
enum class RecipeKind {
  pointwise,
  row,
  fold,
  reduce_all,
  matmul,
  pack,
  attention,
  attention_grad,
  attention_cached,
  scatter,
  collective,
};
template <>
inline constexpr auto wordsOf<RecipeKind> = std::to_array({"pointwise", "row", "fold", "reduce_all", "matmul", "pack",
                                                           "attention", "attention_grad", "attention_cached", "scatter",
                                                           "collective"});

enum class Memory { host };
template <> inline constexpr auto wordsOf<Memory> = std::to_array({"host"});

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

/// The attribute of a member.
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

/// What the attribute `name` says; `absent` if there is none. Instances exist for the types of members.
template <typename T> T readFact(const AttrMap &attrs, const char *name, T absent);
/// Makes the attribute `name` say `value`; removes it if that is std::nullopt. Instances as above.
template <typename T> void writeFact(AttrMap &attrs, const char *name, const T &value);

template <auto member> auto fact(const CarrierOf<member> &of) {
  return readFact(of.attrs, FactAt<member>::name, FactAt<member>::absent());
}
/// Whether the attribute is there.
template <auto member> bool hasFact(const CarrierOf<member> &of) { return of.attrs.has(FactAt<member>::name); }
/// What the attribute says, without a copy; null if there is none, or one of another kind. Not for words.
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
/// Writes every member; those of GPTC_FACT_UNLESS only if they are not the default. Other attributes stay.
template <typename S> void writeFacts(typename S::Carrier &of, const S &facts);

#define GPTC_FACTS(S, carrier)                                                                                         \
  template <> S factsOf<S>(const carrier &of);                                                                         \
  template <> void writeFacts<S>(carrier & of, const S &facts);
#define GPTC_FACT(...)
#define GPTC_FACT_UNLESS(...)
#define GPTC_FACTS_END(S, carrier)
#include "ir/facts.def"

/// A new state of this kind that begins with zeros.
State *addState(Module &m, llvm::StringRef name, Type type, StateKind kind);
/// Says which recipe makes the kernel of a group.
inline void setKind(Op &group, RecipeKind kind) { setFact<&GroupFacts::kind>(group, std::string(nameOf(kind))); }
/// The kind of a state; nullopt where it has none.
inline std::optional<StateKind> kindOf(const State &s) { return fact<&StateFacts::kind>(s); }
/// The recipe of a group; nullopt where none is called so, which codegen's groupProblem complains about.
inline std::optional<RecipeKind> kindOf(const Op &group) {
  return parseWord<RecipeKind>(fact<&GroupFacts::kind>(group));
}

// ---- the table ------------------------------------------------------------------------------------------------------

/// The numbers that a fact may be.
struct Limits {
  double low, high;
  bool openLow = false, openHigh = false;
  bool contain(double x) const { return (openLow ? x > low : x >= low) && (openHigh ? x < high : x <= high); }
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

  /// What is wrong with a value: "must be an integer", "= 0 is out of range", `= "foo" is not known; "tree" and "fast"
  /// are`; "" if nothing is.
  std::string problem(const Attr &value) const;
};

/// In the order of facts.def.
llvm::ArrayRef<FactSpec> moduleFacts();
llvm::ArrayRef<FactSpec> functionFacts();
llvm::ArrayRef<FactSpec> stateFacts();
llvm::ArrayRef<FactSpec> groupFacts();
/// The fact of that name; null if there is none.
const FactSpec *findFact(llvm::ArrayRef<FactSpec> facts, llvm::StringRef name);

/// Module attributes whose names begin so are notes of passes about what they chose (passes/decisions.h): of any name,
/// and strings.
constexpr llvm::StringLiteral decisionPrefix = "decision.";

/// What is wrong with the attributes of the module itself, one line each: an unknown name, with the nearest known one;
/// another kind; a number or word that the fact cannot be.
std::vector<std::string> moduleFactProblems(const Module &m);
/// "a state has no attribute 'dekay'; did you mean 'decay'?", with the nearest known fact if one is near.
std::string unknownFact(llvm::ArrayRef<FactSpec> facts, const char *carrier, const std::string &name);

}  // namespace gptc
