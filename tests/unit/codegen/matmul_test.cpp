// The matmul recipe: values against the reference, and sums whose bits no size, place or cut may change.
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace gptc::test {
namespace {

Group matmulOf(llvm::ArrayRef<Type> operands, const AttrMap &attributes) {
  Group g = groupOf(OpKind::matmul, operands, attributes, {});
  g.fused->attrs.set("kind", "matmul");
  return g;
}
Type typeOf(DType t, std::initializer_list<int64_t> dims) {
  return Type(t, llvm::SmallVector<Dim>(dims.begin(), dims.end()));
}

Schedule schedule(const char *text) {
  Schedule s;
  EXPECT_TRUE(Schedule::parse(text, s)) << text;
  return s;
}

/// Sizes that cut everything differently.
std::vector<Schedule> schedules() {
  return {schedule("matmul vec=16 mr=14 nr=32 mc=28 nc=64 kc=64"), schedule("matmul vec=8 mr=6 nr=16 mc=6 nc=16 kc=5"),
          schedule("matmul vec=4 mr=3 nr=12 mc=1000 nc=24 kc=1000"),
          schedule("matmul vec=16 mr=1 nr=16 mc=3 nc=1000 kc=17"),
          schedule("matmul vec=16 mr=6 nr=64 mc=18 nc=64 kc=32")};
}

TEST(Matmul, Samples) {
  for (unsigned seed = 0; seed < sized(2u, 6u); ++seed)
    for (const OpDef::Sample &s : opDef(OpKind::matmul).samples(seed)) {
      Group g = matmulOf(s.operandTypes, s.attrs);
      check(g, randomOperands(g, seed));
      if (HasFailure())
        return;
    }
}

struct Form {
  const char *name;
  bool ta, tb, init;
  int64_t fold;
};
constexpr Form forms[] = {{"plain", false, false, false, 0},   {"tb", false, true, false, 0},
                          {"ta", true, false, false, 0},       {"fold", true, false, false, 8},
                          {"fold init", true, false, true, 8}, {"init", false, false, true, 0},
                          {"both", true, true, false, 0}};

/// Operands in `stored`, init and result in f32.
Group formOf(const Form &f, int64_t m, int64_t n, int64_t k, DType stored = DType::f32) {
  std::vector<Type> types = {f.ta ? typeOf(stored, {k, m}) : typeOf(stored, {m, k}),
                             f.tb ? typeOf(stored, {n, k}) : typeOf(stored, {k, n})};
  if (f.init)
    types.push_back(typeOf(DType::f32, {m, n}));
  return matmulOf(types, attrs({{"ta", f.ta}, {"tb", f.tb}, {"fold", f.fold}, {"out", "f32"}}));
}

// One element less and one more than tiles, vectors and blocks of k, and primes.
TEST(Matmul, EdgeShapes) {
  OneIn some(4);
  for (const Form &f : forms)
    for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                           {5, 31, 7},
                           {13, 32, 16},
                           {14, 33, 15},
                           {15, 65, 17},
                           {29, 97, 64},
                           {43, 16, 127},
                           {65, 64, 9},       // flat tiles
                           {65, 1061, 9}}) {  // and a last panel of three vectors
      if (some.skips())
        continue;
      Group g = formOf(f, m, n, k);
      check(g, randomOperands(g, unsigned(m * n)));
      if (HasFailure()) {
        ADD_FAILURE() << f.name << " " << m << " " << n << " " << k;
        return;
      }
    }
}

// The order of a sum belongs to the op: neither tiles nor blocks nor the target's registers change a bit.
TEST(Matmul, SizesNeverChangeBits) {
  OneIn some(3);
  for (const Form &f : forms)
    for (auto [m, n, k] : {std::array<int64_t, 3>{29, 75, 83}, {7, 17, 64}}) {
      if (some.skips())
        continue;
      Group g = formOf(f, m, n, k);
      std::vector<Tensor> operands = randomOperands(g, 1);
      std::vector<Tensor> want = run(g, operands, {});
      expectWithinBound(g, operands, {}, f.name);
      for (const Schedule &s : schedules())
        expectSame(run(g, operands, {.schedule = s}), want, fmt::format("{} {}", f.name, s.str()));
      if (HasFailure())
        return;
    }
}

