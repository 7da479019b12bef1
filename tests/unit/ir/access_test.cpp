// Which results of a group may lie where its operands do: the planner and the checker of plans trust this answer.
#include "ir/access.h"
#include "ir/graph.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

struct MayShareCase {
  const char *what, *kind, *args, *results, *body;
  unsigned result, operand;
  bool may;
};

std::ostream &operator<<(std::ostream &out, const MayShareCase &c) { return out << c.what; }

class MayShare : public testing::TestWithParam<MayShareCase> {};

TEST_P(MayShare, IsKnown) {
  const MayShareCase &c = GetParam();
  std::string names, list = c.args, results;
  for (size_t at = 0; (at = list.find('%', at)) != std::string::npos; ++at)
    names += (at ? ", " : "") + list.substr(at, list.find(':', at) - at);
  for (int n = 0; n <= std::count(c.results, c.results + std::strlen(c.results), ';'); ++n)
    results += fmt::format("{}%r{}", n ? ", " : "", n);
  std::string types = c.results;
  std::replace(types.begin(), types.end(), ';', ',');
  auto m = parseModule(fmt::format("module {{\nfunc @f({0}) -> ({1}) {{\n{2} = fused {3} {{kind=\"{4}\"}} : {1} "
                                   "{{\n^({0})\n{5}\n}}\nreturn {2}\n}}\n}}",
                                   list, types, results, names, c.kind, c.body),
                       "test");
  ASSERT_EQ(verify(*m), std::vector<std::string>());
  EXPECT_EQ(mayShare(*m->functions[0]->body.front(), c.result, c.operand), c.may);
}

const char *const square = "%y, %r = rmsnorm %x, %g {eps=0.1} : f32[4,4], f32[4]\nyield %y, %r";
const char *const bytes = "%o, %k1, %v1, %ks1, %vs1 = attention_cached %x, %k, %v, %p, %ks, %vs {n_head=1} : "
                          "f32[1,1,32], u32[1,4,8], u32[1,4,8], f16[1,4,1], f16[1,4,1]\n"
                          "yield %o, %k1, %v1, %ks1, %vs1";
const char *const bytesIn = "%x: f32[1,1,96], %k: u32[1,4,8], %v: u32[1,4,8], %p: i64[], %ks: f16[1,4,1], "
                            "%vs: f16[1,4,1]",
                  *const bytesOut = "f32[1,1,32]; u32[1,4,8]; u32[1,4,8]; f16[1,4,1]; f16[1,4,1]";
const char *const residual = "%s = add %x, %b : f32[3,4]\n%y = softmax %s : f32[3,4]\nyield %y";

INSTANTIATE_TEST_SUITE_P(
    All, MayShare,
    testing::Values(
        MayShareCase{"element by element", "pointwise", "%x: f32[3,4], %y: f32[3,4]", "f32[3,4]",
                     "%0 = sub %x, %y : f32[3,4]\nyield %0", 0, 1, true},
        MayShareCase{"an operand that is smaller", "pointwise", "%x: f32[3,4], %y: f32[4]", "f32[3,4]",
                     "%0 = sub %x, %y : f32[3,4]\nyield %0", 0, 1, false},
        MayShareCase{"an operand of another type", "pointwise", "%x: bf16[3,4]", "f32[3,4]",
                     "%0 = cast %x {dtype=\"f32\"} : f32[3,4]\nyield %0", 0, 0, false},
        MayShareCase{"elements that are elsewhere", "pointwise", "%x: f32[4,4]", "f32[4,4]",
                     "%0 = transpose %x {perm=[1,0]} : f32[4,4]\nyield %0", 0, 0, false},
        MayShareCase{"full rows, read in every sweep but stored in the last", "row", "%x: f32[3,4], %b: f32[3,4]",
                     "f32[3,4]", residual, 0, 0, true},
        MayShareCase{"a row's value in the place of columns", "row", "%x: f32[4,4], %g: f32[4]", "f32[4,4]; f32[4]",
                     square, 1, 1, false},
        MayShareCase{"full rows in a square", "row", "%x: f32[4,4], %g: f32[4]", "f32[4,4]; f32[4]", square, 0, 0,
                     true},
        MayShareCase{"what begins a sum", "fold", "%x: f32[6,4], %i: f32[4]", "f32[4]",
                     "%0 = reduce_sum %x, %i {fold=2, lead=1} : f32[4]\nyield %0", 0, 1, true},
        MayShareCase{"what is summed", "fold", "%x: f32[1,4], %i: f32[4]", "f32[4]",
                     "%0 = reduce_sum %x, %i {fold=1, lead=1} : f32[4]\nyield %0", 0, 0, false},
        MayShareCase{"what begins a product", "matmul", "%a: f32[4,4], %b: f32[4,4], %i: f32[4,4]", "f32[4,4]",
                     "%0 = matmul %a, %b, %i : f32[4,4]\nyield %0", 0, 2, true},
        MayShareCase{"an operand of a product", "matmul", "%a: f32[4,4], %b: f32[4,4]", "f32[4,4]",
                     "%0 = matmul %a, %b : f32[4,4]\nyield %0", 0, 0, false},
        MayShareCase{"numbers of values", "attention_cached", bytesIn, bytesOut, bytes, 2, 2, true},
        MayShareCase{"scales of keys", "attention_cached", bytesIn, bytesOut, bytes, 3, 4, true},
        MayShareCase{"scales of values", "attention_cached", bytesIn, bytesOut, bytes, 4, 5, true},
        MayShareCase{"scales of keys and values", "attention_cached", bytesIn, bytesOut, bytes, 3, 5, false},
        MayShareCase{"numbers of keys and values", "attention_cached", bytesIn, bytesOut, bytes, 1, 2, false},
        MayShareCase{"what begins a product and is used again", "matmul", "%a: f32[4,4], %b: f32[4,4], %i: f32[4,4]",
                     "f32[4,4]; f32[4,4]",
                     "%0 = matmul %a, %b, %i : f32[4,4]\n%1 = add %0, %i : f32[4,4]\nyield %0, %1", 0, 2, false}));

}  // namespace
}  // namespace gptc
