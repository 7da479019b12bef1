#include "ir/type.h"

#include <gtest/gtest.h>

using namespace gptc;

namespace {

Type parsed(llvm::StringRef text) {
  std::string error;
  std::optional<Type> t = parseType(text, error);
  EXPECT_TRUE(t) << error;
  EXPECT_EQ(text, "");
  return t.value_or(Type());
}

std::string rejected(llvm::StringRef text) {
  llvm::StringRef rest = text;
  std::string error;
  EXPECT_FALSE(parseType(rest, error)) << text.str();
  EXPECT_EQ(rest, text) << "a malformed type must stay";
  return error;
}

TEST(Type, TextRoundTrip) {
  for (const char *text : {"f32[]", "f64[1]", "bf16[8,1024,50257->50304]", "i32[8,1024]{0:dp}", "f16[2,3]{0:dp,1:tp}",
                           "i64[]", "u32[7]", "pred[2,2]", "f32[1,1,1,1,1,1,1,1]", "f32[70368744177664]"})
    EXPECT_EQ(parsed(text).str(), text);
}

TEST(Type, BlanksAreAllowed) { EXPECT_EQ(parsed("f32[ 8 , 5 -> 8 ]").str(), "f32[8,5->8]"); }

TEST(Type, LeavesWhatFollows) {
  llvm::StringRef text = "f32[8] {kind=\"param\"}";
  std::string error;
  EXPECT_TRUE(parseType(text, error));
  EXPECT_EQ(text, " {kind=\"param\"}");
  text = "f32[8]{kind=\"param\"}";  // attributes start with a letter, shardings with a digit
  EXPECT_TRUE(parseType(text, error));
  EXPECT_EQ(text, "{kind=\"param\"}");
}

TEST(Type, NothingThere) {
  EXPECT_EQ(rejected(""), "");
  EXPECT_EQ(rejected("float[8]"), "");
  EXPECT_EQ(rejected("%x"), "");
}

TEST(Type, Malformed) {
  EXPECT_NE(rejected("f32"), "");
  EXPECT_NE(rejected("f32["), "");
  EXPECT_NE(rejected("f32[8"), "");
  EXPECT_NE(rejected("f32[8,]"), "");
  EXPECT_NE(rejected("f32[-8]"), "");
  EXPECT_NE(rejected("f32[8->]"), "");
  EXPECT_NE(rejected("f32[8]{0}"), "");
  EXPECT_NE(rejected("f32[8]{0:}"), "");
  EXPECT_NE(rejected("f32[8]{0:dp"), "");
}

TEST(Type, Bounds) {
  EXPECT_NE(rejected("f32[0]").find("below 1"), std::string::npos);
  EXPECT_NE(rejected("f32[8->7]").find("padded extent 7"), std::string::npos);
  EXPECT_NE(rejected("f32[99999999999999999999999]").find("too large"), std::string::npos);
  EXPECT_NE(rejected("f32[70368744177665]").find("too large"), std::string::npos);
  EXPECT_NE(rejected("f32[4194304,4194304,4194304]").find("elements"), std::string::npos);
  EXPECT_NE(rejected("f32[1,1,1,1,1,1,1,1,1]").find("dimensions"), std::string::npos);
  EXPECT_NE(rejected("f32[8]{1:dp}").find("dimension 1"), std::string::npos);
  EXPECT_NE(rejected("f32[8,8]{1:dp,0:tp}").find("order"), std::string::npos);
  EXPECT_NE(rejected("f32[8,8]{1:dp,1:tp}").find("order"), std::string::npos);
}

TEST(Type, Sizes) {
  Type t = parsed("bf16[2,3,5->8]");
  EXPECT_EQ(t.elements(), 30);
  EXPECT_EQ(t.paddedElements(), 48);
  EXPECT_EQ(t.bytes(), 96);
  EXPECT_EQ(t.rows(), 6);
  EXPECT_EQ(t.dim(-1), 5);
  EXPECT_EQ(t.padded(-1), 8);
  EXPECT_EQ(Type::scalar(DType::f64).elements(), 1);
  EXPECT_EQ(Type::scalar(DType::f64).rows(), 1);
  EXPECT_EQ(t.withDType(DType::f32).str(), "f32[2,3,5->8]");
}

TEST(Type, ProductsSaturate) {
  Type t(DType::f64, {int64_t(1) << 40, int64_t(1) << 40});
  EXPECT_GT(t.elements(), maxElements);
  EXPECT_GT(t.bytes(), 0);
  EXPECT_NE(t.invalid(), "");
}

TEST(Type, SliceKeepsSharding) {
  EXPECT_EQ(parsed("f32[2,3,5->8]{0:dp,2:tp}").slice(1, 3).str(), "f32[3,5->8]{1:tp}");
  EXPECT_EQ(parsed("f32[2]").slice(0, 0).str(), "f32[]");
}

}  // namespace
