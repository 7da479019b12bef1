#include "tools/serve/followers.h"

#include "runtime/collectives/share_text.h"
#include "support/diagnostics.h"
#include "tools/serve/completion.h"

#include <csignal>
#include <map>
#include <memory>

namespace gptc {

using nlohmann::json;

// CBOR (RFC 8949) keeps every bit of a double.
std::string Orders::bytes() const {
  json all = {{"ends", ends}, {"taken", taken}, {"dropped", dropped}, {"begun", json::array()}};
  for (const Begun &b : begun) {
    const CompletionRequest &r = b.request;
    const SampleOptions &o = r.options;
    all["begun"].push_back({{"number", b.number},
                            {"sample", b.sample},
                            {"prompt", r.prompt},
                            {"max_tokens", o.maxTokens},
                            {"temperature", o.temperature},
                            {"top_k", o.topK},
                            {"top_p", o.topP},
                            {"seed", o.seed},
                            {"tokens", o.tokens},
                            {"min_p", o.minP},
                            {"repetition_penalty", o.repetitionPenalty},
                            {"stops", r.stops},
                            {"logprobs", r.logProbs ? json(*r.logProbs) : json()},
                            {"echo", r.echo},
                            {"ends", r.ends},
                            {"ignore_end", r.ignoreEnd}});
  }
  const std::vector<uint8_t> packed = json::to_cbor(all);
  return {packed.begin(), packed.end()};
}

Orders Orders::parse(const std::string &bytes) {
  const json all = json::from_cbor(bytes);
  Orders orders;
  all.at("ends").get_to(orders.ends);
  all.at("taken").get_to(orders.taken);
  all.at("dropped").get_to(orders.dropped);
  for (const json &j : all.at("begun")) {
    Begun &b = orders.begun.emplace_back();
    CompletionRequest &r = b.request;
    SampleOptions &o = r.options;
    j.at("number").get_to(b.number);
    j.at("sample").get_to(b.sample);
    j.at("prompt").get_to(r.prompt);
    j.at("max_tokens").get_to(o.maxTokens);
    j.at("temperature").get_to(o.temperature);
    j.at("top_k").get_to(o.topK);
    j.at("top_p").get_to(o.topP);
    j.at("seed").get_to(o.seed);
    j.at("tokens").get_to(o.tokens);
    j.at("min_p").get_to(o.minP);
    j.at("repetition_penalty").get_to(o.repetitionPenalty);
    j.at("stops").get_to(r.stops);
    if (!j.at("logprobs").is_null())
      r.logProbs = j.at("logprobs").get<int64_t>();
    j.at("echo").get_to(r.echo);
    j.at("ends").get_to(r.ends);
    j.at("ignore_end").get_to(r.ignoreEnd);
  }
  return orders;
}

Generation generationOf(const CompletionRequest &request, uint64_t sample) {
  return {.prompt = request.prompt,
          .options = request.options,
          .sample = sample,
          .slides = false,
          .scores = request.logProbs};
}

void followEngine(Executor &executor, const Tokenizer &tokenizer, const GeneratorOptions &options,
                  Communicator &ranks) {
  for (const int number : {SIGTERM, SIGINT})
    ::signal(number, SIG_IGN);
  shareText(ranks, "");  // only now may rank 0 say that it serves
  struct Sample {
    CompletionRequest request;
    std::unique_ptr<Completion> completion;
    bool dropped = false;
  };
  std::map<int64_t, Sample> samples;  // by number; those that have not ended
  std::vector<int64_t> ended;
  Generator generator(executor, options);
  for (;;) {
    Orders orders = Orders::parse(shareText(ranks, ""));
    if (orders.taken != generator.taken())
      throw UserError(ErrorCode::RanksDiffer,
                      fmt::format("rank {} has taken other tokens than rank 0: answers are wrong", ranks.rank),
                      "all machines must have the same weights, and CPUs of one kind");
    if (orders.ends)
      return;
    for (Orders::Begun &b : orders.begun) {
      Sample &s = samples[b.number];
      s.request = std::move(b.request);
      s.completion = std::make_unique<Completion>(s.request, tokenizer, nullptr);
      Generation g = generationOf(s.request, b.sample);
      if (s.request.echo && s.request.logProbs)
        g.onPrompt = [](const std::vector<TokenScores> &) {};
      g.onToken = [&s](int32_t token, const TokenScores *scores) { return s.completion->token(token, scores); };
      g.onEnd = [&ended, number = b.number] { ended.push_back(number); };
      g.isWanted = [&s] { return !s.dropped; };
      generator.add(std::move(g));
    }
    for (const int64_t number : orders.dropped)
      if (const auto it = samples.find(number); it != samples.end())
        it->second.dropped = true;
    generator.step();
    for (const int64_t number : std::exchange(ended, {}))
      samples.erase(number);
  }
}

}  // namespace gptc
