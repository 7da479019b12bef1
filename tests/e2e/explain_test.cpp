// gptc explain names the decisions of a plan, with numbers that hold.
#include "tests/support/harness.h"

#include "ir/graph.h"
#include "runtime/plan/plan.h"
#include "support/gguf/gguf_file.h"
#include "support/json.h"

#include <filesystem>
#include <map>
#include <set>

using namespace e2e;
using nlohmann::json;

namespace {

struct Explain : ::testing::Test {
  json of(const std::string &plan, const std::vector<std::string> &more = {}) {
    std::vector<std::string> args = {"explain", plan, "--json"};
    args.insert(args.end(), more.begin(), more.end());
    Result r = w.gptc(args);
    EXPECT_EQ(r.code, 0) << r.output;
    return gptc::parseJson<json>(r.output);
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

// Of the tiny model: 2 layers, 2 heads, width 32, 4 sequences of 16, a vocabulary of 64 padded to 128.
TEST_F(Explain, EveryKindOfDecision) {
  json e = of(w.compile("plan", {"model.dropout=0.1"}));
  json d = decision(e, "fuse", "epilogue");
  EXPECT_EQ(d["choice"], "10 matmuls with pointwise ops on their result");
  EXPECT_LT(d["effect"]["traffic_bytes"], 0) << d;
  d = decision(e, "fuse", "row");
  EXPECT_EQ(d["choice"], "7 row groups of several ops");
  EXPECT_LT(d["effect"]["traffic_bytes"], 0) << d;
  EXPECT_LT(decision(e, "fuse", "pointwise")["effect"]["traffic_bytes"], 0);
  EXPECT_LT(decision(e, "fuse", "bias")["effect"]["traffic_bytes"], 0);
  d = decision(e, "fuse", "attention");
  EXPECT_EQ(d["choice"], "2 as one op");
  EXPECT_LE(d["effect"]["arena_bytes"], -2.0 * 4 * 2 * 16 * 16 * 4) << "at least the weights of both layers, in f32";
  d = decision(e, "fuse", "optimizer");
  EXPECT_EQ(d["choice"], "AdamW of 28 parameters as one sweep");
  EXPECT_LT(d["effect"]["traffic_bytes"], 0);
  d = decision(e, "fuse", "dropout");
  EXPECT_EQ(d["choice"], "10 masks from counters, none stored");
  EXPECT_EQ(d["effect"]["arena_bytes"], -5.0 * 4 * 16 * 32) << "a byte for each element of five sums";
  // Weight, bias and gain of all linear layers and norms, the two tables; each with two moments; and the step.
  const double layer = 32 * (96 + 32 + 128) + 128 * 32 + (96 + 32 + 128 + 32) + 2 * 2 * 32,
               parameters = 128 * 32 + 16 * 32 + 2 * layer + 2 * 32;
  d = decision(e, "settle-writes", "in_place");
  EXPECT_EQ(d["choice"], "85 states computed where they lie");
  EXPECT_EQ(d["effect"]["traffic_bytes"], -2 * (3 * 4 * parameters + 8));
  EXPECT_EQ(d["effect"]["arena_bytes"], -128.0 * 32 * 4);
  d = decision(e, "pad-vocab", "states");
  EXPECT_GE(d["effect"]["arena_bytes"], 3.0 * 64 * 32 * 4) << "table, moments";
  // And as a table, with a line for each.
  Result r = w.gptc({"explain", w.path("plan")});
  EXPECT_EQ(r.code, 0);
  for (const char *row : {"fuse epilogue", "remat all", "rejected: full", "order peak", "micro-batch size"})
    EXPECT_NE(r.output.find(row), std::string::npos) << row << " is missing in\n" << r.output;
}

// The step as forecast has the kernels of a step as measured, in its order and under its names, on a line of its own.
TEST_F(Explain, TracesOfAForecastAndOfARunHaveTheSameKernels) {
  using Words = std::vector<std::string>;
  for (const Words &settings : {Words{}, Words{"train.global_batch_tokens=512", "parallel.logical_shards=4"}}) {
    std::vector<std::string> all = settings;
    all.insert(all.end(), {"train.steps=2", "checkpoint.every=0", "log.trace_steps=[2, 2]"});
    const std::string plan = w.compile(fmt::format("traced-{}", settings.size()), all), out = plan + "-out";
    ASSERT_EQ(w.gptrun({plan, "--out-dir", out}).code, 0);
    const Result r = w.gptc({"explain", plan, "--trace", w.path("forecast.json")});
    ASSERT_EQ(r.code, 0) << r.output;
    struct Read {
      Words kernels;
      double end = 0, step = 0;
      std::set<int> processes;
    };
    auto read = [](const std::string &file, bool measured) {
      Read of;
      const json trace = gptc::parseJson<json>(readFile(file));
      for (const json &e : trace.at("traceEvents")) {
        of.processes.insert(int(e["pid"]));
        if (e["ph"] == "M")
          continue;
        if (e["cat"] == "step") {
          of.step = e["dur"];
          continue;
        }
        EXPECT_GE(double(e["ts"]), of.end - 0.01) << "one by one";
        const double seconds = e["dur"];
        EXPECT_TRUE(seconds > 0 || (measured && seconds == 0)) << "a clock may be coarse";
        of.end = double(e["ts"]) + seconds;
        of.kernels.push_back(e["cat"].get<std::string>() + " " + e["name"].get<std::string>());
      }
      return of;
    };
    const Read forecast = read(w.path("forecast.json"), false), measured = read(out + "/trace.json", true);
    EXPECT_EQ(forecast.kernels, measured.kernels);
    EXPECT_GT(forecast.kernels.size(), 30u);
    EXPECT_NEAR(forecast.step, forecast.end, 0.01);
    EXPECT_EQ(forecast.processes, std::set<int>{2});
    EXPECT_EQ(measured.processes, std::set<int>{1});
  }
  EXPECT_EQ(w.gptc({"explain", w.path("traced-0"), "--trace", w.path("nowhere/trace.json")}).code, 4);
  EXPECT_EQ(w.gptc({"explain", w.path("traced-0"), "--json", "--trace", w.path("x.json")}).code, 2);
}

// What an alternative is said to need is what it needs.
TEST_F(Explain, AlternativesAsCompiled) {
  const std::vector<std::string> model = {"model.dropout=0.1", "model.vocab_size=70", "compile.remat=none"};
  auto with = [&](const std::string &name, const std::string &setting) {
    std::vector<std::string> settings = model;
    if (!setting.empty())
      settings.push_back(setting);
    return w.compile(name, settings);
  };
  struct Case {
    const char *pass, *name, *choice, *setting;
  };
  const std::string plan = with("plan", "");
  json e = of(plan);
  int n = 0;
  for (const Case &c : {Case{"precision", "compute", "bf16", "precision.compute=bf16"},
                        {"precision", "optimizer_state", "bf16", "precision.optimizer_state=bf16"},
                        {"micro-batch", "size", "2 x 2", "train.micro_batch=2"}}) {
    const std::string other = with("other" + std::to_string(n++), c.setting);
    json d = decision(e, c.pass, c.name);
    ASSERT_EQ(d["rejected"].size(), 1u) << d;
    EXPECT_EQ(d["rejected"][0]["choice"], c.choice);
    EXPECT_EQ(d["rejected"][0]["effect"]["arena_bytes"], double(arena(other) - arena(plan))) << d;
    // And seen from there.
    if (c.pass == std::string("precision")) {
      d = decision(of(other), c.pass, c.name);
      EXPECT_EQ(d["choice"], c.choice);
      EXPECT_EQ(d["effect"]["arena_bytes"], double(arena(other) - arena(plan))) << d;
    }
  }
}

TEST_F(Explain, ResidualStreamInLowPrecisionIsAnAlternative) {
  auto with = [&](const std::string &name, const std::string &residual) {
    return w.compile(name, {"precision.compute=bf16", "precision.residual=" + residual, "compile.remat=none"});
  };
  const std::string wide = with("wide", "fp32"), low = with("low", "compute");
  json d = decision(of(wide), "precision", "residual");
  EXPECT_EQ(d["choice"], "fp32");
  ASSERT_EQ(d["rejected"].size(), 1u) << d;
  EXPECT_EQ(d["rejected"][0]["choice"], "compute");
  EXPECT_EQ(d["rejected"][0]["effect"]["arena_bytes"], double(arena(low) - arena(wide))) << d;
  EXPECT_LT(d["rejected"][0]["effect"]["traffic_bytes"], 0) << d;
  d = decision(of(low), "precision", "residual");
  EXPECT_EQ(d["choice"], "compute");
  EXPECT_EQ(d["effect"]["arena_bytes"], double(arena(low) - arena(wide))) << d;
  EXPECT_LT(d["effect"]["traffic_bytes"], 0) << d;
}

TEST_F(Explain, AblationMeasuresTheSameModel) {
  Result r = w.gptc({"bench", "ablate", w.modelFile(), "--set", "model.dropout=0", "--steps", "3", "--json"});
  ASSERT_EQ(r.code, 0) << r.output;
  // What only puts ops into other kernels leaves every bit; the others round elsewhere.
  std::map<std::string, json> measured;
  for (const json &v : gptc::parseJson<json>(r.output))
    if (!v.contains("skipped"))
      measured[v["name"]] = v;
  for (const char *name : {"unfused pointwise", "separate bias", "no epilogues", "unpadded vocabulary", "remat full"}) {
    ASSERT_TRUE(measured.count(name)) << name << " is missing in\n" << r.output;
    EXPECT_EQ(measured[name]["loss"], measured[name]["base_loss"]) << name;
  }
  for (const char *name : {"decomposed attention", "primitive optimizer", "all off"}) {
    ASSERT_TRUE(measured.count(name)) << name << " is missing in\n" << r.output;
    EXPECT_NEAR(measured[name]["loss"].get<double>(), measured[name]["base_loss"].get<double>(), 1e-4) << name;
  }
  EXPECT_EQ(measured.size(), 8u) << r.output;
  // Prediction knows what each is for.
  EXPECT_LT(measured["remat full"]["arena_bytes"], measured["remat full"]["base_arena_bytes"]);
  for (const char *name : {"remat full", "decomposed attention", "primitive optimizer", "all off"})
    EXPECT_GT(measured[name]["predicted_ms"], measured[name]["predicted_base_ms"]) << name;
  // "all off" needs more memory: attention keeps its weights.
  r = w.gptc({"bench", "ablate", w.modelFile(), "--steps", "1", "--only", "all off", "--json"});
  ASSERT_EQ(r.code, 0) << r.output;
  json all = gptc::parseJson<json>(r.output);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_GT(all[0]["arena_bytes"], all[0]["base_arena_bytes"]);
}

// A budget that the model meets and a variant does not: that one is a row without figures, the others are measured.
TEST_F(Explain, AblationSkipsWhatABudgetRulesOut) {
  Result r = w.gptc({"bench", "ablate", w.modelFile(), "--set", "compile.remat=1KiB"});
  ASSERT_EQ(r.code, 4) << r.output;
  const size_t at = r.output.find("help: \"");
  ASSERT_NE(at, std::string::npos) << r.output;
  const std::string least = r.output.substr(at + 7, r.output.find('"', at + 7) - at - 7);
  r = w.gptc({"bench", "ablate", w.modelFile(), "--set", "compile.remat=" + least, "--steps", "1", "--json"});
  ASSERT_EQ(r.code, 0) << r.output;
  int measured = 0;
  for (const json &v : gptc::parseJson<json>(r.output)) {
    measured += v.contains("ms");
    if (v["name"] != "decomposed attention")
      continue;
    EXPECT_NE(v.value("skipped", "").find("no plan fits into"), std::string::npos) << v;
    EXPECT_FALSE(v.contains("arena_bytes")) << v;
  }
  EXPECT_GT(measured, 0) << r.output;
}

// Matrices by format, and how far they are from the weights of a checkpoint.
TEST_F(Explain, WhatFewBitsChange) {
  const std::string plan = w.compile("plan", {"model.n_embd=256", "model.ffn_dim=320", "train.steps=1",
                                              "precision.weights=q4_k", "precision.eight_bits='h.1.attn.*'"});
  const std::vector<std::string> rounding = {"--rounding"};
  json e = of(plan, rounding)["weights"];
  EXPECT_EQ(e["weights"], "q4_k");
  EXPECT_TRUE(e["from"].is_null()) << e.dump(1);
  EXPECT_NE(e["unmeasured"].get<std::string>().find("no checkpoint yet"), std::string::npos) << e.dump(1);
  w.train(plan, "out");
  e = of(plan)["weights"];
  EXPECT_EQ(e["unmeasured"], "--rounding measures them") << e.dump(1);
  EXPECT_TRUE(e["matrices"][0]["relative_error"].is_null()) << e.dump(1);
  e = of(plan, rounding)["weights"];
  EXPECT_TRUE(e["from"].is_string()) << e.dump(1);
  std::map<std::string, std::string> formats;
  for (const json &m : e["matrices"]) {
    const std::string format = m["format"];
    formats[m["name"]] = format;
    const double error = m["relative_error"];
    EXPECT_GT(error, 0) << m.dump();
    EXPECT_LT(error, format == "q4_k" ? 0.15 : 0.01) << m.dump();
    EXPECT_GT(error, format == "q4_k" ? 0.02 : 0.001) << m.dump();
    EXPECT_LT(m["bytes_kept"], m["bytes_computed"]) << m.dump();
  }
  EXPECT_EQ(formats["h.0.attn.c_attn.weight"], "q4_k");
  EXPECT_EQ(formats["h.1.attn.c_attn.weight"], "q8_0") << "eight_bits";
  EXPECT_EQ(formats["h.0.mlp.c_proj.weight"], "q8_0") << "320 inputs";
  EXPECT_EQ(formats["wte.weight"], "q8_0") << "the classifier";
  EXPECT_NE(e["note"].get<std::string>().find("no blocks of 256"), std::string::npos) << e.dump(1);
  const Result r = w.gptc({"explain", plan});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("q4_k for sampling and serving"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find(" less of them; "), std::string::npos) << r.output;
  EXPECT_EQ(of(w.compile("compute", {}))["weights"], json()) << "nothing to say";
  // Blocks that are kept as a file has them are no further from it.
  const std::string gguf = w.path("x.gguf");
  ASSERT_EQ(w.gptc({"export", w.path("out"), "-o", gguf, "--dtype", "q8_0"}).code, 0);
  e = of(w.compile("kept", {"model.n_embd=256", "model.ffn_dim=320", "precision.weights=q8_0",
                            "out_dir='" + w.path("none") + "'", "model.init_from='gguf:" + gguf + "'"}),
         rounding)["weights"];
  EXPECT_EQ(e["from"], gguf) << e.dump(1);
  EXPECT_EQ(e["matrices"].size(), 9u) << e.dump(1);
  for (const json &m : e["matrices"])
    EXPECT_EQ(m["relative_error"], 0.0) << m.dump();
}

TEST_F(Explain, HowTheWorkDividesAmongThreadsThatAreNotHere) {
  const std::string plan = w.compile("plan");
  const json one = of(plan, {"--threads", "1"}), many = of(plan, {"--threads", "128"});
  ASSERT_EQ(one["functions"].size(), many["functions"].size());
  EXPECT_LE(many["stack_bytes_of_kernels"], 1 << 20) << "the rule of stack buffers";
  const auto loaded = gptc::loadPlan(plan);
  for (size_t f = 0; f < one["functions"].size(); ++f) {
    const json &few = one["functions"][f], &all = many["functions"][f];
    ASSERT_EQ(few["between_barriers"].size(), all["between_barriers"].size()) << all["function"];
    int64_t kernels = 0, barriers = 0;
    for (size_t i = 0; i < all["between_barriers"].size(); ++i) {
      const json &s = all["between_barriers"][i];
      const int64_t pieces = s["pieces"], tasks = s["tasks"], times = s["times"];
      EXPECT_EQ(few["between_barriers"][i]["tasks"], tasks) << s;
      EXPECT_EQ(few["between_barriers"][i]["busy"], 1.0) << s;
      EXPECT_LE(pieces, tasks) << s;
      EXPECT_EQ(s["busy"], double(pieces) / double((pieces + 127) / 128 * 128)) << s;
      kernels += int64_t(s["kernels"]) * times;
      barriers += tasks > 1 ? times : 0;
    }
    EXPECT_EQ(all["barriers"], barriers) << all["function"];
    if (all["function"] == "train_step") {
      EXPECT_GT(barriers, 0);
    }
    EXPECT_EQ(few["barriers"], 0) << all["function"];
    int64_t groups = 0;
    for (const gptc::Op &op : loaded.planned->function(all["function"].get<std::string>())->body)
      groups += op.is(gptc::OpKind::fused);
    EXPECT_GE(kernels, groups) << all["function"] << ": each in one stretch for each of its phases";
    EXPECT_GT(groups, 0) << all["function"];
  }
  const Result r = w.gptc({"explain", plan, "--threads", "128"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("threads     128 on paper"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("@train_step: "), std::string::npos) << r.output;
}

// Weights that are not finite cannot be kept in few bits, and that is said; weights that are not there are no error.
TEST_F(Explain, WeightsThatAreNotFiniteAreNamed) {
  w.train(w.compile("plain", {"train.steps=1"}), "out");
  const std::string gguf = w.path("x.gguf");
  ASSERT_EQ(w.gptc({"export", w.path("out"), "-o", gguf, "--dtype", "fp32"}).code, 0);
  std::string bytes = readFile(gguf);
  const size_t at = size_t(gptc::GgufFile(gguf).find("blk.0.ffn_down.weight")->at);
  bytes.replace(at, 4, std::string("\0\0\xc0\x7f", 4));  // a NaN
  writeFile(gguf, bytes);
  const std::string init = "model.init_from='gguf:" + gguf + "'";
  const std::string few = w.compile("few", {"precision.weights=q8_0", init, "out_dir='" + w.path("none") + "'"});
  Result r = w.gptc({"explain", few, "--rounding"});
  EXPECT_EQ(r.code, 4) << r.output;
  EXPECT_NE(r.output.find("error[GPTC0406]: h.0.mlp.c_proj.weight has values that are not finite"), std::string::npos)
      << r.output;
  writeFile(gguf, bytes.substr(0, bytes.size() / 2));
  for (bool isThere : {true, false}) {
    if (!isThere)
      std::filesystem::remove(gguf);
    r = w.gptc({"explain", few, "--rounding"});
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("errors are not measured"), std::string::npos) << r.output;
  }
}

}  // namespace
