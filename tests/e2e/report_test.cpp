// gptc report: what it reads of runs, draws and writes.
#include "tests/support/eventually.h"
#include "tests/support/harness.h"
#include "tests/support/oracles.h"
#include "tests/support/whole_run.h"
#include "tools/report/chart.h"
#include "tools/report/run_report.h"

#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <filesystem>

using namespace e2e;
using namespace gptc;
namespace fs = std::filesystem;

namespace {

size_t countOf(const std::string &text, const std::string &word) {
  size_t n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size()))
    ++n;
  return n;
}

std::string stepLine(int64_t step, const std::string &loss) {
  return fmt::format(R"({{"step": {}, "loss": {}, "lr": 0.001, "grad_norm": 1.5, "ms": 10, "tokens_per_s": 6400, )"
                     R"("mfu": 0.25, "time": "2026-03-01T09:30:05.123Z"}})"
                     "\n",
                     step, loss);
}

struct ReportTest : ::testing::Test {
  /// A run's folder with this log.
  std::string folder(const std::string &name, const std::string &log) {
    fs::create_directories(w.path(name));
    writeFile(w.path(name) + "/log.jsonl", log);
    return w.path(name);
  }
  /// The report on runs, which must succeed.
  std::string report(std::vector<std::string> runs, const std::string &says = "") {
    runs.insert(runs.begin(), "report");
    runs.insert(runs.end(), {"-o", w.path("r.html")});
    const Result r = w.gptc(runs);
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find(says), std::string::npos) << r.output;
    return readFile(w.path("r.html"));
  }
  void expectRefused(std::vector<std::string> args, int code, const std::string &says) {
    args.insert(args.begin(), "report");
    const Result r = w.gptc(args);
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find(says), std::string::npos) << says << " is not in\n" << r.output;
  }
  static void expectHas(const std::string &html, const std::vector<std::string> &words) {
    for (const std::string &word : words)
      EXPECT_NE(html.find(word), std::string::npos) << word;
  }
  Workplace w;
};

TEST(Chart, KeepsEverySpikeOfAMillionSteps) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 1000000; ++i)
    points.push_back({double(i), i == 345678 ? 99.0 : i == 700001 ? -7.0 : 1.0 + i % 3 * 0.01});
  const ThinCurve thin = thinned(points, 0, 999999, 250);
  ASSERT_EQ(thin.pieces.size(), 1u);
  EXPECT_TRUE(thin.notFinite.empty());
  const std::vector<ChartPoint> &kept = thin.pieces[0];
  EXPECT_LE(kept.size(), 1000u);
  bool high = false, low = false;
  for (size_t i = 0; i < kept.size(); ++i) {
    high |= kept[i].x == 345678 && kept[i].y == 99;
    low |= kept[i].x == 700001 && kept[i].y == -7;
    if (i > 0) {
      EXPECT_LT(kept[i - 1].x, kept[i].x);
    }
  }
  EXPECT_TRUE(high && low);
  EXPECT_EQ(kept.front().x, 0);
  EXPECT_EQ(kept.back().x, 999999);
  EXPECT_LT(chart("Loss", {{"red", points}}, ChartScale::linear).size(), 30000u);
}

TEST(Chart, BreaksWhereAValueIsNotFinite) {
  const std::vector<ChartPoint> points = {{1, 4}, {2, 3}, {3, NAN}, {4, 2}, {5, INFINITY}, {6, 1}, {7, 1}};
  const ThinCurve thin = thinned(points, 1, 7, 100);
  ASSERT_EQ(thin.pieces.size(), 3u);
  EXPECT_EQ(thin.pieces[0].size(), 2u);
  EXPECT_EQ(thin.pieces[1].size(), 1u);
  EXPECT_EQ(thin.pieces[2].front().x, 6);
  EXPECT_EQ(thin.notFinite, (std::vector<double>{3, 5}));
  const std::string svg = chart("Loss", {{"var(--r0)", points}}, ChartScale::byRatio);
  EXPECT_EQ(countOf(svg, "<polyline"), 2u);
  EXPECT_EQ(countOf(svg, "stroke=\"var(--r0)\" stroke-width=\"2\""), 5u) << "a dot, two crosses\n" << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(chart("Loss", {{"red", {{1, NAN}}}}, ChartScale::linear).find("no finite value"), std::string::npos);
}

