// Plans that somebody changed and gave right checksums: refused, or run without harm; never a crash, never a report of
// a bug.
#include "harness.h"

#include "runtime/files.h"

#include <filesystem>
#include <nlohmann/json.hpp>

using namespace e2e;

namespace {

TEST(ForgedPlan, ChangedNumbersDoNoHarm) {
  Workplace w;
  std::string plan = w.compile("plan", {"train.steps=1", "eval.every=0"});
  const std::string good = readFile(plan + "/planned.gir"), manifest = readFile(plan + "/manifest.json"),
                    schedules = readFile(plan + "/schedules.json");
  uint32_t random = 1;
  int refused = 0, ran = 0;
  for (int i = 0; i < 40; ++i) {
    std::string bad = good;
    size_t at;
    do {
      random = random * 1664525u + 1013904223u;
      at = (uint64_t(random) * good.size()) >> 32;
      // Every third change goes into a schedule: the memory plan is checked more strictly.
      if (i % 3 == 0)
        at = good.find('=', good.find("schedule=\"", at) + 12);
    } while (at >= good.size() || (at = good.find_first_of("0123456789", at)) == std::string::npos);
    if (random >> 31)
      bad[at] = bad[at] == '9' ? '1' : bad[at] + 1;
    else
      bad.insert(at, "9");
    writeFile(plan + "/planned.gir", bad);
    nlohmann::ordered_json j = nlohmann::ordered_json::parse(manifest), s = nlohmann::ordered_json::parse(schedules);
    // Schedules are listed in the order of the kernels.
    size_t from = bad.find("func @");  // the module has an attribute of that name too
    for (auto &[name, text] : s.items()) {
      from = bad.find("schedule=\"", from) + 10;
      text = bad.substr(from, bad.find('"', from) - from);
    }
    std::string list = s.dump(1) + "\n";
    writeFile(plan + "/schedules.json", list);
    j["files"]["planned.gir"] = gptc::blake3(bad);
    j["files"]["schedules.json"] = gptc::blake3(list);
    j.erase("blake3");
    j["blake3"] = gptc::blake3(j.dump());
    writeFile(plan + "/manifest.json", j.dump(2));
    Result r = w.gptrun({plan, "--resume", "never"});
    std::string line = bad.substr(bad.rfind('\n', at) + 1, bad.find('\n', at) - bad.rfind('\n', at) - 1);
    EXPECT_EQ(r.signal, 0) << line << "\n" << r.output;
    EXPECT_TRUE(r.signal || r.code == 0 || r.code == 3 || r.code == 4 || r.code == 5) << line << "\n"
                                                                                      << r.code << " " << r.output;
    refused += r.code != 0;
    ran += r.code == 0;
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(ran, 2) << "all refused: the forgery itself is at fault";
}

}  // namespace
