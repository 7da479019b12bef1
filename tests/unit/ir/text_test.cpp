#include "ir/graph.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

using namespace gptc;

namespace {

// Every element of the grammar, in canonical form.
const char *const everything = R"(module {accumulate=4, lr=6e-04, name="tiny \"one\"\n\t\\\x01 ä"} {
  state @wte.weight : f32[50257->50304,768]{1:tp} {decay=true, hf="transformer.wte.weight", init="normal", kind="param", std=0.02, stream=3}
  state @step : i64[]
  state @"odd name" : bf16[2,3]{0:dp,1:tp}
  func @train_step(%x: i32[8,1024]{0:dp}, %seq0: i64[]) -> (f32[], f32[8,5->8]) {big=9223372036854775807, small=-9223372036854775808} {
    %0 = read @wte.weight : f32[50257->50304,768]{1:tp}
    %1 = embedding %0, %x : f32[8,1024,768] loc("wte")
    %2, %mean, %rstd = layernorm %1, %1, %1 {eps=1e-05, key=[], list=[1, -2, 3], no=false, yes=true} : f32[8,1024,768], f32[8,1024], f32[8,1024] layer=3 loc("h3.\"ln1\"")
    %3 = constant {a=1.0, b=-0.0, c=inf, d=-inf, e=nan, f=nan(0xfff8000000000001), g=5e-324, h=1.7976931348623157e+308, i=0.1} : f32[]
    %4 = constant {value=1.0} : f32[8,5->8]
    %g.x, %g.y = fused %2, %mean {kind="row", schedule="row vec=16", ws=[64]} : f32[8,1024,768], f32[8,1024] layer=0 loc("group") {
      ^(%a: f32[8,1024,768], %0: f32[8,1024])
      %1 = row_sum %a : f32[8,1024]
      yield %a, %1
    }
    %5 = fused {kind="pointwise"} : f32[] {
      ^()
      %0 = constant {value=2.0} : f32[]
      yield %0
    }
    write @wte.weight, %0
    return %3, %4
  }
  func @nothing() -> () {
    return
  }
}
)";

std::string reprint(llvm::StringRef text) { return print(*parseModule(text, "t.gir")); }

std::string rejected(llvm::StringRef text) {
  try {
    parseModule(text, "t.gir");
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::GirSyntax);
    EXPECT_GE(e.diagnostics[0].where.line, 1u);
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << text.str();
  return "";
}

void expectEqual(const Block &a, const Block &b);

void expectEqual(const Op &a, const Op &b, llvm::DenseMap<const Value *, const Value *> &map) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.loc, b.loc);
  EXPECT_EQ(a.layer, b.layer);
  EXPECT_EQ(a.state, b.state);
  EXPECT_EQ(std::distance(a.attrs.begin(), a.attrs.end()), std::distance(b.attrs.begin(), b.attrs.end()));
  for (const auto &[name, value] : a.attrs) {
    const Attr *other = b.attrs.find(name);
    ASSERT_TRUE(other) << name;
    if (const double *d = std::get_if<double>(&value))  // nan and -0.0 too
      EXPECT_EQ(std::bit_cast<uint64_t>(*d), std::bit_cast<uint64_t>(std::get<double>(*other))) << name;
    else
      EXPECT_EQ(value, *other) << name;
  }
  ASSERT_EQ(a.numOperands(), b.numOperands());
  for (unsigned i = 0; i < a.numOperands(); ++i)
    EXPECT_EQ(map.lookup(a.operand(i)), b.operand(i));
  ASSERT_EQ(a.numResults(), b.numResults());
  for (unsigned i = 0; i < a.numResults(); ++i) {
    EXPECT_EQ(a.result(i)->type, b.result(i)->type);
    EXPECT_EQ(a.result(i)->name, b.result(i)->name);
    map[a.result(i)] = b.result(i);
  }
  ASSERT_EQ(bool(a.body), bool(b.body));
  if (a.body)
    expectEqual(*a.body, *b.body);
}

