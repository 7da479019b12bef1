#include "frontends/token_writer.h"

#include "support/diagnostics.h"

#include <bit>

namespace gptc {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

template <typename T> std::string_view bytesOf(const T *data, size_t count) {
  return {reinterpret_cast<const char *>(data), count * sizeof(T)};
}

}  // namespace

TokenWriter::TokenWriter(const std::string &path, TokenFileKind kind, bool wide)
    : path(path), kind(kind), wide(wide), file(path) {
  GPTC_CHECK(kind != TokenFileKind::nanogpt || !wide, "32-bit tokens without header");
  const int32_t zeros[256] = {};
  if (kind == TokenFileKind::llmc)
    file.append(bytesOf(zeros, 256));
  else if (kind == TokenFileKind::megatron)
    index.emplace(megatronIndexOf(path), wide ? sizeof(int32_t) : sizeof(uint16_t));
}

void TokenWriter::append(const std::vector<int32_t> &ids) {
  tokens += int64_t(ids.size());
  if (wide)
    return file.append(bytesOf(ids.data(), ids.size()));
  const std::vector<uint16_t> narrow(ids.begin(), ids.end());
  file.append(bytesOf(narrow.data(), narrow.size()));
}

void TokenWriter::beginDocument(int64_t at) {
  if (index)
    index->beginDocument(at);
}

void TokenWriter::finish() {
  // The fourth number is 0 in llm.c's own files, whose count is an int32.
  const int32_t start[] = {wide ? 20240801 : 20240520, wide ? 7 : 1, int32_t(uint32_t(tokens)), int32_t(tokens >> 32)};
  if (kind == TokenFileKind::llmc)
    file.writeAt(0, bytesOf(start, 4));
  file.finish();
  if (index)
    index->finish(tokens);
}

void TokenWriter::commit() {
  // Before the tokens: a kill leaves tokens without an index, never beside that of others.
  removeMegatronIndex(path);
  file.commit();
  if (index)
    index->commit();
}

}  // namespace gptc
