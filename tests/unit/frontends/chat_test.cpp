// Chat templates: what Jinja makes of them, which bytes of the result came from outside, and what hostile ones may not
// do.
#include "frontends/chat/chat_template.h"
#include "tests/support/content.h"

#include <gtest/gtest.h>

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <iterator>

using gptc::ChatError;
using gptc::ChatTemplate;
using gptc::MarkedText;
using nlohmann::ordered_json;

namespace {

std::string fileOfCases(const char *name) {
  return gptc::test::contentOf(std::string(GPTC_SOURCE_DIR "/tests/unit/frontends/chat/") + name);
}

/// The result; "ERROR MESSAGE" if there is none.
std::string rendered(const std::string &source, const ordered_json &variables, MarkedText *result = nullptr) {
  try {
    const MarkedText text = ChatTemplate(source).render(variables, {{"bos_token", "<s>"}, {"eos_token", "</s>"}},
                                                        std::time_t(1'000'000'000));
    if (result)
      *result = text;
    return text.bytes();
  } catch (const ChatError &e) {
    return "ERROR " + e.message;
  }
}

TEST(Chat, TemplatesGiveWhatJinjaGives) {
  const ordered_json variables = gptc::parseJson<ordered_json>(fileOfCases("variables.json"));
  llvm::SmallVector<llvm::StringRef> cases;
  const std::string all = fileOfCases("cases.txt");
  llvm::StringRef(all).split(cases, "\n====\n");
  EXPECT_GT(cases.size(), 40u);
  for (const llvm::StringRef one : cases) {
    const auto [source, expected] = one.split("\n----\n");
    const std::string got = rendered(source.str(), variables);
    if (expected == "ERROR")
      EXPECT_EQ(got.substr(0, 6), "ERROR ") << source.str();
    else
      EXPECT_EQ(got, expected.str()) << source.str();
  }
}

/// The foreign bytes of a result, between brackets.
std::string marked(const std::string &source, const ordered_json &variables) {
  MarkedText text;
  std::string out = rendered(source, variables, &text);
  for (auto it = text.foreign().rbegin(); it != text.foreign().rend(); ++it)
    out.insert(it->second, "]").insert(it->first, "[");
  return out;
}

TEST(Chat, WhatComesFromOutsideStaysKnown) {
  const ordered_json v = {{"m", {{"role", "user"}, {"content", "  One two\nthree  "}, {"k", {"a", "b"}}}}};
  EXPECT_EQ(marked("<{{ m.role }}>{{ m.content }}</>", v), "<[user]>[  One two\nthree  ]</>");
  EXPECT_EQ(marked("{{ '<' ~ m.content|trim ~ '>' }}", v), "<[One two\nthree]>");
  EXPECT_EQ(marked("{{ m.content.split('two')[0] + 'x' }}", v), "[  One ]x");
  EXPECT_EQ(marked("{{ ('<' + m.role + '>').replace('use', 'other') }}", v), "<other[r]>");
  EXPECT_EQ(marked("{{ 'a' ~ (m.role|upper) ~ 'b' }}", v), "a[USER]b");
  EXPECT_EQ(marked("{{ ('x' ~ m.role)|title }}{{ m.role[1:3] }}{{ m.role[0] }}", v), "X[userseu]");
  EXPECT_EQ(marked("{{ m.k|join('-') }}", v), "[a]-[b]");
  EXPECT_EQ(marked("{{ m.k|tojson }}{{ m.k }}", v), "[[\"a\", \"b\"]['a', 'b']]");
  EXPECT_EQ(marked("{% for name in m %}{{ name }},{% endfor %}", v), "[role],[content],[k],");
  EXPECT_EQ(marked("{% for name, value in m.items() %}{{ name }}.{% endfor %}", v), "[role].[content].[k].");
  EXPECT_EQ(marked("{% set t %}<{{ m.role }}>{% endset %}{{ t }}", v), "<[user]>");
  EXPECT_EQ(marked("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(m.role) }}", v), "<[user]>");
  EXPECT_EQ(marked("{% for c in m.role %}{{ c }}.{% endfor %}", v), "[u].[s].[e].[r].");
  EXPECT_EQ(marked("{{ m.content|indent(2) }}", v), "[  One two\n]  [three  ]");
  EXPECT_EQ(marked("{{ bos_token }}{{ m.role }}", v), "<s>[user]");
  EXPECT_EQ(marked("{% for k in {m.role: 1} %}{{ k }}{% endfor %}", v), "[user]");
  EXPECT_EQ(marked("{% for k in dict(m) %}{{ k }}{% endfor %}", v), "[rolecontentk]");
  EXPECT_EQ(marked("{{ strftime_now(m.role) }}{{ 'a\\nb'|indent(m.role) }}", v), "[user]a\n[user]b");
}

TEST(Chat, HostileTemplatesAreBounded) {
  ordered_json v = {{"content", std::string(100000, 'a')}, {"big", ordered_json::object()}};
  for (int i = 0; i < 5000; ++i)
    v["big"][std::string(100, 'k') + std::to_string(i)] = i;
  auto fails = [&](const std::string &source, const std::string &why) {
    const std::string got = rendered(source, v);
    EXPECT_NE(got.find(why), std::string::npos) << source.substr(0, 100) << "\n" << got.substr(0, 200);
  };
  fails("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "more than 4000000 steps");
  fails("{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "texts of more than");
  fails("{{ 'a' * 99999999999 }}", "texts of more than");
  fails("{% for i in range(100000) %}{{ content }}{% endfor %}", "writes more than");
  fails("{{ range(99999999999)|list }}", "more than 4000000 steps");
  fails("{% set ns = namespace(x=[]) %}{% for i in range(50) %}{% set ns.x = ns.x + ns.x + [1] %}{% endfor %}",
        "more than");
  fails("{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}", "levels");
  fails("{% set ns = namespace() %}{% set ns.x = [ns] %}", "a namespace in a namespace");
  fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply");
  std::string long480;
  for (int i = 0; i < 480; ++i)
    long480 += " ~ ''";
  fails("{% macro f() %}{{ f()" + long480 + " }}{% endmacro %}{{ f() }}", "nested too deeply");
  const std::string doubled =
      "{% set ns = namespace(a=[1]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}";
  fails(doubled + "{{ ns.a }}", "a value of more than");
  fails("{% set ns = namespace(l=[content]) %}{% for i in range(18) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ "
        "ns.l|string }}",
        "a value of more than");
  fails("{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = ns.l + [dict(big)] %}{% endfor %}",
        "more than");
  fails("{% for i in range(1000000) %}{{ content[99999] }}{% endfor %}", "steps");
  fails("{% for i in range(1000000) %}{{ content|length }}{% endfor %}", "steps");
  fails("{% for i in range(1000000) %}{% if 'b' in content %}{% endif %}{% endfor %}", "steps");
  fails("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}", "nested too deeply");
  fails("{{ " + std::string(100000, '[') + "1" + std::string(100000, ']') + " }}", "nested too deeply");
  fails("{{ " + std::string(100000, '['), "a tag without end");
  fails("{{ " + std::string(100000, '-') + "1 }}", "nested too deeply");
  std::string sum = "1", filters = "1", members = "n", nested, tests = "1";
  for (int i = 0; i < 100000; ++i) {
    sum += "+1";
    filters += "|abs";
    members += ".a";
    nested += "{% if 1 %}";
    tests += " is number";
  }
  fails("{{ " + sum + " }}", "too long an expression");
  fails("{{ " + filters + " }}", "too long an expression");
  fails("{{ " + members + " }}", "too long an expression");
  fails("{{ " + tests + " }}", "too long an expression");
  fails(nested, "nested too deeply");
  fails("{% include '/etc/passwd' %}", "include is not known here");
  fails("{% extends 'x' %}", "extends is not known here");
  fails("{% import 'x' as y %}", "import is not known here");
  fails("{{ ''.__class__.__mro__ }}", "not defined");
  fails("{{ content.format(1) }}", "str has no method format here");
  fails("{{ raise_exception('only turns') }}", "ERROR only turns");
  fails("{{ -9223372036854775807 - 2 }}", "beyond 64 bits");
  fails("{{ (-9223372036854775807 - 1) // -1 }}", "beyond 64 bits");
  EXPECT_EQ(rendered("{{ (-9223372036854775807 - 1) % -1 }} {{ 7 // -1 }}", v), "0 -7");
  EXPECT_EQ(rendered("{{ strftime_now('%Y') }}", v), "2001");
}

/// Thousands of foreign ranges cost as much as their bytes.
TEST(Chat, ManyRangesAreFast) {
  std::string lines;
  for (int i = 0; i < 500000; ++i)
    lines += "a\r\n\n";
  MarkedText text;
  const std::string out =
      rendered("{{ m|replace('\\r\\n', '\\n')|replace('\\n\\n', '\\n') }}", ordered_json{{"m", lines}}, &text);
  EXPECT_EQ(out.size(), 1000000u);
  EXPECT_EQ(text.foreign().size(), 500000u);
}

/// Templates with bytes changed neither crash nor run for ever.
TEST(Chat, RandomTemplatesEnd) {
  const ordered_json variables = gptc::parseJson<ordered_json>(fileOfCases("variables.json"));
  const std::string all = fileOfCases("cases.txt");
  llvm::SmallVector<llvm::StringRef> cases;
  llvm::StringRef(all).split(cases, "\n====\n");
  uint64_t state = 1;
  auto random = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  for (int i = 0; i < 3000; ++i) {
    std::string source = cases[random(cases.size())].split("\n----\n").first.str();
    for (uint64_t changes = 1 + random(3); changes > 0 && !source.empty(); --changes) {
      const size_t at = random(source.size());
      switch (random(3)) {
      case 0:
        source[at] = char(random(256));
        break;
      case 1:
        source.erase(at, 1 + random(4));
        break;
      default:
        source.insert(at, all.substr(random(all.size()), random(12)));
      }
    }
    rendered(source, variables);
  }
}

}  // namespace
