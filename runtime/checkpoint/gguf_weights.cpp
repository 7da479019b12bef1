#include "runtime/checkpoint/gguf_weights.h"

#include "ir/facts.h"
#include "ir/kernel/eval.h"
#include "ir/mesh.h"
#include "runtime/checkpoint/checkpoint_files.h"
#include "runtime/checkpoint/file_layout.h"
#include "runtime/checkpoint/gguf_names.h"
#include "runtime/checkpoint/places.h"
#include "runtime/checkpoint/quantized_weights.h"
#include "runtime/checkpoint/state.h"
#include "runtime/checkpoint/state_tensors.h"
#include "runtime/checkpoint/transpose.h"
#include "runtime/collectives/communicator.h"
#include "runtime/device/executor.h"
#include "support/diagnostics.h"
#include "support/gguf/gguf_file.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <memory>
#include <set>

namespace gptc {
namespace {

// About how many elements a thread reads at a time, with their block bytes: 256 KiB, and at most twice that.
constexpr int64_t kPiece = 1 << 15;

/// Reads one tensor into its places, a piece for each task.
class TensorRead {
public:
  TensorRead(const GgufFile &file, const GgufTensor &tensor, const GgufPart &part, const Places &places, void *to,
             DType dtype)
      : file(file), tensor(tensor), part(part), places(places), to(to), dtype(dtype), vector(part.shape.size() == 1),
        rows(vector ? 1 : part.shape[0]), columns(part.shape.back()), width(std::min(columns, kPiece)),
        height(rowsAtATime(kPiece, columns)), across((columns + width - 1) / width) {}

  void run(ThreadPool &pool) {
    pool.each((rows + height - 1) / height * across,
              [&](int64_t i) { piece(i / across * height, i % across * width); });
  }

private:
  /// Reads the piece that begins at row r0 and column c0: whole rows, or a part of one. Values are rounded to nearest
  /// even, as where a safetensors file is loaded.
  void piece(int64_t r0, int64_t c0) const {
    const int64_t r1 = std::min(rows, r0 + height), c1 = std::min(columns, c0 + width), n = (r1 - r0) * (c1 - c0);
    const auto values = std::make_unique_for_overwrite<float[]>(size_t(n));
    file.read(tensor, r0 * columns + c0, n, values.get());
    auto place = [&](auto *to, auto convert) { this->place(values.get(), r0, r1, c0, c1, to, convert); };
    if (dtype == DType::f32)
      place(static_cast<float *>(to), [](float v) { return v; });
    else if (dtype == DType::bf16)
      place(static_cast<uint16_t *>(to), [](float v) { return kir::bitsOfBF16(kir::roundBF16(v)); });
    else
      place(static_cast<_Float16 *>(to), [](float v) { return _Float16(v); });
  }

  template <class To, class F>
  void place(const float *values, int64_t r0, int64_t r1, int64_t c0, int64_t c1, To *to, F convert) const {
    const int64_t step = c1 - c0;
    if (part.transposed) {
      std::vector<int64_t> columnOf;
      for (int64_t r = r0; r < r1; ++r)
        columnOf.push_back(places.column[size_t(part.firstColumn + part.rowOf(r))]);
      return copyTransposed(values, columnOf, llvm::ArrayRef(places.row).slice(size_t(c0), size_t(step)), to, convert);
    }
    for (int64_t r = r0; r < r1; ++r) {
      if (places.row[size_t(r)] < 0)
        continue;
      const float *from = values + (r - r0) * step;
      To *row = to + places.row[size_t(r)];
      if (!vector && places.whole) {
        std::transform(from, from + step, row + part.firstColumn + c0, convert);
        continue;
      }
      for (int64_t c = c0; c < c1; ++c)
        if (const int64_t j = places.column[size_t(part.firstColumn + (vector ? part.rowOf(c) : c))]; j >= 0)
          row[j] = convert(from[c - c0]);
    }
  }