void expectEqual(const Block &a, const Block &b) {
  llvm::DenseMap<const Value *, const Value *> map;
  ASSERT_EQ(a.args.size(), b.args.size());
  for (size_t i = 0; i < a.args.size(); ++i) {
    EXPECT_EQ(a.args[i]->type, b.args[i]->type);
    EXPECT_EQ(a.args[i]->name, b.args[i]->name);
    map[a.args[i].get()] = b.args[i].get();
  }
  ASSERT_EQ(a.size(), b.size());
  for (auto i = a.begin(), j = b.begin(); !(i == a.end()); ++i, ++j)
    expectEqual(*i, *j, map);
}

TEST(Text, CanonicalTextIsKept) { EXPECT_EQ(reprint(everything), everything); }

TEST(Text, StructureIsKept) {
  std::unique_ptr<Module> a = parseModule(everything, "a"), b = parseModule(print(*a), "b");
  ASSERT_EQ(a->states.size(), b->states.size());
  for (size_t i = 0; i < a->states.size(); ++i) {
    EXPECT_EQ(a->states[i]->name, b->states[i]->name);
    EXPECT_EQ(a->states[i]->type, b->states[i]->type);
    EXPECT_EQ(a->states[i]->attrs, b->states[i]->attrs);
  }
  EXPECT_EQ(a->attrs, b->attrs);
  ASSERT_EQ(a->functions.size(), b->functions.size());
  for (size_t i = 0; i < a->functions.size(); ++i) {
    EXPECT_EQ(a->functions[i]->attrs, b->functions[i]->attrs);
    expectEqual(a->functions[i]->body, b->functions[i]->body);
  }
}

TEST(Text, FreeFormIsRead) {
  EXPECT_EQ(reprint("// a comment\r\nfunc @f ( %x : f32 [ 2 ] )\n{ // no result types\n return %x\n ,%x }"),
            "module {\n  func @f(%x: f32[2]) -> (f32[2], f32[2]) {\n    return %x, %x\n  }\n}\n");
  EXPECT_EQ(reprint("func @f() {\n write @a\n %y = neg : f32[]\n return\n}"),
            "module {\n  func @f() -> () {\n    write @a\n    %y = neg : f32[]\n    return\n  }\n}\n")
      << "operands begin on the line of their op";
}

TEST(Text, WrapperMayBeLeftOut) {
  EXPECT_EQ(reprint("state @a : f32[]\nfunc @f(%x: f32[]) -> (f32[]) {\n  return %x\n}\n"),
            "module {\n  state @a : f32[]\n  func @f(%x: f32[]) -> (f32[]) {\n    return %x\n  }\n}\n");
  EXPECT_EQ(reprint(""), "module {\n}\n");
  EXPECT_EQ(reprint("module {}"), "module {\n}\n");
}

TEST(Text, DoublesKeepTheirBits) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    Module m;
    double v = std::bit_cast<double>(random());
    m.attrs.set("v", v);
    std::unique_ptr<Module> parsed = parseModule(print(m), "t");
    const Attr *back = parsed->attrs.find("v");
    ASSERT_TRUE(back && std::holds_alternative<double>(*back)) << print(m);
    ASSERT_EQ(std::bit_cast<uint64_t>(std::get<double>(*back)), std::bit_cast<uint64_t>(v)) << print(m);
  }
}

TEST(Text, StringsKeepTheirBytes) {
  std::string all;
  for (int c = 1; c < 256; ++c)
    all += char(c);
  all += '\0';
  Module m;
  m.attrs.set("s", all);
  m.attrs.set("odd key {}", int64_t(1));
  m.attrs.set("", int64_t(2));
  m.addState(all, Type::scalar(DType::f32));
  m.addFunction("f g")->body.insert(OpKind::ret)->loc = all;
  std::unique_ptr<Module> back = parseModule(print(m), "t");
  EXPECT_EQ(back->attrs, m.attrs);
  EXPECT_EQ(back->states[0]->name, all);
  EXPECT_EQ(back->functions[0]->name, "f g");
  EXPECT_EQ(back->functions[0]->body.front()->loc, all);
}

