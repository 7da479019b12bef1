// All programs in one file, for tools/bundle: acts as the program whose name it is called by (links in bin/).
#include <cstdio>
#include <string_view>

int gptc_main(int argc, char **argv);
int gptrun_main(int argc, char **argv);
int gptc_opt_main(int argc, char **argv);

int main(int argc, char **argv) {
  std::string_view name = argc ? argv[0] : "";
  name.remove_prefix(name.rfind('/') + 1);
  if (name == "gptrun")
    return gptrun_main(argc, argv);
  if (name == "gptc-opt")
    return gptc_opt_main(argc, argv);
  return gptc_main(argc, argv);
}
