// gptc explain names the decisions of a plan, with numbers that hold.
#include "harness.h"

#include "runtime/plan.h"

#include <nlohmann/json.hpp>

using namespace e2e;
using nlohmann::json;

namespace {

struct Explain : ::testing::Test {
  json of(const std::string &plan) {
    Result r = w.gptc({"explain", plan, "--json"});
    EXPECT_EQ(r.code, 0) << r.output;
    return json::parse(r.output);
  }
  static json decision(const json &all, const std::string &pass, const std::string &name) {
    for (const json &d : all["decisions"])
      if (d["pass"] == pass && d["name"] == name)
        return d;
    ADD_FAILURE() << "no decision " << pass << " " << name << " in\n" << all.dump(1);
    return {};
  }
  static int64_t arena(const std::string &plan) { return gptc::loadPlan(plan).planned->attrs.getInt("arena_bytes"); }
  Workplace w;
};

TEST_F(Explain, WhatRematWouldDoIsWhatItDoes) {
  const std::vector<std::string> model = {"model.n_layer=3", "model.dropout=0.1"};
  auto with = [&](const char *remat) {
    std::vector<std::string> settings = model;
    settings.push_back(std::string("compile.remat=") + remat);
    return w.compile(std::string("plan-") + remat, settings);
  };
  const std::string none = with("none"), full = with("full");
  json e = of(none);
  EXPECT_EQ(e["arena_bytes"], arena(none));
  EXPECT_GT(e["step"]["ms"], 0);
  json remat = decision(e, "remat", "all");
  EXPECT_EQ(remat["choice"], "none");
  ASSERT_EQ(remat["rejected"].size(), 1u);
  EXPECT_EQ(remat["rejected"][0]["choice"], "full");
  EXPECT_EQ(remat["rejected"][0]["effect"]["arena_bytes"], double(arena(full) - arena(none)));
  EXPECT_GT(remat["rejected"][0]["effect"]["ms"], 0);

  remat = decision(of(full), "remat", "all");
  EXPECT_EQ(remat["choice"], "full");
  EXPECT_EQ(remat["effect"]["arena_bytes"], double(arena(full) - arena(none)));
  EXPECT_EQ(remat["rejected"][0]["choice"], "none");
  EXPECT_EQ(remat["rejected"][0]["effect"]["arena_bytes"], double(arena(none) - arena(full)));
}

TEST_F(Explain, EveryKindOfDecision) {
  json e = of(w.compile("plan", {"model.dropout=0.1"}));
  for (const char *name : {"epilogue", "bias", "row", "pointwise"}) {
    json d = decision(e, "fuse", name);
    EXPECT_LE(d["effect"]["traffic_bytes"], 0) << d;
    EXPECT_NE(d["choice"].get<std::string>().find_first_of("123456789"), std::string::npos) << d;
  }
  EXPECT_LT(decision(e, "fuse", "attention")["effect"]["arena_bytes"], 0);
  EXPECT_LT(decision(e, "fuse", "dropout")["effect"]["arena_bytes"], 0);
  EXPECT_LT(decision(e, "settle-writes", "in_place")["effect"]["traffic_bytes"], 0);
  EXPECT_FALSE(decision(e, "micro-batch", "size")["rejected"].empty());
  // And as a table, with a line for each.
  Result r = w.gptc({"explain", w.path("plan")});
  EXPECT_EQ(r.code, 0);
  for (const char *row : {"fuse epilogue", "remat all", "rejected: full", "order peak", "micro-batch size"})
    EXPECT_NE(r.output.find(row), std::string::npos) << row << " is missing in\n" << r.output;
}

TEST_F(Explain, AblationMeasuresTheSameModel) {
  Result r = w.gptc({"bench", "ablate", w.modelFile(), "--set", "model.dropout=0", "--steps", "3", "--json"});
  ASSERT_EQ(r.code, 0) << r.output;
  int measured = 0;
  for (const json &v : json::parse(r.output)) {
    if (v.contains("skipped"))
      continue;
    ++measured;
    EXPECT_NEAR(v["loss"].get<double>(), v["base_loss"].get<double>(), 1e-4) << v;
    EXPECT_GT(v["slowdown"]["median"], 0) << v;
    EXPECT_LE(v["ms"]["least"], v["ms"]["median"]) << v;
    EXPECT_GT(v["predicted_ms"], 0) << v;
  }
  EXPECT_GE(measured, 5) << r.output;
  // "all off" is there, and needs more memory: attention keeps its weights.
  r = w.gptc({"bench", "ablate", w.modelFile(), "--steps", "1", "--only", "all off", "--json"});
  ASSERT_EQ(r.code, 0) << r.output;
  json all = json::parse(r.output);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_GT(all[0]["arena_bytes"], all[0]["base_arena_bytes"]);
}

}  // namespace
