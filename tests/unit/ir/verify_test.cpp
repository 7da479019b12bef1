#include "ir/opdef.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

using namespace gptc;

namespace {

std::vector<std::string> violations(llvm::StringRef text) {
  try {
    return verify(*parseModule(text, "t.gir"));
  } catch (const UserError &e) {
    ADD_FAILURE() << e.what();
    return {};
  }
}

std::string joined(const std::vector<std::string> &lines) {
  std::string s;
  for (const std::string &l : lines)
    s += l + "\n";
  return s;
}

const char *const valid = R"(
state @w : f32[4,8] {decay=true, init="normal", kind="param", std=0.02, stream=1}
state @pos : i64[] {init="const", kind="counter", value=3}
func @f(%x: f32[2,4], %p: i64[]) -> (f32[2,8]) {
  %w = read @w : f32[4,8]
  %y = matmul %x, %w : f32[2,8]
  %z, %m = fused %y, %w {kind="pointwise"} : f32[2,8], f32[4,8] {
    ^(%a: f32[2,8], %b: f32[4,8])
    %c = relu %a : f32[2,8]
    %d = add %b, %b : f32[4,8]
    yield %c, %d
  }
  write @w, %m
  return %z
}
)";

TEST(Verify, AcceptsTheValid) { EXPECT_EQ(joined(violations(valid)), ""); }

// One change to the valid module, and the violation that must be found: exactly one, so that a slip has one message.
struct Slip {
  const char *from;
  const char *to;
  const char *message;
};
class VerifyRejects : public testing::TestWithParam<Slip> {};

TEST_P(VerifyRejects, WithOneMessage) {
  const auto &[from, to, message] = GetParam();
  std::string text = valid;
  size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, std::string(from).size(), to);
  std::vector<std::string> found = violations(text);
  EXPECT_EQ(found.size(), 1u) << joined(found);
  EXPECT_NE(joined(found).find(message), std::string::npos) << joined(found);
  for (const std::string &line : found)
    EXPECT_EQ(line.find('\n'), std::string::npos) << "one line each: " << line;
}

