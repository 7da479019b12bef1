// gptc quantize: writes a model as a GGUF file with weights of fewer bits, and says what that changed.
#include "codegen/codegen.h"
#include "frontends/gguf/gguf_model.h"
#include "runtime/checkpoint/gguf_rounding.h"
#include "support/diagnostics.h"
#include "support/gguf/gguf_file.h"
#include "support/json.h"
#include "support/stderr.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/commands/export_gguf.h"
#include "tools/commands/export_source.h"

#include <filesystem>
#include <map>
#include <tuple>

namespace gptc {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

struct Options {
  std::string in, out, type;
  std::vector<std::string> keep;
  unsigned threads = 0;
  bool again = false, json = false;
};

struct Quantized {
  std::vector<WrittenTensor> tensors;
  std::vector<std::string> notes;  // of the vocabulary
};

/// What rounding did to several tensors.
struct Sums {
  int64_t tensors = 0, before = 0, after = 0;  // bytes
  bool isRounded = false;
  double difference = 0, size = 0;

  void add(const WrittenTensor &t) {
    ++tensors;
    before += t.bytesBefore();
    after += t.bytesAfter();
    isRounded |= t.isRounded();
    difference += t.difference;
    size += t.size;
  }
  double error() const { return relativeError(difference, size); }
};

struct Report {
  std::map<std::pair<GgmlType, GgmlType>, Sums> formats;  // before and after
  Sums all;
  const WrittenTensor *worst = nullptr;  // of those that were rounded

