#include "frontends/tokenizer/normalizer.h"

#include "frontends/tokenizer/regex.h"
#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include <cstring>
#include <utf8proc.h>

namespace gptc {
namespace {

std::string_view substr(std::string_view s, size_t from, size_t to) { return s.substr(from, to - from); }

/// Replaces each character by what `map(character, out)` appends.
template <typename Map> void mapCharacters(std::string &text, Map map) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = firstCodePoint(std::string_view(text).substr(at));
    map(c.value, out);
    at += c.length;
  }
  text = std::move(out);
}

bool isAscii(std::string_view text) {
  for (char c : text)
    if (uint8_t(c) >= 0x80)
      return false;
  return true;
}

void toForm(std::string &text, NormalForm form) {
  if (isAscii(text))
    return;
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd)
    options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t *out = nullptr;
  const utf8proc_ssize_t n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t *>(text.data()),
                                          utf8proc_ssize_t(text.size()), &out, utf8proc_option_t(options));
  if (n < 0)
    throw UserError(ErrorCode::DataInvalid, fmt::format("a text has no normal form: {}", utf8proc_errmsg(n)),
                    "shorter texts may work");
  text.assign(reinterpret_cast<const char *>(out), size_t(n));
  std::free(out);
}

void appendLower(uint32_t c, std::string &out) {
  appendUtf8(out, uint32_t(utf8proc_tolower(utf8proc_int32_t(c))));
  if (c == 0x130)  // the one character whose lower case is two
    appendUtf8(out, 0x307);
}

