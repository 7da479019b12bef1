// gptc data: converts text to token files.
#include "frontends/data_prepare.h"
#include "frontends/label_prepare.h"
#include "frontends/r_corpus.h"
#include "support/diagnostics.h"
#include "support/stderr.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/commands/prepare_line.h"

#include <unistd.h>

namespace gptc {

namespace {

void prepareTextsWithLabels(const PrepareOptions &options, PrepareLine &progress) {
  const LabelResult r = prepareLabels(options);
  progress.clear();
  fmt::print("{:<10} {}\n", "tokenizer", r.tokenizer);
  for (const auto &[what, split] : {std::pair("train", &r.train), std::pair("val", &r.val)})
    if (split->texts)
      fmt::print("{:<10} {:>13} texts {:>14} tokens {:>8.1f} tokens/text\n", what, split->texts, split->tokens,
                 double(split->tokens) / double(split->texts));
  constexpr size_t most = 20;
  const std::vector<std::string> &names = r.labels.names;
  for (size_t i = 0; i < std::min(most, names.size()); ++i)
    fmt::print("{:<10} {:>13} to train on {:>8} to validate on  {}\n", i ? "" : "labels", r.train.counts[i],
               r.val.counts[i], names[i]);
  if (names.size() > most)
    fmt::print("{:<10} and {} more\n", "", names.size() - most);
  fmt::print("{:<10} {}\n", "written", options.outDir);
  for (const std::string &note : r.notes)
    printError("note: {}\n", note);
  if (const int64_t cut = r.train.cut + r.val.cut)
    printError("note: {} text{} cut to {} tokens\n", cut, cut == 1 ? "" : "s", r.context);
}

void prepare(PrepareOptions options) {
  PrepareLine progress(stderr);
  if (::isatty(STDERR_FILENO))
    options.progress = [&](const PrepareProgress &p) { progress.show(p); };
  if (!options.labels.empty())
    return prepareTextsWithLabels(options, progress);
  for (const auto &[option, given] : {std::pair("--label-key", !options.labelKey.empty()),
                                      {"--pair-key", !options.pairKey.empty()},
                                      {"--problem-type", !options.problemType.empty()},
                                      {"--context", options.context > 0}})
    if (given)
      throw UserError(ErrorCode::Usage, fmt::format("{} is for texts with labels", option), "give --labels, too");
  const PrepareResult r = prepareData(options);
  progress.clear();
  auto line = [](const char *what, int64_t tokens, int64_t bytes) {
    fmt::print("{:<10} {:>13} tokens {:>14} bytes of text {:>6.2f} bytes/token\n", what, tokens, bytes,
               double(bytes) / double(std::max<int64_t>(1, tokens)));
  };
  fmt::print("{:<10} {}{}\n", "tokenizer", r.tokenizer, r.wide ? ", 32 bits each" : "");
  line("train", r.trainTokens, r.trainBytes);
  if (r.valTokens)
    line("val", r.valTokens, r.valBytes);
  fmt::print("{:<10} {}\n", "written", options.outDir);
  if (r.controlTokens)
    printError("note: {} control token{} in the text: {}\n", r.controlTokens, r.controlTokens == 1 ? "" : "s",
               options.parseSpecial ? "parsed" : "encoded as text (--parse-special makes tokens of them)");
}

}  // namespace

void addDataCommand(Command &app) {
  Command data = app.command("data", "Makes token files from text");
  data.requireCommand();

  Command c = data.command("prepare", "Tokenizes text files into train.bin, val.bin and tokenizer.json");
  auto options = std::make_shared<PrepareOptions>();
  c.option("files", options->files,
           "Text files, UTF-8; each is one document. *.jsonl and *.ndjson: one document a line. .gz and .zst are read "
           "too. -: standard input")
      .required()
      .type("FILES");
  c.option("--tokenizer", options->tokenizer,
           "char            the characters of the text\n"
           "byte            the 256 bytes\n"
           "bpe:N           byte-pair encoding of N tokens, learned from the training text\n"
           "gpt2:FILE       GPT-2's tokens, from its merges file\n"
           "FILE.json       a tokenizer made before, or Hugging Face's tokenizer.json, or Mistral's tekken.json\n"
           "FILE.model      SentencePiece's\n"
           "FILE.gguf       the vocabulary of a GGUF file\n"
           "FILE.tiktoken:P tiktoken's ranks with the words of P: gpt2, cl100k, o200k or llama3")
      .required()
      .type("KIND");
  const Option val = c.option("--val", options->valFiles, "Text files to validate on").type("FILES");
  c.option("--val-fraction", options->valFraction,
           "Without --val: the last part of the text to validate on [0.1]; 0: none")
      .excludes(val)
      .type("F");
  c.option("--out", options->outDir, "Folder to write into").required().type("DIR");
  c.option(
       "--format", options->format,
       "nanogpt (16-bit tokens), llmc (with llm.c's header), or megatron (Megatron-LM's, with the documents in *.idx) "
       "[nanogpt]; a vocabulary beyond 65536 takes 32 bits, and llm.c's header for nanogpt")
      .type("nanogpt|llmc|megatron");
  c.option("--key", options->key, "Member of JSON lines that holds the text [text]; given: all files are JSON lines")
      .type("NAME");
  c.flag("--parse-special", options->parseSpecial, "Control tokens in the text become their tokens, not text");
  c.flag("--add-special", options->addSpecial, "Put around each document what the tokenizer puts around a text");
  c.option("--labels", options->labels,
           "Texts with labels, for a classifier: JSON lines with text, label and, of pairs, text_pair, or *.csv and "
           "*.tsv with such columns. Names of the labels in their order: bad,good; auto: those of the training texts; "
           "a labels.json; or a folder with a classifier")
      .type("NAMES");
  c.option("--problem-type", options->problemType,
           "What is learned of labels: which one is right, which are of several (a list), or a number [as --labels "
           "says, else single_label_classification]")
      .oneOf(allWords<ProblemType>());
  c.option("--label-key", options->labelKey, "Member or column that holds the label [label]").type("NAME");
  c.option("--pair-key", options->pairKey, "Member or column that holds the second text of a pair [text_pair]")
      .type("NAME");
  c.option("--context", options->context,
           "Tokens to which texts with labels are cut [512, or less if the tokenizer's folder says so]")
      .type("N")
      .tokens(1, int64_t(1) << 17);
  c.option("--threads", options->threads, "Threads [the CPUs of this process]").type("N").within(1, 1024);
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
