// Which ranks meet, and what they compute together.
#include "ir/mesh.h"

#include "ir/opdef.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <array>

namespace gptc {
namespace {

TEST(Mesh, GroupsAreRowsAndColumns) {
  const Mesh mesh{2, 3};
  EXPECT_EQ(mesh.ranks(), 6);
  EXPECT_EQ(mesh.group("data", 1), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(mesh.group("data", 5), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(mesh.group("tensor", 1), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(mesh.group("tensor", 3), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_TRUE(mesh.group("pipeline", 0).empty());
}

TEST(Mesh, LogicalPartsAreATreeOfWhichRanksHaveParts) {
  auto parts = [](const char *attributes) {
    return LogicalParts::ofRank(*parseModule(std::string("module {") + attributes + "} {\n}", "test"));
  };
  EXPECT_EQ(parts("mesh_tensor=4"), 1);
  EXPECT_EQ(parts("logical_tensor=8"), 8);
  EXPECT_EQ(parts("logical_tensor=8, mesh_tensor=4"), 2);
  for (const char *bad : {"logical_tensor=6", "logical_tensor=4, mesh_tensor=8", "logical_tensor=8, mesh_tensor=3"})
    EXPECT_THROW(parts(bad), UserError) << bad;
}

TEST(Mesh, CollectivesMeetAlongTheirAxis) {
  auto m = parseModule(R"(module {mesh_data=2, mesh_tensor=2} {
    func @f(%x: f32[3->4,2]) -> (f32[3->4,2], f32[2,2], f32[3->4,2], f32[3->4,2]) {
      %s = all_reduce %x {axis="data", ranks=2} : f32[3->4,2]
      %p = reduce_scatter %x {axis="tensor", ranks=2} : f32[2,2]
      %g = all_gather %p {axis="tensor", ranks=2} : f32[3->4,2]
      %b = broadcast_from %x {axis="data", ranks=2, root=1} : f32[3->4,2]
      return %s, %p, %g, %b
    }
  })",
                       "mesh.gir");
  ASSERT_EQ(verify(*m), std::vector<std::string>());
  const Function &f = *m->function("f");
  std::vector<std::vector<Tensor>> args;
  for (int r = 0; r < 4; ++r) {
    Tensor x(f.body.args[0]->type);
    for (size_t i = 0; i < x.data.size(); ++i)
      x.data[i] = 100 * r + double(i);
    args.push_back({x});
  }
  std::vector<StateMap> states(4);
  const auto got = interpretRanks(f, args, states);
  using Values = std::vector<double>;
  // Ranks 0 and 2 meet along data, 0 and 1 along tensor; the last row of the last piece is padding.
  EXPECT_EQ(got[0][0].data, (Values{200, 202, 204, 206, 208, 210}));
  EXPECT_EQ(got[3][0].data, (Values{400, 402, 404, 406, 408, 410}));
  EXPECT_EQ(got[0][1].data, (Values{100, 102, 104, 106}));
  EXPECT_EQ(got[1][1].data, (Values{108, 110, 0, 0}));
  EXPECT_EQ(got[3][1].data, (Values{508, 510, 0, 0}));
  EXPECT_EQ(got[2][2].data, (Values{500, 502, 504, 506, 508, 510}));
  EXPECT_EQ(got[3][2].data, got[2][2].data);
  EXPECT_EQ(got[1][3].data, args[3][0].data);
  EXPECT_EQ(got[2][3].data, args[2][0].data);
}

TEST(Mesh, PiecesOfALaterDimensionComeFromEveryPartOfTheWhole) {
  auto m = parseModule(R"(module {mesh_data=2, mesh_tensor=2} {
    func @f(%x: f32[2,4]) -> (f32[2,2], f32[2,2], f32[2,4], f32[1,4], i64[]) {
      %p = reduce_scatter %x {axis="tensor", dim=1, ranks=2} : f32[2,2]
      %o = own_part %x {axis="tensor", dim=1, ranks=2} : f32[2,2]
      %g = all_gather %o {axis="tensor", dim=1, ranks=2} : f32[2,4]
      %r = own_part %x {axis="data", ranks=2} : f32[1,4]
      %i = axis_index {axis="tensor", ranks=2} : i64[]
      return %p, %o, %g, %r, %i
    }
  })",
                       "mesh.gir");
  ASSERT_EQ(verify(*m), std::vector<std::string>());
  const Function &f = *m->function("f");
  std::vector<std::vector<Tensor>> args;
  for (int r = 0; r < 4; ++r) {
    Tensor x(f.body.args[0]->type);
    for (size_t i = 0; i < x.data.size(); ++i)
      x.data[i] = 100 * r + double(i);
    args.push_back({x});
  }
  std::vector<StateMap> states(4);
  const auto got = interpretRanks(f, args, states);
  using Values = std::vector<double>;
  EXPECT_EQ(got[0][0].data, (Values{100, 102, 108, 110}));
  EXPECT_EQ(got[3][0].data, (Values{504, 506, 512, 514}));
  EXPECT_EQ(got[3][1].data, (Values{302, 303, 306, 307}));
  EXPECT_EQ(got[1][2].data, (Values{0, 1, 102, 103, 4, 5, 106, 107}));
  EXPECT_EQ(got[1][3].data, (Values{100, 101, 102, 103}));
  EXPECT_EQ(got[2][3].data, (Values{204, 205, 206, 207}));
  for (int r = 0; r < 4; ++r)
    EXPECT_EQ(got[r][4].data, Values{double(r % 2)});
}

// Two heads of queries and one of keys and of values for each of two ranks, and of those again half the rows.
TEST(Mesh, StatesAreCutAlongBothAxes) {
  State s{"w", Type(DType::f32, {Dim(3, 4), Dim(8)}), {}};
  const Type whole = s.type;
  Cut{1, Dim(8), {4, 2, 2}}.apply(s, "tensor", 2);
  EXPECT_EQ(s.type.str(), "f32[3->4,4]");
  EXPECT_EQ(wholeType(s), whole);
  Cut{0, Dim(3, 4), {4}}.apply(s, "data", 2);
  EXPECT_EQ(s.type.str(), "f32[2,4]");
  EXPECT_TRUE(isPiece(s));
  EXPECT_EQ(wholeAlongData(s).str(), "f32[3->4,4]");
  EXPECT_EQ(wholeType(s), whole);
  std::vector<std::array<int64_t, 3>> runs;
  Cut::of(s, "tensor")->forEachRun(whole, 2, 1, [&](int64_t from, int64_t to, int64_t n) {
    runs.push_back({from, to, n});
  });
  using Run = std::array<int64_t, 3>;
  ASSERT_EQ(runs.size(), 12u);
  EXPECT_EQ(runs[0], (Run{2, 0, 2}));
  EXPECT_EQ(runs[1], (Run{5, 2, 1}));
  EXPECT_EQ(runs[2], (Run{7, 3, 1}));
  EXPECT_EQ(runs[3], (Run{10, 4, 2}));
  runs.clear();
  Cut::of(s, "data")->forEachRun(wholeAlongData(s), 2, 1,
                                 [&](int64_t from, int64_t to, int64_t n) { runs.push_back({from, to, n}); });
  EXPECT_EQ(runs, (std::vector<Run>{{8, 0, 8}}));
}

// Neighbours first, as over_links adds ranks; in float64 these sums differ.
TEST(Mesh, TermsAddInTheOrderOfATree) {
  Module m;
  Function *f = m.addFunction("f");
  std::vector<Value *> terms;
  for (int i = 0; i < 4; ++i)
    terms.push_back(f->body.addArg(Type::scalar(DType::f64)));
  Builder b(f->body);
  b.ret({sumInTree(b, terms)});
  const double big = 0x1p53;
  auto sum = [&](std::array<double, 4> x) {
    std::vector<Tensor> args;
    for (double v : x)
      args.push_back(Tensor::scalar(v, DType::f64));
    StateMap none;
    return interpret(*f, args, none)[0].data[0];
  };
  EXPECT_EQ(sum({big, 1, 1, -big}), (big + 1) + (1 - big));
  EXPECT_EQ(sum({1, 1, big, -big}), 2);
  EXPECT_EQ(sum({1, big, 1, -big}), (1 + big) + (1 - big));
}

TEST(Mesh, LogicalPartsShareEveryGroup) {
  Module m;
  m.attrs = attrs({{"logical_tensor", int64_t(4)}, {"mesh_tensor", int64_t(2)}});
  EXPECT_EQ(LogicalParts::ofRank(m), 2);
  State *s = m.addState("w", Type(DType::f32, {3, 8}));
  EXPECT_FALSE(LogicalParts::of(m, *s));
  s->attrs.set("logical_parts", std::vector<int64_t>{1, 4, 2, 2});
  EXPECT_EQ(LogicalParts::of(m, *s)->dim, 1u);
  EXPECT_EQ(LogicalParts::of(m, *s)->groups, (std::vector<int64_t>{4, 2, 2}));
  s->attrs.set("logical_parts", std::vector<int64_t>{1, 4, 3, 1});
  EXPECT_THROW(LogicalParts::of(m, *s), UserError);
}

}  // namespace
}  // namespace gptc
