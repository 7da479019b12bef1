// gptc export: writes a model as other programs read it.
#include "codegen/codegen.h"
#include "runtime/checkpoint/export_folder.h"
#include "support/diagnostics.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/commands/export_gguf.h"
#include "tools/commands/export_source.h"

#include <filesystem>

namespace gptc {

namespace fs = std::filesystem;

namespace {

struct Options {
  std::string run, out, dtype, format;
  std::optional<std::string> checkpoint;

  bool isGguf() const { return format.empty() ? llvm::StringRef(out).ends_with(".gguf") : format == "gguf"; }
};

/// Throws UserErrors: those of exportGguf, and Unwritable for what is there and no export wrote.
void exportAsGguf(const Options &o, ExportSource from) {
  requireReplaceable(o.out);
  const std::string word = o.dtype.empty() ? "fp32" : o.dtype;
  const GgufSource source = ggufSource(std::move(from));
  const TensorFiles weights(source.weights);
  const GgufExported done =
      exportGguf(o.out, {.config = source.config,
                         .source = weights,
                         .described = source.described,
                         .folder = source.folder,
                         .tokenizer = source.tokenizer,
                         .name = fs::path(o.out).stem().string(),
                         .rounding = {.type = *ggufFormatOf(word), .threads = hostTarget().threads, .measure = false}});
  fmt::print("{:<11} {}\n", source.temporary ? "weights" : "checkpoint", source.shown);
  fmt::print("{:<11} {}: {}, {}\n", "written", o.out, word, formatBytes(double(fs::file_size(o.out))));
  for (const std::string &note : done.notes)
    fmt::print("{:<11} {}\n", "vocabulary", note);
}

void exportRun(const Options &o) {
  if (o.isGguf())
    return exportAsGguf(o, exportSource(o.run, o.out, o.checkpoint));
  if (const auto type = ggufFormatOf(o.dtype); type && ggmlFormat(*type).elements > 1)
    throw UserError(ErrorCode::Usage, fmt::format("--dtype {} is a format of GGUF files", o.dtype),
                    "write -o FILE.gguf, or add --format gguf");
  ExportOptions options;
  if (!o.dtype.empty())
    options.dtype = o.dtype == "fp32" ? DType::f32 : o.dtype == "bf16" ? DType::bf16 : DType::f16;
  const ExportSource source = exportSource(o.run, o.out, o.checkpoint);
  const Exported done = exportFolder(source.checkpoint, o.out, options);
  fmt::print("{:<11} {}\n", source.folder ? "weights" : "checkpoint", source.shown);
  fmt::print("{:<11} {}: {} tensors of {}, {} in {} file{}\n", "written", o.out, done.tensors, nameOf(done.dtype).str(),
             formatBytes(double(done.bytes)), done.files, done.files == 1 ? "" : "s");
  if (!source.checkpoint.described.count("tokenizer.json"))
    fmt::print("{:<11} none: the run has no tokenizer.json\n", "tokenizer");
}

}  // namespace

void addExportCommand(Command &app) {
  Command c = app.command("export", "Writes a trained model as Hugging Face's programs or llama.cpp read it");
  auto o = std::make_shared<Options>();
  c.option("run", o->run,
           "A plan, the out_dir of its run, or a checkpoint; of a plan that has not run, the weights of init_from")
      .required()
      .type("PLAN|DIR");
  c.option("-o,--out", o->out, "Folder or file to write; what an earlier export wrote is replaced")
      .required()
      .type("DIR|FILE.gguf");
  c.option("--dtype", o->dtype,
           "Precision of the weights [hf: the checkpoint's, gguf: fp32]; q8_0, q4_0 and q4_k of GGUF files only")
      .oneOf({"fp32", "bf16", "fp16", "q8_0", "q4_0", "q4_k"});
  c.option("--format", o->format,
           "hf: config.json, safetensors and the tokenizer; gguf: one file, for llama.cpp [by the ending of -o]")
      .oneOf({"hf", "gguf"});
  c.option("--checkpoint", o->checkpoint, "The number of a step, or best: least validation loss [the newest]")
      .type("STEP|best");
  c.run([o] { exportRun(*o); });
}

}  // namespace gptc