Tensor part(const Tensor &t, int64_t from, int64_t rows) {
  int64_t row = t.type.elements() / t.type.dim(0);
  Type type = t.type;
  type.dims[0] = Dim(rows);
  return Tensor(type, std::vector<double>(t.data.begin() + from * row, t.data.begin() + (from + rows) * row));
}

// A micro-batch is a cut of the rows; a weight gradient goes on where the one before it ended.
TEST(Matmul, CutsNeverChangeBits) {
  const int64_t m = 37, n = 50, k = 40;
  Group whole = formOf(forms[0], m, n, k);
  std::vector<Tensor> operands = randomOperands(whole, 3);
  Tensor want = run(whole, operands, {})[0];
  for (int64_t cut : {1, 2, 13, 36}) {
    Tensor top = run(formOf(forms[0], cut, n, k), {part(operands[0], 0, cut), operands[1]}, {})[0];
    Tensor rest = run(formOf(forms[0], m - cut, n, k), {part(operands[0], cut, m - cut), operands[1]}, {})[0];
    expectSame({top, rest}, {part(want, 0, cut), part(want, cut, m - cut)}, fmt::format("rows cut at {}", cut));
  }

  Form start = forms[3], next = forms[4];  // fold=8
  Group all = formOf(start, m, n, k);
  operands = randomOperands(all, 4);
  std::vector<Tensor> sum = run(all, operands, {});
  for (int64_t cut : {8, 16, 32}) {
    Tensor first = run(formOf(start, m, n, cut), {part(operands[0], 0, cut), part(operands[1], 0, cut)}, {})[0];
    expectSame(
        run(formOf(next, m, n, k - cut), {part(operands[0], cut, k - cut), part(operands[1], cut, k - cut), first}, {}),
        sum, fmt::format("sum continued at {}", cut));
  }
}

// Narrow operands, in pairs and converted, odd extents and folds too: within the bound, and no size changes a bit.
TEST(Matmul, NarrowOperands) {
  Target with = hostTarget(), without = hostTarget();
  with.bf16Dot = true, without.bf16Dot = false;  // the emitter has FMAs where the CPU has no dot products
  std::vector<Form> all(std::begin(forms), std::end(forms));
  all.push_back({"odd fold", true, false, true, 7});
  all.push_back({"odd fold tb", false, true, false, 5});
  OneIn some(7);
  for (const Form &f : all)
    for (auto [m, n, k] : {std::array<int64_t, 3>{29, 75, 83}, {1, 1, 1}, {15, 65, 17}, {14, 33, 64}, {77, 64, 18}})
      for (DType stored : {DType::bf16, DType::f16, DType::f8e4m3})
        for (const Target &target : {with, without}) {
          if ((stored != DType::bf16 && (target.bf16Dot || m != 29)) || some.skips())
            continue;
          Group g = formOf(f, m, n, k, stored);
          std::vector<Tensor> operands = randomOperands(g, 1);
          std::string what = fmt::format("{} {}x{}x{} {} {}", f.name, m, n, k, nameOf(stored).str(), target.bf16Dot);
          Schedule own = defaultSchedule(*g.fused, target);
          EXPECT_EQ(own.pairs, target.bf16Dot && stored == DType::bf16) << what;
          std::vector<Tensor> want = run(g, operands, {.target = target});
          expectWithinBound(g, operands, {.target = target}, what);
          expectSame(run(g, operands, {.target = target, .compiled = false}), want, what);
          if (m == 29 || (m == 15 && target.bf16Dot))
            for (Schedule s : schedules()) {
              s.pairs = own.pairs;
              expectSame(run(g, operands, {.schedule = s}), want, what + " " + s.str());
            }
          if (HasFailure())
            return;
        }
}

