#include "frontends/hf/tensors.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

namespace gptc::hf {

namespace {

/// A parameter's name: "h.*.ln_1" of layer "3" with ".weight".
struct Parts {
  std::string stem, layer, suffix;

  explicit Parts(llvm::StringRef name) {
    const auto [front, last] = name.rsplit('.');
    suffix = "." + last.str();
    stem = front.str();
    if (llvm::StringRef rest = front; rest.consume_front("h.")) {
      const auto [number, part] = rest.split('.');
      layer = number.str();
      stem = "h.*." + part.str();
    }
  }
  bool isOfHead() const {
    return stem == "lm_head" || stem == "classifier" || llvm::StringRef(stem).starts_with("head.");
  }
  bool isLinear() const {
    const llvm::StringRef last = llvm::StringRef(stem).rsplit('.').second;
    return suffix == ".weight" && (last.starts_with("c_") || last == "dense" || stem == "classifier");
  }
};

/// The table's entry, with a suffix.
std::string theirName(const Tensors &t, const Parts &p) {
  for (const auto &[ours, theirs] : t.names)
    if (ours == p.stem + p.suffix)
      return theirs;
  for (const auto &[ours, theirs] : t.names) {
    if (ours != p.stem)
      continue;
    std::string all;
    for (const char c : std::string(theirs) + "\n")  // the suffix goes behind each name
      all += c == ',' || c == '|' || c == '\n' ? p.suffix + c : std::string(1, c);
    all.pop_back();
    return all;
  }
  GPTC_UNREACHABLE("no name for {}{}", p.stem, p.suffix);
}

/// [place, count] of this stem among those that have one name in files; empty if it is alone.
std::vector<int64_t> shareOf(const Tensors &t, const std::string &stem) {
  const auto named = llvm::find_if(t.names, [&](const auto &n) { return stem == n.first; });
  if (named == t.names.end())
    return {};
  int64_t place = 0, count = 0;
  for (const auto &[ours, theirs] : t.names)
    if (llvm::StringRef(theirs) == named->second) {
      if (ours == stem)
        place = count;
      ++count;
    }
  return count > 1 ? std::vector<int64_t>{place, count} : std::vector<int64_t>{};
}

/// "A.weight|A.gamma" of "A.weight".
std::string withOldName(const std::string &name, const std::string &suffix) {
  const llvm::StringRef stem = llvm::StringRef(name).drop_back(suffix.size());
  return stem.ends_with("LayerNorm")
             ? fmt::format("{}|{}{}", name, stem.str(), suffix == ".weight" ? ".gamma" : ".beta")
             : name;
}

}  // namespace

FileName fileNameOf(const Family *family, const ModelConfig &m, llvm::StringRef parameter) {
  const Parts p(parameter);
  FileName file;
  if (!family) {
    file.names = (p.isOfHead() ? "" : "transformer.") + parameter.str();
    return file;
  }
  const Tensors &t = family->tensors;
  llvm::SmallVector<std::string, 3> parts;
  const std::string theirs = theirName(t, p);
  for (llvm::StringRef part : llvm::split(theirs, ',')) {
    llvm::SmallVector<std::string, 2> versions;
    for (llvm::StringRef version : llvm::split(part, '|')) {
      std::string name = (p.isOfHead() ? "" : t.base) + version.str();
      if (const size_t star = name.find('*'); star != std::string::npos)
        name.replace(star, 1, p.layer);
      versions.push_back(t.gammaBeta ? withOldName(name, p.suffix) : name);
    }
    parts.push_back(llvm::join(versions, "|"));
  }
  file.names = llvm::join(parts, ",");
  file.transposed = t.transposed && p.isLinear();
  file.share = shareOf(t, p.stem);
  if (p.stem == "h.*.attn.c_attn" && t.qkv == QkvLayout::split) {
    const int64_t keys = m.nKvHead * m.headSize();
    file.columns = {m.nHead * m.headSize(), keys, keys};
  } else if (p.stem == "h.*.attn.c_attn" && t.qkv == QkvLayout::perHead) {
    file.heads = m.nHead;
  }
  return file;
}

}  // namespace gptc::hf
