#include "codegen/cuda/sass.h"

#include "support/diagnostics.h"
#include "support/environment.h"
#include "support/json.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <filesystem>
#include <limits>
#include <optional>

namespace gptc {

namespace fs = std::filesystem;
using llvm::StringRef;

namespace {

/// The number of "R5" behind `prefix`; 255 for RZ, 7 for PT. -1 for other text.
int registerNumber(StringRef text, StringRef prefix, char none, int noneNumber) {
  if (!text.consume_front(prefix))
    return -1;
  if (text.size() == 1 && text[0] == none)
    return noneNumber;
  int n = -1;
  return text.getAsInteger(10, n) ? -1 : n;
}

/// Reads "R2.64+UR6+-0x80", the inside of an address.
void readAddress(StringRef text, SassOperand &o) {
  o.kind = SassOperand::Kind::address;
  o.number = -1;
  llvm::SmallVector<StringRef, 4> parts;
  text.split(parts, '+');
  for (StringRef part : parts) {
    const auto [name, suffix] = part.split('.');
    int64_t offset = 0;
    if (const int r = registerNumber(name, "R", 'Z', 255); r >= 0) {
      o.number = r;
      o.isPair = suffix == "64";
    } else if (const int u = registerNumber(name, "UR", 'Z', 255); u >= 0) {
      o.plusUniform = u;
    } else if (!part.getAsInteger(0, offset)) {
      o.value += offset;
    }
  }
}

SassOperand readOperand(StringRef text) {
  SassOperand o;
  text = text.trim();
  o.text = text.str();
  if (const size_t open = text.rfind('['); open != StringRef::npos && text.ends_with("]")) {
    const StringRef inner = text.slice(open + 1, text.size() - 1);
    if (!text.starts_with("c[") && !text.starts_with("cx[")) {
      readAddress(inner, o);
      return o;
    }
    o.kind = SassOperand::Kind::constant;
    text.slice(2, text.find(']')).getAsInteger(0, o.number);
    llvm::SmallVector<StringRef, 2> parts;
    inner.split(parts, '+');
    for (StringRef part : parts)  // an index in a register counts as 0
      if (int64_t offset = 0; !part.getAsInteger(0, offset))
        o.value += offset;
    return o;
  }
  int64_t integer = 0;
  if (text.starts_with("0x") || text.starts_with("-0x")) {
    if (!text.getAsInteger(0, integer)) {
      o.kind = SassOperand::Kind::integer;
      o.value = integer;
    }
    return o;
  }
  if (text.ends_with("INF") || text.ends_with("NAN")) {
    o.kind = SassOperand::Kind::floating;
    o.floating =
        text.ends_with("NAN") ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    if (text.starts_with("-"))
      o.floating = -o.floating;
    return o;
  }
  if (double d = 0; !text.getAsDouble(d)) {
    o.kind = SassOperand::Kind::floating;
    o.floating = d;
    return o;
  }
  StringRef name = text;
  if (name.consume_front("-"))
    o.minus = true;
  if (name.consume_front("!") || name.consume_front("~"))
    o.isNot = true;
  if (name.consume_front("|")) {
    name = name.take_until([](char c) { return c == '|'; });
    o.magnitude = true;
  }
  name = name.split('.').first;  // a half of a register counts as the register
  using Kind = SassOperand::Kind;
  struct Class {
    Kind kind;
    const char *prefix;
    char none;
    int noneNumber;
  };
  for (const Class &c : {Class{Kind::reg, "R", 'Z', 255},
                         {Kind::uniform, "UR", 'Z', 255},
                         {Kind::predicate, "P", 'T', 7},
                         {Kind::uniformPredicate, "UP", 'T', 7}})
    if (const int n = registerNumber(name, c.prefix, c.none, c.noneNumber); n >= 0) {
      o.kind = c.kind;
      o.number = n;
      return o;
    }
  if (text.starts_with("SR"))
    o.kind = SassOperand::Kind::special;
  return o;
}

SassInstruction readInstruction(const nlohmann::json &json) {
  SassInstruction i;
  llvm::SmallVector<StringRef, 6> parts;
  const std::string opcode = part(json, "opcode").get<std::string>();
  StringRef(opcode).split(parts, '.');
  i.opcode = parts[0].str();
  for (StringRef m : llvm::drop_begin(parts))
    i.modifiers.push_back(m.str());
  if (const nlohmann::json &guard = part(json, "predicate"); guard.is_string()) {
    i.isGuarded = true;
    i.guard = readOperand(StringRef(guard.get_ref<const std::string &>()).drop_front());
  }
  if (const nlohmann::json &operands = part(json, "operands"); operands.is_string()) {
    llvm::SmallVector<StringRef, 6> texts;
    StringRef(operands.get_ref<const std::string &>()).split(texts, ',');
    for (StringRef text : texts)
      i.operands.push_back(readOperand(text));
  }
  const bool branches = i.opcode == "BRA" || i.opcode == "CALL" || i.opcode == "BSSY";
  if (branches && !i.operands.empty() && i.operands.back().kind == SassOperand::Kind::integer)
    i.target = int(i.operands.back().value / 16);
  return i;
}

/// Registers of a thread: those up to the highest that occurs, in eights, as they are given.
int registersOf(const SassFunction &f) {
  int most = 0;
  for (const SassInstruction &i : f.code) {
    const bool isPair = i.has("WIDE") || i.has("64") || i.has("F64") || i.opcode[0] == 'D';
    for (const SassOperand &o : i.operands)
      if ((o.kind == SassOperand::Kind::reg || o.kind == SassOperand::Kind::address) && o.number != 255)
        most = std::max(most, o.number + (i.has("128") || i.has("16816") ? 4 : isPair || o.isPair ? 2 : 1));
  }
  return (most + 7) / 8 * 8;
}

/// Takes the sizes of shared memory from the headers of an image's sections, .nv.shared.NAME.
void readSharedBytes(StringRef image, std::vector<SassFunction> &functions) {
  auto within = [&](uint64_t at, uint64_t bytes) { return at <= image.size() && bytes <= image.size() - at; };
  Elf64_Ehdr header;
  if (image.size() < sizeof header)
    return;
  std::memcpy(&header, image.data(), sizeof header);
  auto section = [&](size_t n) {
    Elf64_Shdr s{};
    if (const uint64_t at = header.e_shoff + n * sizeof s; n < header.e_shnum && within(at, sizeof s))
      std::memcpy(&s, image.data() + at, sizeof s);
    return s;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  for (size_t n = 0; n < header.e_shnum && within(names.sh_offset, names.sh_size); ++n) {
    const Elf64_Shdr s = section(n);
    if (s.sh_name >= names.sh_size)
      continue;
    StringRef name = image.substr(names.sh_offset + s.sh_name).take_until([](char c) { return c == 0; });
    if (name.consume_front(".nv.shared."))
      for (SassFunction &f : functions)
        if (f.name == name)
          f.sharedBytes = int64_t(s.sh_size);
  }
}

}  // namespace

bool SassInstruction::has(StringRef modifier) const { return llvm::is_contained(modifiers, modifier); }

std::vector<SassFunction> parseSass(StringRef text) {
  const auto json = parseJsonOrDiscard(std::string_view(text.data(), text.size()));
  std::vector<SassFunction> functions;
  try {
    for (const nlohmann::json &f : json.at(1)) {
      SassFunction &function = functions.emplace_back();
      function.name = part(f, "function-name").get<std::string>();
      for (const nlohmann::json &i : part(f, "sass-instructions"))
        function.code.push_back(readInstruction(i));
      function.registers = registersOf(function);
    }
  } catch (const nlohmann::json::exception &e) {
    throw UserError(ErrorCode::TargetUnavailable,
                    fmt::format("the output of nvdisasm is not what was expected: {}", e.what()),
                    "nvdisasm 13 or later prints it");
  }
  return functions;
}

std::string findDisassembler() {
  std::vector<fs::path> folders;
  auto add = [&](const char *value, const char *sub) {
    if (value && *value)
      folders.push_back(fs::path(value) / sub);
  };
  if (const char *own = ownVariable("GPTC_CUDA"); own && *own) {
    llvm::SmallVector<StringRef, 4> list;
    StringRef(own).split(list, ':', -1, /*KeepEmpty=*/false);
    for (StringRef folder : list)
      for (const char *sub : {"", "bin", "nvidia/cu13/bin"})
        folders.push_back(fs::path(folder.str()) / sub);
  }
  add(std::getenv("CUDA_HOME"), "bin");
  add(std::getenv("CUDA_PATH"), "bin");
  folders.emplace_back("/usr/local/cuda/bin");
  if (const char *data = std::getenv("XDG_DATA_HOME"); data && *data == '/')
    folders.push_back(fs::path(data) / "gptc/cuda/nvidia/cu13/bin");
  else
    add(std::getenv("HOME"), ".local/share/gptc/cuda/nvidia/cu13/bin");
  for (const fs::path &folder : folders)
    if (const std::string file = folder / "nvdisasm"; llvm::sys::fs::can_execute(file))
      return file;
  const llvm::ErrorOr<std::string> onPath = llvm::sys::findProgramByName("nvdisasm");
  return onPath ? *onPath : "";
}

std::vector<SassFunction> disassemble(const std::string &cubin) {
  const std::string program = findDisassembler();
  const char *const remedy = "tools/setup --cuda brings it; it is part of the CUDA toolkit";
  if (program.empty())
    throw UserError(ErrorCode::TargetUnavailable, "there is no nvdisasm, which reads the machine code of GPUs", remedy);
  llvm::SmallString<128> image, printed;
  int fd = -1;
  if (std::error_code ec = llvm::sys::fs::createTemporaryFile("gptc", "cubin", fd, image))
    throw UserError(ErrorCode::Unwritable, "cannot write a temporary file: " + ec.message(),
                    "TMPDIR chooses another folder");
  const llvm::FileRemover removeImage(image);
  {
    llvm::raw_fd_ostream out(fd, /*shouldClose=*/true);
    out << cubin;
  }
  if (std::error_code ec = llvm::sys::fs::createTemporaryFile("gptc", "json", printed))
    throw UserError(ErrorCode::Unwritable, "cannot write a temporary file: " + ec.message(),
                    "TMPDIR chooses another folder");
  const llvm::FileRemover removePrinted(printed);
  const std::optional<StringRef> redirects[] = {StringRef(""), StringRef(printed), StringRef("")};
  std::string why;
  const int code =
      llvm::sys::ExecuteAndWait(program, {program, "-json", StringRef(image)}, std::nullopt, redirects, 0, 0, &why);
  const auto text = llvm::MemoryBuffer::getFile(printed);
  if (code != 0 || !text)
    throw UserError(ErrorCode::TargetUnavailable,
                    fmt::format("{} does not read the code of this GPU{}{}", program, why.empty() ? "" : ": ", why),
                    remedy);
  std::vector<SassFunction> functions = parseSass((*text)->getBuffer());
  readSharedBytes(cubin, functions);
  return functions;
}

}  // namespace gptc
