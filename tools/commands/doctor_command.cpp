// gptc doctor: reports what this machine offers, what is missing, and remedies.
#include "codegen/codegen.h"
#include "support/json.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/study/doctor.h"

#include <memory>
namespace gptc {

namespace {

constexpr const char *gradeNames[] = {"fine", "absent", "hampered", "blocking"};

void printText(const Diagnosis &d, const std::string &wanted) {
  auto line = [](const std::string &name, const std::string &text) { fmt::print("{:<10} {}\n", name, text); };
  int hampered = 0;
  for (const Finding &f : d.findings) {
    const bool matters = !f.cuda || wanted != "cpu";
    const bool wrong = f.grade == Finding::blocking || f.grade == Finding::hampered;
    hampered += matters && f.grade == Finding::hampered;
    // Do not tell users who do not want CUDA how to get it.
    const bool tell = f.grade == Finding::hampered || (matters && f.grade != Finding::fine);
    const bool fine = f.grade == Finding::fine;
    line(f.name, (wrong && tell ? "problem: "
                  : fine        ? ""
                                : "none: ") +
                     f.found + (fine && !f.needed.empty() ? fmt::format(" (needs {})", f.needed) : ""));
    if (tell && !f.needed.empty())
      line("", "needed:  " + f.needed);
    if (tell && !f.remedy.empty())
      line("", "remedy:  " + f.remedy);
  }
  for (const char *target : {"cpu", "cuda"}) {
    const std::vector<std::string> blocking = d.blocking(target == std::string("cuda"));
    line(target == std::string("cpu") ? "result" : "",
         blocking.empty() ? fmt::format("{} can run", target)
                          : fmt::format("{} cannot run: {}", target, fmt::join(blocking, ", ")));
  }
  if (hampered)
    line("", fmt::format("{} problem{} above", hampered, hampered == 1 ? "" : "s"));
}

void printJson(const Diagnosis &d, const std::string &wanted, bool can) {
  nlohmann::ordered_json findings = nlohmann::json::array();
  for (const Finding &f : d.findings)
    findings.push_back({{"name", f.name},
                        {"target", f.cuda ? "cuda" : "cpu"},
                        {"grade", gradeNames[f.grade]},
                        {"found", f.found},
                        {"needed", f.needed},
                        {"remedy", f.remedy},
                        {"file", f.path},
                        {"file_version", f.version}});
  const nlohmann::ordered_json all = {
      {"version", GPTC_VERSION}, {"target", wanted}, {"can_run", can}, {"findings", findings}};
  fmt::print("{}\n", all.dump(1));
}

}  // namespace

void addDoctorCommand(Command &app) {
  struct Options {
    std::string target = "cpu";
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  Command command = app.command("doctor", "Says what this machine offers, and names what is missing");
  command.option("--target", o->target, "what is wanted: cpu (default), cuda, or cuda:sm_90a and the like")
      .type("cpu|cuda|cuda:SM");
  command.flag("--json", o->json, "for programs");
  command.footer("Exits 0 where the wanted target can run, else 4.");
  command.run([o] {
    const bool cuda = o->target != "cpu";
    std::string arch;
    if (cuda && o->target != "cuda")
      arch = cudaTarget(o->target).cpu;  // rejects invalid architectures
    const Diagnosis d = examine(arch);
    const bool can = d.blocking(cuda).empty();
    o->json ? printJson(d, o->target, can) : printText(d, o->target);
    if (!can)
      throw EndProgram(4);
  });
}

}  // namespace gptc
