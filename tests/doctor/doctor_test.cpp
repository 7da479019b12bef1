// gptc doctor on machines that are made up: with none of CUDA's libraries, and with stand-ins for them.
#include "runtime/cuda/cudnn.h"
#include "support/json.h"
#include "tests/support/content.h"
#include "tests/support/shell.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <sstream>
#include <sys/stat.h>

namespace fs = std::filesystem;

namespace {

struct Answer {
  int code = -1;
  std::string text;
  bool says(const std::string &part) const { return text.find(part) != std::string::npos; }
  /// Beside how full the disk is at the moment.
  bool hasProblems() const {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
      if (line.find("problem") != std::string::npos && line.find(" GiB free in ") == std::string::npos)
        return true;
    return false;
  }
};

struct DoctorTest : testing::Test {
  fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-doctor-{}", ::getpid());
  std::map<std::string, std::string> env = {
      {"PATH", "/usr/bin:/bin"}, {"HOME", dir / "home"}, {"GPTC_CUDA", dir / "cuda"}};

  void SetUp() override {
    fs::remove_all(dir);
    fs::create_directories(dir / "home");
  }
  void TearDown() override { fs::remove_all(dir); }

  void put(const std::string &file) {
    fs::create_directories((dir / file).parent_path());
    fs::copy_file(GPTC_FAKE_CUDA, dir / file, fs::copy_options::overwrite_existing);
  }
  void putAll() {
    for (const char *file : {"libcuda.so.1", "libnvidia-ml.so.1", "libnvrtc.so.13", "libcublasLt.so.13",
                             "libcudnn.so.9", "libnccl.so.2", "libnvtx3interop.so.1"})
      put(std::string("cuda/") + file);
    env["FAKE_GPUS"] = "2";
  }
  Answer doctor(const std::string &arguments = "") {
    std::string command = "cd '" + dir.string() + "' && env -i";
    for (const auto &[name, value] : env)
      command += fmt::format(" {}='{}'", name, value);
    command += fmt::format(" '{}/gptc' doctor {} >'{}' 2>&1", GPTC_BIN_DIR, arguments, (dir / "out").string());
    const int code = gptc::test::exitCodeOf(command);
    return {code, gptc::test::contentOf(dir / "out")};
  }
};

TEST_F(DoctorTest, WithoutCudaTheCpuRunsAndCudaDoesNot) {
  Answer a = doctor();
  EXPECT_EQ(a.code, 0) << a.text;
  EXPECT_TRUE(a.says("cpu can run")) << a.text;
  EXPECT_TRUE(a.says("cuda cannot run: driver, GPUs, NVRTC")) << a.text;
  EXPECT_FALSE(a.says("remedy:")) << "nobody asked for CUDA: " << a.text;
  a = doctor("--target cuda");
  EXPECT_EQ(a.code, 4) << a.text;
  EXPECT_TRUE(a.says("GPTC_CUDA=" + (dir / "cuda").string() + " has no libcuda.so.1")) << a.text;
  EXPECT_TRUE(a.says("needed:  13.0 or later")) << a.text;
  EXPECT_TRUE(a.says("remedy:  set GPTC_CUDA")) << a.text;
}

TEST_F(DoctorTest, WithEverythingCudaRuns) {
  putAll();
  Answer a = doctor("--target cuda");
  EXPECT_EQ(a.code, 0) << a.text;
  for (const char *part :
       {"driver     13.0, ", "release 580.00.1", "2 visible, 2 present", "Fake GPU 1, sm_90, 80.0 GiB, 132",
        "peers      all reach", "cuBLASLt   13.1, ", "cuDNN      9.19, ", "NCCL       2.28.9, ", "cuda can run"})
    EXPECT_TRUE(a.says(part)) << part << "\n" << a.text;
  const std::string frontend = gptc::cuda::cudnnFrontend();
  EXPECT_TRUE(a.says(frontend.empty() ? "cuDNN use  none: this gptc was built without cuDNN's headers"
                                      : "cuDNN use  attention, by cudnn-frontend " + frontend))
      << a.text;
  EXPECT_FALSE(a.hasProblems()) << a.text;
}

TEST_F(DoctorTest, JsonHoldsTheSame) {
  putAll();
  env["FAKE_NVRTC"] = "1209";
  Answer a = doctor("--target cuda --json");
  EXPECT_EQ(a.code, 4) << a.text;
  const nlohmann::json all = gptc::parseJson(a.text);
  EXPECT_EQ(all["target"], "cuda");
  EXPECT_FALSE(all["can_run"].get<bool>());
  int seen = 0;
  for (const auto &f : all["findings"])
    if (f["name"] == "NVRTC") {
      ++seen;
      EXPECT_EQ(f["grade"], "blocking");
      EXPECT_EQ(f["needed"], "13.0 or later");
      EXPECT_NE(f["found"].get<std::string>().find("is version 12.9"), std::string::npos) << a.text;
      EXPECT_NE(f["remedy"], "");
    } else if (f["name"] == "cuDNN") {
      ++seen;
      EXPECT_EQ(f["grade"], "fine");
      EXPECT_EQ(f["file_version"], "9.19");
      EXPECT_EQ(f["file"], (dir / "cuda/libcudnn.so.9").string());
    }
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(doctor("--json").code, 0) << "the CPU does not need NVRTC";
}

TEST_F(DoctorTest, OldOrMissingPiecesBlockOnlyWhereTheyAreNeeded) {
  putAll();
  env["FAKE_DRIVER"] = "12080";
  Answer a = doctor("--target cuda");
  EXPECT_EQ(a.code, 4) << a.text;
  EXPECT_TRUE(a.says("libcuda.so.1 is version 12.8, and 13.0 or later is needed")) << a.text;
  env.erase("FAKE_DRIVER");
  env["FAKE_CUDNN_CUDA"] = "12080";
  fs::remove(dir / "cuda/libnccl.so.2");
  a = doctor("--target cuda");
  EXPECT_EQ(a.code, 0) << a.text;
  EXPECT_TRUE(a.says("libcudnn.so.9 is built for CUDA 12, and 13 is needed; attention is generated")) << a.text;
  EXPECT_TRUE(a.says("NCCL       none: ")) << a.text;
  env["FAKE_CUBLASLT"] = "140000";
  a = doctor("--target cuda");
  EXPECT_EQ(a.code, 0) << a.text;
  EXPECT_TRUE(
      a.says("libcublasLt.so.13 is version 14.0, and 13.0 or later but below 14 is needed; matmuls are generated"))
      << a.text;
  env["FAKE_COMPILE"] = "6";
  a = doctor("--target cuda");
  EXPECT_EQ(a.code, 4) << "found, but of no use: " << a.text;
  EXPECT_TRUE(a.says("cannot compile for sm_90")) << a.text;
}

TEST_F(DoctorTest, HiddenGpusAreCounted) {
  putAll();
  env["FAKE_GPUS"] = "8";
  env["CUDA_VISIBLE_DEVICES"] = "0,1,2,3";
  Answer a = doctor("--target cuda");
  EXPECT_EQ(a.code, 0) << a.text;
  EXPECT_TRUE(a.says("4 visible, 8 present, CUDA_VISIBLE_DEVICES=0,1,2,3")) << a.text;
  env["CUDA_VISIBLE_DEVICES"] = "";
  a = doctor("--target cuda");
  EXPECT_EQ(a.code, 4) << a.text;
  EXPECT_TRUE(a.says("8 present, CUDA_VISIBLE_DEVICES=")) << a.text;
  EXPECT_TRUE(a.says("unset CUDA_VISIBLE_DEVICES, or let it name some of 0 to 7")) << a.text;
  env["FAKE_GPUS"] = "2";
  env["CUDA_VISIBLE_DEVICES"] = "0,1,2,3";
  a = doctor("--target cuda");
  EXPECT_EQ(a.code, 0) << a.text;
  EXPECT_TRUE(a.says("2 visible, 2 present, CUDA_VISIBLE_DEVICES=0,1,2,3, which names 4")) << a.text;
}

TEST_F(DoctorTest, GpusThatDoNotFit) {
  putAll();
  env["FAKE_SM"] = "70";
  Answer a = doctor("--target cuda");
  EXPECT_EQ(a.code, 4) << a.text;
  EXPECT_TRUE(a.says("NVRTC 13 starts at sm_75")) << a.text;
  EXPECT_TRUE(a.says("cuda cannot run: GPUs\n")) << "the compiler is none the worse for it: " << a.text;
  env["FAKE_SM"] = "86";
  EXPECT_EQ(doctor("--target cuda").code, 0);
  EXPECT_EQ(doctor("--target cuda:sm_80").code, 0) << "code for 8.0 runs on 8.6";
  a = doctor("--target cuda:sm_90a");
  EXPECT_EQ(a.code, 4) << a.text;
  EXPECT_TRUE(a.says("compile with --target cuda:sm_86")) << a.text;
  env["FAKE_SM"] = "121";
  EXPECT_EQ(doctor("--target cuda:sm_120f").code, 0);
  EXPECT_EQ(doctor("--target cuda:sm_120a").code, 4);
  EXPECT_EQ(doctor("--target cuda:sm_1000").code, 3) << "no such target";
  EXPECT_EQ(doctor("--target tpu").code, 3);
}

// A run takes GPU 0: what another one can does not help it.
TEST_F(DoctorTest, TheGpuThatARunTakesDecides) {
  putAll();
  env["FAKE_SM"] = "70,90";
  Answer a = doctor("--target cuda");
  EXPECT_EQ(a.code, 4) << a.text;
  EXPECT_TRUE(a.says("2 visible, 2 present, of which a run takes GPU 0, which cannot; GPU 1 can")) << a.text;
  EXPECT_TRUE(a.says("remedy:  set CUDA_VISIBLE_DEVICES=1")) << a.text;
  EXPECT_TRUE(a.says("GPU 1      Fake GPU 1, sm_90")) << a.text;
  env["FAKE_GPUS"] = "8";
  env["CUDA_VISIBLE_DEVICES"] = "3,5";
  a = doctor("--target cuda");
  EXPECT_EQ(a.code, 4) << a.text;
  EXPECT_TRUE(a.says("remedy:  set CUDA_VISIBLE_DEVICES=5")) << a.text;
  env["FAKE_SM"] = "90,70";
  a = doctor("--target cuda");
  EXPECT_EQ(a.code, 0) << a.text;
  EXPECT_TRUE(a.says("problem: Fake GPU 1, sm_70")) << a.text;
  env["FAKE_SM"] = "86,90";
  EXPECT_EQ(doctor("--target cuda").code, 0);
  EXPECT_EQ(doctor("--target cuda:sm_90a").code, 4);
}

TEST_F(DoctorTest, WhatTheDriverRefusesIsQuoted) {
  putAll();
  env["FAKE_CUINIT"] = "802";
  Answer a = doctor("--target cuda");
  EXPECT_EQ(a.code, 4) << a.text;
  EXPECT_TRUE(a.says("CUDA_ERROR_FAKE: the fake was told to")) << a.text;
  EXPECT_TRUE(a.says("fabric manager")) << a.text;
}

TEST_F(DoctorTest, PeersThatCannotReachEachOther) {
  putAll();
  env["FAKE_GPUS"] = "3";
  env["FAKE_PEERS"] = "0";
  Answer a = doctor("--target cuda");
  EXPECT_EQ(a.code, 0) << a.text;
  EXPECT_TRUE(a.says("no access between 0-1, 0-2, 1-2")) << a.text;
}

TEST_F(DoctorTest, PackagesOfPythonAreFound) {
  // Only where nothing else has them: a machine with a toolkit never asks Python.
  if (fs::exists("/usr/local/cuda/lib64/libnvrtc.so.13"))
    GTEST_SKIP() << "this machine has a CUDA toolkit, which comes first";
  env.erase("GPTC_CUDA");
  put("site/nvidia/cu13/lib/libnvrtc.so.13");
  fs::create_directories(dir / "bin");
  std::ofstream(dir / "bin/python3") << "#!/bin/sh\necho\necho relative\necho '" << (dir / "site").string() << "'\n";
  ::chmod((dir / "bin/python3").c_str(), 0755);
  env["PATH"] = (dir / "bin").string() + ":/usr/bin:/bin";
  Answer a = doctor();
  EXPECT_TRUE(a.says((dir / "site/nvidia/cu13/lib/libnvrtc.so.13").string())) << a.text;
}

TEST_F(DoctorTest, ACacheThatIsOpenToOthersIsAProblem) {
  env["GPTC_CACHE"] = dir / "open";
  fs::create_directories(dir / "open");
  ::chmod((dir / "open").c_str(), 0755);
  Answer a = doctor();
  EXPECT_EQ(a.code, 0) << "it costs time and nothing else: " << a.text;
  EXPECT_TRUE(a.says("chmod 700 " + (dir / "open").string())) << a.text;
  ::chmod((dir / "open").c_str(), 0700);
  a = doctor();
  EXPECT_FALSE(a.hasProblems()) << a.text;
}

}  // namespace
