// Groups of several members: every way that a recipe cuts its loops, shared memory, and results of mixed shapes.
#include "tests/support/recipe_harness.h"

#include "ir/access.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gptc::test {
namespace {

Schedule with(const char *text) {
  Schedule s;
  EXPECT_TRUE(Schedule::parse(text, s)) << text;
  return s;
}

/// Every schedule gives the bits of the first one, which are within the bound of the reference.
void checkSchedules(const Group &g, const std::vector<Tensor> &operands,
                    std::initializer_list<const char *> schedules) {
  expectWithinBound(g, operands, {.schedule = with(*schedules.begin())}, *schedules.begin());
  std::vector<Tensor> first;
  for (const char *text : schedules) {
    std::vector<Tensor> got = run(g, operands, {.schedule = with(text)});
    if (testing::Test::HasFailure())
      FAIL() << text;
    if (first.empty())
      first = got;
    expectSame(got, first, text);
  }
}

TEST(PointwiseGroups, FlatSuffixAndScalarOperands) {
  for (const char *shape : {"1", "64", "129", "3,5", "4,129", "2,3,64", "7,1", "1,1,1", "33,2"}) {
    llvm::StringRef last = llvm::StringRef(shape).rsplit(',').second;
    std::string x = fmt::format("f32[{}]", shape), bias = fmt::format("f32[{}]", last.empty() ? shape : last.str());
    Group g = group(
        "pointwise", fmt::format("%x: {}; %y: {}; %b: {}; %s: f32[]", x, x, bias, "f32[]"),
        fmt::format(
            "%0 = mul %x, %s : {0}\n%1 = add %0, %y : {0}\n%2 = relu %1 : {0}\n%3 = mul %2, %2 : {0}\nyield %2, %3",
            x));
    check(g, randomOperands(g, 1));
    Group h = group("pointwise", fmt::format("%x: {}; %b: {}", x, bias),
                    fmt::format("%0 = add %x, %b : {0}\n%1 = relu %0 : {0}\nyield %1", x));
    check(h, randomOperands(h, 2));
  }
}

TEST(PointwiseGroups, SchedulesDoNotChangeBits) {
  Group g = group(
      "pointwise", "%x: f32[5,3,130]; %b: f32[3,130]; %c: f32[130]; %s: f32[]",
      "%0 = add %x, %b : f32[5,3,130]\n%1 = mul %0, %c : f32[5,3,130]\n%2 = div %1, %s : f32[5,3,130]\nyield %0, %2");
  checkSchedules(g, randomOperands(g, 3),
                 {"pointwise vec=16", "pointwise vec=8 task=64", "pointwise vec=32 task=300", "pointwise vec=1 task=1",
                  "pointwise task=100000", "pointwise vec=4 task=131"});
  Group flat = group("pointwise", "%x: f32[977]; %y: f32[977]", "%0 = sub %x, %y : f32[977]\nyield %0");
  checkSchedules(
      flat, randomOperands(flat, 4),
      {"pointwise vec=16", "pointwise vec=64 task=64", "pointwise vec=8 task=100", "pointwise vec=2 task=976"});
}

TEST(PointwiseGroups, PaddingStaysAsItIs) {
  Group g = group("pointwise", "%x: f32[3,5->8]; %b: f32[5->8]; %y: f32[3,5]",
                  "%0 = add %x, %b : f32[3,5->8]\n%1 = neg %0 : f32[3,5->8]\nyield %1");
  check(g, randomOperands(g, 5));
  Group outer = group("pointwise", "%x: f32[3->4,6]", "%0 = neg %x : f32[3->4,6]\nyield %0");
  check(outer, randomOperands(outer, 6));
  Group both = group("pointwise", "%x: f32[3->4,5->6,7->9]", "%0 = neg %x : f32[3->4,5->6,7->9]\nyield %0");
  check(both, randomOperands(both, 7));
}

TEST(PointwiseGroups, ResultsOfSeveralShapes) {
  Group g = group("pointwise", "%x: f32[6,40]; %c: f32[40]; %s: f32[]; %n: i64[]",
                  "%one = constant {value=1} : i64[]\n%n1 = add %n, %one : i64[]\n%h = constant {value=0.5} : "
                  "f32[]\n%s2 = mul %s, %h : f32[]\n"
                  "%c2 = mul %c, %s2 : f32[40]\n%y = add %x, %c2 : f32[6,40]\nyield %n1, %y, %s2, %c2");
  check(g, randomOperands(g, 8));
  // Small results overwrite what the large one reads.
  std::vector<Tensor> operands = randomOperands(g, 9);
  std::vector<Tensor> apart = run(g, operands, {.schedule = with("pointwise vec=16 task=64")});
  std::vector<Tensor> shared =
      run(g, operands, {.schedule = with("pointwise vec=16 task=64"), .inPlace = {{0, 3}, {1, 0}, {2, 2}, {3, 1}}});
  expectSame(shared, apart, "in place");
}

TEST(Groups, AResultMayOverwriteWhatOnlyAnotherReads) {
  Group p = group("pointwise", "%x: f32[40]; %y: f32[40]; %z: f32[40]",
                  "%0 = neg %x : f32[40]\n%1 = mul %y, %z : f32[40]\nyield %0, %1");
  std::vector<Tensor> in = randomOperands(p, 40);
  expectSame(run(p, in, {.inPlace = {{0, 1}, {1, 0}}}), run(p, in), "pointwise");
  Group r = group("row", "%x: f32[4,40]; %y: f32[4,40]; %m: f32[4]",
                  "%0 = softmax %x : f32[4,40]\n%1 = neg %y : f32[4,40]\n%2 = row_sum %y : f32[4]\n%3 = exp %m : "
                  "f32[4]\nyield %0, %1, %2, %3");
  in = randomOperands(r, 41);
  expectSame(run(r, in, {.inPlace = {{0, 1}, {1, 0}, {2, 2}}}), run(r, in), "row");
  // A square: a vector of its columns has the shape of what is one per row.
  Group s = group("row", "%x: f32[40,40]; %g: f32[40]",
                  "%0, %1 = rmsnorm %x, %g {eps=0.1} : f32[40,40], f32[40]\nyield %0, %1");
  EXPECT_FALSE(mayShare(*s.fused, 1, 1));
  in = randomOperands(s, 43);
  expectSame(run(s, in, {.inPlace = {{0, 0}}}), run(s, in), "square");
  Group f = group("fold", "%x: f32[9,40]; %y: f32[9,40]",
                  "%0 = neg %x : f32[9,40]\n%1 = exp %y : f32[9,40]\n%2 = reduce_sum %1 {fold=4, lead=1} : f32[40]\n%3 "
                  "= neg %1 : f32[9,40]\nyield %0, %3, %2");
  in = randomOperands(f, 42);
  expectSame(run(f, in, {.inPlace = {{0, 1}, {1, 0}}}), run(f, in), "fold");
}

TEST(PointwiseGroups, OptimizerInPlace) {
  Group g =
      group("pointwise",
            "%p: f32[70,33]; %g: f32[70,33]; %m: f32[70,33]; %v: f32[70,33]; %lr: f32[]; %step: i64[]; %scale: f32[]",
            "%a, %b, %c = adamw %p, %g, %m, %v, %lr, %step, %scale {beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1} "
            ": f32[70,33], f32[70,33], f32[70,33]\n"
            "%one = constant {value=1} : i64[]\n%next = add %step, %one : i64[]\nyield %a, %b, %c, %next");
  std::vector<Tensor> operands = randomOperands(g, 10);
  for (double &v : operands[3].data)
    v = v * v;
  operands[6].data[0] = 0.5;
  check(g, operands);
  std::vector<Tensor> apart = run(g, operands);
  expectSame(run(g, operands, {.inPlace = {{0, 0}, {1, 2}, {2, 3}, {3, 5}}}), apart, "in place");
  expectSame(
      run(g, operands, {.schedule = with("pointwise vec=8 task=64"), .inPlace = {{0, 0}, {1, 2}, {2, 3}, {3, 5}}}),
      apart, "in place");
}

// With beta 0 the moments are g and g^2, which one rounding gives in f32 as in the reference: every bit must agree, by
// logical index from index0 on, in padded tensors too. The copy is p', rounded.
TEST(PointwiseGroups, MomentsRoundStochasticallyAsTheReferenceSays) {
  const std::string f = "f32[3,130->144]", l = "bf16[3,130->144]";
  Group g = group(
      "pointwise",
      fmt::format("%p: {0}; %g: {0}; %m: {1}; %v: {1}; %lr: f32[]; %t: i64[]; %scale: f32[]; %seed: i64[]; "
                  "%index0: i64[]",
                  f, l),
      fmt::format("%0, %1, %2, %3 = adamw %p, %g, %m, %v, %lr, %t, %scale, %seed, %index0 {{beta1=0.0, beta2=0.0, "
                  "low=\"bf16\", stream=5}} : {0}, {1}, {1}, {1}\nyield %0, %1, %2, %3",
                  f, l));
  std::vector<Tensor> operands = randomOperands(g, 12, 1000);
  operands[4] = Tensor::scalar(0.125), operands[6] = Tensor::scalar(1);
  // The last elements have numbers of more than 32 bits.
  operands[8] = Tensor::scalar(0x1p32 - 100, DType::i64);
  const std::vector<Tensor> want = interpretFused(*g.fused, operands);
  for (bool compiled : {false, true}) {
    const std::vector<Tensor> got = run(g, operands, {.compiled = compiled});
    EXPECT_EQ(got[1].data, want[1].data);
    EXPECT_EQ(got[2].data, want[2].data);
    for (size_t i = 0; i < got[0].data.size(); ++i) {
      // At most eight roundings, of p and of what is taken from it.
      const double p = operands[0].data[i], step = want[0].data[i] - p;
      EXPECT_LE(std::fabs(got[0].data[i] - want[0].data[i]), 8 * 0x1p-24 * (std::fabs(p) + std::fabs(step)));
      EXPECT_LE(std::fabs(got[3].data[i] - got[0].data[i]), std::fabs(got[0].data[i]) * 0x1p-8);
    }
  }
}

TEST(PointwiseGroups, AMomentOfSgdRoundsStochasticallyToo) {
  const std::string f = "f32[3,130->144]", l = "bf16[3,130->144]";
  Group g = group(
      "pointwise", fmt::format("%p: {0}; %g: {0}; %lr: f32[]; %scale: f32[]; %m: {1}; %t: i64[]; %seed: i64[]", f, l),
      fmt::format("%0, %1, %2 = sgd %p, %g, %lr, %scale, %m, %t, %seed {{low=\"bf16\", stream=5}} : {0}, {1}, {1}\n"
                  "yield %0, %1, %2",
                  f, l));
  std::vector<Tensor> operands = randomOperands(g, 12, 1000);
  operands[2] = Tensor::scalar(0.125), operands[3] = Tensor::scalar(1);
  const std::vector<Tensor> want = interpretFused(*g.fused, operands);
  for (bool compiled : {false, true})
    EXPECT_EQ(run(g, operands, {.compiled = compiled})[1].data, want[1].data);
}

TEST(RowGroups, AdafactorInPlace) {
  Group g =
      group("row",
            "%p: f32[70,33]; %g: f32[70,33]; %scale: f32[]; %lr: f32[]; %size: f32[]; %r: f32[70]; %c: f32[33]; "
            "%t: f32[]; %m: f32[70,33]",
            "%a, %b, %l = adafactor %p, %g, %scale, %lr, %size, %r, %c, %t, %m {beta1=0.5, low=\"bf16\", rows=70} : "
            "f32[70,33], f32[70,33], bf16[70,33]\nyield %a, %b, %l");
  std::vector<Tensor> operands = randomOperands(g, 10);
  for (unsigned i : {5u, 6u, 7u})
    for (double &v : operands[i].data)
      v = v * v;
  operands[2].data[0] = 0.5;
  check(g, operands);
  const std::vector<Tensor> apart = run(g, operands);
  expectSame(run(g, operands, {.inPlace = {{0, 0}, {1, 8}}}), apart, "in place");
  expectSame(run(g, operands, {.schedule = with("row vec=32 task=3"), .inPlace = {{0, 0}, {1, 8}}}), apart, "in place");
}

TEST(PointwiseGroups, IndicesAndGathers) {
  Group g =
      group("pointwise", "%table: f32[11,24]; %pos: f32[5,24]; %ids: i32[3,5]; %seed: i64[]; %step: i64[]; %seq: i64[]",
            "%0 = embedding %table, %ids : f32[3,5,24]\n%1 = add %0, %pos : f32[3,5,24]\n"
            "%2 = dropout %1, %seed, %step, %seq {p=0.3, stream=4} : f32[3,5,24]\nyield %2");
  check(g, randomOperands(g, 11, 11));
  checkSchedules(g, randomOperands(g, 12, 11),
                 {"pointwise vec=16", "pointwise vec=8 task=24", "pointwise vec=4 task=7", "pointwise task=100"});
  Group mask = group("pointwise", "%x: f32[2,7,9]; %y: f32[7,9]",
                     "%0 = add %x, %y : f32[2,7,9]\n%1 = causal_mask %0 : f32[2,7,9]\nyield %1");
  check(mask, randomOperands(mask, 13));
  Group cut = group("pointwise", "%x: f32[4,12]; %y: f32[4,6]",
                    "%0 = slice %x {dim=1, size=6, start=3} : f32[4,6]\n%1 = mul %0, %y : f32[4,6]\n%2 = unslice %1 "
                    "{dim=1, full=12, start=6} : f32[4,12]\nyield %1, %2");
  check(cut, randomOperands(cut, 14));
  Group turn = group("pointwise", "%x: f32[3,4,5,6]; %y: f32[3,5,4,6]",
                     "%0 = transpose %x {perm=[0,2,1,3]} : f32[3,5,4,6]\n%1 = add %0, %y : f32[3,5,4,6]\nyield %1");
  check(turn, randomOperands(turn, 15));
}

TEST(PointwiseGroups, ReshapeInside) {
  Group g = group("pointwise", "%x: f32[4,30]; %y: f32[4,5,6]",
                  "%0 = neg %x : f32[4,30]\n%1 = reshape %0 : f32[4,5,6]\n%2 = add %1, %y : f32[4,5,6]\n%3 = reshape "
                  "%2 : f32[2,60]\nyield %3");
  check(g, randomOperands(g, 16));
}

TEST(PointwiseGroups, NarrowStorageRounds) {
  Group g = group("pointwise", "%x: bf16[50]; %y: f32[50]",
                  "%0 = cast %x {dtype=\"f32\"} : f32[50]\n%1 = mul %0, %y : f32[50]\n%2 = cast %1 {dtype=\"bf16\"} : "
                  "bf16[50]\n%3 = cast %2 {dtype=\"f32\"} : f32[50]\nyield %2, %3");
  std::vector<Tensor> operands = randomOperands(g, 17);
  for (double &v : operands[0].data)
    v = std::round(v * 16) / 16;
  std::vector<Tensor> got = run(g, operands);
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(got[0].data[i], got[1].data[i]) << "a value is the same stored and passed on";
}

std::string layernorm(int64_t rows, int64_t columns) {
  return fmt::format("%y, %mean, %rstd = layernorm %s, %g, %b {{eps=1e-5}} : f32[{0},{1}], f32[{0}], f32[{0}]\n", rows,
                     columns);
}

TEST(RowGroups, ResidualAndNorm) {
  for (auto [rows, columns] : {std::pair{1, 1}, {3, 7}, {5, 64}, {2, 127}, {9, 128}, {4, 129}, {70, 200}}) {
    Group g = group("row", fmt::format("%x: f32[{0},{1}]; %r: f32[{0},{1}]; %g: f32[{1}]; %b: f32[{1}]", rows, columns),
                    fmt::format("%s = add %x, %r : f32[{0},{1}]\n{2}yield %s, %y, %mean, %rstd", rows, columns,
                                layernorm(rows, columns)));
    std::vector<Tensor> operands = randomOperands(g, 20);
    check(g, operands);
    std::vector<Tensor> apart = run(g, operands);
    expectSame(run(g, operands, {.inPlace = {{0, 0}, {1, 1}}}), apart, "in place");
  }
}

TEST(RowGroups, TasksDoNotChangeBits) {
  Group g = group(
      "row", "%s: f32[6,5,150]; %g: f32[150]; %b: f32[150]",
      "%y, %mean, %rstd = layernorm %s, %g, %b {eps=1e-5} : f32[6,5,150], f32[6,5], f32[6,5]\nyield %y, %mean, %rstd");
  checkSchedules(g, randomOperands(g, 21),
                 {"row vec=64", "row vec=64 task=1", "row vec=64 task=7", "row vec=64 task=1000"});
  Target other = hostTarget();
  other.vectorBytes = 16, other.threads = 7, other.l1Bytes /= 2;
  EXPECT_EQ(defaultSchedule(*g.fused, other).vec, defaultSchedule(*g.fused, hostTarget()).vec)
      << "lanes must not depend on the machine";
}

TEST(RowGroups, PaddedRows) {
  Group g = group("row", "%x: f32[2,3->5,7->8]; %g: f32[7->8]",
                  "%y, %rstd = rmsnorm %x, %g {eps=1e-5} : f32[2,3->5,7->8], f32[2,3->5]\nyield %y, %rstd");
  check(g, randomOperands(g, 22));
}

TEST(RowGroups, GradientWithResidual) {
  Group g = group(
      "row", "%dy: f32[9,131]; %x: f32[9,131]; %g: f32[131]; %mean: f32[9]; %rstd: f32[9]; %dr: f32[9,131]",
      "%dx = layernorm_grad %dy, %x, %g, %mean, %rstd : f32[9,131]\n%sum = add %dx, %dr : f32[9,131]\nyield %sum");
  std::vector<Tensor> operands = randomOperands(g, 23);
  check(g, operands);
  expectSame(run(g, operands, {.inPlace = {{0, 5}}}), run(g, operands), "in place");
}

TEST(RowGroups, LossAndItsGradient) {
  for (int64_t v : {5, 64, 65, 1000, 20011}) {
    Group loss = group("row", fmt::format("%l: f32[3,{0}]; %t: i32[3]", v),
                       fmt::format("%nll, %lse = cross_entropy %l, %t : f32[3], f32[3]\nyield %nll, %lse", v));
    std::vector<Tensor> operands = randomOperands(loss, 24, v);
    operands[1].data[1] = -1;
    check(loss, operands);
    Group grad = group(
        "row", fmt::format("%l: f32[3,{0}]; %t: i32[3]; %lse: f32[3]; %n: f32[]", v),
        fmt::format("%one = constant {{value=1.0}} : f32[]\n%d = div %one, %n : f32[]\n%dn = broadcast %d : f32[3]\n"
                    "%dl = cross_entropy_grad %l, %t, %lse, %dn : f32[3,{0}]\nyield %dl",
                    v));
    operands = {operands[0], operands[1], run(loss, operands)[1], Tensor::scalar(3)};
    check(grad, operands);
    expectSame(run(grad, operands, {.inPlace = {{0, 0}}}), run(grad, operands), "in place");
  }
}

TEST(RowGroups, SoftmaxKeepsItsExponentials) {
  Group g = group("row", "%x: f32[5,300]; %s: f32[]",
                  "%0 = mul %x, %s : f32[5,300]\n%1 = softmax %0 : f32[5,300]\n%2 = row_max %1 : f32[5]\n%3 = row_sum "
                  "%x : f32[5]\n%4 = mul %2, %3 : f32[5]\nyield %1, %4");
  check(g, randomOperands(g, 25));
  LoweredGroup low = lowerGroup(*g.fused, defaultSchedule(*g.fused, hostTarget()), hostTarget());
  std::string text = kir::print(low.kernel);
  EXPECT_EQ(llvm::StringRef(text).count("exp("), 1u) << text;
}

TEST(FoldGroups, SchedulesDoNotChangeBits) {
  for (auto [rows, columns, fold] : {std::tuple{1, 1, 1},
                                     {8, 16, 4},
                                     {30, 50, 8},
                                     {33, 129, 16},
                                     {64, 40, 0},
                                     {100, 3, 7},
                                     {515, 1, 16},
                                     {7, 20, 7},
                                     {40, 15, 3},
                                     {9, 200, 4}}) {
    Group g =
        group("fold",
              fmt::format(
                  "%dy: f32[{0},{1}]; %x: f32[{0},{1}]; %mean: f32[{0}]; %rstd: f32[{0}]; %ig: f32[{1}]; %ib: f32[{1}]",
                  rows, columns),
              fmt::format("%dg, %db = layernorm_grad_params %dy, %x, %mean, %rstd, %ig, %ib {{bias=true, fold={2}}} : "
                          "f32[{1}], f32[{1}]\n"
                          "%h = mul %dy, %x : f32[{0},{1}]\n%s = reduce_sum %h {{fold={2}, lead=1}} : f32[{1}]\nyield "
                          "%dg, %h, %db, %s",
                          rows, columns, fold));
    std::vector<Tensor> operands = randomOperands(g, 30);
    check(g, operands);
    checkSchedules(g, operands,
                   {"fold vec=16 unroll=4 nc=64", "fold vec=8 unroll=1 nc=16", "fold vec=32 unroll=3 nc=48 mc=1",
                    "fold vec=16 unroll=8 mc=1", "fold vec=16 unroll=5 mc=1 nc=32"});
    expectSame(run(g, operands, {.inPlace = {{0, 4}, {1, 1}, {2, 5}}}), run(g, operands), "in place");
  }
}

TEST(FoldGroups, SeveralLeadingDimensions) {
  Group g = group("fold", "%x: f32[3,4,5,6]; %init: f32[5,6]",
                  "%0 = reduce_sum %x, %init {fold=4, lead=2} : f32[5,6]\n%1 = neg %0 : f32[5,6]\nyield %0, %1");
  check(g, randomOperands(g, 31));
  Group padded =
      group("fold", "%x: f32[3->4,4->7,5->6,6->9]", "%0 = reduce_sum %x {fold=3, lead=2} : f32[5->6,6->9]\nyield %0");
  check(padded, randomOperands(padded, 32));
  Group scalar =
      group("fold", "%x: f32[6,50]; %init: f32[]", "%0 = reduce_sum %x, %init {fold=10, lead=2} : f32[]\nyield %0");
  check(scalar, randomOperands(scalar, 33));
}

TEST(FoldGroups, BlocksInOrder) {
  const int rows = 37, fold = 8;
  Group g =
      group("fold", "%x: f32[37,20]; %init: f32[20]", "%0 = reduce_sum %x, %init {fold=8, lead=1} : f32[20]\nyield %0");
  Group few =
      group("fold", "%x: f32[37]; %init: f32[]", "%0 = reduce_sum %x, %init {fold=8, lead=1} : f32[]\nyield %0");
  for (const Group *group : {&g, &few}) {
    std::vector<Tensor> in = randomOperands(*group, 34);
    const int columns = int(in[1].data.size());
    std::vector<Tensor> got = run(*group, in);
    for (int c = 0; c < columns; ++c) {
      float acc = float(in[1].data[c]);
      for (int b = 0; b < rows; b += fold) {
        float p = 0;
        for (int r = b; r < std::min(rows, b + fold); ++r)
          p = p + float(in[0].data[r * columns + c]);
        acc = acc + p;
      }
      ASSERT_EQ(got[0].data[c], double(acc)) << c;
    }
  }
}

TEST(RowGroups, LanesThenHalves) {
  Group g = group("row", "%x: f32[2,201]", "%0 = row_sum %x : f32[2]\nyield %0");
  std::vector<Tensor> in = randomOperands(g, 35);
  for (int lanes : {1, 4, 64}) {
    std::vector<Tensor> got = run(g, in, {.schedule = with(fmt::format("row vec={}", lanes).c_str())});
    for (int r = 0; r < 2; ++r) {
      std::vector<float> acc(lanes, 0.f);
      for (int c = 0; c < 201; ++c)
        acc[c % lanes] = acc[c % lanes] + float(in[0].data[r * 201 + c]);
      for (int half = lanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i)
          acc[i] = acc[i] + acc[i + half];
      ASSERT_EQ(got[0].data[r], double(acc[0]));
    }
  }
}

TEST(ReduceAllGroups, BlocksLanesHalves) {
  Group g = group(
      "reduce_all", "%x: f32[7,301]; %s: f32[]",
      "%0 = mul %x, %s : f32[7,301]\n%1 = sum_squares %0 {block=500} : f32[]\n%2 = sqrt %1 : f32[]\nyield %2, %0, %1");
  std::vector<Tensor> in = randomOperands(g, 36);
  check(g, in);
  checkSchedules(g, in, {"reduce_all", "reduce_all task=500", "reduce_all task=1100", "reduce_all task=1"});
  expectSame(run(g, in, {.inPlace = {{1, 0}, {2, 1}}}), run(g, in), "in place");
  float total = 0;
  for (int b = 0; b < 7 * 301; b += 500) {
    float acc[64] = {};
    for (int i = 0; i < 500 && b + i < 7 * 301; ++i) {
      float v = float(in[0].data[b + i]) * float(in[1].data[0]);
      acc[i % 64] = acc[i % 64] + v * v;
    }
    for (int half = 32; half > 0; half /= 2)
      for (int i = 0; i < half; ++i)
        acc[i] = acc[i] + acc[i + half];
    total = total + acc[0];
  }
  EXPECT_EQ(run(g, in)[2].data[0], double(total));
  Group padded = group("reduce_all", "%x: f32[3->4,5->7]", "%1 = sum_squares %x : f32[]\nyield %1");
  check(padded, randomOperands(padded, 37));
}

TEST(ScatterGroups, TokenOrderContinues) {
  auto make = [](int64_t n, bool init) {
    return group("scatter",
                 fmt::format("%dy: f32[{0},90]; %ids: i32[{0}]{1}", n, init ? "; %init: f32[13->16,90]" : ""),
                 fmt::format("%0 = neg %dy : f32[{0},90]\n%1 = embedding_grad %0, %ids{1} {{padded=16, vocab=13}} : "
                             "f32[13->16,90]\nyield %1",
                             n, init ? ", %init" : ""));
  };
  Group whole = make(40, false), first = make(25, false), rest = make(15, true);
  std::vector<Tensor> in = randomOperands(whole, 38, 13);
  check(whole, in);
  checkSchedules(whole, in, {"scatter vec=16", "scatter vec=8 nc=16", "scatter vec=32 nc=64 task=100"});
  auto part = [&](const Tensor &t, int64_t from, int64_t to, int64_t row) {
    Type type = t.type;
    type.dims[0] = Dim(to - from);
    return Tensor(type, {t.data.begin() + from * row, t.data.begin() + to * row});
  };
  std::vector<Tensor> a = run(first, {part(in[0], 0, 25, 90), part(in[1], 0, 25, 1)});
  std::vector<Tensor> second = {part(in[0], 25, 40, 90), part(in[1], 25, 40, 1), a[0]};
  std::vector<Tensor> b = run(rest, second);
  expectSame(b, run(whole, in), "two parts and the whole");
  expectSame(run(rest, second, {.inPlace = {{0, 2}}}), b, "in place");
}

TEST(SelectRecipes, FillsScheduleAndWorkspaces) {
  Group g = group("fold", "%x: f32[512,2048]", "%0 = reduce_sum %x {fold=64, lead=1} : f32[2048]\nyield %0");
  Target target = hostTarget(2);
  EXPECT_TRUE(selectRecipes(*g.module, target));
  Schedule s;
  ASSERT_TRUE(Schedule::parse(g.fused->attrs.getString("schedule"), s));
  EXPECT_EQ(s, defaultSchedule(*g.fused, target));
  EXPECT_EQ(g.fused->attrs.getInts("ws"), lowerGroup(*g.fused, s, target).workspaceBytes);
  EXPECT_FALSE(g.fused->attrs.getInts("ws").empty());
  EXPECT_FALSE(selectRecipes(*g.module, target)) << "a schedule that is there stays";
  g.fused->attrs.set("schedule", std::string("fold vec=16 unroll=2 nc=512"));
  EXPECT_TRUE(selectRecipes(*g.module, target));
  EXPECT_EQ(g.fused->attrs.getString("schedule"), "fold vec=16 unroll=2 nc=512");
  EXPECT_TRUE(g.fused->attrs.getInts("ws").empty());
}

TEST(SelectRecipes, KeysTellGroupsApart) {
  auto key = [](const char *kind, const char *args, const char *body) {
    return groupKey(*group(kind, args, body).fused);
  };
  std::string a = key("pointwise", "%x: f32[8]", "%0 = neg %x : f32[8]\nyield %0");
  EXPECT_EQ(a, key("pointwise", "%other: f32[8]", "%7 = neg %other : f32[8]\nyield %7"));
  EXPECT_NE(a, key("pointwise", "%x: f32[9]", "%0 = neg %x : f32[9]\nyield %0"));
  EXPECT_NE(a, key("pointwise", "%x: f32[8]", "%0 = relu %x : f32[8]\nyield %0"));
  EXPECT_NE(key("pointwise", "%x: f32[8]; %y: f32[8]", "%0 = sub %x, %y : f32[8]\nyield %0"),
            key("pointwise", "%x: f32[8]; %y: f32[8]", "%0 = sub %y, %x : f32[8]\nyield %0"));
  EXPECT_NE(key("fold", "%x: f32[8,3]", "%0 = reduce_sum %x {fold=2, lead=1} : f32[3]\nyield %0"),
            key("fold", "%x: f32[8,3]", "%0 = reduce_sum %x {fold=4, lead=1} : f32[3]\nyield %0"));
}

/// Two masks, by streams `one` and `other`.
Group masks(int64_t one, int64_t other) {
  return group("pointwise", "%x: f32[3,40]; %s: i64[]",
               fmt::format("%0 = dropout %x, %s, %s, %s {{p=0.5, stream={}}} : f32[3,40]\n"
                           "%1 = dropout %0, %s, %s, %s {{p=0.5, stream={}}} : f32[3,40]\nyield %0, %1",
                           one, other));
}

TEST(SelectRecipes, StreamsAreArguments) {
  EXPECT_EQ(streamsOf(*masks(7, 4000000000).fused), (std::vector<int64_t>{7, 4000000000}));
  EXPECT_EQ(streamsOf(*masks(7, 7).fused), std::vector<int64_t>{7});
  // Kernels are shared by groups that name others, but not by one that names the same twice.
  EXPECT_EQ(groupKey(*masks(7, 8).fused), groupKey(*masks(8, 4000000000).fused));
  EXPECT_NE(groupKey(*masks(7, 8).fused), groupKey(*masks(7, 7).fused));
  const Target target = hostTarget(1);
  auto text = [&](const Group &g) {
    return kir::print(lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target).kernel);
  };
  EXPECT_EQ(text(masks(7, 8)), text(masks(8, 4000000000)));
  for (auto [one, other] : {std::pair(7l, 8l), std::pair(8l, 4000000000l), std::pair(5l, 5l)}) {
    Group g = masks(one, other);
    std::vector<Tensor> in = {Tensor(Type(DType::f32, {3, 40}), std::vector<double>(120, 1.0)),
                              Tensor::scalar(3, DType::i64)};
    expectSame(run(g, in), interpretFused(*g.fused, in), "masks");
  }
  // Where the attribute may be left out, that means 0.
  auto weights = [](const char *stream) {
    return group("attention", "%qkv: f32[2,5,24]; %s: i64[]",
                 fmt::format("%0, %1 = attention %qkv, %s, %s, %s {{n_head=2, p=0.5{}}} : f32[2,5,8], f32[2,2,5]\n"
                             "yield %0, %1",
                             stream));
  };
  const std::vector<Tensor> in = randomOperands(weights(""), 1, 100);
  EXPECT_TRUE(streamsOf(*weights("").fused).empty());
  expectSame(run(weights(""), in), run(weights(", stream=0"), in), "stream 0");
  EXPECT_NE(run(weights(""), in)[0].data, run(weights(", stream=1"), in)[0].data);
}

