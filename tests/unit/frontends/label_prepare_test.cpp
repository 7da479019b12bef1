// Texts with labels: reading JSON lines and tables, numbering labels, and the files that come of them.
#include "frontends/label_prepare.h"

#include "frontends/label_names.h"
#include "frontends/labelled_texts.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/labelled_file.h"
#include "tests/support/word_models.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

using Names = std::vector<std::string>;

/// The content of a file of texts.
struct Content {
  LabelledHeader header;
  std::vector<std::vector<uint32_t>> texts;
  std::vector<int32_t> labels;  // words
  std::string names;
};

class LabelPrepare : public testing::Test {
protected:
  void SetUp() override {
    fs::create_directories(dir);
    write("tokenizer.json", e2e::tokenizerOf31Words(true));
  }
  void TearDown() override { fs::remove_all(dir); }
  std::string path(const std::string &name) const { return (dir / name).string(); }
  std::string write(const std::string &name, const std::string &text) const {
    std::ofstream(dir / name, std::ios::binary) << text;
    return path(name);
  }
  PrepareOptions options(const Names &files, const std::string &labels = "auto") const {
    PrepareOptions o;
    o.files = files;
    o.tokenizer = path("tokenizer.json");
    o.outDir = path("out");
    o.labels = labels;
    o.valFraction = 0;
    return o;
  }
  Content read(const std::string &name) const {
    const std::string bytes = readInput(path("out/" + name), "texts");
    Content c;
    EXPECT_GE(bytes.size(), size_t(LabelledHeader::kBytes));
    std::memcpy(&c.header, bytes.data(), sizeof c.header);
    EXPECT_EQ(int64_t(bytes.size()), c.header.bytes());
    std::vector<int64_t> ends(size_t(c.header.texts));
    c.labels.resize(ends.size() * size_t(c.header.wordsOfText()));
    std::memcpy(ends.data(), bytes.data() + c.header.endsAt(), 8 * ends.size());
    std::memcpy(c.labels.data(), bytes.data() + c.header.labelsAt(), 4 * c.labels.size());
    for (int64_t i = 0, begin = 0; i < c.header.texts; begin = ends[size_t(i++)]) {
      std::vector<uint32_t> &text = c.texts.emplace_back(size_t(ends[size_t(i)] - begin));
      std::memcpy(text.data(), bytes.data() + c.header.tokensAt() + 4 * begin, 4 * text.size());
    }
    c.names = bytes.substr(size_t(c.header.namesAt()));
    return c;
  }
  /// "302 a.jsonl:2: ...": the code and the message, without the folder; "" if nothing is thrown.
  template <typename F> std::string problemOf(F call) const {
    try {
      call();
    } catch (const UserError &e) {
      std::string said = e.diagnostics[0].message;
      for (size_t at; (at = said.find(dir.string() + "/")) != std::string::npos;)
        said.erase(at, dir.string().size() + 1);
      return fmt::format("{} {}", int(e.diagnostics[0].code), said);
    }
    return "";
  }
  std::string problem(const std::string &name, const std::string &text, const std::string &labels = "auto") const {
    return problemOf([&] { prepareLabels(options({write(name, text)}, labels)); });
  }
  const fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-labels-{}", ::getpid());
};

