// Rotations: tables of every scaling against goldens of transformers, and parts of heads.
#include "one_op.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gptc::conformance {
namespace {

struct TableRow {
  const char *attributes;
  int64_t position;
  std::vector<double> values;
};

const std::vector<TableRow> &tableRows() {
  static const std::vector<TableRow> rows = {
#include "golden/rope_tables.inc"
  };
  return rows;
}

TEST(Rope, TablesAreThoseOfTransformers) {
  for (const TableRow &row : tableRows()) {
    SCOPED_TRACE(fmt::format("{} at {}", row.attributes, row.position));
    auto m = parseModule(fmt::format("func @f(%p: i64[]) -> (f32[1,{0}]) {{\n%t = rope_table %p {{{1}}} : f32[1,{0}]\n"
                                     "return %t }}",
                                     row.values.size(), row.attributes),
                         "table.gir");
    ASSERT_EQ(verify(*m), std::vector<std::string>());
    StateMap none;
    const std::vector<Tensor> args = {Tensor::scalar(double(row.position), DType::i64)};
    const std::vector<double> got = interpret(*m->function("f"), args, none)[0].data;
    ASSERT_EQ(got.size(), row.values.size());
    // Angles up to 5000, each rounded a few times.
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], row.values[i], 1e-11) << i;
  }
}

// The first elements of a head turn as a head of that size does, and the rest stays.
TEST(Rope, PartsOfHeadsTurnAsHeadsOfTheirSize) {
  const int64_t heads = 3, size = 10, rotary = 6, rows = 4;
  const Tensor whole = normals(Type(DType::f32, {1, rows, heads * size}), 1),
               table = normals(Type(DType::f32, {rows, rotary}), 2);
  Tensor part(Type(DType::f32, {1, rows, heads * rotary}));
  for (int64_t r = 0; r < rows * heads; ++r)
    std::copy_n(&whole.data[r * size], rotary, &part.data[r * rotary]);
  auto turned = [&](const Tensor &qkv, AttrMap at) {
    at.set("n_head", int64_t(1));
    OneOp one = makeOneOp(opDef(OpKind::rope),
                          {.operandTypes = {qkv.type, table.type}, .attrs = at, .operandValues = {qkv, table}}, 1);
    return one.reference()[0].data;
  };
  const std::vector<double> a = turned(whole, attrs({{"rotary", rotary}})), b = turned(part, {});
  for (int64_t r = 0; r < rows * heads; ++r)
    for (int64_t x = 0; x < size; ++x)
      EXPECT_EQ(a[r * size + x], x < rotary ? b[r * rotary + x] : whole.data[r * size + x]) << r << " " << x;
}

TEST(Rope, WrongParametersAreNamed) {
  auto errorOf = [](const AttrMap &more) {
    Module m;
    Function *f = m.addFunction("f");
    Op *op = f->body.insert(OpKind::rope_table);
    op->attrs = more;
    op->attrs.set("rows", int64_t(4));
    op->attrs.set("size", int64_t(8));
    op->addResult(Type(DType::f32, {4, 8}));
    return op->def().check(*op);
  };
  const std::string linear = "linear", llama3 = "llama3", yarn = "yarn";
  EXPECT_EQ(errorOf({}), "");
  EXPECT_EQ(errorOf(attrs({{"scaling", std::string("dynamic")}})),
            R"(scaling = "dynamic" must be none, linear, llama3 or yarn)");
  EXPECT_EQ(errorOf(attrs({{"factor", 2.0}})), "factor has no meaning with scaling = none");
  EXPECT_EQ(errorOf(attrs({{"scaling", linear}})), "scaling = linear needs factor");
  EXPECT_EQ(errorOf(attrs({{"scaling", linear}, {"factor", 0.5}})), "factor = 0.5 must be between 1 and 1000000");
  EXPECT_EQ(errorOf(attrs({{"scaling", linear}, {"factor", 2.0}, {"low", 1.0}})),
            "low has no meaning with scaling = linear");
  EXPECT_EQ(errorOf(attrs({{"scaling", llama3}, {"factor", 2.0}, {"original", 64}, {"low", 4.0}, {"high", 1.0}})),
            "low = 4 and high = 1 must be above 0, and high the greater, up to 1000000");
  EXPECT_EQ(errorOf(attrs({{"scaling", yarn}, {"factor", 2.0}})), "scaling = yarn needs original");
  EXPECT_EQ(errorOf(attrs({{"scaling", yarn}, {"factor", 2.0}, {"original", 64}, {"beta_slow", 40.0}})),
            "beta_fast = 32 must be at least beta_slow = 40, both from 1e-06 to 1000000");
  EXPECT_EQ(errorOf(attrs({{"scaling", yarn}, {"factor", 2.0}, {"original", 64}, {"magnitude", -1.0}})),
            "magnitude = -1 must be 0 or between 0.001 and 1000");
}

}  // namespace
}  // namespace gptc::conformance
