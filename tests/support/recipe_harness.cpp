#include "tests/support/recipe_harness.h"

#include "codegen/recipes/group_ctx.h"
#include "codegen/recipes/pointwise.h"
#include "ir/element.h"
#include "ir/facts.h"
#include "ir/kernel/bound.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace gptc::test {

Group group(const std::string &kind, const std::string &args, const std::string &body) {
  std::string names;
  llvm::SmallVector<llvm::StringRef> parts;
  llvm::StringRef(args).split(parts, ';');
  std::string list;
  for (llvm::StringRef p : parts) {
    if (p.trim().empty())
      continue;
    names += (names.empty() ? "" : ", ") + p.trim().split(':').first.trim().str();
    list += (list.empty() ? "" : ", ") + p.trim().str();
  }
  // Parse the body as a function first to find the types of the yielded values; only the verifier would reject it.
  auto probe = parseModule(fmt::format("func @f({}) -> () {{\n{}\n}}", list, body), "test");
  std::string types, results;
  unsigned n = 0;
  for (const Value *v : probe->functions[0]->body.back()->operands()) {
    types += (types.empty() ? "" : ", ") + v->type.str();
    results += fmt::format("{}%result{}", results.empty() ? "" : ", ", n++);
  }
  Group g;
  g.module = parseModule(
      fmt::format("func @f({}) -> ({}) {{\n{} = fused {} {{kind=\"{}\"}} : {} {{\n^({})\n{}\n}}\nreturn {}\n}}", list,
                  types, results, names, kind, types, list, body, results),
      "test");
  std::vector<std::string> errors = verify(*g.module);
  EXPECT_TRUE(errors.empty()) << errors[0] << "\n" << print(*g.module);
  g.fused = g.module->functions[0]->body.front();
  return g;
}

Group groupOf(OpKind kind, llvm::ArrayRef<Type> operands, const AttrMap &attributes, llvm::ArrayRef<Type> results) {
  Group g;
  g.module = std::make_unique<Module>();
  Function *f = g.module->addFunction("f");
  auto body = std::make_unique<Block>();
  std::vector<Value *> outer, inner;
  for (const Type &t : operands) {
    outer.push_back(f->body.addArg(t));
    inner.push_back(body->addArg(t));
  }
  Builder in(*body);
  Op *member = results.empty() ? in.op(kind, inner, attributes) : in.op(kind, inner, results, attributes);
  std::vector<Value *> yielded;
  std::vector<Type> types;
  for (unsigned i = 0; i < member->numResults(); ++i) {
    yielded.push_back(member->result(i));
    types.push_back(member->result(i)->type);
  }
  in.op(OpKind::yield, yielded, llvm::ArrayRef<Type>());
  Builder out(f->body);
  g.fused = out.op(OpKind::fused, outer, types, attrs({{"kind", std::string(nameOf(recipeOf(kind).value()))}}));
  g.fused->body = std::move(body);
  std::vector<Value *> returned;
  for (unsigned i = 0; i < g.fused->numResults(); ++i)
    returned.push_back(g.fused->result(i));
  out.ret(returned);
  return g;
}

bool isForCpus(const OpDef &def, const OpDef::Sample &s) {
  return def.kind == OpKind::attention_cached && s.operandTypes[1].dtype == DType::u32;
}

std::vector<double> spread(const Tensor &t, double fill) {
  std::vector<double> out(t.type.paddedElements(), fill);
  const std::vector<int64_t> places = elementPlaces(t.type);
  for (size_t i = 0; i < places.size(); ++i)
    out[places[i]] = t.data[i];
  return out;
}

std::vector<bool> zeroedOnGpu(const Op &fused, unsigned result) {
  const Type &type = fused.result(result)->type, domain = groupDomain(fused);
  std::vector<bool> zeroed(size_t(type.paddedElements()), false);
  const bool isFull = llvm::equal(type.dims, domain.dims, [](Dim a, Dim b) { return a.logical == b.logical; });
  if (kindOf(fused) == RecipeKind::pointwise && zeroesRowsBelow(type))
    std::fill(zeroed.begin() + type.elements(), zeroed.end(), true);
  if (kindOf(fused) != RecipeKind::row || !isFull)
    return zeroed;
  // All elements of a type that has the padding of the last dimension as elements, without those of `type`.
  Type wider = type;
  wider.dims.back() = Dim(type.padded(-1));
  for (int64_t place : elementPlaces(wider))
    zeroed[size_t(place)] = true;
  for (int64_t place : elementPlaces(type))
    zeroed[size_t(place)] = false;
  return zeroed;
}

