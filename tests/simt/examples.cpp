#include "examples.h"

#include "frontends/model_builder.h"
#include "passes/pass.h"
#include "tools/compiler/compile.h"
#include "tools/planner/codegen_passes.h"
#include "tools/planner/variants.h"

#include <algorithm>
#include <filesystem>

namespace gptc::test {

namespace fs = std::filesystem;

std::vector<std::string> exampleNames() {
  std::vector<std::string> names;
  for (const auto &entry : fs::directory_iterator(GPTC_SOURCE_DIR "/examples"))
    // That one is there for forecasts: bloom-small's kernels, in sizes that no test has time for.
    if (entry.path().extension() == ".toml" && entry.path().stem() != "bloom-7b1")
      names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

std::unique_ptr<Module> exampleForTarget(const std::string &name, std::vector<std::string> settings,
                                         const Target &target) {
  for (const char *s : {"data.train=none", "data.val=none", "data.tokenizer=none", "eval.sample_every=0"})
    settings.push_back(s);
  settings.push_back("compile.target=" + target.name);
  const Config config = readConfig(fmt::format(GPTC_SOURCE_DIR "/examples/{}.toml", name), settings);
  std::unique_ptr<Module> m = buildModel(config);
  registerCodegenPasses();
  const std::string all = defaultPipeline();
  std::vector<PassUse> uses = parsePipeline(all.substr(0, all.find(",select-recipes")), &target);
  setOption(uses, "remat", "available", int64_t(1) << 62);
  PipelineOptions options;
  options.reproFile = "";
  options.verifyEach = false;
  runPipeline(*m, uses, options);
  return m;
}

Group alone(const Op &op) {
  Group g;
  g.module = std::make_unique<Module>();
  Function *f = g.module->addFunction("f");
  g.fused = f->body.insert(OpKind::fused);
  g.fused->attrs = op.attrs;
  for (const Value *v : op.operands())
    g.fused->addOperand(f->body.addArg(v->type));
  for (unsigned i = 0; i < op.numResults(); ++i)
    g.fused->addResult(op.result(i)->type);
  g.fused->body = std::make_unique<Block>();
  llvm::DenseMap<const Value *, Value *> map;
  for (const auto &a : op.body->args)
    map[a.get()] = g.fused->body->addArg(a->type);
  cloneOps(*op.body, *g.fused->body, nullptr, map);
  return g;
}

}  // namespace gptc::test