TEST_F(LabelPrepare, NamesAreThoseOfTheTexts) {
  const std::string file = write("a.jsonl", "{\"text\": \"t4 t5\", \"label\": \"good\", \"more\": [1]}\n\n"
                                            "{\"label\": \"bad\", \"text\": \"t6\"}\r\n"
                                            "{\"text\": \"t7\", \"text_pair\": \"\", \"label\": \"good\"}");
  const LabelResult r = prepareLabels(options({file}));
  EXPECT_EQ(r.labels.names, (Names{"bad", "good"}));
  EXPECT_EQ(r.train.texts, 3);
  EXPECT_EQ(r.train.tokens, 4 + 3 + 3);
  EXPECT_EQ(r.train.counts, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(r.val.texts, 0);
  const Content c = read("train.bin");
  EXPECT_EQ(c.header.longest, 4);
  EXPECT_EQ(c.header.labels, 2);
  EXPECT_EQ(c.texts, (std::vector<std::vector<uint32_t>>{{2, 4, 5, 3}, {2, 6, 3}, {2, 7, 3}}));
  EXPECT_EQ(c.labels, (std::vector<int32_t>{1, 0, 1}));
  EXPECT_EQ(parseJson(c.names), (nlohmann::json{"bad", "good"}));
  EXPECT_EQ(readLabelNames(path("out/labels.json")).names, r.labels.names);
  EXPECT_FALSE(fs::exists(path("out/val.bin")));
  EXPECT_TRUE(fs::exists(path("out/tokenizer.json")));
}

TEST_F(LabelPrepare, NumbersAreLabelsToo) {
  // All are numbers: those of LABEL_0, LABEL_1, ...
  LabelResult r = prepareLabels(
      options({write("a.jsonl", "{\"text\": \"t4\", \"label\": 2}\n{\"text\": \"t5\", \"label\": \"0\"}\n")}));
  EXPECT_EQ(r.labels.names, (Names{"LABEL_0", "LABEL_1", "LABEL_2"}));
  EXPECT_EQ(read("train.bin").labels, (std::vector<int32_t>{2, 0}));
  EXPECT_EQ(r.train.counts, (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(r.notes, Names{"no text to train on has the label \"LABEL_1\""});
  // Others are names, in the order of their values.
  const auto ofNumbers = [&](const std::vector<int> &numbers) {
    std::string lines;
    for (const int n : numbers)
      lines += fmt::format("{{\"text\": \"t4\", \"label\": {}}}\n", n);
    return prepareLabels(options({write("n.jsonl", lines)}));
  };
  r = ofNumbers({10, 5, 1, 5, 2});
  EXPECT_EQ(r.labels.names, (Names{"1", "2", "5", "10"}));
  EXPECT_EQ(read("train.bin").labels, (std::vector<int32_t>{3, 2, 0, 2, 1}));
  EXPECT_EQ(r.notes, Names());
  EXPECT_EQ(ofNumbers({1, 2}).labels.names, (Names{"1", "2"}));
  EXPECT_EQ(ofNumbers({2024, 1999}).labels.names, (Names{"1999", "2024"}));
  EXPECT_EQ(ofNumbers({0, 3}).labels.names, (Names{"LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"})) << "half of them";
  EXPECT_EQ(ofNumbers({4, 0}).labels.names, (Names{"0", "4"}));
  EXPECT_EQ(ofNumbers({99999999, 0}).labels.names, (Names{"0", "99999999"}));
  // Then a number is no place among the names.
  PrepareOptions stars =
      options({write("n.jsonl", "{\"text\": \"t4\", \"label\": 1}\n{\"text\": \"t4\", \"label\": 3}\n")});
  stars.valFiles = {write("v.jsonl", "{\"text\": \"t4\", \"label\": 3}\n{\"text\": \"t4\", \"label\": 0}\n")};
  EXPECT_EQ(problemOf([&] { prepareLabels(stars); }),
            "302 v.jsonl:2: the label \"0\" is neither a name of a label nor its number");
  for (const char *one : {"0", "1", "70000"})
    EXPECT_EQ(problem("n.jsonl", fmt::format("{{\"text\": \"t4\", \"label\": {}}}\n", one)),
              "302 the training texts: 1 label, and a classifier tells 2 to 65536");
  // Given names come first.
  const std::string file = write("b.jsonl", "{\"text\": \"t4\", \"label\": 1}\n{\"text\": \"t5\", \"label\": \"1\"}\n"
                                            "{\"text\": \"t5\", \"label\": \"b\"}\n");
  prepareLabels(options({file}, "a,b"));
  EXPECT_EQ(read("train.bin").labels, (std::vector<int32_t>{1, 1, 1}));
  prepareLabels(options({file}, "1,b,c"));
  EXPECT_EQ(read("train.bin").labels, (std::vector<int32_t>{0, 0, 1}));
  // A labels.json and a folder name them, too.
  prepareLabels(options({file}, write("names.json", "[\"b\", \"a\"]")));
  EXPECT_EQ(read("train.bin").labels, (std::vector<int32_t>{1, 1, 0}));
  fs::create_directories(dir / "model");
  write("model/config.json", R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"],
                                 "id2label": {"0": "x", "1": "b"}})");
  prepareLabels(options({file}, path("model")));
  EXPECT_EQ(read("train.bin").labels, (std::vector<int32_t>{1, 1, 1}));
}

TEST_F(LabelPrepare, TablesHaveColumns) {
  const std::string csv = "id,label,text,text_pair\r\n"
                          "7,good,\"t4, t5 \"\"t6\"\"\",t7\r\n"
                          "8,bad,\"t4\nt5\",\n"
                          ",good,t9,\"\"\n";
  std::vector<LabelledText> found;
  {
    LabelledReader reader(write("a.csv", "\xef\xbb\xbf" + csv), {});
    for (LabelledText t; reader.next(t);)
      found.push_back(t);
  }
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].text, "t4, t5 \"t6\"");
  EXPECT_EQ(found[0].pair, "t7");
  EXPECT_EQ(found[1].text, "t4\nt5");
  EXPECT_FALSE(found[1].pair || found[2].pair);
  EXPECT_EQ(found[2].line, 5);
  // In a TSV quotes are text.
  found.clear();
  LabelledReader reader(write("a.tsv", "sentence\tclass\nt4 \"t5\tno\n\"\tyes\n"),
                        {.text = "sentence", .pair = "other", .label = "class"});
  for (LabelledText t; reader.next(t);)
    found.push_back(t);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].text, "t4 \"t5");
  EXPECT_EQ(found[1].text, "\"");
  EXPECT_EQ(found[1].labels, Names{"yes"});
}

