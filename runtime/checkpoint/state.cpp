#include "runtime/checkpoint/state.h"

#include "ir/facts.h"
#include "ir/kernel/eval.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "ir/random.h"
#include "runtime/checkpoint/quantized_weights.h"
#include "runtime/collectives/communicator.h"
#include "runtime/device/executor.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numbers>

namespace gptc {
namespace {

// Elements per call of the normal kernel: a multiple of every vector width.
constexpr int64_t kChunk = 4096;
constexpr int64_t kSmallBytes = 64;

/// out[i] = deviation * normal(key, base + i) for i < kChunk: Box-Muller like randomNormal(), but in f32 and in
/// vectors.
kir::Kernel normalKernel(int lanes) {
  using namespace kir;
  Buffer out = makeBuffer("out", DType::f32, Storage::global, kChunk, true);
  Buffer key = makeBuffer("key", DType::u32, Storage::global, 2);
  Buffer base = makeBuffer("base", DType::i64, Storage::global, 1);
  Buffer deviation = makeBuffer("deviation", DType::f32, Storage::global, 1);
  Var i = makeVar("i");
  Expr index = (load(base, imm(0)) + ref(i)) * 2;
  RandomKeyExpr k{load(key, imm(0)), load(key, imm(1))};
  auto uniform = [&](Expr at) {
    return cast(DType::f32, binary(BinaryOp::shr, randomBitsExpr(k, std::move(at)), imm(8, DType::u32))) *
           fimm(0x1p-24);
  };
  Expr radius = unary(UnaryOp::sqrt, fimm(-2) * unary(UnaryOp::log, fimm(1) - uniform(index)));
  Expr angle = fimm(2 * std::numbers::pi) * uniform(index + 1);
  Expr value = load(deviation, imm(0)) * (radius * unary(UnaryOp::cos, angle));
  return {"initial_normal",
          {out, key, base, deviation},
          {loop(LoopKind::vector, i, imm(kChunk), {store(out, ref(i), value)}, lanes)}};
}

struct NormalFill {
  const CompiledPhase *phase;
  float *data;
  int64_t elements;
  uint32_t key[2];
  float deviation;
};

void fillNormal(void *arg, int64_t begin, int64_t end) {
  auto &f = *static_cast<NormalFill *>(arg);
  float last[kChunk];
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    int64_t base = chunk * kChunk;
    bool whole = base + kChunk <= f.elements;
    void *params[] = {whole ? f.data + base : last, f.key, &base, &f.deviation};
    f.phase->run(params, 0, 1);
    if (!whole)
      std::copy_n(last, f.elements - base, f.data + base);
  }
}

template <typename T> void fillConstant(void *data, int64_t n, double value) {
  std::fill_n(static_cast<T *>(data), n, T(value));
}

void fillConstant(DType t, void *data, int64_t n, double value) {
  switch (t) {
  case DType::f32:
    return fillConstant<float>(data, n, value);
  case DType::f64:
    return fillConstant<double>(data, n, value);
  case DType::i32:
    return fillConstant<int32_t>(data, n, value);
  case DType::u32:
    return fillConstant<uint32_t>(data, n, value);
  case DType::i64:
    return fillConstant<int64_t>(data, n, value);
  default:
    GPTC_UNREACHABLE("a constant initial value of {}", nameOf(t).str());
  }
}

/// Calls fn(dense offset, padded offset, elements) for each run of contiguous logical elements.
template <typename F> void forRows(const Type &t, F fn) {
  if (t.elements() == t.paddedElements())
    return fn(int64_t(0), int64_t(0), t.elements());
  const int64_t row = t.dim(-1), rows = t.rows();
  std::vector<int64_t> at(t.rank(), 0);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t padded = 0;
    for (unsigned d = 0; d < t.rank(); ++d)
      padded = padded * t.padded(d) + at[d];
    fn(r * row, padded, row);
    for (int d = int(t.rank()) - 2; d >= 0 && ++at[d] == t.dim(d); --d)
      at[d] = 0;
  }
}

}  // namespace

bool isDense(const Type &type) {
  return type.rank() == 0 || type.slice(1, type.rank()).elements() == type.slice(1, type.rank()).paddedElements();
}

void copyFromPadded(const Type &type, const void *padded, void *dense) {
  const unsigned size = sizeOf(type.dtype);
  forRows(type, [&](int64_t to, int64_t from, int64_t n) {
    std::memcpy(static_cast<char *>(dense) + to * size, static_cast<const char *>(padded) + from * size, n * size);
  });
}

