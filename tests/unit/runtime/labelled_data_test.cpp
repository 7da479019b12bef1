#include "runtime/data/labelled_data.h"

#include "runtime/data/data.h"
#include "runtime/data/data_print.h"
#include "support/diagnostics.h"
#include "temp_dir.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <set>

using namespace gptc;

namespace {

using Text = std::vector<uint32_t>;

/// A file of these texts, each with its label.
std::string fileOf(const std::vector<std::pair<Text, int32_t>> &texts, const std::string &names = "[\"a\",\"b\",\"c\"]",
                   int32_t labels = 3, ProblemType problem = ProblemType::single_label_classification) {
  LabelledHeader h;
  std::vector<uint32_t> tokens;
  std::vector<int64_t> ends;
  std::vector<int32_t> of;
  for (const auto &[text, label] : texts) {
    tokens.insert(tokens.end(), text.begin(), text.end());
    ends.push_back(int64_t(tokens.size()));
    of.push_back(label);
    h.longest = std::max(h.longest, int32_t(text.size()));
  }
  h.texts = int64_t(texts.size());
  h.tokens = int64_t(tokens.size());
  h.nameBytes = int64_t(names.size());
  h.labels = labels;
  h.problem = int32_t(problem);
  std::string file(size_t(h.bytes()), '\0');
  std::memcpy(&file[0], &h, sizeof h);
  std::memcpy(&file[size_t(h.tokensAt())], tokens.data(), 4 * tokens.size());
  std::memcpy(&file[size_t(h.endsAt())], ends.data(), 8 * ends.size());
  std::memcpy(&file[size_t(h.labelsAt())], of.data(), 4 * of.size());
  std::memcpy(&file[size_t(h.namesAt())], names.data(), names.size());
  return file;
}

constexpr uint32_t second = 1u << LabelledHeader::kTypeShift;
constexpr int64_t T = 4;
const std::vector<std::pair<Text, int32_t>> three = {{{2, 5, 3}, 0}, {{2, 6, 7 | second, 3 | second}, 2}, {{9}, 1}};

LabelledLimits limits() { return {.vocab = 10, .types = 2, .blockSize = T, .labels = 3, .names = {"a", "b", "c"}}; }

struct Row {
  std::vector<int32_t> x = std::vector<int32_t>(T, -7), y = {-7}, types = x;
  std::vector<int64_t> documents = std::vector<int64_t>(2 * T, -7);
  std::vector<float> number;  // of a regression
  SequenceRow row() {
    return {x.data(), y.data(), documents.data(), types.data(), number.empty() ? nullptr : number.data()};
  }
};

int codeThrown(const std::function<void()> &f, std::string *message = nullptr) {
  try {
    f();
  } catch (const UserError &e) {
    if (message)
      *message = e.what();
    return int(e.diagnostics[0].code);
  }
  return 0;
}

TEST(LabelledData, ARowHasATextAndNoneBehindIt) {
  TempDir dir;
  writeFile(dir / "a.bin", fileOf(three));
  const LabelledData d(dir / "a.bin", "data.train", limits());
  ASSERT_EQ(d.evalWindows(), 3);
  EXPECT_EQ(d.tokens(0), 8);
  Row r;
  EXPECT_EQ(d.evalRow(0, r.row()), 1);
  EXPECT_EQ(r.x, (std::vector<int32_t>{2, 5, 3, 0}));
  EXPECT_EQ(r.types, (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(r.documents, (std::vector<int64_t>{0, 3, 0, 3, 0, 3, 3, 4}));
  EXPECT_EQ(r.y[0], 0);
  d.evalRow(1, r.row());
  EXPECT_EQ(r.x, (std::vector<int32_t>{2, 6, 7, 3}));
  EXPECT_EQ(r.types, (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(r.documents, (std::vector<int64_t>{0, 4, 0, 4, 0, 4, 0, 4}));
  EXPECT_EQ(r.y[0], 2);
  d.evalRow(2, r.row());
  EXPECT_EQ(r.x, (std::vector<int32_t>{9, 0, 0, 0}));
  EXPECT_EQ(r.types, (std::vector<int32_t>{0, 0, 0, 0})) << "nothing is left of the text before";
  EXPECT_EQ(r.documents, (std::vector<int64_t>{0, 1, 1, 2, 2, 3, 3, 4}));
  d.emptyRow(r.row());
  EXPECT_EQ(r.x, std::vector<int32_t>(T, 0));
  EXPECT_EQ(r.y[0], -1);
  EXPECT_EQ(r.documents, (std::vector<int64_t>{0, 1, 1, 2, 2, 3, 3, 4}));
  EXPECT_EQ(d.targets(1, 0, 5), 5);
  d.checkTokens();
}

TEST(LabelledData, AnEpochHasEveryTextOfAllFilesOnce) {
  TempDir dir;
  std::vector<std::pair<Text, int32_t>> some, more;
  for (uint32_t i = 0; i < 9; ++i)
    (i < 4 ? some : more).push_back({{i}, int32_t(i % 3)});
  writeFile(dir / "t1.bin", fileOf(some));
  writeFile(dir / "t2.bin", fileOf(more));
  const LabelledData d(dir / "t*.bin", "data.train", limits());
  std::set<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> order;
    for (int64_t g = 9 * epoch; g < 9 * epoch + 9; ++g) {
      Row r, again;
      d.trainingRow(7, g, r.row());
      d.trainingRow(7, g, again.row());
      EXPECT_EQ(r.x, again.x);
      EXPECT_EQ(r.y[0], r.x[0] % 3);
      order.push_back(r.x[0]);
    }
    EXPECT_EQ(std::set<int32_t>(order.begin(), order.end()).size(), 9u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3u) << "each epoch has its own order";
  EXPECT_EQ(d.names(), (std::vector<std::string>{"t1.bin", "t2.bin"}));
}

TEST(LabelledData, BadFilesAreNamed) {
  TempDir dir;
  const std::string good = fileOf(three);
  auto expect = [&](const std::string &file, const std::string &why, LabelledLimits l = limits()) {
    writeFile(dir / "x.bin", file);
    std::string message;
    EXPECT_EQ(codeThrown([&] { LabelledData(dir / "x.bin", "data.train", l); }, &message), int(ErrorCode::DataInvalid))
        << why;
    EXPECT_NE(message.find("x.bin: " + why), std::string::npos) << message;
  };
  auto changed = [&](size_t at, auto value) {
    std::string file = good;
    std::memcpy(&file[at], &value, sizeof value);
    return file;
  };
  LabelledHeader h;
  std::memcpy(&h, good.data(), sizeof h);
  expect("", "no file of texts with labels");
  expect(std::string(3000, 'x'), "no file of texts with labels");
  expect(changed(4, int32_t(2)), "a file of texts of version 2");
  expect(good.substr(0, good.size() - 1), "truncated, or damaged");
  expect(good + "x", "truncated, or damaged");
  expect(changed(8, int64_t(-3)), "truncated, or damaged");
  expect(changed(8, int64_t(1) << 60), "truncated, or damaged");
  expect(changed(16, int64_t(1) << 62), "truncated, or damaged");
  expect(changed(size_t(h.endsAt()), int64_t(0)), "damaged: text 0 ends at token 0");
  expect(changed(size_t(h.endsAt()) + 8, int64_t(2)), "damaged: text 1 ends at token 2");
  expect(changed(size_t(h.endsAt()) + 16, int64_t(1000)), "damaged: text 2 ends at token 1000");
  // The least number overflows no difference.
  for (const int i : {0, 1, 2})
    expect(changed(size_t(h.endsAt()) + size_t(8 * i), std::numeric_limits<int64_t>::min()),
           fmt::format("damaged: text {} ends at token -9223372036854775808 of 8", i));
  // JSON may end in any blanks.
  const std::string blanks(size_t(LabelledHeader::kMostNameBytes), ' ');
  expect(fileOf(three, "[\"a\",\"b\",\"c\"]" + blanks),
         "damaged: its header promises 3 labels, with names of 16777229 bytes");
  for (const int32_t labels : {-1, 0, 1, 65537, std::numeric_limits<int32_t>::max()})
    expect(fileOf(three, "[\"a\",\"b\",\"c\"]", labels),
           fmt::format("damaged: its header promises {} labels, with names of 13 bytes", labels));
  expect(changed(36, int32_t(3)), "damaged: its longest text has 4 tokens, by its header 3");
  expect(changed(size_t(h.labelsAt()), int32_t(3)), "damaged: text 0 has the label 3 of 3");
  expect(changed(size_t(h.labelsAt()), int32_t(-1)), "damaged: text 0 has the label -1 of 3");
  expect(fileOf(three, "[\"a\"", 3), "damaged: it does not name its labels");
  expect(fileOf(three, "[\"a\",\"b\"]", 3), "damaged: it does not name its labels");
  expect(fileOf(three, "[\"b\",\"a\",\"c\"]"),
         "its labels are \"b\", \"a\" and \"c\", and the model's \"a\", \"b\" and \"c\"");
  expect(fileOf(three, "[\"a\",\"b\"]", 2), "its texts have 2 labels, and the model tells 3");
  LabelledLimits two = limits();
  two.names = {};
  two.labels = 2;
  expect(good, "its texts have 3 labels, and the model tells 2", two);
  LabelledLimits shorter = limits();
  shorter.blockSize = 3;
  expect(good, "text 1 has 4 tokens, and the model sees 3", shorter);
  writeFile(dir / "x.bin", fileOf({{{1}, 0}, {{10, 2 | second << 1}, 1}}));
  for (const int64_t vocab : {10, 11}) {
    LabelledLimits l = limits();
    l.vocab = vocab;
    const LabelledData d(dir / "x.bin", "data.train", l);
    std::string message;
    EXPECT_EQ(codeThrown([&] { d.checkTokens(); }, &message), int(ErrorCode::TokenOutOfRange));
    EXPECT_NE(message.find(vocab == 10 ? "text 1 has token 10 of type 0" : "text 1 has token 2 of type 2"),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(codeThrown([&] { LabelledData(dir / "none.bin", "data.train", limits()); }), int(ErrorCode::FileMissing));
  // Who learns tokens has no use for it.
  std::string message;
  EXPECT_EQ(codeThrown([&] { TokenData(dir / "x.bin", "data.train", 10, 2, 3); }, &message),
            int(ErrorCode::DataInvalid));
  EXPECT_NE(message.find("a file of texts with labels"), std::string::npos) << message;
}

TEST(LabelledData, SeveralLabelsAreATargetEach) {
  TempDir dir;
  LabelledLimits l = limits();
  l.problem = ProblemType::multi_label_classification;
  writeFile(dir / "a.bin", fileOf({{{2, 5}, 5}, {{6}, 0}}, "[\"a\",\"b\",\"c\"]", 3, l.problem));
  const LabelledData d(dir / "a.bin", "data.train", l);
  EXPECT_EQ(d.targets(1, 0, 5), 15);
  Row r;
  r.y.assign(4, -7);
  EXPECT_EQ(d.evalRow(0, r.row()), 3);
  EXPECT_EQ(r.y, (std::vector<int32_t>{1, 0, 1, -7}));
  EXPECT_EQ(d.evalRow(1, r.row()), 3);
  EXPECT_EQ(r.y, (std::vector<int32_t>{0, 0, 0, -7}));
  d.emptyRow(r.row());
  EXPECT_EQ(r.y, (std::vector<int32_t>{-1, -1, -1, -7}));
  const auto refused = [&](const std::string &file, const LabelledLimits &by) {
    writeFile(dir / "x.bin", file);
    std::string message;
    EXPECT_EQ(codeThrown([&] { LabelledData(dir / "x.bin", "data.train", by); }, &message),
              int(ErrorCode::DataInvalid));
    return message.substr(message.find("x.bin: ") + 7);
  };
  EXPECT_EQ(refused(fileOf({{{2}, 8}}, "[\"a\",\"b\",\"c\"]", 3, l.problem), l)
                .rfind("damaged: text 0 has a label beyond 3", 0),
            0u);
  EXPECT_EQ(
      refused(fileOf({{{2}, 1}}), l)
          .rfind("its labels are for single_label_classification, and the model's for multi_label_classification", 0),
      0u);
  LabelledHeader h;
  std::string odd = fileOf(three);
  std::memcpy(&h, odd.data(), sizeof h);
  for (const int32_t kind : {-1, 3}) {
    h.problem = kind;
    std::memcpy(&odd[0], &h, sizeof h);
    EXPECT_EQ(refused(odd, l).rfind(fmt::format("damaged: its header promises labels of kind {}", kind), 0), 0u);
  }
  // 33 labels take two words of a text, here those of two texts with one label.
  std::string names = "[\"n0\"", wide;
  for (int i = 1; i < 33; ++i)
    names += fmt::format(",\"n{}\"", i);
  wide = fileOf({{{2}, 1 << 30}, {{6}, 1}}, names + "]", 32, l.problem);
  std::memcpy(&h, wide.data(), sizeof h);
  const auto ends = size_t(h.endsAt()), labels = size_t(h.labelsAt());
  h.texts = 1, h.tokens = 2, h.labels = 33, h.longest = 2;
  std::memcpy(&wide[0], &h, sizeof h);
  wide.erase(ends, labels - ends - 8);  // one end, of two tokens
  const int64_t end = 2;
  std::memcpy(&wide[ends], &end, sizeof end);
  LabelledLimits many = l;
  many.labels = 33;
  many.names = {};
  writeFile(dir / "x.bin", wide);
  r.y.assign(33, -7);
  EXPECT_EQ(LabelledData(dir / "x.bin", "data.train", many).evalRow(0, r.row()), 33);
  std::vector<int32_t> wanted(33, 0);
  wanted[30] = wanted[32] = 1;
  EXPECT_EQ(r.y, wanted);
}

TEST(LabelledData, ARegressionHasANumber) {
  TempDir dir;
  LabelledLimits l = limits();
  l.problem = ProblemType::regression;
  l.labels = 1;
  l.names = {"score"};
  const auto fileWith = [&](float x) {
    return fileOf({{{2, 5}, std::bit_cast<int32_t>(x)}, {{6}, std::bit_cast<int32_t>(-0.5f)}}, "[\"score\"]", 1,
                  l.problem);
  };
  writeFile(dir / "a.bin", fileWith(3.75f));
  const LabelledData d(dir / "a.bin", "data.train", l);
  EXPECT_EQ(d.targets(1, 0, 5), 5);
  Row r;
  r.number = {-7};
  EXPECT_EQ(d.evalRow(0, r.row()), 1);
  EXPECT_EQ(r.number[0], 3.75f);
  d.evalRow(1, r.row());
  EXPECT_EQ(r.number[0], -0.5f);
  d.emptyRow(r.row());
  EXPECT_EQ(r.number[0], 0.0f);
  EXPECT_EQ(r.y[0], -7) << "it has no other target";
  writeFile(dir / "a.bin", fileWith(std::numeric_limits<float>::infinity()));
  std::string message;
  EXPECT_EQ(codeThrown([&] { LabelledData(dir / "a.bin", "data.train", l); }, &message), int(ErrorCode::DataInvalid));
  EXPECT_NE(message.find("text 0 has a label that is no finite number"), std::string::npos) << message;
}

TEST(LabelledData, TheLongestTextIsKnown) {
  TempDir dir;
  writeFile(dir / "t1.bin", fileOf({{{1, 2}, 0}, {{3}, 1}}));
  writeFile(dir / "t2.bin", fileOf(three));
  LabelledLimits l = limits();
  for (const auto &[T, note] : {std::pair(4, ""), {7, ""}, {8, "4 tokens, and each takes model.block_size = 8"}}) {
    l.blockSize = T;
    const std::string said = LabelledData(dir / "t*.bin", "data.train", l).note();
    EXPECT_EQ(said.empty(), !*note) << said;
    EXPECT_NE(said.find(note), std::string::npos) << said;
  }
}

TEST(LabelledData, OfManyNamesADozenIsSaid) {
  TempDir dir;
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i)
    names.push_back(fmt::format("n{}", i));
  LabelledLimits l = limits();
  l.labels = 40;
  l.names = names;
  const std::string file = fileOf(three, fmt::format("[\"{}\"]", fmt::join(names, "\",\"")), 40);
  writeFile(dir / "x.bin", file);
  EXPECT_EQ(LabelledData(dir / "x.bin", "data.train", l).evalWindows(), 3);
  l.names[20] = "other";
  std::string message;
  EXPECT_EQ(codeThrown([&] { LabelledData(dir / "x.bin", "data.train", l); }, &message), int(ErrorCode::DataInvalid));
  EXPECT_NE(message.find("\"n11\" and 28 more"), std::string::npos) << message;
  EXPECT_EQ(message.find("\"n12\""), std::string::npos) << message;
  EXPECT_NE(message.find("label 20 is \"n20\", and the model's \"other\""), std::string::npos) << message;
}

TEST(LabelledData, ThePrintFollowsTokensAndLabels) {
  TempDir dir;
  const auto print = [&](const std::string &file) {
    writeFile(dir / "x.bin", file);
    const LabelledData d(dir / "x.bin", "data.train", limits());
    DataHasher hasher(d, "", "");
    hasher.begin();
    return hasher.print().str();
  };
  const std::string first = print(fileOf(three));
  EXPECT_EQ(print(fileOf(three)), first);
  auto other = three;
  other[0].second = 1;
  EXPECT_NE(print(fileOf(other)), first);
  other = three;
  other[0].first[1] = 6;
  EXPECT_NE(print(fileOf(other)), first);
  other = three;
  std::swap(other[0], other[2]);
  EXPECT_NE(print(fileOf(other)), first);
  const std::atomic<bool> on = false;
  EXPECT_EQ(LabelledData(dir / "x.bin", "k", limits()).content(0, on).largest, 9u) << "of types nothing";
  other[0].first = {10};
  EXPECT_EQ(codeThrown([&] { print(fileOf(other)); }), int(ErrorCode::TokenOutOfRange));
}

}  // namespace