TEST_F(LabelPrepare, LongTextsAreCutAndCounted) {
  PrepareOptions o = options({write("a.jsonl", "{\"text\": \"t4 t5 t6 t7\", \"label\": \"a\"}\n"
                                               "{\"text\": \"t4 t5\", \"label\": \"b\"}\n")});
  o.context = 5;
  LabelResult r = prepareLabels(o);
  EXPECT_EQ(r.train.cut, 1);
  EXPECT_EQ(r.context, 5);
  EXPECT_EQ(read("train.bin").texts, (std::vector<std::vector<uint32_t>>{{2, 4, 5, 6, 3}, {2, 4, 5, 3}}));
  write("tokenizer_config.json", "{\"model_max_length\": 4}");
  EXPECT_EQ(r.notes, Names());
  r = prepareLabels(o);
  EXPECT_EQ(r.context, 4);
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_EQ(r.notes[0].rfind("--context 5 is more than model_max_length", 0), 0u) << r.notes[0];
  o.context = 0;
  EXPECT_EQ(prepareLabels(o).notes, Names()) << "nothing else was asked for";
  EXPECT_EQ(read("train.bin").texts[0], (std::vector<uint32_t>{2, 4, 5, 3}));
}

TEST_F(LabelPrepare, SomeTextsValidate) {
  std::string lines;
  for (int i = 0; i < 400; ++i)
    lines += fmt::format("{{\"text\": \"t{}\", \"label\": \"{}\"}}\n", 4 + i % 27, i < 200 ? "a" : "b");
  PrepareOptions o = options({write("a.jsonl", lines)});
  o.valFraction = 0.25;
  const LabelResult r = prepareLabels(o), again = prepareLabels(o);
  EXPECT_EQ(r.train.texts + r.val.texts, 400);
  EXPECT_NEAR(double(r.val.texts), 100, 35);
  EXPECT_GT(r.val.counts[0], 20);
  EXPECT_GT(r.val.counts[1], 20) << "of sorted texts, too";
  EXPECT_EQ(r.val.counts, again.val.counts);
  EXPECT_EQ(r.notes, Names());
  // Of three texts none may be left.
  PrepareOptions few = options({write("f.jsonl", "{\"text\": \"t4\", \"label\": \"a\"}\n"
                                                 "{\"text\": \"t5\", \"label\": \"b\"}\n")});
  few.valFraction = 1e-9;
  const LabelResult none = prepareLabels(few);
  EXPECT_FALSE(fs::exists(path("out/val.bin")));
  ASSERT_EQ(none.notes.size(), 1u);
  EXPECT_NE(none.notes[0].find("no text is left to validate on, of 2"), std::string::npos) << none.notes[0];
  // Files of their own have the training texts' labels.
  o.valFiles = {write("v.jsonl", "{\"text\": \"t4\", \"label\": \"b\"}\n")};
  EXPECT_EQ(prepareLabels(o).train.texts, 400);
  EXPECT_EQ(read("val.bin").labels, std::vector<int32_t>{1});
  write("v.jsonl", "{\"text\": \"t4\", \"label\": \"c\"}\n");
  EXPECT_EQ(problemOf([&] { prepareLabels(o); }),
            "302 v.jsonl:1: the label \"c\" is neither a name of a label nor its number");
  EXPECT_EQ(read("val.bin").labels, std::vector<int32_t>{1}) << "nothing is replaced";
}