TEST(Chart, WhatIsExtremeIsDrawn) {
  for (const ChartScale scale : {ChartScale::linear, ChartScale::fromZero, ChartScale::byRatio})
    for (const std::vector<double> &values : std::vector<std::vector<double>>{
             {1e280, -1e280}, {1e308, 1}, {5e-324, 1e-323}, {0, 0}, {1e-280, 1e280}, {3, 3}, {1e17, 1e17 + 16}}) {
      std::vector<ChartPoint> points;
      for (size_t i = 0; i < values.size(); ++i)
        points.push_back({double(i), values[i]});
      const std::string svg = chart("x", {{"red", points}}, scale);
      EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
      EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
      EXPECT_LT(svg.size(), 20000u);
      EXPECT_EQ(countOf(svg, "<polyline"), canBeDrawn(values[0]) && canBeDrawn(values[1]) ? 1u : 0u) << svg;
    }
}

TEST(Chart, LogarithmicWhereARatioIsLarge) {
  auto isLog = [](double low, double high) {
    return chart("Loss", {{"red", {{0, low}, {1, high}}}}, ChartScale::byRatio).find("logarithmic") !=
           std::string::npos;
  };
  EXPECT_TRUE(isLog(0.1, 3));
  EXPECT_FALSE(isLog(2, 11));
  EXPECT_FALSE(isLog(0, 11));
  EXPECT_FALSE(isLog(-1, 30));
  EXPECT_EQ(evenTicks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  const std::string rates = chart("Rate", {{"red", {{0, 0}, {1, 2e-4}}}}, ChartScale::fromZero);
  EXPECT_NE(rates.find(">5e-05<"), std::string::npos) << rates;
  const std::string flat = chart("Loss", {{"red", {{0, 3.2}, {1, 3.2004}}}}, ChartScale::linear);
  EXPECT_NE(flat.find(">3.2001<"), std::string::npos) << flat;
  EXPECT_EQ(shortNumber(1500000), "1.5M");
  EXPECT_EQ(shortNumber(12000), "12000");
  EXPECT_EQ(shortNumber(0.25), "0.25");
}

TEST(Chart, MarksOfStepsAreWholeAndDistinct) {
  auto marks = [](double low, double high) {
    const std::string svg = chart("Loss", {{"red", {{low, 1}, {high, 2}}}}, ChartScale::linear), place = "y=\"240.0\"";
    std::vector<std::string> all;
    for (size_t at = svg.find(place); at != std::string::npos; at = svg.find(place, at + 1)) {
      const size_t begin = svg.find('>', at) + 1;
      all.push_back(svg.substr(begin, svg.find('<', begin) - begin));
    }
    return all;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(marks(1, 1), (Texts{"1", "2"}));
  EXPECT_EQ(marks(1, 2), (Texts{"1", "2"}));
  EXPECT_EQ(marks(1, 4), (Texts{"1", "2", "3", "4"}));
  EXPECT_EQ(marks(0, 10), (Texts{"0", "5", "10"}));
  EXPECT_EQ(marks(200000, 200003), (Texts{"200000", "200001", "200002", "200003"}));
  EXPECT_EQ(marks(0, 200000), (Texts{"0", "50000", "100k", "150k", "200k"}));
}

TEST(Report, FindsWhereRunsPart) {
  const LoggedValues a = {{1, 4}, {2, NAN}, {3, 2}, {5, 1}}, b = {{2, NAN}, {3, 2}, {4, 7}, {5, 1.5}, {6, 1}};
  const Parting p = partingOf(a, b);
  EXPECT_EQ(p.common, 3);
  EXPECT_EQ(p.at, 5);
  EXPECT_EQ(p.lastEqual, 3);
  EXPECT_EQ(p.a, 1);
  EXPECT_EQ(p.b, 1.5);
  EXPECT_FALSE(partingOf(a, a).at);
  EXPECT_EQ(partingOf(a, {}).common, 0);
}

TEST_F(ReportTest, OfARun) {
  const std::string plan = w.compile("plan", {"train.steps=12", "eval.every=4", "log.every=1"});
  w.train(plan, "first");
  const std::string html = report({w.path("first")});
  EXPECT_EQ(html.rfind(kReportMark, 0), 0u);
  const RunRecord run = readRun(w.path("first"));
  EXPECT_TRUE(run.notes.empty());
  ASSERT_EQ(run.of("loss").size(), 12u);
  ASSERT_EQ(run.of("val_loss").size(), 3u);
  ASSERT_EQ(run.forecasts.size(), 1u);
  ASSERT_FALSE(run.checkpoints.empty());
  EXPECT_EQ(run.checkpoints.back().step, 12);
  EXPECT_EQ(run.tokensPerStep(), double(run.forecasts[0]["tokens_per_step"]));
  expectHas(html, {"<td>12</td>", fmt::format("{:.6g}", run.of("loss").back().second),
                   fmt::format("{:.6g}", run.of("val_loss").back().second), ">Loss<", ">Validation loss<",
                   ">Norm of the gradient", ">Learning rate<", ">Tokens per second<", "Forecast and measurement: first",
                   "<td>matmul</td>", "memory: the plan", "Processes and ranks: first", "Checkpoints: first",
                   "<td>model.n_layer</td>", "<td>train.steps</td><td>12</td>", "prefers-color-scheme:dark",
                   "width=device-width"});
  for (const char *never : {"<script", "http://www.w3.org/1999", "https://", "src=", "url(", "nan,"})
    EXPECT_EQ(html.find(never), std::string::npos) << never;
  EXPECT_EQ(countOf(html, "http"), countOf(html, "http-equiv") + countOf(html, "xmlns=\"http://www.w3.org/2000/svg\""));

  // Beside a run with another learning rate: equal up to the first step's loss, then not.
  const std::string other = w.compile("other", {"train.steps=12", "eval.every=4", "log.every=1", "optimizer.lr=0.009"});
  w.train(other, "second");
  const std::string both = report({w.path("first"), w.path("second")});
  const Parting p = partingOf(run.of("loss"), readRun(w.path("second")).of("loss"));
  ASSERT_TRUE(p.at);
  expectHas(both, {fmt::format("loss first differs at step {}: {} against {}; equal up to step {}", *p.at, p.b, p.a,
                               p.lastEqual),
                   "Differences of configuration", "<tr><td>optimizer.lr</td>", "<td>0.009</td>"});
  EXPECT_EQ(both.find("<tr><td>train.steps</td><td>12</td><td>12</td>"), std::string::npos);
  EXPECT_NE(report({w.path("first"), w.path("first")}).find("loss equal at all 12 common steps"), std::string::npos);
}

TEST_F(ReportTest, WhatIsBrokenIsLeftOutAndSaid) {
  std::string log = stepLine(1, "4.5") + "no line\n" + stepLine(2, "null") + R"({"step": "3", "loss": 1})" + "\n" +
                    R"({"step": 2, "val_loss": 4.25, "val_accuracy": 0.5})" + "\n" + stepLine(3, "3.5") +
                    stepLine(3, "3.25") + "[1]\n" + R"({"step": 4, "loss": "much"})" + "\n" +
                    R"({"step": 18446744073709551615, "loss": 1})" + "\n";
  const std::string run = folder("run", log + R"({"step": 4, "lo)");
  writeFile(run + "/forecast.jsonl", "{\"schema\": 1");
  fs::create_directories(run + "/checkpoints/step-00000003");
  const std::string html = report({run}, "note: ");
  expectHas(html, {"5 lines of the log are left out: not what gptrun writes (the first is line 2).",
                   "The last line of the log, line 11, is not complete and left out",
                   "The log has 1 step more than once", "1 line of forecast.jsonl cannot be read and is left out.",
                   "1 checkpoint without a readable manifest.json is left out.", "<td>3.25</td>",
                   "(1 not finite: \u00d7)", "Validation: accuracy", "Not known: no process of the run has ended"});
  EXPECT_EQ(html.find("<td>3.5</td>"), std::string::npos) << "the later line of a step counts";

  // A last line that only lacks its end is whole.
  EXPECT_EQ(readRun(folder("whole", R"({"step": 7, "loss": 2})")).of("loss"), (LoggedValues{{7, 2}}));
  // A run that has just begun.
  EXPECT_NE(report({folder("begun", "")}).find("The log has no step yet."), std::string::npos);
  EXPECT_NE(report({folder("begins", "{\"st")}).find("is not complete"), std::string::npos);
}

TEST_F(ReportTest, NothingInAFolderIsMarkup) {
  const std::string run = folder("<b>&\"x'", stepLine(1, "4.5"));
  writeFile(run + "/forecast.jsonl",
            R"({"schema": 1, "time": "<i>", "target": "<u>", "predicted": {"kernels": {"<s>": 1}}, )"
            R"("measured": {"s_per_step": 2}, "settings": ["name=\"<script>alert(1)</script>\"", "<q>=\u0000"]})"
            "\n");
  const std::string html = report({run});
  for (const char *never : {"<b>", "<i>", "<u>", "<s>", "<q>", "<script"})
    EXPECT_EQ(html.find(never), std::string::npos) << never;
  expectHas(html, {"&lt;script&gt;alert(1)", "&lt;b&gt;&amp;&quot;x&#39;"});
  EXPECT_EQ(htmlText("a\xff<"), "a\xef\xbf\xbd&lt;");
}