void copyToPadded(const Type &type, const void *dense, void *padded) {
  const unsigned size = sizeOf(type.dtype);
  if (type.elements() != type.paddedElements())
    std::memset(padded, 0, type.bytes());
  forRows(type, [&](int64_t from, int64_t to, int64_t n) {
    std::memcpy(static_cast<char *>(padded) + to * size, static_cast<const char *>(dense) + from * size, n * size);
  });
}

double constantValue(const State &s) {
  const Initial init = fact<&InitialFacts::init>(s);
  GPTC_CHECK(init != Initial::normal, "state {} starts as normal", s.name);
  return init == Initial::zeros ? 0 : init == Initial::ones ? 1 : fact<&InitialFacts::value>(s);
}

void fillConstantState(Executor &executor, const State &s) {
  const double value = constantValue(s);
  const StateView view = executor.view(s, StateAccess::write);
  char *data = view.as<char>();
  std::memset(data, 0, s.type.bytes());
  if (value == 0)  // for any type
    return;
  forRows(s.type, [&](int64_t, int64_t at, int64_t count) {
    fillConstant(s.type.dtype, data + at * sizeOf(s.type.dtype), count, value);
  });
}

void initializeStates(Executor &executor, uint64_t seed) {
  const QuantizedWeights few(executor.planned());
  auto storeInFiles = [&](const State &s, const float *values) {
    if (const QuantizedWeight *quantized = few.of(s))
      storeQuantized(executor, *quantized, values);
    else
      storePanels(executor, s, values);
  };
  std::vector<float> dense, padded;
  CompiledKernel normal;
  for (const auto &s : executor.planned().states) {
    const Initial init = fact<&InitialFacts::init>(*s);
    if (isInFiles(*s) && init != Initial::normal) {
      padded.assign(s->type.paddedElements(), float(constantValue(*s)));
      storeInFiles(*s, padded.data());
    } else if (init == Initial::ones || init == Initial::constant) {
      fillConstantState(executor, *s);
    } else if (init == Initial::normal) {
      GPTC_CHECK(s->type.dtype == DType::f32, "normal initial values of {}", s->type.str());
      if (normal.phases.empty())
        normal = executor.compile(normalKernel(executor.lanes(DType::f32)));
      const Type whole = wholeType(*s);
      const RandomKey key = randomKey(seed, 0, fact<&InitialFacts::stream>(*s), 0);
      auto fill = [&](float *data) {
        NormalFill f{&normal.phases[0], data, whole.elements(), {key.k0, key.k1}, float(fact<&InitialFacts::std>(*s))};
        executor.threads().run((f.elements + kChunk - 1) / kChunk, fillNormal, &f);
      };
      if (!isPiece(*s) && !isInFiles(*s) && isDense(whole)) {
        fill(executor.view(*s, StateAccess::write).as<float>());
        continue;
      }
      // A value depends on the element's place in the whole, whichever rank holds it.
      dense.resize(whole.elements());
      fill(dense.data());
      padded.resize(whole.paddedElements());
      copyToPadded(whole, dense.data(), padded.data());
      if (isInFiles(*s))
        storeInFiles(*s, isPiece(*s) ? ownPart(executor, *s, padded.data()).data() : padded.data());
      else
        storeWhole(executor, *s, padded.data());
    }
  }
  if (executor.planned().state("rng_seed"))
    writeCounter(executor, "rng_seed", int64_t(seed));
  fillCopies(executor);
}

void storeRounded(Executor &executor, DType dtype, const float *from, void *to, int64_t n) {
  executor.threads().each((n + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk, end = std::min(begin + kChunk, n);
    auto store = [&](auto *to, auto round) { std::transform(from + begin, from + end, to + begin, round); };
    if (dtype == DType::f32)
      return store(static_cast<float *>(to), [](float v) { return v; });
    if (dtype == DType::bf16)
      return store(static_cast<uint16_t *>(to), [](float v) { return kir::bitsOfBF16(kir::roundBF16(v)); });
    GPTC_CHECK(dtype == DType::f16, "values stored as {}", nameOf(dtype).str());
    store(static_cast<_Float16 *>(to), [](float v) { return _Float16(v); });
  });
}