/// The sum of terms [begin, end), an even number of times halved, as a tree has it.
float treeOf(const std::vector<float> &terms, size_t begin, size_t end) {
  const size_t middle = begin + (end - begin) / 2;
  return end - begin == 1 ? terms[begin] : treeOf(terms, begin, middle) + treeOf(terms, middle, end);
}

// What GPUs have exchanged is added in the order of the tree, however many they are; text does not grow with them.
TEST(CollectiveGroups, GpusAddInTheOrderOfATree) {
  size_t text = 0;
  for (int64_t ranks : {2, 32, 64, 1024, 2048})
    for (int64_t n : {3, 8}) {
      const Group g =
          group("collective", fmt::format("%x: f32[{},{}]", ranks, n),
                fmt::format("%0 = reduce_scatter %x {{axis=\"data\", ranks={}}} : f32[1,{}]\nyield %0", ranks, n));
      const Target gpu = cudaTarget("cuda:sm_90a");
      const LoweredGroup low = lowerGroup(*g.fused, defaultSchedule(*g.fused, gpu), gpu);
      EXPECT_EQ(kir::verify(low.kernel), std::vector<std::string>());
      const size_t met = size_t(*low.collectives->calls[0].met) + 2;  // behind operand and result
      std::vector<std::vector<double>> content;
      for (const kir::Buffer &b : low.kernel.params)
        content.emplace_back(size_t(b->size), NAN);
      Tensor values = randomOperands(g, unsigned(ranks + n))[0];
      for (double &v : values.data)
        v = float(v);
      ASSERT_EQ(content[met].size(), values.data.size());
      content[met] = values.data;
      kir::interpret(low.kernel, content, true);
      for (int64_t i = 0; i < n; ++i) {
        std::vector<float> terms;
        for (int64_t r = 0; r < ranks; ++r)
          terms.push_back(float(values.data[size_t(r * n + i)]));
        EXPECT_EQ(content[1][size_t(i)], double(treeOf(terms, 0, terms.size()))) << ranks << " " << n << " " << i;
      }
      if (ranks == 64)
        text = kir::print(low.kernel).size();
      if (ranks > 64) {
        EXPECT_LT(kir::print(low.kernel).size(), 2 * text) << ranks;
      }
    }
}

}  // namespace
}  // namespace gptc::test