  explicit Report(const std::vector<WrittenTensor> &tensors) {
    for (const WrittenTensor &t : tensors) {
      formats[{t.from->type, t.to->type}].add(t);
      all.add(t);
      if (t.isRounded() && (!worst || errorOf(t) > errorOf(*worst)))
        worst = &t;
    }
  }
  static double errorOf(const WrittenTensor &t) { return relativeError(t.difference, t.size); }
};

/// Throws the UserErrors of requantizeGguf, and FileMissing for another file.
Quantized quantizeFile(const Options &o, const GgufRounding &how) {
  std::error_code e;
  if (fs::is_regular_file(o.in, e) && !isGguf(o.in))
    throw UserError(ErrorCode::FileMissing, fmt::format("{} is a file, and no GGUF file", o.in),
                    "name a GGUF file, a folder with config.json and safetensors, a plan, or the folder of a run");
  requireOtherFile(o.in, o.out);
  requireReplaceable(o.out);
  return {requantizeGguf(o.in, o.out, how, {{kGgufMadeBy, std::string(kGgufRounder)}}), {}};
}

/// Of a plan, a run, a checkpoint, or a Hugging Face folder. Throws the UserErrors of export and of importedModel.
Quantized quantizeFolder(const Options &o, const GgufRounding &how) {
  const GgufSource source = !isExportable(o.in) && isImportable(o.in)
                                ? ggufSource(importedModel(o.in))
                                : ggufSource(exportSource(o.in, o.out, std::nullopt));
  requireReplaceable(o.out);
  const TensorFiles weights(source.weights);
  GgufExported done = exportGguf(o.out, {.config = source.config,
                                         .source = weights,
                                         .described = source.described,
                                         .folder = source.folder,
                                         .tokenizer = source.tokenizer,
                                         .name = fs::path(o.out).stem().string(),
                                         .rounding = how});
  return {std::move(done.tensors), std::move(done.notes)};
}

std::string percent(double error) { return fmt::format("{:.2f}%", 100 * error); }

/// A line for each size of rows that are no whole blocks of a format, with the first such tensor.
std::vector<std::string> otherFormats(const Quantized &done) {
  struct Group {
    int64_t count = 0;
    const WrittenTensor *first = nullptr;
  };
  std::map<std::tuple<int64_t, GgmlType, GgmlType>, Group> found;
  for (const WrittenTensor &t : done.tensors)
    if (t.refused)
      if (Group &g = found[{t.shape.back(), t.refused->type, t.to->type}]; g.count++ == 0)
        g.first = &t;
  std::vector<std::string> lines;
  for (const auto &[what, g] : found)
    lines.push_back(fmt::format("{} {} {}, as {}: rows of {} values are no whole blocks of {}", g.count,
                                g.count == 1 ? "tensor is" : "tensors are", g.first->to->name, g.first->name,
                                g.first->shape.back(), g.first->refused->name));
  return lines;
}

/// A format of narrow scales makes zeros of a tensor whose values are too small.
void warnOfLost(const Quantized &done) {
  for (const WrittenTensor &t : done.tensors)
    if (t.isRounded() && Report::errorOf(t) > 0.5)
      printError("warning: little is left of {} in {}: the error is {}; its values are too small\n", t.name, t.to->name,
                 percent(Report::errorOf(t)));
}

void printTable(const Options &o, const Quantized &done) {
  const Report report(done.tensors);
  fmt::print("{:<11} {}\n", "read", o.in);
  fmt::print("{:<11} {}: {}, {}\n\n", "written", o.out, o.type, formatBytes(double(fs::file_size(o.out))));
  fmt::print("{:<7} {:<7} {:>7} {:>11} {:>11} {:>8}\n", "from", "to", "tensors", "before", "after", "error");
  auto row = [](const char *from, const char *to, const Sums &s) {
    fmt::print("{:<7} {:<7} {:>7} {:>11} {:>11} {:>8}\n", from, to, s.tensors, formatBytes(double(s.before)),
               formatBytes(double(s.after)), s.isRounded ? percent(s.error()) : "-");
  };
  for (const auto &[formats, sums] : report.formats)
    row(ggmlFormat(formats.first).name, ggmlFormat(formats.second).name, sums);
  row("all", "", report.all);
  if (report.worst)
    fmt::print("\n{:<11} {} in {}\n", "worst", report.worst->name, percent(Report::errorOf(*report.worst)));
  for (const std::string &line : otherFormats(done))
    fmt::print("{:<11} {}\n", "note", line);
  for (const std::string &note : done.notes)
    fmt::print("{:<11} {}\n", "vocabulary", note);
}

json errorJson(bool isRounded, double error) { return isRounded ? json(error) : json(nullptr); }

void printJson(const Options &o, const Quantized &done) {
  const Report report(done.tensors);
  json formats = json::array(), tensors = json::array();
  for (const auto &[types, s] : report.formats)
    formats.push_back({{"from", ggmlFormat(types.first).name},
                       {"to", ggmlFormat(types.second).name},
                       {"tensors", s.tensors},
                       {"bytes_before", s.before},
                       {"bytes_after", s.after},
                       {"error", errorJson(s.isRounded, s.error())}});
  for (const WrittenTensor &t : done.tensors)
    tensors.push_back({{"name", t.name},
                       {"shape", t.shape},
                       {"from", t.from->name},
                       {"to", t.to->name},
                       {"other_format", t.refused != nullptr},
                       {"error", errorJson(t.isRounded(), Report::errorOf(t))}});
  const json all = {{"in", o.in},
                    {"out", o.out},
                    {"type", o.type},
                    {"file_bytes", int64_t(fs::file_size(o.out))},
                    {"bytes_before", report.all.before},
                    {"bytes_after", report.all.after},
                    {"error", errorJson(report.all.isRounded, report.all.error())},
                    {"worst", report.worst ? json(report.worst->name) : json(nullptr)},
                    {"formats", formats},
                    {"tensors", tensors},
                    {"notes", done.notes}};
  fmt::print("{}\n", all.dump(1, ' ', false, json::error_handler_t::replace));
}

void quantizeModel(const Options &o) {
  if (o.out.empty())
    throw UserError(ErrorCode::Usage, "-o \"\" names no file", "give the file to write");
  const GgufRounding how{
      .type = *ggufFormatOf(o.type), .keep = o.keep, .again = o.again, .threads = hostTarget(o.threads).threads};
  std::error_code e;
  const Quantized done = fs::is_directory(o.in, e) ? quantizeFolder(o, how) : quantizeFile(o, how);
  if (o.json)
    printJson(o, done);
  else
    printTable(o, done);
  warnOfLost(done);
}

}  // namespace

void addQuantizeCommand(Command &app) {
  Command c = app.command("quantize", "Writes a model as a GGUF file with weights of fewer bits, and says the error");
  auto o = std::make_shared<Options>();
  c.option("model", o->in, "A GGUF file, a Hugging Face folder, a plan, the out_dir of its run, or a checkpoint")
      .required()
      .type("PLAN|DIR|FILE.gguf");
  c.option("-o,--out", o->out, "File to write; what an earlier export wrote is replaced").required().type("FILE.gguf");
  c.option("--type", o->type, "Format of matrices").required().oneOf({"q8_0", "q4_0", "q4_k", "bf16", "fp16", "fp32"});
  c.option("--keep", o->keep, "Leaves tensors of this name as they are; * stands for any part; may be repeated")
      .type("NAME")
      .repeated();
  c.flag("--requantize", o->again, "Also rounds what is in blocks already, a second time");
  c.option("--threads", o->threads, "Threads (0: all cores)").within(0, 4096);
  c.flag("--json", o->json, "Prints JSON");
  c.footer("Errors are the RMS of what rounding changed over the RMS of the weights.");
  c.run([o] { quantizeModel(*o); });
}

}  // namespace gptc