namespace {

/// What stands where a kernel has to write.
double poisonOf(DType t) { return isFloat(t) ? NAN : t == DType::u32 ? 4294967295.0 : -1; }

constexpr double untouched = 7;  // expected in the padding of results

DType storageOf(DType t, DType compute) { return isFloat(t) && compute == DType::f64 ? DType::f64 : t; }

/// The inverse of spread; padding must contain 0 where it is `zeroed`, which may be empty, and else `fill`.
Tensor gather(const Type &type, const std::vector<double> &padded, double fill, bool checkPadding,
              const std::vector<bool> &zeroed = {}) {
  Tensor t(type);
  std::vector<double> mark = spread(Tensor(type, std::vector<double>(type.elements(), 1)), 0);
  int64_t next = 0;
  for (size_t i = 0; i < padded.size(); ++i) {
    if (mark[i] == 1) {
      t.data[next++] = padded[i];
    } else if (checkPadding) {
      EXPECT_EQ(padded[i], !zeroed.empty() && zeroed[i] ? 0 : fill) << "padding of a result";
    }
  }
  return t;
}

/// A buffer between guard bytes that must stay unchanged.
class Guarded {
public:
  Guarded(const kir::Buffer &b, const std::vector<double> &content)
      : dtype(b->dtype), n(b->size), bytes(2 * zone + 64 + n * sizeOf(dtype), '\x5a') {
    base = bytes.data() + zone;
    base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64;
    for (int64_t i = 0; i < n; ++i)
      storeElement(dtype, base, i, content[i]);
  }
  void *data() const { return base; }
  std::vector<double> content() const {
    std::vector<double> out;
    for (int64_t i = 0; i < n; ++i)
      out.push_back(loadElement(dtype, base, i));
    return out;
  }
  void expectIntact() const {
    for (const char *p = bytes.data(); p < bytes.data() + bytes.size(); ++p)
      if (p < base || p >= base + n * sizeOf(dtype)) {
        ASSERT_EQ(*p, '\x5a') << "a byte outside a buffer changed";
      }
  }

private:
  static constexpr int64_t zone = 256;
  DType dtype;
  int64_t n;
  std::vector<char> bytes;
  char *base;
};

}  // namespace

std::vector<Tensor> run(const Group &g, const std::vector<Tensor> &operands, const Options &o) {
  EXPECT_TRUE(o.compiled || o.inPlace.empty()) << "the interpreter gives each parameter memory of its own";
  const Op &fused = *g.fused;
  static const Target host = hostTarget();
  const Target &target = o.target ? *o.target : host;
  Schedule s = o.schedule ? *o.schedule : defaultSchedule(fused, target);
  LoweredGroup low = lowerGroup(fused, s, target, o.compute);
  std::vector<std::string> errors = kir::verify(low.kernel);
  EXPECT_TRUE(errors.empty()) << errors[0] << "\n" << print(fused) << "\n" << kir::print(low.kernel);
  if (!errors.empty())
    return {};
  const unsigned ins = fused.numOperands(), outs = fused.numResults();
  const std::vector<int64_t> streams = streamsOf(fused);
  const size_t firstStream = ins + outs + low.workspaceBytes.size();
  EXPECT_EQ(low.kernel.params.size(), firstStream + streams.size());

  std::vector<std::vector<double>> content;
  for (unsigned i = 0; i < low.kernel.params.size(); ++i) {
    const kir::Buffer &b = low.kernel.params[i];
    if (i < ins) {
      EXPECT_EQ(b->dtype, storageOf(operands[i].type.dtype, o.compute));
      content.push_back(spread(operands[i], isFloat(b->dtype) ? NAN : 99999));
    } else if (i < ins + outs) {
      content.push_back(
          spread(Tensor(fused.result(i - ins)->type, std::vector<double>(fused.result(i - ins)->type.elements(), NAN)),
                 untouched));
      if (isInt(b->dtype))
        for (double &v : content.back())
          v = std::isnan(v) ? poisonOf(b->dtype) : v;
    } else if (i >= firstStream) {
      content.push_back({double(streams[i - firstStream])});
    } else {
      EXPECT_EQ(low.workspaceBytes[i - ins - outs], b->size * int64_t(sizeOf(b->dtype)));
      content.push_back(std::vector<double>(b->size, poisonOf(b->dtype)));
    }
  }
  if (o.compiled) {
    std::vector<std::unique_ptr<Guarded>> memory;
    std::vector<void *> pointers;
    for (unsigned i = 0; i < content.size(); ++i) {
      memory.push_back(std::make_unique<Guarded>(low.kernel.params[i], content[i]));
      pointers.push_back(memory.back()->data());
    }
    for (auto [result, operand] : o.inPlace)
      pointers[ins + result] = pointers[operand];
    Jit jit(target, "");
    CompiledKernel k = jit.compile({&low.kernel})[0];
    for (const CompiledPhase &p : k.phases)
      for (int64_t t = p.tasks; t-- > 0;)  // tasks may run in any order
        p.run(pointers.data(), t, t + 1);
    for (unsigned i = 0; i < content.size(); ++i) {
      memory[i]->expectIntact();
      content[i] = memory[i]->content();
    }
    for (auto [result, operand] : o.inPlace)
      content[ins + result] = content[operand];
  } else {
    kir::interpret(low.kernel, content, o.compute == DType::f32);
  }
  std::vector<Tensor> results;
  for (unsigned i = 0; i < outs; ++i) {
    bool shared = llvm::any_of(o.inPlace, [&](auto p) { return p.first == i; });
    results.push_back(gather(fused.result(i)->type, content[ins + i], untouched, !shared,
                             target.isCuda() ? zeroedOnGpu(fused, i) : std::vector<bool>()));
  }
  return results;
}

