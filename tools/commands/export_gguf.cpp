#include "tools/commands/export_gguf.h"

#include "frontends/gguf/gguf_model.h"
#include "frontends/gguf/vocabulary.h"
#include "frontends/model_builder.h"
#include "runtime/checkpoint/gguf_weights.h"
#include "support/diagnostics.h"
#include "support/gguf/gguf_file.h"

namespace gptc {

std::optional<GgmlType> ggufFormatOf(llvm::StringRef word) {
  for (const auto &[name, type] :
       {std::pair{"fp32", GgmlType::f32}, std::pair{"fp16", GgmlType::f16}, std::pair{"bf16", GgmlType::bf16},
        std::pair{"q8_0", GgmlType::q8_0}, std::pair{"q4_0", GgmlType::q4_0}})
    if (word == name)
      return type;
  return std::nullopt;
}

bool isExportedGguf(const std::string &file) {
  try {
    return isGguf(file) && GgufFile(file).text(kGgufMadeBy) == kGgufMaker;
  } catch (const UserError &) {  // damaged: nobody knows whose it is
    return false;
  }
}

std::vector<std::string> exportGguf(const std::string &file, const GgufExport &what) {
  GgufMetadata metadata = ggufMetadata(what.config.model, what.name, what.type);
  std::optional<GgufVocabulary> vocabulary;
  std::vector<std::string> notes;
  if (what.described.count("tokenizer.json"))
    vocabulary = vocabularyOf(what.described, what.folder, what.config.model.vocabSize, &notes);
  else
    notes.push_back("none: the run has no tokenizer.json; llama.cpp then takes tokens only");
  addVocabulary(metadata.keys, vocabulary ? &*vocabulary : nullptr);
  const std::unique_ptr<Module> model = buildModel(what.config, {.sampling = false});
  writeGguf(file, *model, what.source, {metadata.architecture, std::move(metadata.keys), std::move(metadata.tensors)},
            what.type);
  return notes;
}

}  // namespace gptc