  const GgufFile &file;
  const GgufTensor &tensor;
  const GgufPart &part;
  const Places &places;
  void *const to;
  const DType dtype;
  const bool vector;
  const int64_t rows, columns, width, height, across;
};

/// The columns of a weight in few bits, which are rows of a file's tensors. Of a weight of which this rank holds a
/// part, `own`, they are some of the rows, or all with some of their elements.
class ColumnsOfFile {
public:
  ColumnsOfFile(const GgufFile &file, llvm::ArrayRef<GgufPart> parts, const QuantizedWeight &w, const Piece &own)
      : file(file), parts(parts), w(w), inputs(own.shape[w.tb ? 1 : 0]), held(own.runs[w.tb ? 1 : 0][0]),
        rows(size_t(w.columns()), {-1, 0}) {
    GPTC_CHECK(own.runs[w.tb ? 1 : 0].size() == 1, "{}: its inputs are cut in groups", w.param->name);
    std::vector<int64_t> ownColumn(size_t(own.shape[w.tb ? 0 : 1]), -1);
    for (const Piece::Run &run : own.runs[w.tb ? 0 : 1])
      for (int64_t i = 0; i < run.count; ++i)
        ownColumn[size_t(run.whole + i)] = run.own + i;
    for (size_t i = 0; i < parts.size(); ++i)
      for (int64_t r = 0; isRows(parts[i]) && r < parts[i].shape[0]; ++r)
        if (const int64_t c = ownColumn[size_t(parts[i].firstColumn + parts[i].rowOf(r))]; c >= 0)
          rows[size_t(c)] = {int64_t(i), r};
  }

  /// Whether each column is a row: blocks go along the inputs in the file, too.
  bool areRows() const {
    return llvm::none_of(rows, [](const Row &row) { return row.part < 0; });
  }

  /// Reads the blocks of a column as they are, if the file has them in the weight's format; else rounds its values.
  void read(int64_t column, uint8_t *blocks) const {
    const auto [part, row] = rows[size_t(column)];
    const GgufTensor &t = *file.find(parts[size_t(part)].name);
    if (t.format->type == ggmlTypeOf(w.format))
      return file.readBytes(t, row * t.format->bytesOf(inputs) + t.format->bytesOf(held.whole),
                            t.format->bytesOf(held.count), blocks);
    std::vector<float> values(static_cast<size_t>(inputs));
    file.read(t, row * inputs, inputs, values.data());
    roundToBlocks(w, values.data() + held.whole, held.count, blocks);
  }

private:
  struct Row {
    int64_t part, row;
  };
  bool isRows(const GgufPart &p) const { return p.shape.size() == 2 && p.transposed != w.tb && p.shape[1] == inputs; }