INSTANTIATE_TEST_SUITE_P(
    All, VerifyRejects,
    testing::Values(
        // state
        Slip{"decay=true", "decay=1", "state attribute 'decay' "},
        Slip{"decay=true", "dekay=true", "a state has no attribute 'dekay'; did you mean 'decay'?"},
        Slip{"init=\"normal\"", "init=\"uniform\"", "attribute 'init'"},
        Slip{"stream=1", "stream=4294967296", "attribute 'stream'"},
        Slip{"stream=1", "stream=-1", "attribute 'stream'"}, Slip{"std=0.02", "std=\"x\"", "attribute 'std'"},
        Slip{"kind=\"counter\"", "kind=\"low\"", "a state of kind low needs"},
        Slip{"kind=\"counter\"", "kind=\"low\", of=\"w\"", "a state of kind low needs"},
        Slip{"kind=\"param\"", "kind=\"low\", of=\"w\"", "must be bf16 or f16"},
        Slip{"kind=\"param\"", "kind=\"whole\"", "a state of kind whole needs"},
        Slip{"kind=\"counter\"", "kind=\"packed\", of=\"w\"", "a state of kind packed needs"},
        Slip{"kind=\"param\"", "kind=\"packed\", of=\"nobody\"", "a state of kind packed needs"},
        Slip{"@pos : i64[] {init=\"const\"",
             "@pos : f32[2,4,4] {kind=\"packed\", of=\"w\", tb=true} state @n : i64[] {init=\"const\"",
             "a state of kind packed needs"},
        Slip{"@pos : i64[] {init=\"const\"",
             "@pos : bf16[2,4,4] {kind=\"packed\", of=\"w\"} state @n : i64[] {init=\"const\"",
             "a state of kind packed needs"},
        Slip{"decay=true", "decay=true, tb=1", "attribute 'tb'"},
        Slip{"decay=true", "decay=true, cut_data=8", "attribute 'cut_data'"},
        Slip{"decay=true", "decay=true, cut_data=[0, 8, 8]", "`cut_data` must be"},
        Slip{"decay=true", "decay=true, cut_data=[2, 8, 8, 8]", "`cut_data` must be"},
        Slip{"decay=true", "decay=true, cut_data=[0, 9, 8, 8]", "`cut_data` must be"},
        Slip{"decay=true", "decay=true, cut_data=[0, 10, 10, 10]", "`cut_data` must be"},
        Slip{"decay=true", "decay=true, cut_tensor=[1, 16, 16, 8]", "`cut_tensor` must be"},
        Slip{"decay=true", "decay=true, cut_tensor=[1, 16, 16, 13, 3]", "`cut_tensor` must be"},
        Slip{"decay=true", "decay=true, cut_data=[0, 8, 8, 8], cut_tensor=[0, 4, 4, 4]", "`cut_tensor` must be"},
        Slip{"state @w", "state @q : f8e4m3[4,8] {kind=\"moment\"}\nstate @w", "no state is f8e4m3"},
        Slip{"kind=\"param\"", "kind=3", "attribute 'kind'"}, Slip{"value=3", "at=-64", "attribute 'at'"},
        // read and write
        Slip{"read @w", "read @v", "unknown state @v"}, Slip{"write @w", "write @v", "unknown state @v"},
        Slip{"write @w, %m", "write @w, %x", "is of type f32[2,4], but @w is of type f32[4,8]"},
        Slip{"write @w, %m", "write @w", "takes 1 operands, not 0"},
        Slip{"read @w : f32[4,8]", "read @w, %x : f32[4,8]", "takes 0 operands, not 1"},
        Slip{"write @w, %m", "write %m", "unknown state @"},
        Slip{"%y = matmul %x", "%y = matmul @w, %x", "names a state, which only 'read' and 'write' may do"},
        // operands, attributes, results
        Slip{"matmul %x, %w", "matmul %x", "takes 2 to 3 operands, not 1"},
        Slip{"matmul %x, %w", "matmul %x, %w, %w, %w", "takes 2 to 3 operands, not 4"},
        Slip{"matmul %x, %w", "matmul %x, %w {what=1}", "has no attribute 'what'"},
        Slip{"matmul %x, %w", "matmul %x, %w {ta=1}", "attribute 'ta' must be true or false"},
        Slip{"matmul %x, %w", "matmul %x, %w {fold=1.5}", "attribute 'fold' must be an integer"},
        Slip{"%z, %m = fused %y, %w {kind=\"pointwise\"}", "%z, %m = fused %y, %w", "attribute 'kind' is missing"},
        Slip{"matmul %x, %w", "matmul %w, %w", "does not fit its operands"},
        Slip{"relu %a : f32[2,8]", "relu %a : f32[2,8]\n %e, %f = relu %a : f32[2,8], f32[2,8]",
             "yields f32[2,8], not f32[2,8], f32[2,8]"},
        Slip{"relu %a : f32[2,8]", "relu %a : f32[2,8]\n %e = relu %a : f32[2,9]", "yields f32[2,8], not f32[2,9]"},
        Slip{"relu %a : f32[2,8]", "relu %a : f32[2,8]\n %e = relu %a : f32[2,8->16]", "not f32[2,8->16]"},
        Slip{"relu %a : f32[2,8]", "relu %a : f32[2,8]\n %e = relu %a : f64[2,8]", "not f64[2,8]"},
        Slip{"write @w, %m", "%n = reshape %m : f32[33]\nwrite @w, %m", "is no view of"},
        Slip{"write @w, %m", "%n, %o = reshape %m : f32[32], f32[32]\nwrite @w, %m", "has 1 results, not 2"},
        Slip{"write @w, %m", "%n = constant {value=1.5} : i32[2]\nwrite @w, %m", "value 1.5 is none of dtype i32"},
        // structure
        Slip{"return %z\n", "return %z\nreturn %z\n", "'return' stands before the end"},
        Slip{"yield %c, %d", "yield %c, %d\n yield %c, %d", "'yield' stands before the end"},
        Slip{"write @w, %m", "yield %m\nwrite @w, %m", "'yield' does not belong here"},
        Slip{"yield %c, %d", "return %c, %d\nyield %c, %d", "'return' does not belong here"},
        Slip{"%c = relu", "%v = read @w : f32[4,8]\n %c = relu", "'read' may not stand in a fused body"},
        Slip{"%c = relu", "write @w, %b\n %c = relu", "'write' may not stand in a fused body"},
        Slip{"%c = relu", "fused {kind=\"x\"} {\n^()\nyield\n}\n %c = relu", "'fused' may not stand in a fused body"},
        // fused
        Slip{"^(%a: f32[2,8], %b: f32[4,8])", "^(%a: f32[2,8], %b: f32[4,8], %q: f32[])",
             "arguments differ from its operands"},
        Slip{"fused %y, %w {", "fused %y, %y {", "arguments differ from its operands"},
        Slip{"yield %c, %d", "yield %d, %c", "yields other types than it has results"},
        Slip{"yield %c, %d", "yield %c", "yields other types than it has results"},
        Slip{"kind=\"pointwise\"}", "kind=\"pointwise\", at=[0]}", "attribute 'at' has 1 entries, not 2"},
        Slip{"kind=\"pointwise\"}", "kind=\"pointwise\", ws=[64], ws_at=[0, 64]}",
             "attribute 'ws_at' has 2 entries, not 1"},
        Slip{"%y = matmul %x, %w : f32[2,8]", "%y = matmul %x, %w : f32[2,8] {\n^()\nyield\n}",
             "has a body, which only 'fused' may have"},
        Slip{"decay=true", "decay=true, logical_parts=[1]", "`logical_parts` must be"},
        Slip{"decay=true", "decay=true, logical_parts=[2, 8]", "`logical_parts` must be"},
        Slip{"decay=true", "decay=true, logical_parts=[1, 4, 3]", "`logical_parts` must be"},
        Slip{"decay=true", "decay=true, logical_parts=[0, 9223372036854775807, 5]", "`logical_parts` must be"}));

