# Text tests of passes and tools: a .gir file, a RUN line, FileCheck patterns. `ctest -R lit` runs them all;
# `tests/lit/run BUILD_DIR FILE..` some.
import os
import lit.formats

config.name = "gptc"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".gir", ".test"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(lit_config.params["build"], "tests", "lit")
config.environment["PATH"] = os.pathsep.join(
    [os.path.join(lit_config.params["build"], "bin"), lit_config.params["llvm"], os.environ["PATH"]])
config.substitutions.append(("%opt", "gptc-opt"))
config.substitutions.append(("%exit", os.path.join(os.path.dirname(__file__), "exit-code")))
