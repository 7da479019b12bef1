#include "runtime/serve/stop_finder.h"

#include <gtest/gtest.h>

using namespace gptc;

namespace {

using Texts = std::vector<std::string>;

/// What came out after each piece, and at the end.
Texts said(const Texts &stops, const Texts &pieces) {
  StopFinder finder(stops);
  Texts out;
  for (const std::string &piece : pieces)
    out.push_back(finder.push(piece));
  out.push_back(finder.finish());
  out.push_back(finder.found() ? "found" : "not found");
  return out;
}

TEST(StopFinder, WithoutStopsAllPasses) { EXPECT_EQ(said({}, {"a", "bc"}), (Texts{"a", "bc", "", "not found"})); }

TEST(StopFinder, OneThatSpansPiecesIsHeldBack) {
  EXPECT_EQ(said({"STOP"}, {"so S", "TO", "P and more", "more"}), (Texts{"so ", "", "", "", "", "found"}));
  EXPECT_EQ(said({"STOP"}, {"so S", "TO", "RM"}), (Texts{"so ", "", "STORM", "", "not found"}));
  EXPECT_EQ(said({"STOP"}, {"so STO"}), (Texts{"so ", "STO", "not found"}));
}

TEST(StopFinder, AStartWithinAStartIsNotLost) {
  EXPECT_EQ(said({"aab"}, {"a", "a", "a", "b"}), (Texts{"", "", "a", "", "", "found"}));
  EXPECT_EQ(said({"abac"}, {"aba", "bac!"}), (Texts{"", "ab", "", "found"}));
}

TEST(StopFinder, OfSeveralTheFirstThatIsCompleteCounts) {
  EXPECT_EQ(said({"later", "x"}, {"ax later"}), (Texts{"a", "", "found"}));
  EXPECT_EQ(said({"bcd", "c"}, {"ab", "cd"}), (Texts{"a", "b", "", "found"})) << "a shorter one ends first";
  EXPECT_EQ(said({"ab", "bcde"}, {"xabcde"}), (Texts{"x", "", "found"}));
}

// Whatever the pieces, the text is that before the stop that is complete first.
TEST(StopFinder, PiecesDoNotMatter) {
  const std::string text = "abcabxabcabcabd ababcabd";
  for (const Texts &stops : {Texts{"abcabd"}, {"abcabc", "cab"}, {"bxa", "abxa"}, {"ababab"}, {"d "}}) {
    size_t first = text.size();
    for (size_t end = text.size(); end > 0; --end)
      for (const std::string &stop : stops)
        if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0)
          first = end - stop.size();
    for (size_t length = 1; length <= 7; ++length) {
      StopFinder finder(stops);
      std::string out;
      for (size_t at = 0; at < text.size() && !finder.found(); at += length)
        out += finder.push(text.substr(at, length));
      EXPECT_EQ(out + finder.finish(), text.substr(0, first)) << stops[0] << " in pieces of " << length;
    }
  }
}

}  // namespace