bool isMark(utf8proc_category_t c) {
  return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

class Form : public Normalizer {
public:
  explicit Form(NormalForm form) : form(form) {}
  void run(std::string &text, bool, size_t) const override { toForm(text, form); }
  bool local() const override { return true; }

private:
  NormalForm form;
};

class Lowercase : public Normalizer {
public:
  void run(std::string &text, bool, size_t) const override { mapCharacters(text, appendLower); }
  bool local() const override { return true; }
};

class ReplaceText : public Normalizer {
public:
  ReplaceText(std::string from, std::string to) : from(std::move(from)), to(std::move(to)) {}
  void run(std::string &text, bool, size_t most) const override {
    replaceAll(text, from, to, [&](size_t bytes) { check(bytes, most); });
  }
  /// The letter and what stands behind it must stay as they are: another step may see another word there.
  bool local() const override {
    if (from.empty() || from == " " || from == kSpaceMark)
      return true;
    if (from.find_first_of("\n ") != std::string::npos || from.find(kSpaceMark) != std::string::npos)
      return false;
    return !isAsciiLetter(from.back()) || (!to.empty() && isAsciiLetter(to.back()));
  }

private:
  std::string from, to;
};

class ReplaceMatches : public Normalizer {
public:
  ReplaceMatches(Regex from, std::string to) : from(std::move(from)), to(std::move(to)) {}
  void run(std::string &text, bool, size_t most) const override {
    replaceAll(text, from, to, [&](size_t bytes) { check(bytes, most); });
  }
  bool local() const override { return false; }

private:
  Regex from;
  std::string to;
};

class Prepend : public Normalizer {
public:
  explicit Prepend(std::string text) : before(std::move(text)) {}
  void run(std::string &text, bool continues, size_t) const override {
    if (!text.empty() && !continues)
      text.insert(0, before);
  }
  bool local() const override { return true; }

private:
  std::string before;
};

class StripSpace : public Normalizer {
public:
  StripSpace(bool left, bool right) : left(left), right(right) {}
  void run(std::string &text, bool, size_t) const override {
    size_t from = 0, to = text.size();
    while (left && from < to) {
      const CodePoint c = firstCodePoint(substr(text, from, to));
      if (charClass(c.value) != CharClass::space)
        break;
      from += c.length;
    }
    while (right && from < to) {
      size_t at = to - 1;
      while (at > from && (uint8_t(text[at]) & 0xc0) == 0x80)
        --at;
      if (charClass(firstCodePoint(substr(text, at, to)).value) != CharClass::space)
        break;
      to = at;
    }
    text = text.substr(from, to - from);
  }
  bool local() const override { return false; }

private:
  bool left, right;
};

class StripAccents : public Normalizer {
public:
  void run(std::string &text, bool, size_t) const override {
    mapCharacters(text, [](uint32_t c, std::string &out) {
      if (!isMark(utf8proc_category(utf8proc_int32_t(c))))
        appendUtf8(out, c);
    });
  }
  bool local() const override { return true; }
};

/// Ideographs, of which BERT makes a word each.
bool isIdeograph(uint32_t c) {
  return (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0x2f800 && c <= 0x2fa1f);
}

class BertNormalizer : public Normalizer {
public:
  BertNormalizer(bool clean, bool chinese, bool withoutAccents, bool lower)
      : clean(clean), chinese(chinese), withoutAccents(withoutAccents), lower(lower) {}
  void run(std::string &text, bool, size_t) const override {
    if (clean)
      mapCharacters(text, [](uint32_t c, std::string &out) {
        const utf8proc_category_t kind = utf8proc_category(utf8proc_int32_t(c));
        if (c == '\t' || c == '\n' || c == '\r' || charClass(c) == CharClass::space) {
          if (kind != UTF8PROC_CATEGORY_CC || c == '\t' || c == '\n' || c == '\r')
            out += ' ';
        } else if (c != 0xfffd && kind != UTF8PROC_CATEGORY_CC && kind != UTF8PROC_CATEGORY_CF &&
                   kind != UTF8PROC_CATEGORY_CO) {
          appendUtf8(out, c);
        }
      });
    if (chinese)
      mapCharacters(text, [](uint32_t c, std::string &out) {
        if (isIdeograph(c))
          out += ' ';
        appendUtf8(out, c);
        if (isIdeograph(c))
          out += ' ';
      });
    if (withoutAccents) {
      toForm(text, NormalForm::nfd);
      mapCharacters(text, [](uint32_t c, std::string &out) {
        if (utf8proc_category(utf8proc_int32_t(c)) != UTF8PROC_CATEGORY_MN)
          appendUtf8(out, c);
      });
    }
    if (lower)
      mapCharacters(text, appendLower);
  }
  bool local() const override { return true; }

private:
  bool clean, chinese, withoutAccents, lower;
};

/// As `tokenizers` applies such a table: to whole grapheme clusters of up to five bytes, else to single characters.
class Precompiled : public Normalizer {
public:
  explicit Precompiled(Charsmap map) : map(std::move(map)) {}
  void run(std::string &text, bool, size_t most) const override {
    constexpr size_t mostBytes = 5;
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t end = clusterEnd(text, at);
      if (end - at <= mostBytes)
        if (const Charsmap::Entry e = map.shortest(substr(text, at, end)); e.length) {
          out += e.text;
          check(out.size(), most);
          at = end;
          continue;
        }
      while (at < end) {
        const size_t n = firstCodePoint(std::string_view(text).substr(at)).length;
        const Charsmap::Entry e = map.shortest(std::string_view(text).substr(at, n));
        out += e.length ? e.text : std::string_view(text).substr(at, n);
        check(out.size(), most);
        at += n;
      }
    }
    text = std::move(out);
  }
  bool local() const override { return false; }

private:
  static size_t clusterEnd(const std::string &text, size_t at) {
    utf8proc_int32_t state = 0;
    CodePoint c = firstCodePoint(std::string_view(text).substr(at));
    for (at += c.length; at < text.size(); at += c.length) {
      const CodePoint next = firstCodePoint(std::string_view(text).substr(at));
      if (utf8proc_grapheme_break_stateful(utf8proc_int32_t(c.value), utf8proc_int32_t(next.value), &state))
        break;
      c = next;
    }
    return at;
  }
  Charsmap map;
};

class AllOf : public Normalizer {
public:
  explicit AllOf(std::vector<std::unique_ptr<Normalizer>> all) : all(std::move(all)) {}
  void run(std::string &text, bool continues, size_t most) const override {
    for (const auto &n : all)
      n->within(text, continues, most);
  }
  bool local() const override {
    for (const auto &n : all)
      if (!n->local())
        return false;
    return true;
  }

private:
  std::vector<std::unique_ptr<Normalizer>> all;
};

}  // namespace

