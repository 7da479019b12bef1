// gptc data: converts text to token files.
#include "frontends/data_prepare.h"
#include "frontends/r_corpus.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"

namespace gptc {

namespace {

void prepare(const PrepareOptions &options) {
  const PrepareResult r = prepareData(options);
  auto line = [](const char *what, int64_t tokens, int64_t bytes) {
    fmt::print("{:<10} {:>13} tokens {:>14} bytes of text {:>6.2f} bytes/token\n", what, tokens, bytes,
               double(bytes) / double(std::max<int64_t>(1, tokens)));
  };
  fmt::print("{:<10} {}\n", "tokenizer", r.tokenizer);
  line("train", r.trainTokens, r.trainBytes);
  if (r.valTokens)
    line("val", r.valTokens, r.valBytes);
  fmt::print("{:<10} {}\n", "written", options.outDir);
}

}  // namespace

void addDataCommand(Command &app) {
  Command data = app.command("data", "Makes token files from text");
  data.requireCommand();

  Command c = data.command("prepare", "Tokenizes text files into train.bin, val.bin and tokenizer.json");
  auto options = std::make_shared<PrepareOptions>();
  c.option("files", options->files, "Text files, UTF-8; each is one document").required().type("FILES");
  c.option("--tokenizer", options->tokenizer,
           "char            the characters of the text\n"
           "byte            the 256 bytes\n"
           "bpe:N           byte-pair encoding of N tokens, learned from the training text\n"
           "gpt2:FILE       GPT-2's tokens, from its merges file\n"
           "FILE.json       a tokenizer made before")
      .required()
      .type("KIND");
  const Option val = c.option("--val", options->valFiles, "Text files to validate on").type("FILES");
  c.option("--val-fraction", options->valFraction,
           "Without --val: the last part of the text to validate on [0.1]; 0: none")
      .excludes(val)
      .type("F");
  c.option("--out", options->outDir, "Folder to write into").required().type("DIR");
  c.option("--format", options->format, "nanogpt (16-bit tokens) or llmc (with llm.c's header) [nanogpt]")
      .type("nanogpt|llmc");
  c.run([options] { prepare(*options); });

  // For tools/quickstart.
  Command r = data.command("r-texts", "Writes the character vectors of an R data file (.rdb) as text files");
  r.hidden();
  auto rdb = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  r.option("rdb", *rdb, "Rdata.rdb").required();
  r.option("--out", *out, "Folder to write into").required();
  r.run([rdb, out] {
    for (const auto &[file, bytes] : extractRTexts(*rdb, *out))
      fmt::print("{:<40} {:>10} bytes\n", file, bytes);
  });
}

}  // namespace gptc
