#include "frontends/tokenizer/json_parts.h"

namespace gptc {

using Json = nlohmann::ordered_json;

Json addedTokenJson(const AddedToken &t) {
  return {{"id", t.id},
          {"content", t.content},
          {"single_word", t.singleWord},
          {"lstrip", t.stripLeft},
          {"rstrip", t.stripRight},
          {"normalized", t.normalized},
          {"special", t.special}};
}

Json postProcessorJson(const std::vector<SequencePart> &around, llvm::function_ref<std::string(int32_t)> nameOf) {
  Json single = Json::array(), tokens = Json::object();
  for (const SequencePart &s : around) {
    const std::string name = s.text < 0 ? nameOf(s.token) : "A";
    single.push_back({{s.text < 0 ? "SpecialToken" : "Sequence", {{"id", name}, {"type_id", s.type}}}});
    if (s.text < 0)
      tokens[name] = {{"id", name}, {"ids", Json::array({s.token})}, {"tokens", Json::array({name})}};
  }
  if (tokens.empty())
    return nullptr;
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

}  // namespace gptc