  const GgufFile &file;
  const llvm::ArrayRef<GgufPart> parts;
  const QuantizedWeight &w;
  const int64_t inputs;   // of the whole
  const Piece::Run held;  // those of them that this rank has
  std::vector<Row> rows;  // by column
};

/// Reads a weight in few bits, or this rank's part of one. It takes f32 values of all of that only where blocks of the
/// file go along the outputs.
void readFew(Executor &executor, const GgufFile &file, llvm::ArrayRef<GgufPart> parts, const QuantizedWeight &w,
             const Piece &own, const std::function<void(void *, DType)> &readPlain) {
  if (const ColumnsOfFile columns(file, parts, w, own); columns.areRows()) {
    storeBlocks(executor, w, [&](int64_t column, uint8_t *blocks) { columns.read(column, blocks); });
    if (!isInFiles(*w.param))
      readPlain(executor.view(*w.param, StateAccess::readAndWrite).data, w.param->type.dtype);
    return;
  }
  std::vector<float> values(size_t(w.param->type.paddedElements()));
  readPlain(values.data(), DType::f32);
  storeQuantized(executor, w, values.data());
}

/// A table of positions may have more rows than the model's context; the first ones count.
bool fits(const GgufTensor &t, const GgufPart &part) {
  if (part.name == "position_embd.weight" && t.shape.size() == 2)
    return t.shape[0] >= part.shape[0] && t.shape[1] == part.shape[1];
  return t.shape == part.shape;
}

/// Whether a tensor without a place is a tied classifier: the embedding once more. Only these two are read.
bool repeatsEmbedding(const GgufFile &file, const GgufTensor &t) {
  constexpr int64_t piece = 1 << 20;
  const GgufTensor *other = t.name == "output.weight" ? file.find("token_embd.weight") : nullptr;
  if (!other || other->format != t.format || other->shape != t.shape)
    return false;
  std::vector<char> a(piece), b(piece);
  for (int64_t at = 0; at < t.bytes; at += piece) {
    const int64_t n = std::min(piece, t.bytes - at);
    file.readBytes(t, at, n, a.data());
    file.readBytes(*other, at, n, b.data());
    if (!std::equal(a.begin(), a.begin() + n, b.begin()))
      return false;
  }
  return true;
}

[[noreturn]] void mismatch(const std::string &path, const std::string &what, const std::string &remedy) {
  throw UserError(ErrorCode::CheckpointMismatch, fmt::format("{} does not fit the model: {}", path, what), remedy);
}

std::string architectureOf(const GgufFile &file) {
  const std::string name = file.text("general.architecture").value_or("");
  if (!llvm::is_contained(ggufArchitectures(), name))
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("{}: general.architecture = \"{}\", which is not built yet", file.path, name),
                    fmt::format("{} work today", quotedList(ggufArchitectures())));
  return name;
}

/// The heads of the file. A module that states them must agree, because no shape shows them.
GgufHeads headsOf(const GgufFile &file, const std::string &architecture, const Module &m, const std::string &remedy) {
  GgufHeads there;
  there.queries = file.integer(architecture + ".attention.head_count").value_or(0);
  there.keys = file.integer(architecture + ".attention.head_count_kv").value_or(there.queries);
  const std::tuple<const char *, int64_t, int64_t> both[] = {{"n_head", there.queries, fact<&ModelFacts::nHead>(m)},
                                                             {"n_kv_head", there.keys, fact<&ModelFacts::nKvHead>(m)}};
  for (const auto &[key, theirs, ours] : both)
    if (ours && theirs != ours)
      mismatch(file.path, fmt::format("{} is {} there and {} in the plan", key, theirs, ours), remedy);
  return there;
}

using StateParts = std::vector<std::pair<const State *, std::vector<GgufPart>>>;

/// The tensors of all parameters of a module. Checks the file by its header alone but for a tied classifier, whose
/// content is compared.
StateParts checked(const GgufFile &file, const Module &m, const std::string &remedy) {
  const std::string &path = file.path;
  const std::string architecture = architectureOf(file);
  const GgufHeads heads = headsOf(file, architecture, m, remedy);
  StateParts all;
  std::set<std::string> taken;
  for (const State *s : savedStates(m, true)) {
    const auto parts = ggufParts(*s, architecture, heads);
    if (!parts)
      mismatch(path, fmt::format("architecture {} has no place for {}", architecture, s->name), remedy);
    for (const GgufPart &part : *parts) {
      const GgufTensor *t = file.find(part.name);
      if (!t)
        mismatch(path, fmt::format("tensor {} is missing", part.name), remedy);
      if (!fits(*t, part))
        mismatch(path,
                 fmt::format("tensor {} is [{}] where the model has [{}]", part.name, fmt::join(t->shape, ","),
                             fmt::join(part.shape, ",")),
                 remedy);
      if (!t->format->readable())
        file.read(*t, 0, 0, nullptr);  // says what is readable
      taken.insert(part.name);
    }
    all.emplace_back(s, *parts);
  }
  // The numbers of Llama 3's scaling are the plan's, which frontends/gguf compares with this tensor.
  if (file.find("rope_freqs.weight") && fact<&ModelFacts::ropeScaling>(m) == RopeScaling::llama3)
    taken.insert("rope_freqs.weight");
  if (isHeadless(m))
    taken.insert("output.weight");
  for (const GgufTensor &t : file.tensors())
    if (!taken.count(t.name) && !repeatsEmbedding(file, t))
      mismatch(path, fmt::format("it has no place for tensor {}", t.name), remedy);
  return all;
}

}  // namespace

bool checkGguf(const Module &m, const std::string &path, const std::string &remedy) {
  const GgufFile file(path);
  checked(file, m, remedy);
  return llvm::any_of(file.tensors(), [](const GgufTensor &t) {
    return t.shape.size() > 1 && t.format->type == GgmlType::f32 && t.name != "position_embd.weight";
  });
}

namespace {

/// The formats of the tensors that make up a matrix of a layer.
struct LayerMatrix {
  std::string name;
  int64_t elements = 0;
  std::set<GgmlType> formats;

