// Ranks that serve together. Clients talk to rank 0. Before each step of its engine a message tells the others which
// samples begin and which nobody wants any more; all else they do by themselves: the same generator chooses the same
// tokens of logits with the same bits, and ends samples at the same stops.
#pragma once

#include "runtime/serve/generator.h"
#include "tools/serve/completion_request.h"

#include <string>
#include <vector>

namespace gptc {

class Communicator;

/// What changes before a step.
struct Orders {
  struct Begun {
    int64_t number;   // of all samples, in the order in which they begin
    uint64_t sample;  // Generation::sample
    CompletionRequest request;
  };
  std::vector<Begun> begun;
  std::vector<int64_t> dropped;  // numbers of samples; some may have ended
  bool ends = false;             // there is no step more
  uint64_t taken = 0;            // the digest of all tokens so far

  /// As bytes, with all that the tokens of a sample depend on.
  std::string bytes() const;
  static Orders parse(const std::string &bytes);
};

/// The sample of a request of a client, without what is to be done with its tokens. A full context ends it.
Generation generationOf(const CompletionRequest &request, uint64_t sample);

/// Takes part in the steps of rank 0's engine until that ends, after a shareText() by which rank 0 waits for all.
/// Ignores SIGTERM and SIGINT, after which rank 0 still has requests to answer. Throws what the communicator throws,
/// and UserError(RanksDiffer) if tokens differ from rank 0's.
void followEngine(Executor &executor, const Tokenizer &tokenizer, const GeneratorOptions &options, Communicator &ranks);

}  // namespace gptc
