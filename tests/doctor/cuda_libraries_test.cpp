// Where CUDA's libraries are looked for, and what is said of those that do not fit.
#include "codegen/cuda/libraries.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

using namespace gptc;
namespace fs = std::filesystem;
using enum CudaLibraryId;

namespace {

const char *const variables[] = {"GPTC_CUDA",     "LD_LIBRARY_PATH", "CUDA_HOME",     "CUDA_PATH",
                                 "FAKE_NVRTC",    "FAKE_DRIVER",     "XDG_DATA_HOME", "HOME",
                                 "FAKE_CUBLASLT", "FAKE_CUDNN",      "FAKE_NCCL"};

struct CudaLibrariesTest : testing::Test {
  fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-cuda-{}", ::getpid());
  std::map<std::string, std::optional<std::string>> before;

  void SetUp() override {
    fs::remove_all(dir);
    for (const char *v : variables) {
      const char *value = std::getenv(v);
      before[v] = value ? std::optional<std::string>(value) : std::nullopt;
      ::unsetenv(v);
    }
    ::setenv("HOME", dir.c_str(), 1);
  }
  void TearDown() override {
    for (const auto &[v, value] : before)
      value ? ::setenv(v.c_str(), value->c_str(), 1) : ::unsetenv(v.c_str());
    fs::remove_all(dir);
  }
  void set(const char *variable, const std::string &value) { ::setenv(variable, value.c_str(), 1); }
  /// The stand-in under a library's name.
  std::string put(const std::string &file) {
    fs::create_directories((dir / file).parent_path());
    fs::copy_file(GPTC_FAKE_CUDA, dir / file, fs::copy_options::overwrite_existing);
    return dir / file;
  }
  std::string root(const std::string &name) { return dir / name; }
};

TEST_F(CudaLibrariesTest, EachPlaceIsLookedAtInItsTurn) {
  // From the last place to the first: each new one comes before those that are there already.
  const std::string setup = put(".local/share/gptc/cuda/nvidia/cu13/lib/libnvrtc.so.13");
  const std::string home = put("toolkit/lib64/libnvrtc.so");
  const std::string path = put("libraries/libnvrtc.so.13");
  const std::string only = put("only/nvidia/cu13/lib/libnvrtc.so.13");
  set("CUDA_HOME", root("toolkit"));
  EXPECT_EQ(CudaLibrary::lookUp(nvrtc).path, home);
  set("LD_LIBRARY_PATH", "/nowhere:" + root("libraries"));
  EXPECT_EQ(CudaLibrary::lookUp(nvrtc).path, path);
  set("GPTC_CUDA", "/nowhere:" + root("only"));
  EXPECT_EQ(CudaLibrary::lookUp(nvrtc).path, only);
  EXPECT_FALSE(CudaLibrary::lookUp(nccl).found()) << "GPTC_CUDA is the only place";
  if (!fs::exists("/usr/local/cuda/lib64/libnvrtc.so.13")) {
    ::unsetenv("CUDA_HOME");
    ::unsetenv("LD_LIBRARY_PATH");
    ::unsetenv("GPTC_CUDA");
    EXPECT_EQ(CudaLibrary::lookUp(nvrtc).path, setup);
  }
}

TEST_F(CudaLibrariesTest, VersionsAreRead) {
  for (const char *file : {"libcuda.so.1", "libnvidia-ml.so.1", "libnvrtc.so.13", "libcublasLt.so.13", "libcudnn.so.9",
                           "libnccl.so.2", "libnvtx3interop.so.1"})
    put(std::string("all/") + file);
  set("GPTC_CUDA", root("all"));
  const std::map<CudaLibraryId, CudaVersion> versions = {
      {driver, {13, 0, 0}}, {nvml, {}},         {nvrtc, {13, 0, 0}}, {cublasLt, {13, 1, 0}},
      {cudnn, {9, 19, 0}},  {nccl, {2, 28, 9}}, {nvtx, {}}};
  for (const auto &[id, version] : versions) {
    const CudaLibrary l = CudaLibrary::lookUp(id);
    EXPECT_TRUE(l.found()) << l.name << ": " << l.why;
    EXPECT_EQ(l.version.str(), version.str()) << l.name;
    EXPECT_GE(l.version, l.needed) << l.name;
  }
  EXPECT_EQ((CudaVersion{2, 28, 9}.str()), "2.28.9");
  EXPECT_EQ((CudaVersion{13, 0, 0}.str()), "13.0");
}

TEST_F(CudaLibrariesTest, AnOldOneIsPassedOverAndNamedWhereThereIsNoOther) {
  const std::string old = put("only/libcuda.so.1");
  set("GPTC_CUDA", root("only"));
  set("FAKE_DRIVER", "12080");
  CudaLibrary l = CudaLibrary::lookUp(driver);
  EXPECT_FALSE(l.found());
  EXPECT_TRUE(l.unfit);
  EXPECT_EQ(l.why, old + " is version 12.8, and 13.0 or later is needed");
  EXPECT_EQ(l.symbol("cuDriverGetVersion"), nullptr);
}

// Functions of a later major version may take other arguments; a driver runs what was made for an earlier one.
TEST_F(CudaLibrariesTest, AnotherMajorVersionIsPassedOver) {
  const struct {
    CudaLibraryId id;
    const char *file, *variable, *earlier, *later, *why;
  } all[] = {{cublasLt, "libcublasLt.so", "FAKE_CUBLASLT", "120805", "140000", "14.0, and 13.0 or later but below 14"},
             {cudnn, "libcudnn.so", "FAKE_CUDNN", "8907", "100000", "10.0, and 9.0 or later but below 10"},
             {nccl, "libnccl.so", "FAKE_NCCL", "21805", "30000", "3.0, and 2.19 or later but below 3"}};
  set("GPTC_CUDA", root("only"));
  for (const auto &l : all) {
    const std::string file = put(std::string("only/") + l.file);
    for (const char *version : {l.earlier, l.later}) {
      set(l.variable, version);
      const CudaLibrary found = CudaLibrary::lookUp(l.id);
      EXPECT_FALSE(found.found()) << l.file << version;
      EXPECT_TRUE(found.unfit) << l.file << version;
      if (version == l.later) {
        EXPECT_EQ(found.why, file + " is version " + l.why + " is needed");
      }
    }
  }
  put("only/libcuda.so.1");
  set("FAKE_DRIVER", "14000");
  EXPECT_TRUE(CudaLibrary::lookUp(driver).found());
}

TEST_F(CudaLibrariesTest, ADamagedOneIsNamed) {
  fs::create_directories(dir / "only");
  std::ofstream(dir / "only/libnccl.so.2") << "no library";
  set("GPTC_CUDA", root("only"));
  CudaLibrary l = CudaLibrary::lookUp(nccl);
  EXPECT_TRUE(l.unfit);
  EXPECT_EQ(l.why.find("the loader refuses " + root("only/libnccl.so.2")), 0u) << l.why;
  // A good one in a later folder is taken all the same.
  const std::string good = put("later/libnccl.so.2");
  set("GPTC_CUDA", root("only") + ":" + root("later"));
  EXPECT_EQ(CudaLibrary::lookUp(nccl).path, good);
}

TEST_F(CudaLibrariesTest, ALibraryOfAnotherKindIsNone) {
  fs::create_directories(dir / "only");
  fs::copy_file(GPTC_OTHER_LIBRARY, dir / "only/libcudnn.so.9");
  set("GPTC_CUDA", root("only"));
  CudaLibrary l = CudaLibrary::lookUp(cudnn);
  EXPECT_TRUE(l.unfit);
  EXPECT_EQ(l.why, root("only/libcudnn.so.9") + " does not tell its version: it is damaged, or another library");
}

TEST_F(CudaLibrariesTest, NoneIsSaidWithARemedy) {
  set("GPTC_CUDA", root("nowhere"));
  CudaLibrary l = CudaLibrary::lookUp(cublasLt);
  EXPECT_FALSE(l.found());
  EXPECT_FALSE(l.unfit);
  EXPECT_EQ(l.why, "GPTC_CUDA=" + root("nowhere") + " has no libcublasLt.so.13");
  EXPECT_NE(l.remedy.find("GPTC_CUDA"), std::string::npos);
  ::unsetenv("GPTC_CUDA");
  set("CUDA_HOME", root("toolkit"));
  put("toolkit/lib64/libcuda.so.1");  // a toolkit has the stub of a driver at most
  EXPECT_NE(CudaLibrary::lookUp(driver).path, root("toolkit/lib64/libcuda.so.1"));
}

TEST_F(CudaLibrariesTest, FunctionsAreBound) {
  put("only/libcuda.so.1");
  set("GPTC_CUDA", root("only"));
  const CudaLibrary l = CudaLibrary::lookUp(driver);
  int (*version)(int *) = nullptr;
  ASSERT_TRUE(l.bind(version, "cuDriverGetVersion"));
  int v = 0;
  EXPECT_EQ(version(&v), 0);
  EXPECT_EQ(v, 13000);
  EXPECT_FALSE(l.bind(version, "cuNoSuchFunction"));
}

}  // namespace