  bool isAll(GgmlType type) const { return formats == std::set{type}; }
};

std::vector<LayerMatrix> layerMatrices(const GgufFile &file, const Module &m) {
  const std::string architecture = architectureOf(file);
  const GgufHeads heads = headsOf(file, architecture, m, "");
  std::vector<LayerMatrix> all;
  for (const State *s : savedStates(m, true)) {
    const auto parts = isLayerMatrix(*s) ? ggufParts(*s, architecture, heads) : std::nullopt;
    if (!parts || llvm::any_of(*parts, [](const GgufPart &p) { return p.shape.back() % quantBlock != 0; }))
      continue;
    LayerMatrix matrix{s->name, s->type.elements(), {}};
    for (const GgufPart &part : *parts)
      if (const GgufTensor *t = file.find(part.name))
        matrix.formats.insert(t->format->type);
    all.push_back(matrix);
  }
  return all;
}

/// The format of 4 bits that most elements are in; nullopt if there are none.
std::optional<Weights> fourBits(llvm::ArrayRef<LayerMatrix> all) {
  int64_t old = 0, super = 0;
  for (const LayerMatrix &matrix : all) {
    old += matrix.isAll(GgmlType::q4_0) ? matrix.elements : 0;
    super += matrix.isAll(GgmlType::q4_k) ? matrix.elements : 0;
  }
  return old + super == 0 ? std::nullopt : std::optional(old > super ? Weights::q4_0 : Weights::q4_k);
}

}  // namespace

StoredWeights storedWeights(const Module &m, const std::string &path) {
  const GgufFile file(path);
  const std::vector<LayerMatrix> all = layerMatrices(file, m);
  int64_t inBlocks = 0, elements = 0;
  for (const LayerMatrix &matrix : all) {
    elements += matrix.elements;
    if (llvm::all_of(matrix.formats, [](GgmlType type) { return ggmlFormat(type).elements > 1; }))
      inBlocks += matrix.elements;
  }
  StoredWeights stored;
  if (2 * inBlocks <= elements)
    return stored;
  stored.weights = fourBits(all).value_or(Weights::q8_0);
  std::set<std::string> from;
  for (const LayerMatrix &matrix : all) {
    if (stored.weights != Weights::q8_0) {
      if (matrix.isAll(stored.weights == Weights::q4_0 ? GgmlType::q4_0 : GgmlType::q4_k))
        continue;
      stored.eightBits.push_back(matrix.name);
    }
    if (matrix.isAll(GgmlType::q8_0))
      continue;
    stored.rounded.push_back(matrix.name);
    for (const GgmlType type : matrix.formats)
      if (type != GgmlType::q8_0)
        from.insert(ggmlFormat(type).name);
  }
  stored.roundedFrom.assign(from.begin(), from.end());
  return stored;
}

void loadGguf(Executor &executor, const std::string &path) {
  const GgufFile file(path);
  const Module &m = executor.planned();
  const StateParts all = checked(file, m, "`gptc import FILE.gguf` writes the [model] that it holds");
  // All checks have passed: now change the executor's states.
  const int64_t rank = executor.ranks ? executor.ranks->rank : 0;
  const QuantizedWeights few(m);
  for (const auto &[s, parts] : all) {
    GPTC_CHECK(isConvertible(DType::f32, s->type.dtype), "@{} : {}", s->name, s->type.str());
    const Piece own = Piece::of(*s, Mesh::of(m), rank);
    const Places places(*s, own);
    auto read = [&](void *to, DType dtype) {
      for (const GgufPart &part : parts)
        TensorRead(file, *file.find(part.name), part, places, to, dtype).run(executor.threads());
    };
    // Padding stays as it is: zero.
    if (const QuantizedWeight *quantized = few.of(*s))
      readFew(executor, file, parts, *quantized, own, read);
    else if (std::vector<float> values(isInFiles(*s) ? size_t(s->type.paddedElements()) : 0); !values.empty()) {
      read(values.data(), DType::f32);
      storePanels(executor, *s, values.data());
    } else
      read(executor.view(*s, StateAccess::readAndWrite).data, s->type.dtype);
  }
  fillCopies(executor);
}