namespace {

/// Copies this rank's part along `axis` out of a whole of type `type`, or back into it.
void copyPart(const Executor &executor, const Cut &cut, llvm::StringRef axis, const Type &type, int64_t index,
              const char *from, char *to, bool toPart) {
  const int64_t size = sizeOf(type.dtype), ranks = Mesh::of(executor.planned()).extent(axis);
  cut.forEachRun(type, ranks, index, [&](int64_t whole, int64_t part, int64_t n) {
    std::memcpy(to + (toPart ? part : whole) * size, from + (toPart ? whole : part) * size, n * size);
  });
}

/// Gathers all ranks' parts along an axis into `whole`, which has type `type`.
void gather(Executor &executor, const Cut &cut, llvm::StringRef axis, const Type &type, const char *part,
            size_t elements, char *whole) {
  Communicator *along = executor.along(axis);
  GPTC_CHECK(along && type.paddedElements() == int64_t(elements) * along->world, "pieces of {} along {}", type.str(),
             axis.str());
  const size_t bytes = elements * sizeOf(type.dtype);
  // Parts that are contiguous rows need no rearrangement.
  const bool inPlace = cut.dim == 0 && cut.groups.size() == 1;
  std::vector<char> all(inPlace ? 0 : bytes * along->world);
  along->run({{Collective::Kind::all_gather, part, inPlace ? whole : all.data(), elements, type.dtype}},
             SumOrder::fast);
  for (int r = 0; !inPlace && r < along->world; ++r)
    copyPart(executor, cut, axis, type, r, all.data() + r * bytes, whole, false);
}

/// Gathers the pieces of the ranks along "data".
void loadAlongData(Executor &executor, const State &s, char *to) {
  const StateView view = executor.view(s, StateAccess::read);
  if (const auto cut = Cut::of(s, "data"))
    gather(executor, *cut, "data", wholeAlongData(s), view.as<char>(), s.type.paddedElements(), to);
  else
    std::memcpy(to, view.data, s.type.bytes());
}

}  // namespace

std::vector<float> ownPart(const Executor &executor, const State &s, const float *whole) {
  const auto cut = Cut::of(s, "tensor");
  GPTC_CHECK(cut && !Cut::of(s, "data"), "@{} is not cut along tensor alone", s.name);
  std::vector<float> part(size_t(s.type.paddedElements()));
  copyPart(executor, *cut, "tensor", wholeType(s).withDType(DType::f32), executor.index("tensor"),
           reinterpret_cast<const char *>(whole), reinterpret_cast<char *>(part.data()), true);
  return part;
}

void storeWhole(Executor &executor, const State &s, const void *whole) {
  const StateView view = executor.view(s, StateAccess::write);
  const char *from = static_cast<const char *>(whole);
  const Type part = wholeAlongData(s);
  std::vector<char> own;
  if (const auto cut = Cut::of(s, "tensor")) {
    own.resize(part.bytes());
    copyPart(executor, *cut, "tensor", wholeType(s), executor.index("tensor"), from, own.data(), true);
    from = own.data();
  }
  if (const auto cut = Cut::of(s, "data"))
    copyPart(executor, *cut, "data", part, executor.index("data"), from, view.as<char>(), true);
  else
    std::memcpy(view.data, from, s.type.bytes());
}

void loadWhole(Executor &executor, const State &s, void *whole) {
  char *to = static_cast<char *>(whole);
  const auto cut = Cut::of(s, "tensor");
  if (!cut)
    return loadAlongData(executor, s, to);
  const Type part = wholeAlongData(s);
  std::vector<char> own(part.bytes());
  loadAlongData(executor, s, own.data());
  gather(executor, *cut, "tensor", wholeType(s), own.data(), part.paddedElements(), to);
}

namespace {

struct Packing {
  const void *from;
  void *to;
  Type b, panels;
  bool tb;
};

/// Packs panels begin .. end of a matrix whose elements have T's size.
template <typename T> void packPanels(const Packing &p, int64_t begin, int64_t end) {
  const T *from = static_cast<const T *>(p.from);
  const int64_t together = stepOfPanels(p.b.dtype), steps = p.panels.dim(1), width = p.panels.dim(2),
                cols = width / together, n = p.b.dim(p.tb ? 0 : 1), k = p.b.dim(p.tb ? 1 : 0), ld = p.b.padded(1);
  for (int64_t panel = begin; panel < end; ++panel) {
    T *to = static_cast<T *>(p.to) + panel * steps * width;
    std::memset(to, 0, size_t(steps * width) * sizeof(T));
    const int64_t first = panel * cols, here = std::min(cols, n - first);
    auto copy = [&](int64_t i, int64_t c) {
      to[i / together * width + c * together + i % together] = from[p.tb ? (first + c) * ld + i : i * ld + first + c];
    };
    if (p.tb)
      for (int64_t c = 0; c < here; ++c)
        for (int64_t i = 0; i < k; ++i)
          copy(i, c);
    else
      for (int64_t i = 0; i < k; ++i)
        for (int64_t c = 0; c < here; ++c)
          copy(i, c);
  }
}

void packState(void *arg, int64_t begin, int64_t end) {
  const auto &p = *static_cast<Packing *>(arg);
  if (sizeOf(p.b.dtype) == 2)
    packPanels<uint16_t>(p, begin, end);
  else if (sizeOf(p.b.dtype) == 4)
    packPanels<uint32_t>(p, begin, end);
  else
    packPanels<uint64_t>(p, begin, end);
}

}  // namespace

