// Emitted CUDA text, compiled for the host against the shim.
#pragma once

#include <string>

namespace gptc::simt {

/// Writes `source` and the common part of the device layer into `folder` and makes FOLDER/kernels.so of them, with the
/// C++ compiler of the machine (CXX, else c++). "", or the compiler's words. `options`: further ones for it.
std::string compileForHost(const std::string &folder, const std::string &common, const std::string &source,
                           const std::string &options = "");
/// Whether there is a compiler.
bool hasHostCompiler();
/// A new folder for temporary files.
std::string temporaryFolder();

}  // namespace gptc::simt
