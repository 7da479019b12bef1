// Questions with choices: what is read of each form, and what is encoded of it. Texts and token counts follow
// lm-evaluation-harness 0.4.13 (its tasks hellaswag and arc_easy, and the pairs that it scores).
#include "frontends/choice_task.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace gptc;

namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

struct ChoiceTaskTest : ::testing::Test {
  ChoiceTaskTest() : file(fs::temp_directory_path() / ("choice-task-" + std::to_string(::getpid()) + ".jsonl")) {}
  ~ChoiceTaskTest() override { fs::remove(file); }
  ChoiceTask read(const std::string &content, int64_t most = 0) {
    std::ofstream(file, std::ios::binary) << content;
    return readChoiceTask(file.string(), most);
  }
  /// `help`: what the fix says, among else.
  void refuses(const std::string &content, const std::string &message, const std::string &help) {
    try {
      read(content);
      ADD_FAILURE() << content;
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::DataInvalid) << content;
      EXPECT_EQ(e.diagnostics[0].message, file.string() + message) << content;
      ASSERT_EQ(e.diagnostics[0].help.size(), 1u) << content;
      EXPECT_NE(e.diagnostics[0].help[0].find(help), std::string::npos) << content << e.diagnostics[0].help[0];
    }
  }
  const fs::path file;
};

TEST_F(ChoiceTaskTest, ReadsTheFormsOfFiles) {
  ChoiceTask task = read(
      "\xef\xbb\xbf"
      R"({"ind": 24, "activity_label": "Roof", "ctx_a": "A man sits.", "ctx_b": "he Starts ÉTÉ", "endings": ["up [x] on", " is off "], "label": "1"})"
      "\r\n  \n"
      R"({"ctx": "[header] How to sit [title] Sit", "endings": ["a", "b", "c"], "label": 2})");
  EXPECT_EQ(task.form, ChoiceForm::hellaswag);
  ASSERT_EQ(task.items.size(), 2u);
  EXPECT_EQ(task.items[0].contexts, Texts{"Roof: A man sits. He starts été"});
  EXPECT_EQ(task.items[0].choices, (Texts{"up on", "is off"}));
  EXPECT_EQ(task.items[0].gold, 1u);
  EXPECT_EQ(task.items[0].id, "24");
  EXPECT_EQ(task.items[1].contexts, Texts{" How to sit. Sit"});
  EXPECT_EQ(task.items[1].gold, 2u);
  EXPECT_EQ(task.items[1].line, 3);

  task = read(
      R"({"id": "M_1", "question": "Why?", "choices": {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, "answerKey": "3"}
{"question": {"stem": "Who?", "choices": [{"text": "he", "label": "A"}, {"text": "she", "label": "B"}]}, "answerKey": "A"}
)");
  EXPECT_EQ(task.form, ChoiceForm::arc);
  ASSERT_EQ(task.items.size(), 2u);
  EXPECT_EQ(task.items[0].contexts, Texts{"Question: Why?\nAnswer:"});
  EXPECT_EQ(task.items[0].choices, (Texts{"x", "y", "z"}));
  EXPECT_EQ(task.items[0].gold, 2u);
  EXPECT_EQ(task.items[0].id, "\"M_1\"");
  EXPECT_EQ(task.items[1].contexts, Texts{"Question: Who?\nAnswer:"});
  EXPECT_EQ(task.items[1].choices, (Texts{"he", "she"}));
  EXPECT_EQ(task.items[1].gold, 0u);

  task = read(R"({"query": "q", "choices": ["x", "y"], "gold": 1}
{"context": "c", "choices": ["x", "y"], "gold": 0}
no JSON)",
              2);
  EXPECT_EQ(task.form, ChoiceForm::choices);
  EXPECT_EQ(task.items[0].contexts, Texts{"q"});
  EXPECT_EQ(task.items[1].contexts, Texts{"c"});
  EXPECT_EQ(solved(task.items[0], " "), "q y\n\n");

  task = read(R"({"context_options": ["The cup", "The ball"], "continuation": "was full", "gold": 1})");
  EXPECT_EQ(task.form, ChoiceForm::contexts);
  EXPECT_EQ(task.items[0].contextOf(0), "The cup");
  EXPECT_EQ(task.items[0].contextOf(1), "The ball");
  EXPECT_EQ(task.items[0].choices, (Texts{"was full", "was full"}));
  EXPECT_EQ(solved(task.items[0], " "), "The ball was full\n\n");
}