void storePanels(Executor &executor, const State &param, const float *values) {
  for (const auto &s : executor.planned().states) {
    if (kindOf(*s) != StateKind::packed || fact<&StateFacts::of>(*s) != param.name)
      continue;
    const Type b = param.type.withDType(s->type.dtype);
    std::vector<char> rounded(b.dtype == DType::f32 ? 0 : b.bytes());
    if (!rounded.empty())
      storeRounded(executor, b.dtype, values, rounded.data(), b.paddedElements());
    const StateView to = executor.view(*s, StateAccess::write);
    Packing p{rounded.empty() ? static_cast<const void *>(values) : rounded.data(), to.data, b, s->type,
              fact<&StateFacts::tb>(*s)};
    executor.threads().run(p.panels.dim(0), packState, &p);
  }
}

void fillCopies(Executor &executor) {
  const Module &m = executor.planned();
  std::vector<char> gathered;
  for (const auto &s : m.states) {
    const std::optional<StateKind> kind = kindOf(*s);
    if (kind != StateKind::low && kind != StateKind::whole && kind != StateKind::anchor)
      continue;
    const std::string of = fact<&StateFacts::of>(*s);
    const State *p = m.state(of);
    GPTC_CHECK(p && p->type.dtype == DType::f32 && wholeType(*p).sameShape(wholeType(*s)), "@{} is no copy of @{}",
               s->name, of);
    const StateView to = executor.view(*s, StateAccess::write);
    if (kind != StateKind::low) {
      loadAlongData(executor, *p, to.as<char>());
      continue;
    }
    GPTC_CHECK(s->type.dtype == DType::bf16 || s->type.dtype == DType::f16, "@{} : {}", s->name, s->type.str());
    auto fill = [&](const float *from) {
      storeRounded(executor, s->type.dtype, from, to.data, s->type.paddedElements());
    };
    if (Cut::of(*p, "data") && !Cut::of(*s, "data")) {
      gathered.resize(wholeAlongData(*p).bytes());
      loadAlongData(executor, *p, gathered.data());
      fill(reinterpret_cast<const float *>(gathered.data()));
    } else {
      fill(executor.view(*p, StateAccess::read).as<float>());
    }
  }
  for (const auto &s : m.states) {  // of parameters and of the copies above
    if (kindOf(*s) != StateKind::packed)
      continue;
    const State *b = m.state(fact<&StateFacts::of>(*s));
    GPTC_CHECK(b, "@{} is no copy", s->name);
    if (isInFiles(*b))  // loading has filled it
      continue;
    const StateView from = executor.view(*b, StateAccess::read), to = executor.view(*s, StateAccess::write);
    Packing p{from.data, to.data, b->type, s->type, fact<&StateFacts::tb>(*s)};
    executor.threads().run(p.panels.dim(0), packState, &p);
  }
}

void writeCounter(Executor &executor, llvm::StringRef name, int64_t value) {
  const State *s = executor.planned().state(name);
  GPTC_CHECK(s && s->type == Type::scalar(DType::i64), "no counter {}", name.str());
  *executor.view(*s, StateAccess::write).as<int64_t>() = value;
}

SmallStates::SmallStates(Executor &executor) : executor(executor) {
  for (const auto &s : executor.planned().states)
    if (s->type.bytes() <= kSmallBytes && kindOf(*s) != StateKind::param) {
      const StateView view = executor.view(*s, StateAccess::read);
      saved.push_back({s.get(), {view.as<char>(), view.as<char>() + s->type.bytes()}});
    }
}

void SmallStates::restore() const {
  for (auto &[state, bytes] : saved)
    std::memcpy(executor.view(*state, StateAccess::write).data, bytes.data(), bytes.size());
}

}  // namespace gptc
