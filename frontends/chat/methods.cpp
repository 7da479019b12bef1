#include "frontends/chat/run.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/StringSwitch.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <utf8proc.h>

namespace gptc::chat {
namespace {

/// ASCII's white space, which is Python's but for some rare characters.
constexpr const char *blanks = " \t\n\r\f\v";

const MarkedText *textArgument(const Arguments &a, size_t i, llvm::StringRef name) {
  const Value *value = a.get(i, name);
  if (!value || value->isNone())
    return nullptr;
  if (!value->text())
    fail(fmt::format("an argument is {}, and must be a text", value->typeName()));
  return value->text();
}

Value stripped(Run &run, const MarkedText &t, const Arguments &a, bool left, bool right) {
  const MarkedText *chars = textArgument(a, 0, "chars");
  const std::string set = chars ? chars->bytes() : blanks;
  size_t begin = 0, end = t.size();
  // Python strips characters; those of several bytes only as wholes.
  auto isIn = [&](size_t from, size_t to) { return set.find(t.bytes().substr(from, to - from)) != std::string::npos; };
  while (left && begin < end) {
    const size_t next = begin + offsetOfCharacter(std::string_view(t.bytes()).substr(begin), 1);
    if (!isIn(begin, next))
      break;
    begin = next;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (t.bytes()[last] & 0xC0) == 0x80)
      --last;
    if (!isIn(last, end))
      break;
    end = last;
  }
  return run.made(t.part(begin, end));
}

Value split(Run &run, const MarkedText &t, const Arguments &a, bool fromRight) {
  const MarkedText *separator = textArgument(a, 0, "sep");
  const Value *most = a.get(1, "maxsplit");
  int64_t left = most && most->integer() ? *most->integer() : -1;
  List parts;
  const std::string &bytes = t.bytes();
  if (!separator) {
    if (fromRight && left >= 0)
      fail("rsplit without a separator is not known here");
    for (size_t begin = bytes.find_first_not_of(blanks); begin != std::string::npos;) {
      const size_t end = left == 0 ? t.size() : std::min(bytes.find_first_of(blanks, begin), t.size());
      --left;
      parts.push_back(run.made(t.part(begin, end)));
      begin = end >= t.size() ? std::string::npos : bytes.find_first_not_of(blanks, end);
    }
    return run.made(std::move(parts));
  }
  if (separator->size() == 0)
    fail("split by an empty text");
  if (fromRight) {
    size_t end = t.size();
    for (size_t at; left != 0 && end >= separator->size() &&
                    (at = bytes.rfind(separator->bytes(), end - separator->size())) != std::string::npos;
         --left) {
      parts.push_back(run.made(t.part(at + separator->size(), end)));
      end = at;
    }
    parts.push_back(run.made(t.part(0, end)));
    std::reverse(parts.begin(), parts.end());
    return run.made(std::move(parts));
  }
  size_t begin = 0;
  for (size_t at; left != 0 && (at = bytes.find(separator->bytes(), begin)) != std::string::npos; --left) {
    parts.push_back(run.made(t.part(begin, at)));
    begin = at + separator->size();
  }
  parts.push_back(run.made(t.part(begin, t.size())));
  return run.made(std::move(parts));
}

Value replaced(Run &run, const MarkedText &t, const Arguments &a) {
  const MarkedText *from = textArgument(a, 0, "old"), *to = textArgument(a, 1, "new");
  if (!from || !to)
    fail("replace takes two texts");
  const Value *count = a.get(2, "count");
  int64_t left = count && count->integer() ? *count->integer() : -1;
  MarkedText out;
  size_t begin = 0;
  if (from->size() > 0)
    for (size_t at; left != 0 && (at = t.bytes().find(from->bytes(), begin)) != std::string::npos; --left) {
      out.append(t.part(begin, at));
      out.append(*to);
      run.tick(1 + int64_t(to->size() / 64));
      begin = at + from->size();
    }
  out.append(t.part(begin, t.size()));
  return run.made(std::move(out));
}

/// Of str.startswith and str.endswith, which take several too.
Value beginsOrEnds(const MarkedText &t, const Arguments &a, bool begins) {
  if (a.positional.empty())
    fail("startswith and endswith take a text");
  const List many = a.positional[0].list() ? *a.positional[0].list() : List{a.positional[0]};
  for (const Value &one : many) {
    if (!one.text())
      fail(fmt::format("an argument is {}, and must be a text", one.typeName()));
    const llvm::StringRef all = t.bytes(), part = one.text()->bytes();
    if (begins ? all.starts_with(part) : all.ends_with(part))
      return Value(true);
  }
  return Value(false);
}

/// Of a text, its letters by `to`, which is told whether the one before was a letter, and whether it is the first.
MarkedText withLetters(const MarkedText &t, const std::function<utf8proc_int32_t(utf8proc_int32_t, bool, bool)> &to) {
  bool isAfterLetter = false, isFirst = true;
  return t.mapped([&](std::string_view piece) {
    std::string out;
    const auto *bytes = reinterpret_cast<const utf8proc_uint8_t *>(piece.data());
    for (size_t at = 0; at < piece.size();) {
      utf8proc_int32_t character = 0;
      const utf8proc_ssize_t n = utf8proc_iterate(bytes + at, utf8proc_ssize_t(piece.size() - at), &character);
      if (n <= 0) {  // no UTF-8
        out += piece[at++];
        continue;
      }
      utf8proc_uint8_t encoded[4];
      const utf8proc_ssize_t size = utf8proc_encode_char(to(character, isAfterLetter, isFirst), encoded);
      out.append(reinterpret_cast<const char *>(encoded), size_t(size));
      const utf8proc_category_t category = utf8proc_category(character);
      isAfterLetter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
      isFirst = false;
      at += size_t(n);
    }
    return out;
  });
}

bool callOfText(Run &run, const MarkedText &t, llvm::StringRef name, const Arguments &a, Value &result) {
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    result = stripped(run, t, a, name != "rstrip", name != "lstrip");
  else if (name == "split" || name == "rsplit")
    result = split(run, t, a, name == "rsplit");
  else if (name == "splitlines")
    result = t.size() == 0 ? Value(List())
                           : split(run, t.part(0, t.size() - (t.bytes().back() == '\n' ? 1 : 0)),
                                   {.positional = {own("\n")}}, false);
  else if (name == "replace")
    result = replaced(run, t, a);
  else if (name == "startswith" || name == "endswith")
    result = beginsOrEnds(t, a, name == "startswith");
  else if (name == "upper")
    result = run.made(withLetters(t, [](auto c, bool, bool) { return utf8proc_toupper(c); }));
  else if (name == "lower")
    result = run.made(withLetters(t, [](auto c, bool, bool) { return utf8proc_tolower(c); }));
  else if (name == "title" || name == "capitalize")
    result = run.made(withLetters(t, [&](auto c, bool isAfterLetter, bool isFirst) {
      return (name == "title" ? !isAfterLetter : isFirst) ? utf8proc_toupper(c) : utf8proc_tolower(c);
    }));
  else if (name == "removeprefix" || name == "removesuffix") {
    const MarkedText *part = textArgument(a, 0, name == "removeprefix" ? "prefix" : "suffix");
    const size_t n = part ? part->size() : 0;
    const bool has = part && beginsOrEnds(t, a, name == "removeprefix").truth();
    result = !has                     ? Value(t)
             : name == "removeprefix" ? run.made(t.part(n, t.size()))
                                      : run.made(t.part(0, t.size() - n));
  } else if (name == "find" || name == "count") {
    const MarkedText *part = textArgument(a, 0, "sub");
    if (!part || part->size() == 0)
      fail(name.str() + " takes a text");
    const size_t at = t.bytes().find(part->bytes());
    if (name == "find")
      result = Value(at == std::string::npos ? int64_t(-1)
                                             : int64_t(countCharacters(std::string_view(t.bytes()).substr(0, at))));
    else
      result = Value(int64_t(llvm::StringRef(t.bytes()).count(part->bytes())));
  } else if (name == "isdigit" || name == "isalpha" || name == "isspace") {
    auto is = [&](char c) {
      const auto byte = static_cast<unsigned char>(c);
      return (name == "isdigit"   ? std::isdigit(byte)
              : name == "isalpha" ? std::isalpha(byte)
                                  : std::isspace(byte)) != 0;
    };
    result = Value(t.size() > 0 && std::all_of(t.bytes().begin(), t.bytes().end(), is));
  } else if (name == "join") {
    if (a.positional.empty())
      fail("join takes a list");
    Arguments between;
    between.positional = {Value(t)};
    return applyFilter(run, "join", a.positional[0], between, result);
  } else {
    return false;
  }
  return true;
}

bool callOfDict(Run &run, const Value &of, llvm::StringRef name, const Arguments &a, Value &result) {
  if (name == "items")
    return applyFilter(run, "items", of, {}, result);
  if (name == "keys")
    return applyFilter(run, "list", of, {}, result);
  if (name == "values") {
    List values;
    for (const auto &[key, value] : of.dict()->items)
      values.push_back(value);
    result = run.made(std::move(values));
    return true;
  }
  if (name == "get") {
    if (a.positional.empty())
      fail("get takes a name");
    const Value *found = a.positional[0].text() ? of.dict()->find(a.positional[0].text()->bytes()) : nullptr;
    const Value *otherwise = a.get(1, "default");
    result = found ? *found : otherwise ? *otherwise : Value(None());
    return true;
  }
  return false;
}

Value range(Run &run, const Arguments &a) {
  int64_t numbers[3] = {0, 0, 1};
  const size_t n = a.positional.size();
  if (n < 1 || n > 3)
    fail("range takes one to three numbers");
  for (size_t i = 0; i < n; ++i) {
    if (!a.positional[i].integer())
      fail(fmt::format("range of {}", a.positional[i].typeName()));
    numbers[n == 1 ? 1 : i] = *a.positional[i].integer();
  }
  const auto [begin, end, step] = numbers;
  if (step == 0)
    fail("range with step 0");
  List out;
  for (__int128 i = begin; step > 0 ? i < end : i > end; i += step) {
    run.tick();
    out.push_back(Value(int64_t(i)));
  }
  return run.made(std::move(out));
}

Dict dictOf(const Arguments &a) {
  Dict d;
  if (!a.positional.empty() && a.positional[0].dict()) {
    d.isForeign = a.positional[0].dict()->isForeign;
    for (const auto &[name, value] : a.positional[0].dict()->items)
      d.set(name, value);
  }
  for (const auto &[name, value] : a.named)
    d.set(name, value);
  return d;
}

Value timeText(Run &run, const Arguments &a) {
  const MarkedText *format = textArgument(a, 0, "format");
  if (!format || format->size() > 200)
    fail("strftime_now takes a short format");
  char out[2000];
  std::tm parts{};
  const std::time_t now = run.time();
  ::localtime_r(&now, &parts);
  const size_t n = std::strftime(out, sizeof(out), format->bytes().c_str(), &parts);
  return run.made(MarkedText(std::string(out, n), !format->foreign().empty()));
}

}  // namespace

bool callMethod(Run &run, const Value &of, const std::string &name, const Arguments &arguments, Value &result) {
  if (const MarkedText *t = of.text())
    return callOfText(run, *t, name, arguments, result);
  if (of.dict() && !of.dict()->isNamespace)
    return callOfDict(run, of, name, arguments, result);
  return false;
}

Value globalFunction(const std::string &name) {
  using A = const Arguments &;
  const Function function = llvm::StringSwitch<Function>(name)
                                .Case("range", range)
                                .Case("dict", [](Run &run, A a) { return run.made(dictOf(a)); })
                                .Case("namespace",
                                      [](Run &, A a) {
                                        Dict d = dictOf(a);
                                        for (const auto &[name, value] : d.items)
                                          if (value.holdsNamespace())
                                            fail("a namespace in a namespace");
                                        d.isNamespace = true;
                                        return Value(std::move(d));
                                      })
                                .Case("raise_exception",
                                      [](Run &, A a) -> Value {
                                        fail(a.positional.empty() ? "raise_exception" : a.positional[0].str().bytes());
                                      })
                                .Case("strftime_now", timeText)
                                .Default(nullptr);
  return function ? Value(function) : Value();
}

}  // namespace gptc::chat