TEST_F(ReportTest, WhatIsNoRunIsRefused) {
  expectRefused({w.path("nowhere")}, 3, "error[GPTC0301]: there is no run in " + w.path("nowhere"));
  fs::create_directories(w.path("out"));
  const std::string run = folder("out/mine", stepLine(1, "4.5"));
  expectRefused({w.path("out")}, 3, "there are runs in \"" + run + "\"");
  expectRefused({folder("junk", "a\nb\n")}, 3, "error[GPTC0302]");
  expectRefused({}, 2, "RUN");
  // No log is lost that is named by mistake.
  const std::string log = readFile(run + "/log.jsonl");
  expectRefused({run, "-o", run + "/log.jsonl"}, 2, "is there, and no report");
  EXPECT_EQ(readFile(run + "/log.jsonl"), log);
  expectRefused({run, "-o", w.path("out")}, 2, "is there, and no report");
  expectRefused({run, "-o", w.path("no/such/r.html")}, 4, "error[GPTC0401]");
  // One that cannot be written leaves the old report.
  const std::string old = report({run});
  expectRefused({run, w.path("nowhere"), "-o", w.path("r.html")}, 3, "nowhere");
  EXPECT_EQ(readFile(w.path("r.html")), old);
}

TEST_F(ReportTest, FollowsARun) {
  const std::string run = folder("run", stepLine(1, "4.5")), file = w.path("r.html");
  auto shows = [&](const std::string &word) {
    return gptc::test::eventually([&] { return fs::exists(file) && readFile(file).find(word) != std::string::npos; });
  };
  Process watching = w.start("gptc", {"report", run, "--watch", "-o", file});
  ASSERT_TRUE(shows("<td>4.5</td>"));
  EXPECT_NE(readFile(file).find("http-equiv=\"refresh\""), std::string::npos);
  writeFile(run + "/log.jsonl", stepLine(1, "4.5") + stepLine(2, "3.125"));
  EXPECT_TRUE(shows("<td>3.125</td>"));
  // A run that starts over moves its log away: the report stays.
  fs::rename(run + "/log.jsonl", run + "/old.jsonl");
  writeFile(run + "/log.jsonl", stepLine(1, "7.75"));
  EXPECT_TRUE(shows("<td>7.75</td>"));
  EXPECT_FALSE(watching.hasEnded());
  ::kill(watching.pid(), SIGTERM);
  EXPECT_EQ(watching.wait().code, 0);
  EXPECT_EQ(readFile(file).find("http-equiv=\"refresh\""), std::string::npos) << "the last one stays";
  EXPECT_NE(readFile(file).find("<td>7.75</td>"), std::string::npos);
}

