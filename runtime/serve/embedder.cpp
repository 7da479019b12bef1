#include "runtime/serve/embedder.h"

#include "ir/facts.h"
#include "runtime/device/executor.h"
#include "runtime/serve/sample.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <map>

namespace gptc {

namespace {

constexpr const char *poolings[] = {"mean", "cls", "last"};

std::string functionOf(int64_t tokens) { return fmt::format("embed_{}", tokens); }

/// Where a text may begin behind `tokens` others: at even places, from which bf16 pairs keys as from the first
/// (codegen/recipes/attention/attention.cpp).
int64_t nextPlace(int64_t tokens) { return (tokens + 1) / 2 * 2; }

/// Of `count` rows of `columns` elements, `stride` apart.
std::vector<float> pooled(const float *rows, int64_t count, int64_t columns, int64_t stride, Pooling pooling,
                          bool normalized) {
  const int64_t first = pooling == Pooling::last ? count - 1 : 0, end = pooling == Pooling::cls ? 1 : count;
  std::vector<double> sums(size_t(columns), 0);
  for (int64_t i = first; i < end; ++i)
    for (int64_t x = 0; x < columns; ++x)
      sums[size_t(x)] += double(rows[i * stride + x]);
  std::vector<float> v(size_t(columns), 0);
  double squares = 0;
  for (int64_t x = 0; x < columns; ++x) {
    const double mean = sums[size_t(x)] / double(end - first);
    squares += mean * mean;
    v[size_t(x)] = float(mean);
  }
  if (!std::isfinite(squares))
    throw UserError(ErrorCode::NonFinite, "the vector of a text is not finite",
                    "compute in a wider precision (--precision fp32); where that is fp32, the weights are damaged");
  if (const double length = std::sqrt(squares); normalized && length > 0)
    for (float &x : v)
      x = float(double(x) / length);
  return v;
}

}  // namespace

std::optional<Pooling> poolingOf(const std::string &word) {
  for (size_t i = 0; i < std::size(poolings); ++i)
    if (word == poolings[i])
      return Pooling(i);
  return std::nullopt;
}

const char *nameOf(Pooling pooling) { return poolings[size_t(pooling)]; }

Embedder::Embedder(Executor &executor) : executor(executor), limit(fact<&ModelFacts::blockSize>(executor.planned())) {
  for (const auto &f : executor.planned().functions)
    if (int64_t n;
        llvm::StringRef(f->name).starts_with("embed_") && !llvm::StringRef(f->name).drop_front(6).getAsInteger(10, n)) {
      sizes.push_back(n);
      columns = f->results()[0].dim(1);
      stride = f->results()[0].padded(1);
      if (f->body.args.size() > 3)
        typesTaken = fact<&ModelFacts::tokenTypes>(executor.planned());
    }
  if (sizes.empty())
    throw UserError(ErrorCode::PlanDamaged, "the plan makes no vectors of texts: it has no @embed_N",
                    "compile it again with `gptc compile`");
  llvm::sort(sizes);
}

void Embedder::prepare() {
  std::vector<std::string> names;
  for (const int64_t n : sizes)
    names.push_back(functionOf(n));
  executor.prepare(std::vector<llvm::StringRef>(names.begin(), names.end()));
}

/// Longest first, each call takes the longest text that still fits it.
std::vector<Embedder::Call> Embedder::callsFor(llvm::ArrayRef<std::vector<int32_t>> texts) const {
  std::multimap<int64_t, size_t, std::greater<>> left;
  for (size_t i = 0; i < texts.size(); ++i) {
    const int64_t tokens = int64_t(texts[i].size());
    GPTC_CHECK(tokens > 0 && tokens <= limit, "a text of {} tokens", tokens);
    requireKnownPrompt(texts[i], executor.planned());
    left.emplace(tokens, i);
  }
  std::vector<Call> calls;
  while (!left.empty()) {
    Call &call = calls.emplace_back();
    for (auto it = left.begin(); it != left.end(); it = left.lower_bound(sizes.back() - nextPlace(call.tokens))) {
      call.tokens = nextPlace(call.tokens) + it->first;
      call.texts.push_back(it->second);
      left.erase(it);
    }
  }
  return calls;
}

void Embedder::requireKnownTypes(llvm::ArrayRef<std::vector<int32_t>> texts,
                                 llvm::ArrayRef<std::vector<int32_t>> types) const {
  GPTC_CHECK(types.empty() || types.size() == texts.size(), "types of {} of {} texts", types.size(), texts.size());
  for (size_t i = 0; i < types.size(); ++i) {
    GPTC_CHECK(types[i].size() == texts[i].size(), "{} types of {} tokens", types[i].size(), texts[i].size());
    for (const int32_t type : types[i])
      if (type < 0 || type >= typesTaken)
        throw UserError(ErrorCode::TokenOutOfRange,
                        fmt::format("the tokenizer gives tokens the type {}, and the model has {} type{}", type,
                                    typesTaken, typesTaken == 1 ? "" : "s"),
                        "take the tokenizer.json that belongs to the model");
  }
}

const float *Embedder::run(const Call &call, llvm::ArrayRef<std::vector<int32_t>> texts,
                           llvm::ArrayRef<std::vector<int32_t>> types) {
  const int64_t n = *llvm::lower_bound(sizes, call.tokens);
  std::vector<int32_t> tokens(size_t(n), 0), typeOf(size_t(n), 0);
  std::vector<int64_t> positions(size_t(n), 0), documents(size_t(2 * n));
  for (int64_t i = 0; i < n; ++i) {  // what is no token of a text is one of its own
    documents[size_t(2 * i)] = i;
    documents[size_t(2 * i + 1)] = i + 1;
  }
  int64_t at = 0;
  for (const size_t text : call.texts) {
    const int64_t begin = nextPlace(at), count = int64_t(texts[text].size());
    for (int64_t i = 0; i < count; ++i) {
      const size_t to = size_t(begin + i);
      tokens[to] = texts[text][size_t(i)];
      typeOf[to] = types.empty() ? 0 : types[text][size_t(i)];
      positions[to] = i;
      documents[2 * to] = begin;
      documents[2 * to + 1] = begin + count;
    }
    at = begin + count;
  }
  const std::string function = functionOf(n);
  std::vector<const void *> args = {tokens.data(), positions.data(), documents.data()};
  if (typesTaken > 1)
    args.push_back(typeOf.data());
  executor.run(function, args);
  return static_cast<const float *>(executor.result(function, 0));
}

void Embedder::runAll(llvm::ArrayRef<std::vector<int32_t>> texts, llvm::ArrayRef<std::vector<int32_t>> types,
                      Take take) {
  requireKnownTypes(texts, types);
  for (const Call &call : callsFor(texts)) {
    const float *const row = run(call, texts, types);
    int64_t at = 0;
    for (const size_t text : call.texts) {
      const int64_t begin = nextPlace(at);
      take(text, row + begin * stride);
      at = begin + int64_t(texts[text].size());
    }
  }
}

std::vector<std::vector<float>> Embedder::embed(llvm::ArrayRef<std::vector<int32_t>> texts, Pooling pooling,
                                                bool normalized, llvm::ArrayRef<std::vector<int32_t>> types) {
  std::vector<std::vector<float>> vectors(texts.size());
  runAll(texts, types, [&](size_t text, const float *rows) {
    vectors[text] = pooled(rows, int64_t(texts[text].size()), columns, stride, pooling, normalized);
  });
  return vectors;
}

std::vector<std::vector<float>> Embedder::tokensAt(llvm::ArrayRef<std::vector<int64_t>> places,
                                                   llvm::ArrayRef<std::vector<int32_t>> texts,
                                                   llvm::ArrayRef<std::vector<int32_t>> types) {
  GPTC_CHECK(places.size() == texts.size(), "places in {} of {} texts", places.size(), texts.size());
  std::vector<std::vector<float>> vectors(texts.size());
  runAll(texts, types, [&](size_t text, const float *rows) {
    for (const int64_t place : places[text]) {
      GPTC_CHECK(place >= 0 && place < int64_t(texts[text].size()), "place {} of {}", place, texts[text].size());
      vectors[text].insert(vectors[text].end(), rows + place * stride, rows + place * stride + columns);
    }
  });
  return vectors;
}

}  // namespace gptc