TEST_F(LabelPrepare, ThreadsChangeNothing) {
  std::string lines;
  for (int i = 0; i < 9000; ++i)  // more than two batches
    lines += fmt::format("{{\"text\": \"t{} t{}\", \"label\": \"{}\"}}\n", 4 + i % 27, 4 + i % 23, i % 3);
  PrepareOptions o = options({write("a.jsonl", lines)});
  o.valFraction = 0.25;
  const auto bytes = [&](int threads) {
    o.threads = threads;
    prepareLabels(o);
    return readInput(path("out/train.bin"), "texts") + readInput(path("out/val.bin"), "texts");
  };
  const std::string first = bytes(1);
  const Content train = read("train.bin");
  EXPECT_GT(train.header.texts, 6000);
  for (size_t i = 1; i < 100; ++i)
    EXPECT_NE(train.texts[i], train.texts[i - 1]);
  for (const int threads : {2, 3, 8})
    EXPECT_EQ(bytes(threads), first) << threads;
  // The first bad text is named, even if a later one cannot be read.
  o.files = {write("b.jsonl", "{\"text\": \"t4\", \"label\": 0}\n{\"text\": \"t5\"\n")};
  o.context = 2;
  for (const int threads : {1, 4}) {
    o.threads = threads;
    EXPECT_NE(problemOf([&] { prepareLabels(o); }).find("the tokenizer puts 2 around each"), std::string::npos);
  }
}