void Normalizer::check(size_t bytes, size_t most) const {
  if (bytes > most)
    throw UserError(ErrorCode::TooLarge,
                    fmt::format("{}: this step makes more than {} of a text, which is more than 64 times its length",
                                where.empty() ? "the normalizer" : where, formatBytes(double(most))),
                    "no usual tokenizer does; take it from its source again, or leave the step out");
}

void replaceAll(std::string &text, std::string_view from, std::string_view to, Grown grown) {
  if (from.empty())
    return;
  size_t at = text.find(from);
  if (at == std::string::npos)
    return;
  std::string out;
  size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done);
    out += to;
    grown(out.size());
    done = at + from.size();
  }
  out.append(text, done);
  text = std::move(out);
}

void replaceAll(std::string &text, const Regex &from, std::string_view to, Grown grown) {
  std::string out;
  size_t done = 0;
  for (const auto &[begin, end] : from.findAll(text)) {
    out.append(text, done, begin - done);
    out += to;
    grown(out.size());
    done = end;
  }
  out.append(text, done);
  text = std::move(out);
}

// ---- SentencePiece's table
// -------------------------------------------------------------------------------------------

namespace {

// Bits of a unit of the double array.
bool hasLeaf(uint32_t unit) { return unit >> 8 & 1; }
uint32_t valueOf(uint32_t unit) { return unit & ((1u << 31) - 1); }
uint32_t labelOf(uint32_t unit) { return unit & ((1u << 31) | 0xff); }
uint32_t offsetOf(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string blob, const std::string &where) {
  uint32_t size = 0;
  if (blob.size() >= sizeof size)
    std::memcpy(&size, blob.data(), sizeof size);
  if (size < sizeof size || size % sizeof size || size > blob.size() - sizeof size)
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: its charsmap of {} bytes is cut off", where, blob.size()),
                    "get the file again");
  units.resize(size / sizeof size);
  std::memcpy(units.data(), blob.data() + sizeof size, size);
  texts = blob.substr(sizeof size + size);
  // A search goes only to units that stand in the array: see find.
}

Charsmap::Entry Charsmap::find(std::string_view text, bool longest) const {
  Entry best;
  if (units.empty())
    return best;
  uint64_t node = offsetOf(units[0]);
  for (size_t i = 0; i < text.size() && text[i]; ++i) {
    node ^= uint8_t(text[i]);
    if (node >= units.size() || labelOf(units[node]) != uint8_t(text[i]))
      break;
    const uint32_t unit = units[node];
    node ^= offsetOf(unit);
    if (!hasLeaf(unit) || node >= units.size())
      continue;
    const size_t from = valueOf(units[node]);
    if (from >= texts.size())
      continue;
    const size_t end = texts.find('\0', from);
    best = {i + 1, std::string_view(texts).substr(from, end == std::string::npos ? end : end - from)};
    if (!longest)
      break;
  }
  return best;
}

std::unique_ptr<Normalizer> normalForm(NormalForm form) { return std::make_unique<Form>(form); }
std::unique_ptr<Normalizer> lowercase() { return std::make_unique<Lowercase>(); }
std::unique_ptr<Normalizer> replaceText(std::string from, std::string to) {
  return std::make_unique<ReplaceText>(std::move(from), std::move(to));
}
std::unique_ptr<Normalizer> replaceMatches(Regex from, std::string to) {
  return std::make_unique<ReplaceMatches>(std::move(from), std::move(to));
}
std::unique_ptr<Normalizer> prepend(std::string text) { return std::make_unique<Prepend>(std::move(text)); }
std::unique_ptr<Normalizer> stripSpace(bool left, bool right) { return std::make_unique<StripSpace>(left, right); }
std::unique_ptr<Normalizer> stripAccents() { return std::make_unique<StripAccents>(); }
std::unique_ptr<Normalizer> bertNormalizer(bool clean, bool chinese, bool withoutAccents, bool lower) {
  return std::make_unique<BertNormalizer>(clean, chinese, withoutAccents, lower);
}
std::unique_ptr<Normalizer> precompiled(Charsmap map) { return std::make_unique<Precompiled>(std::move(map)); }
std::unique_ptr<Normalizer> allOf(std::vector<std::unique_ptr<Normalizer>> all) {
  return std::make_unique<AllOf>(std::move(all));
}

}  // namespace gptc
