#include "ir/type.h"

#include <fmt/format.h>

namespace gptc {

namespace {

// Products saturate here, so that bytes() of an unverified type cannot overflow. verify() rejects such a type.
constexpr int64_t saturated = int64_t(1) << 59;

int64_t multiply(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_mul_overflow(a, b, &r) || r > saturated ? saturated : r;
}

bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isAlpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Reads the text of one type.
struct Cursor {
  llvm::StringRef text;
  std::string &error;

  void skipBlanks() { text = text.ltrim(" \t"); }
  bool accept(char c) {
    skipBlanks();
    if (text.empty() || text.front() != c)
      return false;
    text = text.drop_front();
    return true;
  }
  bool fail(std::string message) {
    error = std::move(message);
    return false;
  }
  bool number(int64_t &value, int64_t limit, const char *what) {
    skipBlanks();
    llvm::StringRef digits = text.take_while(isDigit);
    if (digits.empty())
      return fail(fmt::format("expected {}", what));
    if (digits.getAsInteger(10, value) || value > limit)
      return fail(fmt::format("{} is too large: {} (at most {})", what, digits.take_front(24).str(), limit));
    text = text.drop_front(digits.size());
    return true;
  }

  bool dims(Type &t) {
    if (accept(']'))
      return true;
    do {
      Dim d;
      if (!number(d.logical, maxElements, "an extent"))
        return false;
      d.padded = d.logical;
      skipBlanks();
      if (text.consume_front("->") && !number(d.padded, maxElements, "a padded extent"))
        return false;
      t.dims.push_back(d);
      if (t.rank() > maxRank)
        return fail(fmt::format("more than {} dimensions", maxRank));
    } while (accept(','));
    if (!accept(']'))
      return fail("expected ',' or ']' in a shape");
    return true;
  }

  bool sharding(Type &t) {
    do {
      Shard s;
      int64_t dim;
      if (!number(dim, maxRank, "a dimension number"))
        return false;
      s.dim = unsigned(dim);
      if (!accept(':'))
        return fail("expected ':' after the dimension number of a sharding");
      skipBlanks();
      llvm::StringRef axis = text.take_while([](char c) { return isAlpha(c) || isDigit(c); });
      if (axis.empty() || !isAlpha(axis.front()))
        return fail("expected the name of a mesh axis");
      s.axis = axis.str();
      text = text.drop_front(axis.size());
      t.sharding.push_back(std::move(s));
      if (t.sharding.size() > maxRank)
        return fail("more shardings than dimensions");
    } while (accept(','));
    if (!accept('}'))
      return fail("expected ',' or '}' in a sharding");
    return true;
  }
};

}  // namespace

Type::Type() = default;
Type::Type(const Type &) = default;
Type::Type(Type &&) noexcept = default;
Type &Type::operator=(const Type &) = default;
Type &Type::operator=(Type &&) noexcept = default;
Type::~Type() = default;

int64_t Type::elements() const {
  int64_t n = 1;
  for (const Dim &d : dims)
    n = multiply(n, d.logical);
  return n;
}

int64_t Type::paddedElements() const {
  int64_t n = 1;
  for (const Dim &d : dims)
    n = multiply(n, d.padded);
  return n;
}

int64_t Type::rows() const {
  int64_t n = 1;
  for (unsigned i = 0; i + 1 < rank(); ++i)
    n = multiply(n, dims[i].logical);
  return n;
}

Type Type::withDType(DType t) const {
  Type r = *this;
  r.dtype = t;
  return r;
}

Type Type::slice(unsigned from, unsigned to) const {
  Type r(dtype, llvm::ArrayRef<Dim>(dims).slice(from, to - from));
  for (const Shard &s : sharding)
    if (s.dim >= from && s.dim < to)
      r.sharding.push_back({s.dim - from, s.axis});
  return r;
}

std::string Type::str() const {
  std::string s = nameOf(dtype).str();
  s += '[';
  for (unsigned i = 0; i < rank(); ++i) {
    if (i)
      s += ',';
    s += std::to_string(dims[i].logical);
    if (dims[i].padded != dims[i].logical)
      s += "->" + std::to_string(dims[i].padded);
  }
  s += ']';
  if (!sharding.empty()) {
    s += '{';
    for (size_t i = 0; i < sharding.size(); ++i) {
      if (i)
        s += ',';
      s += std::to_string(sharding[i].dim) + ":" + sharding[i].axis;
    }
    s += '}';
  }
  return s;
}

std::string Type::invalid() const {
  if (rank() > maxRank)
    return fmt::format("more than {} dimensions", maxRank);
  int64_t n = 1;
  for (const Dim &d : dims) {
    if (d.logical < 1)
      return "an extent is below 1";
    if (d.padded < d.logical)
      return fmt::format("padded extent {} is below the logical extent {}", d.padded, d.logical);
    n = multiply(n, d.padded);
  }
  if (n > maxElements)
    return fmt::format("more than {} elements", maxElements);
  for (size_t i = 0; i < sharding.size(); ++i) {
    if (sharding[i].dim >= rank())
      return fmt::format("sharding of dimension {} of a type with {} dimensions", sharding[i].dim, rank());
    if (i && sharding[i].dim <= sharding[i - 1].dim)
      return "shardings are not in the order of dimensions, each at most once";
  }
  return "";
}

std::optional<Type> parseType(llvm::StringRef &text, std::string &error) {
  error.clear();
  llvm::StringRef word = text.take_while([](char c) { return isAlpha(c) || isDigit(c); });
  std::optional<DType> dtype = parseDType(word);
  if (!dtype)
    return std::nullopt;
  Cursor cursor{text.drop_front(word.size()), error};
  Type type(*dtype);
  if (!cursor.accept('[')) {
    error = fmt::format("expected '[' after '{}'", word.str());
    return std::nullopt;
  }
  if (!cursor.dims(type))
    return std::nullopt;
  // A sharding follows without a blank and starts with a digit: attributes of a state start with a letter.
  if (cursor.text.size() > 1 && cursor.text[0] == '{' && isDigit(cursor.text[1])) {
    cursor.text = cursor.text.drop_front();
    if (!cursor.sharding(type))
      return std::nullopt;
  }
  if (error = type.invalid(); !error.empty())
    return std::nullopt;
  text = cursor.text;
  return type;
}

}  // namespace gptc