TEST(Text, NamesBecomeUnique) {
  Module m;
  Block &body = m.addFunction("f")->body;
  for (const char *name : {"x", "x", "x_1", "7", "a b", ""})
    body.addArg(Type::scalar(DType::f32), name);
  body.insert(OpKind::ret);
  std::string text = print(m);
  EXPECT_NE(text.find("(%x: f32[], %x_1: f32[], %x_1_1: f32[], %_7: f32[], %a_b: f32[], %0: f32[])"), std::string::npos)
      << text;
  EXPECT_EQ(reprint(text), text);
}

TEST(Text, OneOpByItself) {
  std::unique_ptr<Module> m = parseModule(everything, "t");
  EXPECT_EQ(print(*m->functions[0]->body.front()), "%0 = read @wte.weight : f32[50257->50304,768]{1:tp}\n");
}

#define IN_F(ops) "func @f(%x: f32[2]) -> () {\n" ops "\n}"

TEST(TextErrors, NameThePlace) {
  EXPECT_EQ(rejected("module {\n  func @f(%x: f32[]) -> (f32[]) {\n    %0 = ade %x : f32[]\n    return %0\n  }\n}\n"),
            "error[GPTC0501]: unknown op 'ade'\n"
            " --> t.gir:3:10\n"
            "  |\n"
            "3 |     %0 = ade %x : f32[]\n"
            "  |          ^^^\n"
            "  = help: did you mean 'add'?\n");
  // A former name misspelt: the help has the name of today.
  EXPECT_NE(rejected(IN_F("%y = GELU_erv %x : f32[2]\nreturn")).find("did you mean 'gelu_exact'?"), std::string::npos);
}

struct Bad {
  const char *text;
  const char *message;
};
class TextRejects : public testing::TestWithParam<Bad> {};

