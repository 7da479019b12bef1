#include "ir/facts.h"

#include "ir/gradient_rank.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include <cfloat>
#include <limits>

namespace gptc {

// ---- reading and writing --------------------------------------------------------------------------------------------

namespace {

template <typename T> constexpr bool isOptional = false;
template <typename T> constexpr bool isOptional<std::optional<T>> = true;

template <typename T> T read(const AttrMap &attrs, const char *name, const T &absent) {
  if constexpr (isOptional<T>) {
    using Held = typename T::value_type;
    return attrs.has(name) ? T(read<Held>(attrs, name, Held())) : absent;
  } else if constexpr (Worded<T>) {
    if (!attrs.has(name))
      return absent;
    const std::string word = attrs.getString(name);
    if (const std::optional<T> value = parseWord<T>(word))
      return *value;
    throw UserError(ErrorCode::GirInvalid, fmt::format("attribute {} = \"{}\" is not known", name, word),
                    fmt::format("{} work", quotedList(allWords<T>())));
  } else if constexpr (std::is_same_v<T, bool>) {
    return attrs.getBool(name, absent);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return attrs.getInt(name, absent);
  } else if constexpr (std::is_same_v<T, double>) {
    return attrs.getFloat(name, absent);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return attrs.getString(name, absent);
  } else {
    static_assert(std::is_same_v<T, Ints>);
    return attrs.getInts(name);
  }
}

template <typename T> void write(AttrMap &attrs, const char *name, const T &value) {
  if constexpr (isOptional<T>) {
    if (value)
      write(attrs, name, *value);
    else
      attrs.erase(name);
  } else if constexpr (Worded<T>) {
    attrs.set(name, std::string(nameOf(value)));
  } else {
    attrs.set(name, value);
  }
}

}  // namespace

template <typename T> T readFact(const AttrMap &attrs, const char *name, const T &absent) {
  return read<T>(attrs, name, absent);
}
template <typename T> void writeFact(AttrMap &attrs, const char *name, const T &value) { write(attrs, name, value); }

#define GPTC_FACT_TYPE(...)                                                                                            \
  template __VA_ARGS__ readFact(const AttrMap &, const char *, const __VA_ARGS__ &);                                   \
  template void writeFact(AttrMap &, const char *, const __VA_ARGS__ &);
#define GPTC_FACT_TYPES(type) GPTC_FACT_TYPE(type) GPTC_FACT_TYPE(std::optional<type>)
GPTC_FACT_TYPES(bool)
GPTC_FACT_TYPES(int64_t)
GPTC_FACT_TYPES(double)
GPTC_FACT_TYPES(std::string)
GPTC_FACT_TYPE(Ints)
GPTC_FACT_TYPE(Norm)
GPTC_FACT_TYPE(Activation)
GPTC_FACT_TYPE(Position)
GPTC_FACT_TYPE(RopeScaling)
GPTC_FACT_TYPE(QkNorm)
GPTC_FACT_TYPE(NormPosition)
GPTC_FACT_TYPE(ProblemType)
GPTC_FACT_TYPE(ClassifierPooling)
GPTC_FACT_TYPE(OptimizerKind)
GPTC_FACT_TYPE(LrSchedule)
GPTC_FACT_TYPE(Compute)
GPTC_FACT_TYPE(MomentType)
GPTC_FACT_TYPE(Residual)
GPTC_FACT_TYPE(Fp8)
GPTC_FACT_TYPE(Weights)
GPTC_FACT_TYPE(ReduceOrder)
GPTC_FACT_TYPE(Offload)
GPTC_FACT_TYPE(Initial)
GPTC_FACT_TYPE(std::optional<StateKind>)
GPTC_FACT_TYPE(std::optional<Memory>)

#define GPTC_FACTS(S, carrier)                                                                                         \
  template <> S factsOf<S>(const carrier &of) {                                                                        \
    S facts;
#define GPTC_FACT(S, type, member, ...) facts.member = fact<&S::member>(of);
#define GPTC_FACT_UNLESS(S, type, member, ...) facts.member = fact<&S::member>(of);
#define GPTC_FACTS_END(S, carrier)                                                                                     \
  return facts;                                                                                                        \
  }
#include "ir/facts.def"

#define GPTC_FACTS(S, carrier) template <> void writeFacts<S>(carrier & of, const S &facts) {
#define GPTC_FACT(S, type, member, ...) setFact<&S::member>(of, facts.member);
#define GPTC_FACT_UNLESS(S, type, member, ...)                                                                         \
  if (!(facts.member == FactAt<&S::member>::absent()))                                                                 \
    setFact<&S::member>(of, facts.member);                                                                             \
  else                                                                                                                 \
    eraseFact<&S::member>(of);
#define GPTC_FACTS_END(S, carrier) }
#include "ir/facts.def"

State *addState(Module &m, llvm::StringRef name, Type type, StateKind kind) {
  State *s = m.addState(name, std::move(type));
  setFact<&StateFacts::kind>(*s, kind);
  setFact<&InitialFacts::init>(*s, Initial::zeros);
  return s;
}

bool livesOnHost(const State &s) { return fact<&StateFacts::memory>(s) == Memory::host; }
bool isInFiles(const State &s) { return fact<&StateFacts::memory>(s) == Memory::files; }
bool isLayerMatrix(const State &s) {
  return kindOf(s) == StateKind::param && s.type.rank() == 2 && llvm::StringRef(s.name).starts_with("h.");
}
bool runsOnHost(const Op &op) { return op.is(OpKind::fused) && fact<&GroupFacts::host>(op); }

bool isTrained(const State &s) { return kindOf(s) == StateKind::param && !fact<&TrainedFacts::frozen>(s); }

// ---- the table ------------------------------------------------------------------------------------------------------

namespace {

constexpr std::optional<Limits> any;
constexpr Limits atLeast(double low) { return {low, std::numeric_limits<double>::infinity()}; }
constexpr Limits finite(double low) { return {low, DBL_MAX}; }

template <typename T> constexpr FactSpec::Kind attributeKind() {
  if constexpr (isOptional<T>)
    return attributeKind<typename T::value_type>();
  else if constexpr (std::is_same_v<T, bool>)
    return FactSpec::Bool;
  else if constexpr (std::is_same_v<T, int64_t>)
    return FactSpec::Int;
  else if constexpr (std::is_same_v<T, double>)
    return FactSpec::Float;
  else if constexpr (std::is_same_v<T, Ints>)
    return FactSpec::Ints;
  else
    return FactSpec::String;
}

template <typename T> llvm::ArrayRef<const char *> words() {
  if constexpr (isOptional<T>)
    return words<typename T::value_type>();
  else if constexpr (Worded<T>)
    return wordsOf<T>;
  else
    return {};
}

/// The facts of one carrier in facts.def.
template <typename Carrier> std::vector<FactSpec> table() {
  std::vector<FactSpec> all;
#define GPTC_FACTS(S, carrier) if constexpr (std::is_same_v<Carrier, carrier>) {
#define GPTC_FACT(S, type, member, name, otherwise, limits, writer, meaning)                                           \
  all.push_back({attributeKind<type>(), #S, name, limits, words<type>(), writer, meaning, false});
#define GPTC_FACT_UNLESS(S, type, member, name, otherwise, limits, writer, meaning)                                    \
  all.push_back({attributeKind<type>(), #S, name, limits, words<type>(), writer, meaning, true});
#define GPTC_FACTS_END(S, carrier) }
#include "ir/facts.def"
  return all;
}

/// The number in an attribute; nullopt if it holds none.
std::optional<double> numberOf(const Attr &value) {
  if (auto *n = std::get_if<int64_t>(&value))
    return double(*n);
  if (auto *x = std::get_if<double>(&value))
    return *x;
  return std::nullopt;
}

/// An untrusted name or value for a message: on one line, at most 80 characters.
std::string shown(const Attr &value) {
  std::string text = textOf(value);
  if (text.size() > 80)
    text.replace(77, std::string::npos, "...");
  return text;
}

/// "" if `value` has this kind, else what it must be.
const char *wrongKind(FactSpec::Kind kind, const Attr &value) {
  switch (kind) {
  case FactSpec::Bool:
    return std::holds_alternative<bool>(value) ? "" : "must be true or false";
  case FactSpec::Int:
    return std::holds_alternative<int64_t>(value) ? "" : "must be an integer";
  case FactSpec::Float:
    return numberOf(value) ? "" : "must be a number";
  case FactSpec::String:
    return std::holds_alternative<std::string>(value) ? "" : "must be a string";
  case FactSpec::Ints:
    return std::holds_alternative<Ints>(value) ? "" : "must be a list of integers";
  }
  return "";
}

}  // namespace

std::string Limits::text() const {
  if (high >= DBL_MAX)
    return openLow ? fmt::format("above {}", low) : fmt::format("{} or more", low);
  if (!openLow && !openHigh)
    return fmt::format("{} to {}", low, high);
  return fmt::format("{} {}, {} {}", openLow ? "above" : "at least", low, openHigh ? "below" : "at most", high);
}

std::string FactSpec::problem(const Attr &value) const {
  if (const char *wrong = wrongKind(kind, value); *wrong)
    return wrong;
  if (limits && !limits->contain(*numberOf(value)))
    return fmt::format("= {} is out of range; {} works", shown(value), limits->text());
  if (!words.empty() && !llvm::is_contained(words, llvm::StringRef(std::get<std::string>(value))))
    return fmt::format("= {} is not known; {} {}", shown(value), quotedList({words.begin(), words.end()}),
                       words.size() == 1 ? "is" : "are");
  return "";
}

llvm::ArrayRef<FactSpec> moduleFacts() {
  static const std::vector<FactSpec> all = table<Module>();
  return all;
}
llvm::ArrayRef<FactSpec> functionFacts() {
  static const std::vector<FactSpec> all = table<Function>();
  return all;
}
llvm::ArrayRef<FactSpec> stateFacts() {
  static const std::vector<FactSpec> all = table<State>();
  return all;
}

const FactSpec *findFact(llvm::ArrayRef<FactSpec> facts, llvm::StringRef name) {
  for (const FactSpec &f : facts)
    if (name == f.name)
      return &f;
  return nullptr;
}

std::string unknownFact(llvm::ArrayRef<FactSpec> facts, const char *carrier, const std::string &name) {
  std::vector<std::string> known;
  for (const FactSpec &f : facts)
    known.push_back(f.name);
  // The name is untrusted and may be long; edit distances take quadratic time.
  const std::string near = nearestWord(name.substr(0, 80), known);
  return fmt::format("a {} has no attribute '{}'{}", carrier, llvm::StringRef(shown(name)).trim('"').str(),
                     near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

std::vector<std::string> moduleFactProblems(const Module &m) {
  std::vector<std::string> problems;
  for (const auto &[name, value] : m.attrs) {
    if (llvm::StringRef(name).starts_with(decisionPrefix)) {
      if (!std::holds_alternative<std::string>(value))
        problems.push_back(fmt::format("module attribute {} must be a string", name));
    } else if (const FactSpec *f = findFact(moduleFacts(), name); !f) {
      problems.push_back(unknownFact(moduleFacts(), "module", name));
    } else if (const std::string problem = f->problem(value); !problem.empty()) {
      problems.push_back(fmt::format("module attribute {} {}", name, problem));
    }
  }
  return problems;
}

}  // namespace gptc