TEST(Matmul, Epilogue) {
  for (int64_t m : {2, 26})
    for (int64_t n : {33, 64}) {
      Group g = group(
          "matmul",
          fmt::format("%x: f32[2,{0},19]; %w: f32[19,{1}]; %b: f32[{1}]; %r: f32[2,{0},{1}]; %s: f32[]", m, n),
          fmt::format(
              "%y = matmul %x, %w : f32[2,{0},{1}]\n%z = add %y, %b : f32[2,{0},{1}]\n"
              "%g = gelu_tanh %z : f32[2,{0},{1}]\n%h = add %g, %r : f32[2,{0},{1}]\n%i = mul %h, %s : f32[2,{0},{1}]\n"
              "yield %z, %i, %y",
              m, n));
      std::vector<Tensor> operands = randomOperands(g, 5);
      check(g, operands);
      // A block of k that is not the last must not touch results, which may stand where operands do.
      std::vector<Tensor> want = run(g, operands, {});
      for (const Schedule &s : schedules())
        if (2 * m > 4)
          expectSame(run(g, operands, {.schedule = s, .inPlace = {{1, 3}}}), want, s.str());
    }
}

TEST(Matmul, DropoutInTheEpilogue) {
  Group g = group("matmul", "%x: f32[3,11,19]; %w: f32[19,40]; %seed: i64[]; %step: i64[]; %seq: i64[]",
                  "%y = matmul %x, %w : f32[3,11,40]\n%z = dropout %y, %seed, %step, %seq {p=0.3, stream=4} : "
                  "f32[3,11,40]\nyield %z");
  check(g, randomOperands(g, 6, 1000));
}

TEST(Matmul, InitInPlace) {
  Group g = formOf(forms[4], 29, 75, 40);
  std::vector<Tensor> operands = randomOperands(g, 7);
  std::vector<Tensor> want = run(g, operands, {});
  for (const Schedule &s : schedules())
    expectSame(run(g, operands, {.schedule = s, .inPlace = {{0, 2}}}), want, s.str());
}

// A weight's gradient and its bias's in one kernel: the bits of two, whatever the sizes, wherever the sums began.
TEST(Matmul, BiasGradient) {
  OneIn some(5);
  for (DType stored : {DType::f32, DType::bf16})
    for (bool init : {false, true})
      for (auto [m, n, rows] : {std::array<int64_t, 3>{29, 75, 11}, {1, 1, 1}, {40, 33, 20}}) {
        if (some.skips())
          continue;
        std::string x = fmt::format("%x: {}[3,{},{}]", nameOf(stored).str(), rows, m),
                    dy = fmt::format("; %dy: {}[3,{},{}]", nameOf(stored).str(), rows, n), w, b;
        if (init)
          w = fmt::format("; %w: f32[{},{}]", m, n), b = fmt::format("; %b: f32[{}]", n);
        std::string sum =
            stored == DType::f32 ? "" : fmt::format("%d = cast %dy {{dtype=\"f32\"}} : f32[3,{},{}]\n", rows, n);
        sum += fmt::format("%db = reduce_sum {}{} {{lead=2, fold=8}} : f32[{}]\n", stored == DType::f32 ? "%dy" : "%d",
                           init ? ", %b" : "", n);
        const std::string product = fmt::format(
            "%dw = matmul %x, %dy{} {{ta=true, fold=8, out=\"f32\"}} : f32[{},{}]\n", init ? ", %w" : "", m, n);
        Group both = group("matmul", x + dy + w + b, sum + product + "yield %db, %dw");
        std::vector<Tensor> operands = randomOperands(both, unsigned(m));
        std::vector<Tensor> ofSum = {operands[1]}, ofProduct = {operands[0], operands[1]};
        if (init)
          ofSum.push_back(operands[3]), ofProduct.push_back(operands[2]);
        std::vector<Tensor> want = run(group("fold", dy.substr(2) + b, sum + "yield %db"), ofSum, {});
        want.push_back(run(group("matmul", x + dy + w, product + "yield %dw"), ofProduct, {})[0]);
        check(both, operands);
        for (Schedule s : schedules()) {
          s.pairs = defaultSchedule(*both.fused, hostTarget()).pairs;  // the one size that changes bits
          expectSame(run(both, operands, {.schedule = s}), want, s.str());
        }
        if (init)
          expectSame(run(both, operands, {.inPlace = {{0, 3}, {1, 2}}}), want, "in place");
        if (HasFailure())
          return;
      }
}