TEST(Verify, MissingEnds) {
  EXPECT_EQ(joined(violations("func @f() {\n}")), "@f: the last op must be 'return'\n");
  EXPECT_NE(
      joined(violations("func @f(%x: f32[2]) {\n%y = fused %x {kind=\"k\"} : f32[2] {\n^(%a: f32[2])\n}\nreturn\n}"))
          .find("the last op must be 'yield'"),
      std::string::npos);
  EXPECT_NE(
      joined(violations("func @f(%x: f32[2]) {\n%y = fused %x {kind=\"k\"} : f32[2]\nreturn\n}")).find("has no body"),
      std::string::npos);
}

// What no text can say.
struct VerifyGraph : testing::Test {
  std::unique_ptr<Module> m = parseModule(valid, "t.gir");
  Block &body = m->functions[0]->body;
  std::string found() { return joined(verify(*m)); }
};

TEST_F(VerifyGraph, UseBeforeDefinition) {
  body.front()->next()->moveBefore(body.front());
  EXPECT_NE(found().find("'matmul' uses operand 1 before it is defined"), std::string::npos) << found();
}

TEST_F(VerifyGraph, ValueOfAnotherFunction) {
  Function *g = m->addFunction("g");
  Builder(g->body).ret({body.front()->result()});
  EXPECT_NE(found().find("@g: 'return' uses operand 0 before it is defined"), std::string::npos) << found();
}

TEST_F(VerifyGraph, ValueFromOutsideABody) {
  Op *fused = body.front()->next()->next();
  fused->body->front()->setOperand(0, fused->operand(0));
  EXPECT_NE(found().find("'relu' uses operand 0 before it is defined"), std::string::npos) << found();
}

TEST_F(VerifyGraph, ImpossibleTypes) {
  body.args[0]->type.dims[0] = Dim(0);
  EXPECT_NE(found().find("argument 0"), std::string::npos) << found();
  m->states[0]->type.dims = {int64_t(1) << 30, int64_t(1) << 30};
  EXPECT_NE(found().find("more than 70368744177664 elements"), std::string::npos) << found();
}

TEST_F(VerifyGraph, Duplicates) {
  m->states[1]->name = "w";
  EXPECT_NE(found().find("@w: two states have this name"), std::string::npos) << found();
  m->addFunction("g")->name = "f";
  EXPECT_NE(found().find("@f: two functions have this name"), std::string::npos) << found();
}

TEST_F(VerifyGraph, ViolationsAreBounded) {
  Builder b(m->addFunction("g")->body);
  for (int i = 0; i < 1000; ++i)
    b.ret({});
  EXPECT_LE(verify(*m).size(), 100u);
}

// Every op of the registry, as its samples build it, in one module.
std::string allSamples(unsigned seed) {
  Module m;
  for (const OpDef *def : allOpDefs()) {
    if (!def->samples)
      continue;
    int n = 0;
    for (const OpDef::Sample &s : def->samples(seed)) {
      Function *f = m.addFunction(def->name + "." + std::to_string(n++));
      std::vector<Value *> operands;
      for (const Type &t : s.operandTypes)
        operands.push_back(f->body.addArg(t));
      Builder b(f->body);
      Op *op = def->infer ? b.op(def->kind, operands, s.attrs) : b.op(def->kind, operands, s.resultTypes, s.attrs);
      std::vector<Value *> results;
      for (unsigned i = 0; i < op->numResults(); ++i)
        results.push_back(op->result(i));
      b.ret(results);
    }
  }
  return print(m);
}

