#include "passes/analysis/whole_ranks.h"

#include "ir/facts.h"
#include "support/diagnostics.h"

namespace gptc {

void WholeRanks::refuse(const std::string &what) const {
  throw UserError(ErrorCode::GirInvalid, fmt::format("{} with {}", setting, what), help);
}

void WholeRanks::require(const Module &m) const {
  const auto p = factsOf<ParallelFacts>(m);
  if (p.zeroStage > 0)
    refuse(fmt::format("zero_stage = {}", p.zeroStage));
  if (p.tensor > 1 || p.logicalTensor > 1)
    refuse("parts of the model");
  if (p.shards > 1)
    refuse(fmt::format("shards = {}", p.shards));
  if (p.syncEvery > 1 && !apart)
    refuse(fmt::format("sync_every = {}", p.syncEvery));
  if (fact<&CompileFacts::offload>(m) != Offload::none)
    refuse("offload");
  if (m.state("loss_scale") || fact<&PrecisionFacts::fp8>(m) != Fp8::off)
    refuse(fmt::format("factors of fp16 or fp8{}", apart ? ", which differ between ranks" : ""));
}

void makeEachRanksOwn(State &s, int64_t ranks) {
  const int64_t places = ranks * s.type.padded(0);
  setFact<&StateFacts::cutData>(s, {0, places, places, places});
}

}  // namespace gptc