TEST(Matmul, FewRows) {
  OneIn some(7);
  for (int64_t m : {1, 2, 3, 4})
    for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {16, 3}, {37, 64}, {129, 18}})
      for (bool tb : {false, true})
        for (auto [init, stored] : {std::pair(false, DType::f32), {true, DType::f32}, {true, DType::bf16}}) {
          if (some.skips())
            continue;
          Group g = formOf({"", false, tb, init, 0}, m, n, k, stored);
          std::vector<Tensor> operands = randomOperands(g, unsigned(n));
          check(g, operands);
          // The same chain as for many rows.
          std::vector<Tensor> few = run(g, operands, {});
          Group big = formOf({"", false, tb, init, 0}, 9, n, k, stored);
          std::vector<Tensor> more = randomOperands(big, 8);
          std::copy(operands[0].data.begin(), operands[0].data.end(), more[0].data.begin());
          more[1] = operands[1];
          if (init)
            std::copy(operands[2].data.begin(), operands[2].data.end(), more[2].data.begin());
          expectSame({part(run(big, more, {})[0], 0, m)}, few, "among more rows");
          if (HasFailure())
            return;
        }
}

// A plan comes from any machine, and is explained on this one.
TEST(Matmul, FewRowsForWideVectors) {
  for (unsigned bytes : {16, 64, 128, 256})
    for (const Form &f : {Form{"plain", false, false, false, 0}, {"tb", false, true, false, 0}})
      for (int64_t m : {1, 3}) {
        Group g = formOf(f, m, 70, 40);
        Target t = hostTarget();
        t.vectorBytes = bytes;
        std::vector<Schedule> all = scheduleSpace(*g.fused, t);
        all.push_back(defaultSchedule(*g.fused, t));
        for (const Schedule &s : all)
          EXPECT_NO_THROW(lowerGroup(*g.fused, s, t)) << bytes << " " << f.name << " " << s.str();
      }
}

// A sampled token alone: the chain that it has among others, whatever the schedule.
TEST(Matmul, OneRowByALargeMatrix) {
  struct Case {
    int64_t n, k;
    DType stored;
  };
  OneIn some(3);
  for (const Case &c : {Case{2053, 40, DType::f32}, Case{2053, 131, DType::bf16}, Case{40, 2000, DType::f32}})
    for (bool init : {false, true}) {
      if (some.skips())
        continue;
      Group g = formOf({"", false, false, init, 0}, 1, c.n, c.k, c.stored);
      std::vector<Tensor> operands = randomOperands(g, unsigned(c.n));
      check(g, operands);
      Group among = formOf({"", false, false, init, 0}, 9, c.n, c.k, c.stored);
      std::vector<Tensor> more = randomOperands(among, 3);
      more[1] = operands[1];
      for (const size_t i : {0, 2})
        if (i < operands.size())
          std::copy(operands[i].data.begin(), operands[i].data.end(), more[i].data.begin());
      const Tensor want = part(run(among, more, {})[0], 0, 1);
      const Schedule own = defaultSchedule(*g.fused, hostTarget());
      expectSame(run(g, operands, {}), {want}, own.str());
      for (int64_t nc : {32, 512, 4096})
        for (int unroll : {1, 2, 4}) {
          Schedule s = own;
          s.nc = nc, s.unroll = unroll;
          expectSame(run(g, operands, {.schedule = s}), {want}, s.str());
        }
    }
}