std::vector<Tensor> errorBounds(const Group &g, const std::vector<Tensor> &operands, const Options &o) {
  const Op &fused = *g.fused;
  const Target target = o.target ? *o.target : hostTarget();
  Schedule s = o.schedule ? *o.schedule : defaultSchedule(fused, target);
  LoweredGroup low = lowerGroup(fused, s, target, o.compute);
  std::vector<std::vector<kir::Bounded>> content;
  for (unsigned i = 0; i < low.kernel.params.size(); ++i) {
    content.emplace_back(size_t(low.kernel.params[i]->size));
    if (i < fused.numOperands()) {
      std::vector<double> values = spread(operands[i], 0);
      for (size_t j = 0; j < values.size(); ++j)
        content[i][j].value = values[j];
    }
  }
  const std::vector<int64_t> streams = streamsOf(fused);
  for (size_t i = 0; i < streams.size(); ++i)
    content[content.size() - streams.size() + i][0].value = double(streams[i]);
  kir::boundErrors(low.kernel, content);
  std::vector<Tensor> bounds;
  for (unsigned i = 0; i < fused.numResults(); ++i) {
    std::vector<double> errors;
    for (const kir::Bounded &v : content[fused.numOperands() + i])
      errors.push_back(v.error);
    bounds.push_back(gather(fused.result(i)->type, errors, 0, false));
  }
  return bounds;
}

static void expectWithin(const std::vector<Tensor> &bound, const std::vector<Tensor> &got,
                         const std::vector<Tensor> &want, const std::string &what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  size_t unjudged = 0, all = 0;
  for (size_t r = 0; r < got.size(); ++r) {
    double largest = 0;
    for (double v : want[r].data)
      if (std::isfinite(v))
        largest = std::max(largest, std::fabs(v));
    for (size_t i = 0; i < want[r].data.size(); ++i) {
      const double a = got[r].data[i], b = want[r].data[i];
      // The reference rounds too: in f64, and to f32 and then to 16 or 8 bits if its result has so few; before the
      // latter it may be larger than b, by a sixteenth at most.
      const DType t = got[r].type.dtype;
      const double rounding = t == DType::bf16     ? std::fabs(b) * 0x1p-8
                              : t == DType::f16    ? std::fabs(b) * 0x1p-11 + 0x1p-25
                              : t == DType::f8e4m3 ? std::fabs(b) * 0x1p-4 + 0x1p-10
                                                   : 0;
      const double own = rounding + (rounding != 0 ? std::fabs(b) * 0x1.1p-24 : 0) + 1e-12 * largest;
      const bool equal = a == b || (std::isnan(a) && std::isnan(b));
      ++all, unjudged += !equal && !std::isfinite(bound[r].data[i]);
      ASSERT_TRUE(equal || std::fabs(a - b) <= bound[r].data[i] + own)
          << what << ": result " << r << " element " << i << " is " << a << ", not " << b << " within "
          << bound[r].data[i];
    }
  }
  EXPECT_LE(100 * unjudged, all) << what << ": elements without a bound";
}

void expectWithinBound(const Group &g, const std::vector<Tensor> &operands, const Options &o, const std::string &what) {
  expectWithin(errorBounds(g, operands, o), run(g, operands, o), interpretFused(*g.fused, operands), what);
}

std::vector<Tensor> randomOperands(const Group &g, unsigned seed, int64_t below) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Tensor> out;
  for (const Value *v : g.fused->operands()) {
    Tensor t(v->type);
    for (double &x : t.data)
      x = isInt(v->type.dtype) ? double(random() % uint64_t(below)) : roundTo(v->type.dtype, float(normal(random)));
    out.push_back(std::move(t));
  }
  return out;
}

void expectSame(const std::vector<Tensor> &a, const std::vector<Tensor> &b, const std::string &what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t r = 0; r < a.size(); ++r)
    for (size_t i = 0; i < a[r].data.size(); ++i)
      ASSERT_EQ(std::memcmp(&a[r].data[i], &b[r].data[i], sizeof(double)), 0)
          << what << ": result " << r << " element " << i << ": " << a[r].data[i] << " and " << b[r].data[i];
}

void check(const Group &g, const std::vector<Tensor> &operands) {
  const std::vector<Tensor> want = interpretFused(*g.fused, operands);
  for (DType compute : {DType::f64, DType::f32}) {
    const std::vector<Tensor> bound = errorBounds(g, operands, {.compute = compute});
    for (bool compiled : {false, true}) {
      std::string what =
          fmt::format("{} {}\n{}", compiled ? "compiled" : "interpreted", nameOf(compute).str(), print(*g.fused));
      expectWithin(bound, run(g, operands, {.compute = compute, .compiled = compiled}), want, what);
      if (testing::Test::HasFatalFailure())
        return;
    }
  }
}

}  // namespace gptc::test