namespace {

/// The format in which the files have a parameter.
GgmlType formatOf(const State &s, const TensorFiles &source) {
  const StateTensors tensors(s, source);
  for (const TensorInfo *t : tensors.found())
    return t->dtype == DType::bf16 ? GgmlType::bf16 : t->dtype == DType::f16 ? GgmlType::f16 : GgmlType::f32;
  return GgmlType::f32;  // whose reading says what is missing
}

/// A part of a parameter as it is to be written.
WrittenTensor planned(const GgufPart &part, GgmlType from, const GgufRounding &how) {
  WrittenTensor t = plannedTensor(part.name, part.shape, from, how.type);
  if (part.shape.size() == 1 || part.name == "position_embd.weight")
    t.to = &ggmlFormat(GgmlType::f32);
  else if (isKept(how, part.name)) {
    t.to = t.from;
    t.refused = nullptr;
  }
  return t;
}

/// The dense logical elements of a parameter, as f32, from the tensors of a checkpoint.
std::vector<float> denseOf(const State &s, const TensorFiles &source) {
  State wanted = s;
  wanted.type = wholeType(s);
  for (Dim &d : wanted.type.dims)
    d.padded = d.logical;
  wanted.type.dtype = DType::f32;
  eraseFact<&StateFacts::cutData>(wanted);
  eraseFact<&StateFacts::cutTensor>(wanted);
  std::vector<float> dense(size_t(wanted.type.elements()));
  const StateTensors tensors(wanted, source);
  if (const std::string problem = tensors.problem(); !problem.empty())
    throw UserError(ErrorCode::CheckpointMismatch, problem, "export a checkpoint of the same model");
  tensors.read(dense.data());
  return dense;
}

/// Gives elements of a part out of the dense elements of its state, which have `width` columns.
ReadElements elementsOf(const GgufPart &part, const std::vector<float> &dense, int64_t width) {
  return [&part, &dense, width](int64_t first, int64_t count, float *to) {
    const bool vector = part.shape.size() == 1;
    const int64_t columns = part.shape.back();
    int64_t r = vector ? 0 : first / columns, c = first - r * columns;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t i = part.transposed ? c : r, j = part.transposed ? part.rowOf(r) : vector ? part.rowOf(c) : c;
      to[n] = dense[size_t(i * width + part.firstColumn + j)];
      if (++c == columns) {
        c = 0;
        ++r;
      }
    }
  };
}

}  // namespace

std::vector<WrittenTensor> writeGguf(const std::string &path, const Module &model, const TensorFiles &source,
                                     const GgufContent &content, const GgufRounding &how) {
  const GgufHeads heads{fact<&ModelFacts::nHead>(model), fact<&ModelFacts::nKvHead>(model)};
  StateParts all;
  std::vector<WrittenTensor> written;
  for (const State *s : savedStates(model, true)) {
    const auto parts = ggufParts(*s, content.architecture, heads);
    if (!parts)
      throw UserError(ErrorCode::NotBuiltYet,
                      fmt::format("GGUF's architecture {} has no place for {}", content.architecture, s->name),
                      "export it as a Hugging Face folder");
    const GgmlType from = formatOf(*s, source);
    for (const GgufPart &part : *parts)
      written.push_back(planned(part, from, how));
    all.emplace_back(s, *parts);
  }
  for (const auto &[name, values] : content.tensors)
    written.push_back(plannedTensor(name, int64_t(values.size()), GgmlType::f32, how.type));
  requireKept(how, written, path);
  GgufKeys keys = content.keys;
  setFormatKeys(keys, written);
  std::vector<GgufWriter::Tensor> tensors;
  for (const WrittenTensor &t : written)
    tensors.push_back({t.name, t.to->type, t.shape});
  ThreadPool pool(how.threads);
  GgufWriter out(path, keys, tensors);
  size_t next = 0;
  for (const auto &[s, parts] : all) {
    const std::vector<float> dense = denseOf(*s, source);
    for (const GgufPart &part : parts)
      writeRounded(out, written[next++], elementsOf(part, dense, wholeType(*s).dim(-1)), pool, how.measure);
  }
  for (const auto &[name, values] : content.tensors)
    out.write(values.data(), values.size() * sizeof(float));
  out.finish();
  return written;
}

}  // namespace gptc