// Stack buffers fit whatever the shape, the caches and the type.
TEST(Matmul, LargeShapesFitTheStack) {
  for (int64_t l2 : {256 << 10, 1 << 20, 8 << 20}) {
    Target target = hostTarget();
    target.l2Bytes = l2;
    for (const Form &f : forms)
      for (auto [m, n, k] :
           {std::array<int64_t, 3>{4096, 50257, 768}, {50257, 1600, 4096}, {8192, 768, 50257}, {100000, 64, 100000}}) {
        Form form = f;
        form.fold = f.fold ? 256 : 0;
        for (DType stored : {DType::f32, DType::bf16})
          for (DType compute : {DType::f32, DType::f64}) {
            Group g = formOf(form, m, n, k, stored);
            std::vector<std::string> errors =
                kir::verify(lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target, compute).kernel);
            EXPECT_TRUE(errors.empty()) << errors[0] << " " << f.name << " " << m << " " << n << " " << k;
          }
      }
  }
}

// Beyond the caches the next tile of A is asked for ahead; a request reaches no element that is not there.
TEST(Matmul, LargeOperands) {
  OneIn some(2);
  Target target = hostTarget();
  target.bf16Dot = true;  // an odd element without its pair, on every machine
  for (auto [f, stored] : {std::pair(forms[0], DType::bf16), {forms[3], DType::bf16}, {forms[3], DType::f32}}) {
    if (some.skips())
      continue;
    Form form = f;
    form.fold = f.fold ? 600 : 0;
    Group g = formOf(form, 2999, 5, 3001, stored);
    std::vector<Tensor> operands = randomOperands(g, 3);
    for (Tensor &t : operands)
      for (double &v : t.data)
        v = std::clamp(std::round(v), -2.0, 2.0);  // sums of whole numbers below 2^24 are exact
    expectSame(run(g, operands, {.target = target}), interpretFused(*g.fused, operands), f.name);
  }
}

// B from memory is asked for ahead too, rows or pieces of columns; likewise.
TEST(Matmul, LargeSecondOperands) {
  OneIn some(5);
  for (const Form &f : {forms[0], forms[1], Form{"odd fold", true, false, false, 5}})
    for (auto [k, stored] : {std::pair<int64_t, DType>{1801, DType::f32}, {3501, DType::bf16}}) {
      if (some.skips())
        continue;
      Group g = formOf(f, 5, 151, k, stored);
      const std::vector<Tensor> operands = randomOperands(g, 4);
      expectSame(run(g, operands, {.compiled = false}), run(g, operands, {}), f.name);
      expectWithinBound(g, operands, {}, f.name);
      if (HasFailure())
        return;
    }
}

TEST(Matmul, TargetWithoutAvx512) {
  Target narrow = hostTarget();
  narrow.vectorBytes = 32;
  narrow.vectorRegisters = 16;
  Group g = formOf(forms[0], 50, 70, 33);
  std::vector<Tensor> operands = randomOperands(g, 9);
  Schedule s = defaultSchedule(*g.fused, narrow);
  EXPECT_EQ(s.vec, 8);
  EXPECT_LE(s.mr * s.nr / s.vec, 12);
  expectSame(run(g, operands, {.target = narrow}), run(g, operands, {}), "narrow");
}

// Tiles of a transposed A whose steps lie 4 KiB apart are copied where a tile takes little of a line.
TEST(Matmul, StepsThatShareASetOfTheCache) {
  Target narrow = hostTarget();
  narrow.vectorBytes = 32;
  narrow.vectorRegisters = 16;
  const Group g = formOf(forms[3], 1024, 21, 24), plain = formOf(forms[3], 1023, 21, 24);
  auto buffers = [&](const Group &g) {
    const std::string text = kir::print(lowerGroup(*g.fused, defaultSchedule(*g.fused, narrow), narrow).kernel);
    int n = 0;
    for (size_t at = 0; (at = text.find(" stack", at)) != std::string::npos; ++at)
      ++n;
    return n;
  };
  EXPECT_EQ(buffers(g), 3) << "panels, sums and tiles of A";
  EXPECT_EQ(buffers(plain), 2);
  const std::vector<Tensor> operands = randomOperands(g, 5);
  expectWithinBound(g, operands, {.target = narrow}, "narrow");
  Schedule other = defaultSchedule(*g.fused, narrow);
  other.mr = 12;  // reads A as it is
  expectSame(run(g, operands, {.target = narrow}), run(g, operands, {.schedule = other, .target = narrow}),
             "both ways");
}

}  // namespace
}  // namespace gptc::test
