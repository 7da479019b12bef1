#include "frontends/tokenizer/regex.h"

#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <ctime>
#include <dlfcn.h>
#include <mutex>
#include <oniguruma.h>

namespace gptc {
namespace {

constexpr size_t kLongestPattern = 1 << 16;          // bytes
constexpr unsigned long kStepsOfMatch = 10'000'000;  // Oniguruma's own default
constexpr unsigned long kStepsOfSearch = 50'000'000;
// Of all searches in a text. A search that takes no more than kFreeSteps costs nothing, and most take fewer than ten.
constexpr unsigned long kFreeSteps = 1000;
constexpr uint64_t kStepsOfText = 100'000'000, kStepsPerByte = 1000;
constexpr double kSecondsOfText = 5, kSecondsPerByte = 1e-4;  // for steps forwards, which Oniguruma does not count
constexpr unsigned kStackEntries = 1 << 22;                   // about 200 MB, for a run of as many letters

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
    limit(kFreeSteps);
  }
  void limit(unsigned long steps) {
    onig().onig_set_retry_limit_in_match_of_match_param(limits, std::min(steps, kStepsOfMatch));
    onig().onig_set_retry_limit_in_search_of_match_param(limits, steps);
  }
  ~Searcher() {
    onig().onig_region_free(region, 1);
    onig().onig_free_match_param(limits);
  }
};

/// What the searches in a text may still take.
struct Work {
  int depth = 0;
  uint64_t steps = 0;
  double seconds = 0, until = 0;  // of the thread's time; 0: not asked for yet
  unsigned searches = 0;
};

Work &work() {
  thread_local Work w;
  return w;
}

double secondsOfThread() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

bool isRetryLimit(int code) {
  return code == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || code == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
}

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

RegexWork::RegexWork(size_t bytes) {
  if (Work &w = work(); !w.depth++)
    w = {1, kStepsOfText + kStepsPerByte * bytes, kSecondsOfText + kSecondsPerByte * double(bytes)};
}

RegexWork::~RegexWork() { --work().depth; }

std::optional<Regex::Match> Regex::find(std::string_view text, size_t from) const {
  thread_local Searcher searcher;
  const RegexWork bound(text.size());
  Work &w = work();
  auto fail = [&](const std::string &why) {
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("{}: its regular expression takes too long or too much memory: {}", where, why),
                    "an expression whose repetitions overlap, as in (a*)*, has this effect; shorter texts may work");
  };
  const UChar *begin = bytes(text.data()), *end = begin + text.size();
  auto search = [&] {
    return onig().onig_search_with_param(static_cast<regex_t *>(compiled.get()), begin, end, begin + from, end,
                                         searcher.region, ONIG_OPTION_NONE, searcher.limits);
  };
  int at = search();
  const bool isLong = isRetryLimit(at);
  if (isLong) {  // again with more steps, which are paid for
    for (unsigned long steps = kFreeSteps; isRetryLimit(at) && steps < kStepsOfSearch;) {
      steps = std::min(8 * steps, kStepsOfSearch);
      if (w.steps < steps)
        break;
      w.steps -= steps;
      searcher.limit(steps);
      at = search();
    }
    searcher.limit(kFreeSteps);
  }
  constexpr unsigned often = 64;  // searches; asking for the time takes longer than one
  if (isLong || ++w.searches % often == 0) {
    const double now = secondsOfThread();
    if (w.until == 0)
      w.until = now + w.seconds;
    if (now > w.until)
      fail("time limit for this text");
  }
  if (at == ONIG_MISMATCH)
    return std::nullopt;
  if (at < 0)
    fail(reasonOf(at));
  return Match{size_t(searcher.region->beg[0]), size_t(searcher.region->end[0])};
}

std::vector<Regex::Match> Regex::findAll(std::string_view text) const {
  const RegexWork bound(text.size());
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