TEST_P(TextRejects, WithAMessage) {
  std::string error = rejected(GetParam().text);
  EXPECT_NE(error.find(GetParam().message), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(
    All, TextRejects,
    testing::Values(
        Bad{"nonsense", "expected 'module', 'state' or 'func'"}, Bad{"module {", "expected 'state', 'func' or '}'"},
        Bad{"module { } x", "expected the end"}, Bad{"module { nonsense }", "expected 'state', 'func' or '}'"},
        Bad{"state a : f32[]", "expected '@'"}, Bad{"state @ : f32[]", "expected a name"},
        Bad{"state @\"\" : f32[]", "needs a name"}, Bad{"state @a f32[]", "expected ':'"},
        Bad{"state @a : g32[]", "expected a type"}, Bad{"state @a : f32[0]", "below 1"},
        Bad{"state @a : f32[]\nstate @a : f32[]", "two states are called 'a'"},
        Bad{"func @f() { return }\nfunc @f() { return }", "two functions are called 'f'"},
        Bad{"func @f(%x f32[]) { return }", "expected ':'"},
        Bad{"func @f(%x: f32[], %x: f32[]) { return }", "%x is defined twice"},
        Bad{"func @f(%: f32[]) { return }", "expected the name of a value"},
        Bad{"func @f(%x: f32[]) -> (f32[2]) { return %x }", "returns other types than it declares"},
        Bad{"func @f() -> f32[] { return }", "expected '('"}, Bad{"func @f() {", "expected the name of an op"},
        Bad{IN_F("%y = frobnicate %x : f32[2]\nreturn"), "unknown op 'frobnicate'"},
        Bad{IN_F("ret"), "unknown op 'ret'"}, Bad{IN_F("%y = neg %z : f32[2]"), "%z is not defined before this use"},
        Bad{IN_F("%y = neg %y : f32[2]"), "%y is not defined before this use"},
        Bad{IN_F("%x = neg %x : f32[2]"), "%x is defined twice"}, Bad{IN_F("%y = neg %x"), "1 results and 0 types"},
        Bad{IN_F("neg %x : f32[2]"), "0 results and 1 types"},
        Bad{IN_F("%y, %z = neg %x : f32[2]"), "2 results and 1 types"},
        Bad{IN_F("%y = neg %x, : f32[2]"), "expected '%'"}, Bad{IN_F("%y neg %x : f32[2]"), "expected '='"},
        Bad{IN_F("%y = neg %x {a} : f32[2]"), "expected '='"}, Bad{IN_F("%y = neg %x {a=} : f32[2]"), "expected true"},
        Bad{IN_F("%y = neg %x {a=1, a=2} : f32[2]"), "given twice"},
        Bad{IN_F("%y = neg %x {a=1,} : f32[2]"), "name of an attribute"},
        Bad{IN_F("%y = neg %x {a=1 b=2} : f32[2]"), "expected '}'"},
        Bad{IN_F("%y = neg %x {a=word} : f32[2]"), "expected true"},
        Bad{IN_F("%y = neg %x {a=9223372036854775808} : f32[2]"), "out of range"},
        Bad{IN_F("%y = neg %x {a=1e999} : f32[2]"), "out of range"},
        Bad{IN_F("%y = neg %x {a=1.2.3} : f32[2]"), "malformed"},
        Bad{IN_F("%y = neg %x {a=1-2} : f32[2]"), "expected '}'"},
        Bad{IN_F("%y = neg %x {a=[1 2]} : f32[2]"), "expected ']'"},
        Bad{IN_F("%y = neg %x {a=[1.5]} : f32[2]"), "expected ']'"},
        Bad{IN_F("%y = neg %x {a=nan(0x7)} : f32[2]"), "bits of a nan"},
        Bad{IN_F("%y = neg %x {a=\"b\n\"} : f32[2]"), "does not end"},
        Bad{IN_F("%y = neg %x {a=\"\\q\"} : f32[2]"), "unknown escape"},
        Bad{IN_F("%y = neg %x {a=\"\\x1\"} : f32[2]"), "unknown escape"},
        Bad{IN_F("%y = neg %x : f32[2] layer 3"), "expected '='"},
        Bad{IN_F("%y = neg %x : f32[2] layer=-1"), "out of range"},
        Bad{IN_F("%y = neg %x : f32[2] layer=2147483648"), "out of range"},
        Bad{IN_F("%y = neg %x : f32[2] loc(3)"), "expected '\"'"},
        Bad{IN_F("%y = fused %x : f32[2] {\n(%a: f32[2])\nyield %a\n}"), "expected '^'"},
        Bad{IN_F("%y = fused %x : f32[2] {\n^(%a: f32[2])\nyield %x\n}"), "%x is not defined before this use"},
        Bad{IN_F("%y = fused %x : f32[2] {\n^(%a: f32[2])\nyield %a\n"), "expected the name of an op"}));

TEST(TextErrors, DepthIsBounded) {
  std::string deep = "func @f() {\n";
  for (int i = 0; i < 100000; ++i)
    deep += "fused {\n^()\n";
  EXPECT_NE(rejected(deep).find("nested"), std::string::npos);
}

// Random edits of a valid text: the parser either accepts the result, and what it accepts prints and parses again, or
// says GirSyntax. Anything else fails (run under asan too).
TEST(TextErrors, MutationsNeverCrash) {
  std::mt19937 random(20240501);
  const std::string original = everything;
  const std::string alphabet = "{}[]()%@\",:=->^. \n0123456789-+e\\x\"abcfnu/\x01\x80\xff";
  int accepted = 0, denied = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = original;
    int edits = 1 + int(random() % 4);
    for (int i = 0; i < edits; ++i) {
      size_t at = random() % text.size();
      size_t length = std::min<size_t>(1 + random() % 12, text.size() - at);
      switch (random() % 6) {
      case 0:
        text[at] = alphabet[random() % alphabet.size()];
        break;
      case 1:
        text[at] = char(random());
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, 1, alphabet[random() % alphabet.size()]);
        break;
      case 4:
        text.insert(random() % text.size(), text.substr(at, length));
        break;
      case 5:
        text.resize(at + 1);
        break;
      }
    }
    try {
      std::string once = reprint(text);
      ASSERT_EQ(reprint(once), once) << text;
      ++accepted;
    } catch (const UserError &e) {
      ASSERT_EQ(e.diagnostics[0].code, ErrorCode::GirSyntax);
      ++denied;
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(denied, 5000);
}

}  // namespace