TEST_F(LabelPrepare, BadLinesAreNamed) {
  const std::string good = "{\"text\": \"t4\", \"label\": \"a\"}\n";
  const std::pair<const char *, const char *> bad[] = {
      {"t4", "this is no JSON"},
      {"[1]", "this is no object"},
      {"{\"text\": \"t4\"}", "no \"label\""},
      {"{\"label\": \"a\", \"text\": null}", "no \"text\""},
      {"{\"label\": \"a\", \"text\": 3}", "its \"text\" is no text"},
      {"{\"label\": \"a\", \"text\": \"t4\", \"text_pair\": 3}", "its \"text_pair\" is no text"},
      {"{\"label\": -1, \"text\": \"t4\"}", "its label is -1, neither a name nor the number of one"},
      {"{\"label\": true, \"text\": \"t4\"}", "its label is true, neither a name nor the number of one"},
      {"{\"label\": \"a\", \"text\": \"\"}", "the text is empty"},
      {"{\"label\": \"\", \"text\": \"t4\"}", "the label is empty"},
      {"{\"label\": \"a\", \"text\": \"\xff\"}", "this is no UTF-8 text"}};
  for (const auto &[line, why] : bad)
    EXPECT_EQ(problem("a.jsonl", good + "\n" + line + "\n"), fmt::format("302 a.jsonl:3: {}", why));
  EXPECT_EQ(problem("a.jsonl", good + "{\"text\": \"t4\", \"label\": \"c\"}\n", "a,b"),
            "302 a.jsonl:2: the label \"c\" is neither a name of a label nor its number");
  EXPECT_EQ(problem("a.jsonl", "{\"text\": \"t4\", \"label\": 2}\n", "a,b"),
            "302 a.jsonl:1: the label \"2\" is neither a name of a label nor its number");
  EXPECT_EQ(problem("a.jsonl", good), "302 the training texts: 1 label, and a classifier tells 2 to 65536");
  EXPECT_EQ(problem("a.csv", "text,label\nt4,a,b\n"), "302 a.csv:2: 3 fields, and the first line names 2 columns");
  EXPECT_EQ(problem("a.csv", "text,label\n\"t4,a\nt5,b\n"), "302 a.csv:2: nothing closes a quote");
  EXPECT_EQ(problem("a.csv", "text,label\n\"t4\"t5,a\n"),
            "302 a.csv:2: something stands behind the quote that ends a field");
  EXPECT_EQ(problem("a.csv", "sentence,label\nt4,a\n"),
            "302 a.csv:1: no column is called \"text\", but \"sentence\" and \"label\"");
  EXPECT_EQ(problem("a.csv", "text,label,id,label\nt4,a,1,b\n"), "302 a.csv:1: two columns are called \"label\"");
  EXPECT_EQ(problem("a.tsv", "text\ttext\tlabel\nt4\tt5\ta\n"), "302 a.tsv:1: two columns are called \"text\"");
  EXPECT_EQ(problem("a.csv", "id,text,id,label\n1,t4,2,a\n1,t4,2,b\n"), "") << "columns that are passed over";
  EXPECT_EQ(problem("a.txt", good).substr(0, 4), fmt::format("{} ", int(ErrorCode::Usage)));
  EXPECT_EQ(problem("a.jsonl", ""), "302 text file a.jsonl is empty");
}

TEST_F(LabelPrepare, OptionsThatSayNothingOfThemAreRefused) {
  const std::string file = write("a.jsonl", "{\"text\": \"t4\", \"label\": 0}\n{\"text\": \"t5\", \"label\": 1}\n");
  const auto refused = [&](auto change) {
    PrepareOptions o = options({file});
    change(o);
    return problemOf([&] { prepareLabels(o); });
  };
  EXPECT_NE(refused([](PrepareOptions &o) { o.tokenizer = "char"; }).find("a classifier begins with a model"),
            std::string::npos);
  EXPECT_NE(refused([](PrepareOptions &o) { o.format = "llmc"; }).find("--format llmc"), std::string::npos);
  EXPECT_NE(refused([](PrepareOptions &o) { o.addSpecial = true; }).find("--add-special"), std::string::npos);
  EXPECT_NE(refused([](PrepareOptions &o) { o.valFraction = 1; }).find("--val-fraction 1"), std::string::npos);
  EXPECT_NE(refused([](PrepareOptions &o) { o.labels = "a"; }).find("--labels a: 1 label"), std::string::npos);
  EXPECT_NE(refused([](PrepareOptions &o) { o.labels = "a,,b"; }).find("an empty name"), std::string::npos);
  EXPECT_NE(refused([](PrepareOptions &o) { o.labels = "a,b,a"; }).find("the label \"a\" is there twice"),
            std::string::npos);
  // A word that can only be a file is one.
  for (const char *absent : {"out/labels.jsno", "labels.json"})
    EXPECT_EQ(refused([&](PrepareOptions &o) { o.labels = absent; }).substr(0, 4), "301 ") << absent;
  EXPECT_EQ(refused([](PrepareOptions &o) { o.labels = "n/a,b.json"; }), "");
  // One member has one use.
  const std::string usage = fmt::format("{} ", int(ErrorCode::Usage));
  EXPECT_EQ(refused([](PrepareOptions &o) { o.key = "label"; }), usage + "\"label\" is both the text and the label");
  EXPECT_EQ(refused([](PrepareOptions &o) { o.pairKey = "text"; }),
            usage + "\"text\" is both the text and the second text of a pair");
  EXPECT_EQ(refused([](PrepareOptions &o) { o.pairKey = o.labelKey = "x"; }),
            usage + "\"x\" is both the second text of a pair and the label");
  EXPECT_NE(refused([](PrepareOptions &o) { o.context = 2; }).find("the tokenizer puts 2 around each"),
            std::string::npos);
  EXPECT_EQ(refused([](PrepareOptions &) {}), "");
}

