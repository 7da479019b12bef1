#include "frontends/tokenizer/regex.h"

#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"

#include <dlfcn.h>
#include <mutex>
#include <oniguruma.h>

namespace gptc {
namespace {

constexpr size_t kLongestPattern = 1 << 16;          // bytes
constexpr unsigned long kStepsOfMatch = 10'000'000;  // Oniguruma's own default
constexpr unsigned long kStepsOfSearch = 50'000'000;
constexpr unsigned kStackEntries = 1 << 22;  // about 200 MB, for a run of as many letters

/// The functions and data that we use.
struct Library {
#define GPTC_ONIG(name) decltype(&::name) name = nullptr;
#define GPTC_ONIG_ALL                                                                                                  \
  GPTC_ONIG(onig_initialize)                                                                                           \
  GPTC_ONIG(onig_new)                                                                                                  \
  GPTC_ONIG(onig_free)                                                                                                 \
  GPTC_ONIG(onig_search_with_param)                                                                                    \
  GPTC_ONIG(onig_region_new)                                                                                           \
  GPTC_ONIG(onig_region_free)                                                                                          \
  GPTC_ONIG(onig_new_match_param)                                                                                      \
  GPTC_ONIG(onig_free_match_param)                                                                                     \
  GPTC_ONIG(onig_initialize_match_param)                                                                               \
  GPTC_ONIG(onig_set_match_stack_limit_size_of_match_param)                                                            \
  GPTC_ONIG(onig_set_retry_limit_in_match_of_match_param)                                                              \
  GPTC_ONIG(onig_set_retry_limit_in_search_of_match_param)                                                             \
  GPTC_ONIG(onig_error_code_to_str)                                                                                    \
  GPTC_ONIG(OnigSyntaxRuby)                                                                                            \
  GPTC_ONIG(OnigEncodingUTF8)
  GPTC_ONIG_ALL
#undef GPTC_ONIG

  Library() {
    void *library = dlopen("libonig.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!library)
      throw UserError(ErrorCode::TargetUnavailable, "Oniguruma (libonig.so.5), which this tokenizer needs, is not here",
                      "install it: Debian and Ubuntu have it as libonig5");
    auto load = [&](auto &pointer, const char *name) {
      pointer = reinterpret_cast<std::decay_t<decltype(pointer)>>(dlsym(library, name));
      if (!pointer)
        throw UserError(ErrorCode::TargetUnavailable, fmt::format("Oniguruma (libonig.so.5) has no {}", name),
                        "6.9.8 works; Debian and Ubuntu have it as libonig5");
    };
#define GPTC_ONIG(name) load(name, #name);
    GPTC_ONIG_ALL
#undef GPTC_ONIG
    OnigEncoding encodings[] = {OnigEncodingUTF8};
    onig_initialize(encodings, 1);
  }
};

const Library &onig() {
  static const Library library;
  return library;
}

const UChar *bytes(const char *p) { return reinterpret_cast<const UChar *>(p); }

/// What a thread needs for a search.
struct Searcher {
  OnigRegion *region = onig().onig_region_new();
  OnigMatchParam *limits = onig().onig_new_match_param();
  Searcher() {
    onig().onig_initialize_match_param(limits);
    onig().onig_set_match_stack_limit_size_of_match_param(limits, kStackEntries);
    onig().onig_set_retry_limit_in_match_of_match_param(limits, kStepsOfMatch);
    onig().onig_set_retry_limit_in_search_of_match_param(limits, kStepsOfSearch);
  }
  ~Searcher() {
    onig().onig_region_free(region, 1);
    onig().onig_free_match_param(limits);
  }
};

std::string reasonOf(int code, OnigErrorInfo *info = nullptr) {
  UChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int n = info ? onig().onig_error_code_to_str(text, code, info) : onig().onig_error_code_to_str(text, code);
  return {reinterpret_cast<const char *>(text), size_t(n)};
}

}  // namespace

Regex::Regex(const std::string &pattern, const std::string &where) : where(where) {
  if (pattern.size() > kLongestPattern)
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: a regular expression of {} bytes", where, pattern.size()),
                    fmt::format("at most {} are taken", kLongestPattern));
  static std::mutex compiling;  // Oniguruma fills tables of its own meanwhile
  const std::lock_guard lock(compiling);
  regex_t *r = nullptr;
  OnigErrorInfo info{};
  const int code = onig().onig_new(&r, bytes(pattern.data()), bytes(pattern.data() + pattern.size()), ONIG_OPTION_NONE,
                                   onig().OnigEncodingUTF8, onig().OnigSyntaxRuby, &info);
  if (code != ONIG_NORMAL)
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("{}: the regular expression \"{}\" is none: {}", where, pattern.substr(0, 200),
                                reasonOf(code, &info)),
                    "Oniguruma's syntax for Ruby is meant, as `tokenizers` takes it");
  compiled = std::shared_ptr<void>(r, [](void *p) { onig().onig_free(static_cast<regex_t *>(p)); });
}

std::optional<Regex::Match> Regex::find(std::string_view text, size_t from) const {
  thread_local Searcher searcher;
  const UChar *begin = bytes(text.data()), *end = begin + text.size();
  const int at = onig().onig_search_with_param(static_cast<regex_t *>(compiled.get()), begin, end, begin + from, end,
                                               searcher.region, ONIG_OPTION_NONE, searcher.limits);
  if (at == ONIG_MISMATCH)
    return std::nullopt;
  if (at < 0)
    throw UserError(
        ErrorCode::DataInvalid,
        fmt::format("{}: its regular expression takes too long or too much memory: {}", where, reasonOf(at)),
        "an expression whose repetitions overlap, as in (a*)*, has this effect; shorter texts may work");
  return Match{size_t(searcher.region->beg[0]), size_t(searcher.region->end[0])};
}

std::vector<Regex::Match> Regex::findAll(std::string_view text) const {
  std::vector<Match> all;
  for (size_t at = 0; at <= text.size();) {
    const std::optional<Match> m = find(text, at);
    if (!m)
      break;
    if (m->begin == m->end && !all.empty() && all.back().end == m->end) {
      at += at < text.size() ? firstCodePoint(text.substr(at)).length : 1;
      continue;
    }
    all.push_back(*m);
    at = m->end;
  }
  return all;
}

}  // namespace gptc