TEST_F(ReportTest, AnEmptyLogReplacesNothing) {
  const std::string run = folder("run", stepLine(1, "4.5")), other = folder("other", stepLine(1, "6.5"));
  const std::string file = w.path("r.html");
  auto shows = [&](const std::string &word) {
    return gptc::test::eventually([&] { return fs::exists(file) && readFile(file).find(word) != std::string::npos; });
  };
  Process watching = w.start("gptc", {"report", run, other, "--watch", "-o", file});
  ASSERT_TRUE(shows("<td>4.5</td>"));
  for (const char *empty : {"", "{\"st", "no line\n"}) {
    writeFile(run + "/log.jsonl", empty);
    const std::string loss = fmt::format("{}.25", 10 + std::string(empty).size());
    writeFile(other + "/log.jsonl", stepLine(1, loss));
    EXPECT_TRUE(shows("<td>" + loss + "</td>")) << "others go on";
    EXPECT_TRUE(shows("<td>4.5</td>")) << empty;
  }
  ::kill(watching.pid(), SIGTERM);
  EXPECT_EQ(watching.wait().code, 0);
  EXPECT_NE(readFile(file).find("<td>4.5</td>"), std::string::npos);
  EXPECT_EQ(readFile(file).find("http-equiv=\"refresh\""), std::string::npos) << "the last one stays";
}

TEST_F(ReportTest, ABrowserShowsItOnAPhone) {
  std::string log, other;
  for (int i = 1; i <= 3000; ++i) {
    log += stepLine(i, i == 77 ? "null" : fmt::format("{}", 1 + 30.0 / i));
    other += stepLine(i, fmt::format("{}", 1 + 31.0 / i));
  }
  report({folder("a-run-with-a-name-that-is-much-longer-than-the-screen-of-a-phone-is-wide", log), folder("b", other)});
  // Loss, norm, rate, tokens per second, MFU.
  const gptc::test::Compared r = gptc::test::compareBy("tests/e2e/report_compare.py", "'" + w.path("r.html") + "' 5");
  if (r.isMissing())
    GTEST_SKIP() << r.said;
  EXPECT_EQ(r.code, 0) << r.said;
}

}  // namespace