TEST_F(LabelPrepare, FilesOfNamesAreChecked) {
  const auto said = [&](const std::string &text) {
    return problemOf([&] { readLabelNames(write("labels.json", text)); });
  };
  EXPECT_EQ(said("[\"a\", \"b\"]"), "");
  EXPECT_EQ(said("{\"a\": 0}"), "302 labels.json: this is no list of texts");
  EXPECT_EQ(said("[\"a\", 1]"), "302 labels.json: this is no list of texts");
  EXPECT_EQ(said("[\"a\""), "302 labels.json: this is no list of texts");
  EXPECT_EQ(said("[]"), "302 labels.json: 0 labels, and a classifier tells 2 to 65536");
  EXPECT_EQ(said("[\"a\", \"a\"]"), "302 labels.json: the label \"a\" is there twice");
  EXPECT_EQ(problemOf([&] { readLabelNames(path("none.json")); }).substr(0, 4), "301 ");
  // The other form says what is learned of them.
  const auto problemIn = [&](const std::string &text) { return readLabelNames(write("labels.json", text)).problem; };
  EXPECT_EQ(problemIn("[\"a\", \"b\"]"), ProblemType::single_label_classification);
  EXPECT_EQ(problemIn(R"({"problem_type": "multi_label_classification", "names": ["a"]})"),
            ProblemType::multi_label_classification);
  EXPECT_EQ(problemIn(R"({"problem_type": "regression", "names": ["a"]})"), ProblemType::regression);
  EXPECT_EQ(said(R"({"problem_type": "regression", "names": ["a", "b"]})"),
            "302 labels.json: 2 labels, and a regression has one");
  EXPECT_EQ(said(R"({"problem_type": "multi_label_classification", "names": []})"),
            "302 labels.json: 0 labels, and a classifier tells 1 to 65536");
  for (const char *other :
       {R"({"problem_type": "regressions", "names": ["a"]})", R"({"problem_type": "regression"})",
        R"({"names": ["a", "b"]})", R"({"problem_type": "regression", "names": ["a"], "x": 1})",
        R"({"problem_type": 3, "names": ["a"]})", R"({"problem_type": "regression", "names": [1]})"})
    EXPECT_EQ(said(other), "302 labels.json: this is no list of texts") << other;
  // A folder says it in config.json. Its logits must be its scores.
  const std::string head = R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"], )";
  fs::create_directories(dir / "model");
  const auto ofFolder = [&](const std::string &more) {
    write("model/config.json", head + more + "}");
    return problemOf([&] { readLabelNames(path("model")); });
  };
  EXPECT_EQ(ofFolder(R"("num_labels": 3)"), "");
  EXPECT_EQ(ofFolder(R"("num_labels": 3, "problem_type": "multi_label_classification")"), "");
  EXPECT_EQ(readLabelNames(path("model")).problem, ProblemType::multi_label_classification);
  EXPECT_EQ(ofFolder(R"("num_labels": 1)"), "");
  EXPECT_EQ(readLabelNames(path("model")).problem, ProblemType::regression);
  EXPECT_EQ(ofFolder(R"("num_labels": 2, "problem_type": "regression")"),
            "302 model/config.json: 2 labels, and a regression has one");
  EXPECT_EQ(ofFolder(R"("num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.Sigmoid")")
                .rfind(fmt::format("{} model/config.json: the scores of the head", int(ErrorCode::NotBuiltYet)), 0),
            0u);
}

