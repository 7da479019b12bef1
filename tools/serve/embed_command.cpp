#include "tools/serve/embed_command.h"

#include "frontends/gguf/gguf_model.h"
#include "frontends/hf_pooling.h"
#include "support/atomic_file.h"
#include "support/diagnostics.h"
#include "support/stderr.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>

namespace gptc {

namespace {

using Clock = std::chrono::steady_clock;

/// An array f32[rows, columns] in the format of numpy.save (NEP 1), whose number of rows is known at its end.
class NumpyFile {
public:
  NumpyFile(const std::string &path, int64_t columns) : columns(columns), file(path) { file.append(header(0)); }
  void add(const std::vector<float> &row) {
    file.append({reinterpret_cast<const char *>(row.data()), row.size() * sizeof(float)});
    ++rows;
  }
  void commit() {
    file.writeAt(0, header(rows));
    file.commit();
  }

private:
  std::string header(int64_t count) const {
    constexpr size_t bytes = 128;
    std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", count, columns);
    const std::string magic("\x93NUMPY\x01\x00\x76\x00", 10);  // version 1.0; 118 more bytes
    text.resize(bytes - magic.size() - 1, ' ');
    return magic + text + '\n';
  }
  const int64_t columns;
  int64_t rows = 0;
  AtomicFile file;
};

class Embedding {
public:
  Embedding(Executor &executor, const Tokenizer &tokenizer, const EmbedCommand &command)
      : embedder(executor), tokenizer(tokenizer), command(command) {}

  void run() {
    if (!command.out.empty())
      file.emplace(command.out, embedder.width());
    if (command.time)
      embedder.prepare();
    const TextForm form = {.most = command.vectors.longest(embedder.context()),
                           .prompt = command.vectors.prompt,
                           .parseSpecial = command.vectors.parseSpecial};
    TextBatches(command.input, tokenizer, form, [&](const TextBatch &batch) { writeAll(batch.tokens); }).run();
    if (file)
      file->commit();
    if (const double seconds = std::chrono::duration<double>(spent).count(); command.time)
      printError("{} texts of {} tokens; {} after the first batch in {:.3f} s: {:.1f} texts/s\n", written, tokens,
                 timed, seconds, timed ? double(timed) / std::max(1e-9, seconds) : 0);
  }

private:
  void writeAll(llvm::ArrayRef<std::vector<int32_t>> texts) {
    const Clock::time_point begin = Clock::now();
    const auto vectors = embedder.embed(texts, command.vectors.how, command.vectors.normalized);
    if (written) {
      spent += Clock::now() - begin;
      timed += int64_t(texts.size());
    }
    for (size_t i = 0; i < texts.size(); ++i)
      write(texts[i], vectors[i]);
  }

  void write(const std::vector<int32_t> &text, const std::vector<float> &vector) {
    tokens += int64_t(text.size());
    if (file) {
      ++written;
      return file->add(vector);
    }
    const std::string line =
        fmt::format("{{\"text\":{},\"tokens\":{},\"vector\":{}}}\n", written++, text.size(), numbersOf(vector));
    std::fwrite(line.data(), 1, line.size(), stdout);
  }

  Embedder embedder;
  const Tokenizer &tokenizer;
  const EmbedCommand &command;
  std::optional<NumpyFile> file;
  int64_t written = 0, tokens = 0, timed = 0;
  Clock::duration spent{};
};

}  // namespace

std::vector<Option> addVectorOptions(Command command, VectorChoice &choice) {
  const Option pooling =
      command
          .option("--pooling", choice.pooling,
                  "the vector of a text is the mean of its tokens', or that of the first or last; "
                  "default: what the model's files say (modules.json, GGUF's pooling_type), else mean")
          .oneOf({"mean", "cls", "last"});
  const Option normalize = command.flag("--normalize", choice.normalize, "vectors of length 1");
  const Option keep =
      command.flag("--keep-length", choice.keepLength, "vectors not of length 1, whatever the folder says")
          .excludes(normalize);
  return {pooling, normalize, keep};
}

void addEmbedOptions(Command embed, EmbedCommand &command) {
  addTextOptions(embed, command.input, "vectors");
  addVectorOptions(embed, command.vectors);
  embed.option("--out", command.out, "write an array of all vectors, for numpy.load; default: JSON lines")
      .type("FILE.npy");
  embed.flag("--time", command.time, "say at the end how many texts came in a second, after the first batch");
}

void VectorChoice::settle(const std::string &model) {
  HfPooling said;
  std::error_code e;
  if (std::filesystem::is_directory(model, e))
    said = readHfPooling(model, pooling.empty());
  else if (!model.empty() && pooling.empty())
    said.pooling = ggufPooling(GgufFile(model));
  how = *poolingOf(!pooling.empty() ? pooling : said.pooling.value_or("mean"));
  normalized = normalize || (said.normalized && !keepLength);
  most = said.mostTokens;
  prompt = said.prompt;
  printError("note: vectors are {}{} (--pooling, --normalize)\n",
             how == Pooling::mean  ? "the mean of a text's tokens"
             : how == Pooling::cls ? "those of a text's first token"
                                   : "those of a text's last token",
             normalized ? ", of length 1" : "");
  if (!prompt.empty())
    printError("note: each text stands behind {:?}, as the folder says\n", prompt);
}

std::string numbersOf(const std::vector<float> &vector) {
  std::string out = "[";
  for (size_t x = 0; x < vector.size(); ++x)
    fmt::format_to(std::back_inserter(out), "{}{}", x ? "," : "", vector[x]);
  return out + "]";
}

std::vector<int32_t> tokensToEmbed(const Tokenizer &tokenizer, const std::string &text, const VectorChoice &choice) {
  return tokenizer.encode(choice.prompt + text, {.parseSpecial = choice.parseSpecial, .addSpecial = true});
}

void embedTexts(Executor &executor, const Tokenizer &tokenizer, const EmbedCommand &command) {
  Embedding(executor, tokenizer, command).run();
}

}  // namespace gptc
