#include "tools/commands/export_gguf.h"

#include "frontends/gguf/gguf_model.h"
#include "frontends/gguf/vocabulary.h"
#include "frontends/hf_pooling.h"
#include "frontends/model_builder.h"
#include "runtime/checkpoint/gguf_weights.h"
#include "support/diagnostics.h"
#include "support/gguf/gguf_file.h"

#include <filesystem>

namespace gptc {

namespace fs = std::filesystem;

std::optional<GgmlType> ggufFormatOf(llvm::StringRef word) {
  for (const auto &[name, type] :
       {std::pair{"fp32", GgmlType::f32}, std::pair{"fp16", GgmlType::f16}, std::pair{"bf16", GgmlType::bf16},
        std::pair{"q8_0", GgmlType::q8_0}, std::pair{"q4_0", GgmlType::q4_0}, std::pair{"q4_k", GgmlType::q4_k}})
    if (word == name)
      return type;
  return std::nullopt;
}

bool isExportedGguf(const std::string &file) {
  try {
    const std::string maker = isGguf(file) ? GgufFile(file).text(kGgufMadeBy).value_or("") : "";
    return maker == kGgufMaker || maker == kGgufRounder;
  } catch (const UserError &) {  // damaged: nobody knows whose it is
    return false;
  }
}

void requireReplaceable(const std::string &file) {
  std::error_code e;
  if (fs::exists(fs::symlink_status(file, e)) && (fs::is_symlink(file, e) || !isExportedGguf(file)))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} is there, and no GGUF file that an export wrote", file),
                    "remove it, or choose another name with -o");
}

namespace {

/// What the folder says of vectors of texts; "" if nothing that gptc knows. A damaged description is an error, as a
/// damaged tokenizer_config.json is: without the key other programs would make other vectors, and say nothing.
std::string poolingOf(const std::string &folder) {
  try {
    return readHfPooling(folder).pooling.value_or("");
  } catch (const UserError &e) {
    if (e.diagnostics[0].code != ErrorCode::NotBuiltYet)
      throw;
    return "";
  }
}

}  // namespace

GgufExported exportGguf(const std::string &file, const GgufExport &what) {
  GgufMetadata metadata = ggufMetadata(what.config.model, what.name, what.rounding.type);
  addPooling(metadata, poolingOf(what.folder));
  std::optional<GgufVocabulary> vocabulary;
  GgufExported done;
  if (what.described.count("tokenizer.json"))
    vocabulary = vocabularyOf(what.described, what.tokenizer, what.config.model.vocabSize, &done.notes);
  else
    done.notes.push_back(
        fmt::format("none: {} gives no tokenizer.json; llama.cpp then takes tokens only", what.tokenizer));
  addVocabulary(metadata.keys, vocabulary ? &*vocabulary : nullptr);
  const std::unique_ptr<Module> model = buildModel(what.config, {.sampling = false});
  done.tensors =
      writeGguf(file, *model, what.source,
                {metadata.architecture, std::move(metadata.keys), std::move(metadata.tensors)}, what.rounding);
  return done;
}

}  // namespace gptc