TEST(Verify, AcceptsEverySample) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::string text = allSamples(seed);
    EXPECT_EQ(joined(violations(text)), "");
    EXPECT_EQ(print(*parseModule(text, "t")), text);
  }
}

// Rules of ops see whatever a damaged plan holds: numbers and types are exchanged at random, and neither infer, check
// nor cost may throw or trap (run under asan and ubsan too).
TEST(Verify, DamagedOpsNeverCrash) {
  std::mt19937_64 random(11);
  const std::string original = allSamples(3);
  std::vector<std::pair<size_t, size_t>> numbers;
  for (size_t i = 0; i < original.size();) {
    size_t end = i;
    while (end < original.size() && std::isdigit(uint8_t(original[end])))
      ++end;
    bool plain = i > 0 && std::string("[,= -").find(original[i - 1]) != std::string::npos;
    if (end > i && plain)
      numbers.push_back({i, end - i});
    i = std::max(end, i + 1);
  }
  ASSERT_GT(numbers.size(), 500u);
  const char *const replacements[] = {"0",
                                      "1",
                                      "2",
                                      "3",
                                      "4",
                                      "7",
                                      "8",
                                      "16",
                                      "64",
                                      "65537",
                                      "4294967296",
                                      "70368744177664",
                                      "9223372036854775807",
                                      "-1",
                                      "-9223372036854775808",
                                      "0.5",
                                      "inf",
                                      "nan",
                                      "\"x\"",
                                      "true",
                                      "[1, 0]"};
  const char *const types[] = {"f32[", "i32[", "i64[", "u32[", "pred[", "bf16[", "f64["};
  int good = 0, bad = 0;
  for (int round = 0; round < 400; ++round) {
    std::string text = original;
    // From the back, so that earlier positions stay; a hundred changes spread over the functions of the module.
    std::vector<size_t> chosen;
    for (int i = 0; i < 100; ++i)
      chosen.push_back(random() % numbers.size());
    std::sort(chosen.rbegin(), chosen.rend());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    std::vector<std::string> functions;
    for (size_t c : chosen)
      text.replace(numbers[c].first, numbers[c].second, replacements[random() % std::size(replacements)]);
    // Function by function: one that does not parse must not hide the others.
    for (size_t at = text.find("  func"); at != std::string::npos;) {
      size_t next = text.find("  func", at + 1);
      std::string one = text.substr(at, next == std::string::npos ? text.rfind('}') - at : next - at);
      at = next;
      if (random() % 4 == 0)
        for (const char *from : types)
          if (size_t p = one.find(from); p != std::string::npos && random() % 3 == 0)
            one.replace(p, std::string(from).size(), types[random() % std::size(types)]);
      // The declared results would reject most changes before any op rule sees them.
      if (size_t arrow = one.find(" -> ("); arrow != std::string::npos)
        one.erase(arrow, one.find(") {", arrow) + 1 - arrow);
      std::unique_ptr<Module> m;
      try {
        m = parseModule(one, "t.gir");
      } catch (const UserError &) {
        continue;
      }
      std::vector<std::string> found;
      ASSERT_NO_THROW(found = verify(*m)) << one;
      ++(found.empty() ? good : bad);
      for (const Op &op : m->functions[0]->body)
        if (found.empty() && op.def().cost) {
          ASSERT_NO_THROW(op.def().cost(op)) << one;
        }
    }
  }
  EXPECT_GT(good, 1000);
  EXPECT_GT(bad, 1000);
}

// 14,000 ops take milliseconds. The bound is for what grows with their square.
TEST(Verify, BigModulesAreQuick) {
  Module m;
  Function *f = m.addFunction("f");
  Builder b(f->body);
  Type t(DType::f32, {768, 768});
  Value *x = f->body.addArg(t);
  for (int i = 0; i < 3456; ++i) {
    State *s = m.addState("h." + std::to_string(i), t);
    Value *w = b.read(*s);
    x = b.value(OpKind::gelu_tanh, {b.value(OpKind::matmul, {x, w})});
    b.write(*s, w);
  }
  b.ret({x});
  auto start = std::chrono::steady_clock::now();
  std::string text = print(m);
  std::unique_ptr<Module> parsed = parseModule(text, "t");
  EXPECT_EQ(joined(verify(*parsed)), "");
  EXPECT_EQ(print(*parsed->clone()), text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

}  // namespace