TEST_F(ChoiceTaskTest, HellaswagsMarksAreLeftOut) {
  EXPECT_EQ(hellaswagText(" \u00a0a [title] b\n"), "a. b");
  EXPECT_EQ(hellaswagText("a [step] b [[x] y] c"), "a b y] c");
  EXPECT_EQ(hellaswagText("a [no\nmark] [mark]b"), "a [no\nmark] b");
  EXPECT_EQ(hellaswagText("a   b"), "a  b");
}

TEST_F(ChoiceTaskTest, BadLinesAreNamed) {
  const std::string good = R"({"query": "q", "choices": ["x", "y"], "gold": 1})"
                           "\n\n",
                    forms = "a line is an object of one form: ctx, endings, label (HellaSwag);",
                    more = "give the question", gold = "\"gold\" is the number of the right choice, 0 to 1";
  refuses("", " has no questions", forms);
  refuses("\n \n", " has no questions", forms);
  refuses(good + "{", ":3: this is no JSON", forms);
  refuses(good + "[1]", ":3: this is no object", forms);
  refuses(good + "{\"query\": \"\xff\"}", ":3: this is no UTF-8 text", "as UTF-8");
  refuses(good + R"({"text": "x"})", ":3: this is no question of a known form", forms);
  refuses(good + R"({"ctx": "c", "endings": ["a", "b"], "label": 0})",
          ":3: this has HellaSwag's form, line 1 has the form of choices", "in a file of their own");
  refuses(good + R"({"query": 1, "choices": ["x", "y"], "gold": 1})", ":3: its \"query\" is no text", forms);
  refuses(good + R"({"query": "q", "choices": "xy", "gold": 1})", ":3: its \"choices\" is no list of texts", forms);
  refuses(good + R"({"query": "q", "choices": ["x", 2], "gold": 1})", ":3: its \"choices\" is no list of texts", forms);
  refuses(good + R"({"query": "q", "choices": [], "gold": 0})", ":3: 0 to choose from; at least 2 are needed", more);
  refuses(good + R"({"query": "q", "choices": ["x"], "gold": 0})", ":3: 1 to choose from; at least 2 are needed", more);
  refuses(good + R"({"query": "q", "choices": ["x", ""], "gold": 0})", ":3: choice 1 is empty", "give it a text");
  refuses(good + R"({"query": "q", "choices": ["x", "y"]})", ":3: no \"gold\"", gold);
  refuses(good + R"({"query": "q", "choices": ["x", "y"], "gold": "1"})", ":3: its \"gold\" is no number", gold);
  for (const char *wrong : {"2", "-1", "18446744073709551615"})
    refuses(good + R"({"query": "q", "choices": ["x", "y"], "gold": )" + wrong + "}",
            std::string(":3: its \"gold\" is ") + wrong + ": there are 2 choices, from 0 on", gold);
  refuses(R"({"ctx": "c", "endings": ["a", "b"], "label": ""})", ":1: no \"label\"", "\"label\" is the number");
  refuses(R"({"ctx": "c", "endings": ["a", "[x]"], "label": "0"})", ":1: choice 1 is empty", "give it a text");
  refuses(R"({"endings": ["a", "b"], "label": "0"})", ":1: no \"ctx\"", forms);
  refuses(R"({"question": "q", "choices": {"text": ["x", "y"], "label": ["A"]}, "answerKey": "A"})",
          ":1: 1 labels for 2 choices", "give each choice a label");
  refuses(R"({"question": "q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "C"})",
          ":1: its \"answerKey\" is \"C\": the labels are A, B", "the label of the right choice");
  refuses(R"({"question": "q", "answerKey": "C"})", ":1: no \"choices\"", forms);
}

TEST_F(ChoiceTaskTest, BlanksBelongToWhatFollows) {
  const Tokenizer bytes = Tokenizer::bytes();
  const ChoiceTokens t = encodeChoice(bytes, "ab \n", " c", false);
  EXPECT_EQ(t.tokens, (std::vector<int32_t>{'a', 'b', ' ', '\n', ' ', 'c'}));
  EXPECT_EQ(t.context, 2);
  auto helpOf = [&](const char *context, const char *choice) {
    try {
      encodeChoice(bytes, context, choice, false);
    } catch (const UserError &e) {
      return e.diagnostics[0].help.empty() ? "no fix" : e.diagnostics[0].help[0];
    }
    return std::string("taken");
  };
  EXPECT_EQ(helpOf("", "c"), "give the question a context") << "bytes have no token that ends texts";
  EXPECT_EQ(helpOf("a", ""), "change its text, or leave the question out");
}

}  // namespace
