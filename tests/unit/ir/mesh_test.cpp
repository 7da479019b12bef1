// Which ranks meet, and what they compute together.
#include "ir/mesh.h"

#include "ir/opdef.h"

#include <gtest/gtest.h>

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

TEST(Mesh, CollectivesMeetAlongTheirAxis) {
  auto m = parseModule(R"(module {mesh_data=2, mesh_tensor=2} {
    func @f(%x: f32[3->4,2]) -> (f32[3->4,2], f32[2,2], f32[3->4,2]) {
      %s = all_reduce %x {axis="data", ranks=2} : f32[3->4,2]
      %p = reduce_scatter %x {axis="tensor", ranks=2} : f32[2,2]
      %g = all_gather %p {axis="tensor", ranks=2} : f32[3->4,2]
      return %s, %p, %g
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
}

}  // namespace
}  // namespace gptc
