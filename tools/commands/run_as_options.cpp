#include "tools/commands/run_as_options.h"

namespace gptc {

std::vector<Option> addRunAsOptions(Command command, RunAs &as) {
  const Option context =
      command
          .option("--context", as.context,
                  fmt::format("tokens that a model of a folder or GGUF file sees; default: its own, at most {}",
                              kUsualContext))
          .tokens(1, int64_t(1) << 20);
  const Option precision =
      command
          .option("--precision", as.precision,
                  "what a model of a folder or GGUF file computes in; default: bf16 if no weight is wider, and this "
                  "CPU multiplies it or samples with weights of 16 bits, else fp32")
          .oneOf({"fp32", "bf16", "fp16"});
  const Option weights =
      command
          .option("--weights", as.weights,
                  "how the weights of products of such a model are kept: as they are computed with, or in 8 or 4 bits; "
                  "default: q8_0, q4_0 or q4_k if the file has them so, else compute")
          .oneOf({"compute", "q8_0", "q4_0", "q4_k"});
  return {context, precision, weights};
}

Option addCacheOption(Command command, RunAs &as) {
  return command
      .option(
          "--cache", as.cache,
          "how keys and values of such a model are kept: auto, as it computes, or q8_0, in 8 bits, if its heads are "
          "multiples of 32; default: auto")
      .oneOf({"auto", "q8_0"});
}

}  // namespace gptc