TEST_F(LabelPrepare, SeveralLabelsAreBits) {
  std::string lines = "{\"text\": \"t4\", \"label\": [\"b\", \"a\"]}\n{\"text\": \"t5\", \"label\": []}\n"
                      "{\"text\": \"t6\", \"label\": \"c\"}\n";
  PrepareOptions o = options({write("a.jsonl", lines)});
  o.problemType = "multi_label_classification";
  LabelResult r = prepareLabels(o);
  EXPECT_EQ(r.labels.names, (Names{"a", "b", "c"}));
  EXPECT_EQ(r.train.counts, (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(read("train.bin").header.problem, LabelledHeader::kSeveralLabels);
  EXPECT_EQ(read("train.bin").labels, (std::vector<int32_t>{3, 0, 4}));
  EXPECT_EQ(readLabelNames(path("out/labels.json")).problem, ProblemType::multi_label_classification);
  // labels.json says so again, and tables have commas.
  write("names.json", readInput(path("out/labels.json"), "labels"));
  const std::string csv = write("a.csv", "text,label\nt4,\"c, a\"\nt5,\nt6,1\n");
  prepareLabels(options({csv}, path("names.json")));
  EXPECT_EQ(read("train.bin").labels, (std::vector<int32_t>{5, 0, 2}));
  PrepareOptions other = options({csv}, path("names.json"));
  other.problemType = "single_label_classification";
  EXPECT_EQ(problemOf([&] { prepareLabels(other); }),
            fmt::format("{} --problem-type single_label_classification, and names.json is of "
                        "multi_label_classification",
                        int(ErrorCode::Contradiction)));
  // More than a word of them.
  lines.clear();
  for (int i = 0; i < 40; ++i)
    lines += fmt::format("{{\"text\": \"t4\", \"label\": [{}, {}]}}\n", i, (i + 1) % 40);
  write("a.jsonl", lines);
  prepareLabels(o);
  const Content c = read("train.bin");
  ASSERT_EQ(c.labels.size(), 80u);
  for (size_t i = 0; i < 40; ++i)
    EXPECT_EQ(uint64_t(uint32_t(c.labels[2 * i])) | uint64_t(uint32_t(c.labels[2 * i + 1])) << 32,
              uint64_t(1) << i | uint64_t(1) << (i + 1) % 40)
        << i;
  const auto refused = [&](const std::string &labels) {
    write("a.jsonl", "{\"text\": \"t4\", \"label\": \"a\"}\n{\"text\": \"t4\", \"label\": " + labels + "}\n");
    return problemOf([&] { prepareLabels(o); });
  };
  EXPECT_EQ(refused("[\"a\", \"a\"]"), "302 a.jsonl:2: the label \"a\" is there twice");
  EXPECT_EQ(refused("[\"a\", \"\"]"), "302 a.jsonl:2: the label is empty");
  EXPECT_EQ(refused("[-1]"), "302 a.jsonl:2: its label is -1, neither a name nor the number of one");
  EXPECT_EQ(refused("[[1]]"), "302 a.jsonl:2: its label is [1], neither a name nor the number of one");
  EXPECT_EQ(problem("b.jsonl", "{\"text\": \"t4\", \"label\": [\"a\"]}\n"),
            "302 b.jsonl:1: its label is [\"a\"], neither a name nor the number of one");
  write("a.jsonl", "{\"text\": \"t4\", \"label\": []}\n");
  EXPECT_EQ(problemOf([&] { prepareLabels(o); }),
            "302 the training texts: 0 labels, and a classifier tells 1 to 65536");
}

TEST_F(LabelPrepare, NumbersOfARegressionAreFloats) {
  PrepareOptions o = options({write("a.jsonl", "{\"text\": \"t4\", \"label\": 3.8}\n{\"text\": \"t5\", \"label\": -2}\n"
                                               "{\"text\": \"t6\", \"label\": \" 1e-3 \"}\n")});
  o.problemType = "regression";
  const LabelResult r = prepareLabels(o);
  EXPECT_EQ(r.labels.names, Names{"LABEL_0"});
  EXPECT_EQ(r.train.counts, std::vector<int64_t>{3});
  EXPECT_EQ(r.notes, Names());
  const Content c = read("train.bin");
  EXPECT_EQ(c.header.problem, LabelledHeader::kNumber);
  ASSERT_EQ(c.labels.size(), 3u);
  const float wanted[] = {3.8f, -2, 1e-3f};
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(std::bit_cast<float>(c.labels[i]), wanted[i]);
  o.labels = "score";
  EXPECT_EQ(prepareLabels(o).labels.names, Names{"score"});
  o.labels = "a,b";
  EXPECT_NE(problemOf([&] { prepareLabels(o); }).find("2 labels, and a regression has one"), std::string::npos);
  o.labels = "auto";
  o.files = {write("a.csv", "text,label\nt4,0.5\nt5,high\n")};
  EXPECT_EQ(problemOf([&] { prepareLabels(o); }), "302 a.csv:3: the label \"high\" is no finite number");
  for (const char *none : {"nan", "inf", "1e39"}) {
    write("a.csv", fmt::format("text,label\nt4,{}\n", none));
    EXPECT_EQ(problemOf([&] { prepareLabels(o); }),
              fmt::format("302 a.csv:2: the label \"{}\" is no finite number", none));
  }
  o.files = {write("a.jsonl", "{\"text\": \"t4\", \"label\": true}\n")};
  EXPECT_EQ(problemOf([&] { prepareLabels(o); }), "302 a.jsonl:1: its label is true, and no number");
  o.problemType = "ranking";
  EXPECT_EQ(problemOf([&] { prepareLabels(o); }), fmt::format("{} --problem-type ranking", int(ErrorCode::Usage)));
}

TEST_F(LabelPrepare, OfManyNamesADozenIsSaid) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += fmt::format("{{\"text\": \"t4\", \"label\": \"n{:02}\"}}\n", i);
  const std::string all = write("names.json", textOfLabels(prepareLabels(options({write("a.jsonl", lines)})).labels));
  const LabelResult r = prepareLabels(options({write("b.jsonl", "{\"text\": \"t4\", \"label\": \"n00\"}\n")}, all));
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_NE(r.notes[0].find("\"n12\" and 27 more"), std::string::npos) << r.notes[0];
  EXPECT_EQ(r.notes[0].find("n13"), std::string::npos) << r.notes[0];
}

TEST_F(LabelPrepare, AHeadMustTellAsMany) {
  const auto compared = [&](const std::string &config, const Names &names,
                            ProblemType problem = ProblemType::single_label_classification) {
    write("config.json", config);
    std::string note;
    const std::vector<Diagnostic> found = compareLabels(dir.string(), {names, problem}, ClassifierPooling::cls, note);
    return found.empty() ? note.empty() ? "" : "note" : fmt::format("{}", int(found[0].code));
  };
  const std::string head = R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"], )";
  const std::string two = head + R"("id2label": {"0": "a", "1": "b"}})";
  EXPECT_EQ(compared(two, {"a", "b"}), "");
  EXPECT_EQ(compared(two, {"b", "a"}), "note");
  EXPECT_EQ(compared(two, {"a", "b", "c"}), fmt::format("{}", int(ErrorCode::Contradiction)));
  EXPECT_EQ(compared(head + "\"num_labels\": 2}", {"b", "a"}), "") << "labels without names";
  const std::string several = head + R"("problem_type": "multi_label_classification"})";
  EXPECT_EQ(compared(several, {"a", "b"}), fmt::format("{}", int(ErrorCode::Contradiction)));
  EXPECT_EQ(compared(several, {"a", "b"}, ProblemType::multi_label_classification), "");
  EXPECT_EQ(compared(head + "\"num_labels\": 1}", {"a"}, ProblemType::regression), "");
  EXPECT_EQ(compared(head + R"("num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.Sigmoid"})", {"a"},
                     ProblemType::regression),
            fmt::format("{}", int(ErrorCode::NotBuiltYet)));
  EXPECT_EQ(compared(R"({"model_type": "bert", "architectures": ["BertForMaskedLM"]})", {"a", "b", "c"}), "");
  const std::string modern = R"({"model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"])";
  EXPECT_EQ(compared(modern + "}", {"a", "b"}), "");
  EXPECT_EQ(compared(modern + R"(, "classifier_pooling": "mean"})", {"a", "b"}),
            fmt::format("{}", int(ErrorCode::Contradiction)));
}

}  // namespace
