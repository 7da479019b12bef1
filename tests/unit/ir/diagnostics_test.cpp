#include "support/diagnostics.h"

#include <gtest/gtest.h>

using namespace gptc;

namespace {

TEST(Diagnostics, Full) {
  Diagnostic d{ErrorCode::ShapeMismatch,
               "12 heads cannot be split over tensor = 8",
               {"model.toml", 14, 10, 1, "tensor = 8"},
               "must divide n_head = 12 (line 6)",
               {"1, 2, 3, 4, 6 or 12 work"},
               {"heads are the unit of tensor parallelism"}};
  EXPECT_EQ(d.str(), "error[GPTC0206]: 12 heads cannot be split over tensor = 8\n"
                     "  --> model.toml:14:10\n"
                     "   |\n"
                     "14 | tensor = 8\n"
                     "   |          ^ must divide n_head = 12 (line 6)\n"
                     "   = note: heads are the unit of tensor parallelism\n"
                     "   = help: 1, 2, 3, 4, 6 or 12 work\n");
}

TEST(Diagnostics, WithoutPlace) {
  UserError e(ErrorCode::FileMissing, "no file 'x.toml'", "create it");
  EXPECT_STREQ(e.what(), "error[GPTC0301]: no file 'x.toml'\n"
                         "  = help: create it\n");
  EXPECT_EQ(e.exitCode(), 3);
}

TEST(Diagnostics, WholeFile) {
  Diagnostic d{ErrorCode::DataInvalid, "empty", {"train.bin"}, "no tokens", {}, {}};
  EXPECT_EQ(d.str(), "error[GPTC0302]: empty\n"
                     " --> train.bin\n"
                     "  = note: no tokens\n");
}

TEST(Diagnostics, Several) {
  Diagnostic a{ErrorCode::UnknownKey, "one", {}, "", {}, {}};
  Diagnostic b{ErrorCode::WrongType, "two", {}, "", {}, {}};
  UserError e(std::vector<Diagnostic>{a, b});
  EXPECT_STREQ(e.what(), "error[GPTC0202]: one\n\nerror[GPTC0203]: two\n");
  EXPECT_THROW(throw UserError(std::vector<Diagnostic>()), InternalError);
}

std::string shown(std::string line, unsigned column, unsigned length = 1) {
  Diagnostic d{ErrorCode::GirSyntax, "m", {"f", 1, column, length, std::move(line)}, "", {}, {}};
  std::string s = d.str();
  return s.substr(s.find("1 |"));
}

TEST(Diagnostics, TabsStayTabs) { EXPECT_EQ(shown("\tx = 1", 4), "1 | \tx = 1\n  | \t  ^\n"); }

TEST(Diagnostics, UnderlineCountsCharacters) {
  EXPECT_EQ(shown("\"\xc3\xa4\" = 12", 8, 2), "1 | \"\xc3\xa4\" = 12\n  |       ^^\n");
}

TEST(Diagnostics, EndOfLine) {
  EXPECT_EQ(shown("x = ", 5), "1 | x = \n  |     ^\n");
  EXPECT_EQ(shown("x", 99), "1 | x\n  |  ^\n");
  EXPECT_EQ(shown("x = 1", 5, 99), "1 | x = 1\n  |     ^\n");
}

TEST(Diagnostics, LongLinesAreCut) {
  std::string line(1000000, 'a');
  line[500000] = 'b';
  std::string s = shown(line, 500001);
  EXPECT_LT(s.size(), 500u);
  size_t newline = s.find('\n');
  EXPECT_EQ(s[s.find('^', newline) - newline - 1], 'b');
}

TEST(Diagnostics, ControlCharactersAreHidden) {
  std::string s = shown("a\033[31mb\x7f", 1);
  EXPECT_EQ(s.find('\033'), std::string::npos);
  EXPECT_EQ(s, "1 | a?[31mb?\n  | ^\n");
}

TEST(Diagnostics, BytesThatAreNoTextAreEscaped) {
  // What is no UTF-8: a lone continuation, an overlong form, a cut character; and a control character of two bytes.
  EXPECT_EQ(shown("a\x80 \xc0\xaf \xe2\x82 \xc2\x9b \xe2\x82\xac b", 17),
            "1 | a? ?? ?? ?? \xe2\x82\xac b\n  |               ^\n");
  Diagnostic d{ErrorCode::GirSyntax, "no '\x1b[2J\xff\xc3\xa4'", {}, "", {"a\x01"}, {}};
  EXPECT_EQ(d.str(), "error[GPTC0501]: no '\\x1b[2J\\xff\xc3\xa4'\n  = help: a\\x01\n");
  EXPECT_LT(shown(std::string(1000000, '\x80'), 500001).size(), 500u);
}

TEST(Diagnostics, Colour) {
  Diagnostic d{ErrorCode::GirSyntax, "m", {"f", 1, 1, 1, "x"}, "l", {"h"}, {}};
  EXPECT_EQ(d.str().find('\033'), std::string::npos);
  EXPECT_NE(d.str(true).find("\033[1;31merror[GPTC0501]\033[0m"), std::string::npos);
}

TEST(Diagnostics, ExitCodes) {
  EXPECT_EQ(exitCodeOf(ErrorCode::Usage), 2);
  EXPECT_EQ(exitCodeOf(ErrorCode::OutOfMemory), 4);
  EXPECT_EQ(exitCodeOf(ErrorCode::PlanDamaged), 5);
  EXPECT_EQ(exitCodeOf(ErrorCode::Internal), 70);
}

TEST(Diagnostics, CheckNamesTheLine) {
  int n = 3;
  try {
    GPTC_CHECK(n == 4, "n is {}", n);
    FAIL();
  } catch (const InternalError &e) {
    std::string what = e.what();
    EXPECT_NE(what.find("internal error at tests/unit/ir/diagnostics_test.cpp:"), std::string::npos) << what;
    EXPECT_NE(what.find("`n == 4` failed: n is 3"), std::string::npos) << what;
  }
}

}  // namespace
