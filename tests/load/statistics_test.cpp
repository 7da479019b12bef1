#include "tools/load/statistics.h"

#include "tools/load/load_report.h"

#include <gtest/gtest.h>

using namespace gptc::load;

namespace {

// numpy.percentile(range(1, 11), p), and of one value.
TEST(LoadStatistics, PercentilesLieBetweenRanks) {
  const Distribution d({10, 9, 8, 7, 6, 5, 4, 3, 2, 1});
  EXPECT_DOUBLE_EQ(d.mean, 5.5);
  EXPECT_DOUBLE_EQ(d.at(0), 1);
  EXPECT_DOUBLE_EQ(d.at(25), 3.25);
  EXPECT_DOUBLE_EQ(d.at(50), 5.5);
  EXPECT_DOUBLE_EQ(d.at(90), 9.1);
  EXPECT_DOUBLE_EQ(d.at(99), 9.91);
  EXPECT_DOUBLE_EQ(d.at(100), 10);
  EXPECT_DOUBLE_EQ(d.at(101), 10);
  EXPECT_DOUBLE_EQ(d.most(), 10);
  EXPECT_DOUBLE_EQ(Distribution({7}).at(99), 7);
  EXPECT_DOUBLE_EQ(Distribution({}).at(99), 0);
  EXPECT_DOUBLE_EQ(Distribution({}).mean, 0);
}

Outcome outcome(double start, std::vector<double> chunks, int64_t tokens, int64_t asked, bool byUsage = true) {
  Outcome o;
  o.start = start;
  o.chunks = std::move(chunks);
  o.end = o.chunks.back() + 0.5;
  o.promptTokens = 10;
  o.outputTokens = tokens;
  o.maxTokens = asked;
  o.byUsage = byUsage;
  return o;
}

TEST(LoadReport, FiguresAreThoseOfTheRequests) {
  LoadResult r;
  // Four tokens in three chunks; two, of three asked, in two.
  r.outcomes = {outcome(0, {1, 2, 4}, 4, 4), outcome(2, {2.5, 2.75}, 2, 3)};
  for (int i = 0; i < 2; ++i) {
    Outcome &failed = r.outcomes.emplace_back();
    failed.start = 3 + i;
    failed.failed = true;
    failed.failure = "HTTP 503";
    failed.detail = i ? "later" : "full <&>";
    failed.chunks = {100, 200};  // are not counted
  }
  r.seconds = 5;
  r.peakInFlight = 3;
  LoadQuestion q;
  q.model = "a<b";
  q.requests = 4;
  q.rate = 2;
  const LoadReport report(q, r);
  EXPECT_EQ(report.ttft.sorted, (std::vector<double>{500, 1000}));
  EXPECT_EQ(report.tpot.sorted, (std::vector<double>{250, 1000}));
  EXPECT_EQ(report.itl.sorted, (std::vector<double>{250, 1000, 2000}));
  EXPECT_EQ(report.e2el.sorted, (std::vector<double>{1250, 4500}));
  const nlohmann::ordered_json j = report.json();
  EXPECT_EQ(j["completed"], 2);
  EXPECT_EQ(j["failed"], 2);
  EXPECT_EQ(j["errors"].dump(), R"([{"kind":"HTTP 503","count":2,"example":"full <&>"}])");
  EXPECT_EQ(j["total_output_tokens"], 6);
  EXPECT_EQ(j["total_input_tokens"], 20);
  EXPECT_EQ(j["short_answers"], 1);
  EXPECT_EQ(j["token_counts"], "usage");
  EXPECT_DOUBLE_EQ(j["request_throughput"], 0.4);
  EXPECT_DOUBLE_EQ(j["output_throughput"], 1.2);
  EXPECT_DOUBLE_EQ(j["total_token_throughput"], 5.2);
  EXPECT_DOUBLE_EQ(j["sent_request_rate"], 0.75);  // three after the first, in 4 s
  EXPECT_EQ(j["request_rate"], 2);
  EXPECT_TRUE(j["max_concurrency"].is_null());
  EXPECT_DOUBLE_EQ(j["median_itl_ms"], 1000);
  EXPECT_DOUBLE_EQ(j["max_e2el_ms"], 4500);
  const std::string table = report.table();
  EXPECT_NE(table.find("2 completed, 2 failed"), std::string::npos) << table;
  EXPECT_NE(table.find("2x HTTP 503: full <&>"), std::string::npos) << table;
  EXPECT_NE(table.find("2 asked, 0.75 sent"), std::string::npos) << table;
  const std::string svg = report.picture();
  EXPECT_NE(svg.find("a&lt;b: 2 requests, 2 in a second"), std::string::npos) << svg;
  EXPECT_NE(svg.find("median 750 ms"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
}

TEST(LoadReport, NothingMeasuredIsSaid) {
  LoadResult r;
  r.outcomes.resize(1);
  r.outcomes[0].failed = true;
  LoadQuestion q;
  q.requests = 1;
  q.clients = 1;
  const LoadReport report(q, r);
  EXPECT_TRUE(report.json()["mean_ttft_ms"].is_null());
  EXPECT_TRUE(report.json()["sent_request_rate"].is_null());
  EXPECT_NE(report.picture().find("nothing was measured"), std::string::npos);
}

TEST(LoadReport, CountsOfChunksAreSaid) {
  LoadResult r;
  r.outcomes = {outcome(0, {1, 2}, 2, 2), outcome(0, {1, 2}, 2, 2, false)};
  r.outcomes[1].promptTokens = -1;
  LoadQuestion q;
  q.requests = 2;
  q.clients = 2;
  EXPECT_EQ(LoadReport(q, r).json()["token_counts"], "mixed");
  EXPECT_TRUE(LoadReport(q, r).json()["total_input_tokens"].is_null());
  r.outcomes[0].byUsage = false;
  EXPECT_EQ(LoadReport(q, r).json()["token_counts"], "chunks");
}

}  // namespace
