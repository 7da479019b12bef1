#include "tools/commands/rank_options.h"

#include "frontends/toml_config.h"
#include "runtime/cuda/gpu.h"
#include "support/diagnostics.h"
#include "tools/planner/gir_file.h"
#include "tools/planner/plan_module.h"

namespace gptc {

void RankOptions::addTo(Command &c) {
  c.option("--nodes", nodes, "Machines to train on [1]").within(1, 1 << 20);
  c.option("--ranks-per-node", perNode,
           "Processes per machine [1]; nodes x ranks-per-node is parallel.data x parallel.tensor")
      .within(1, 1 << 20);
}

void RankOptions::set(const std::string &modelFile, const std::string &target,
                      std::vector<std::string> &settings) const {
  if (!nodes && !perNode)
    return;
  const bool gir = isGirFile(modelFile);
  const Config c = gir ? Config() : readConfig(modelFile, settings);
  if (perNode > 1 && (gir ? target : c.compile.target) == "cuda")
    cuda::requireGpus(perNode);
  const int64_t ranks = std::max<int64_t>(1, nodes) * std::max<int64_t>(1, perNode);
  if (ranks % c.parallel.tensor)
    throw UserError(
        Diagnostic{ErrorCode::ShapeMismatch,
                   fmt::format("{} ranks do not divide into groups of tensor = {}", ranks, c.parallel.tensor),
                   c.where("parallel.tensor"),
                   "",
                   {fmt::format("--nodes x --ranks-per-node must be a multiple of {}", c.parallel.tensor)}});
  if (const SourceLoc at = c.where("parallel.data"); at.file == "--set" && c.parallel.data != ranks / c.parallel.tensor)
    throw UserError(Diagnostic{ErrorCode::Contradiction,
                               fmt::format("--nodes x --ranks-per-node are {} ranks, and --set asks for {}", ranks,
                                           c.parallel.data * c.parallel.tensor),
                               at,
                               fmt::format("with tensor = {}", c.parallel.tensor),
                               {"leave out one of them"}});
  settings.push_back(fmt::format("parallel.data={}", ranks / c.parallel.tensor));
}

}  // namespace gptc
