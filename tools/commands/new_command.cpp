// gptc new: writes a commented model.toml that compiles once its data exists.
#include "support/files.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/commands/new_model.h"

#include <filesystem>

namespace gptc {

namespace fs = std::filesystem;

namespace {

struct NewOptions {
  std::string preset = "small", data = "data", out = "model.toml";
  bool force = false;
};

void writeNew(const NewOptions &o) {
  const ModelTemplate &t = modelTemplate(o.preset);
  if (!o.force && fs::exists(fs::symlink_status(o.out)))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} is there already", o.out),
                    fmt::format("-o FILE writes another one, --force writes over {}", o.out));
  // Paths are relative to the file's folder.
  const fs::path beside = fs::absolute(o.out).lexically_normal().parent_path();
  const fs::path data =
      fs::path(o.data).is_absolute() ? fs::path(o.data) : fs::absolute(o.data).lexically_relative(beside);
  writeFileAtomically(o.out, textOf(t, data.lexically_normal().string()));
  fmt::print("{}: {}\n", o.out, t.what);
  if (!fs::exists(fs::path(o.data) / "train.bin"))
    fmt::print("data        gptc data prepare YOUR.txt --tokenizer {} --out {}\n", t.tokenizer, o.data);
  fmt::print("next        gptc compile {} -o {}.plan\n", o.out, fs::path(o.out).stem().string());
}

}  // namespace

void addNewCommand(Command &app) {
  Command c = app.command("new", "Writes a commented model.toml to start from");
  auto o = std::make_shared<NewOptions>();
  std::string list, names;
  for (const ModelTemplate &t : modelTemplates()) {
    names += (names.empty() ? "" : "|") + std::string(t.name);
    list += fmt::format("{}{:<7} {}", list.empty() ? "" : "\n", t.name, t.what);
  }
  c.option("preset", o->preset, list).type(names).showDefault();
  c.option("-o,--out", o->out, "File to write").type("MODEL.toml").showDefault();
  c.option("--data", o->data, "Folder that `gptc data prepare --out` has written, or will").type("DIR").showDefault();
  c.flag("--force", o->force, "Writes over a file that is there");
  c.run([o] { writeNew(*o); });
}

}  // namespace gptc
