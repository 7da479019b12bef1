// One warp of machine code, run without a GPU: what it counts, and how long it says that it takes.
#include "codegen/cuda/sass.h"
#include "codegen/cuda/warp_run.h"
#include "support/diagnostics.h"
#include "support/json.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

using llvm::StringRef;

/// nvdisasm's JSON of a kernel, from lines such as "@P0 BRA 0x30".
std::string jsonOf(std::initializer_list<const char *> lines) {
  nlohmann::json code = nlohmann::json::array();
  for (StringRef line : lines) {
    nlohmann::json i;
    if (line.starts_with("@")) {
      const auto [guard, rest] = line.split(' ');
      i["predicate"] = guard.str();
      line = rest;
    }
    const auto [opcode, operands] = line.split(' ');
    i["opcode"] = opcode.str();
    if (!operands.empty())
      i["operands"] = operands.str();
    code.push_back(i);
  }
  return nlohmann::json{nlohmann::json::object(), {{{"function-name", "k"}, {"sass-instructions", code}}}}.dump();
}

SassFunction kernel(std::initializer_list<const char *> lines) { return parseSass(jsonOf(lines)).at(0); }

WarpRun run(std::initializer_list<const char *> lines, WarpLaunch launch = {}) {
  launch.parameters.assign(4, {DType::f32});
  return runWarp(kernel(lines), launch);
}

TEST(Sass, OperandsAreRead) {
  const SassFunction f = kernel({"@!P2 IADD3.X R5,P0,~R3,-R6,c[0x0][0x218],!PT", "LDG.E.128 R8,desc[UR4][R2.64+-0x80]",
                                 "FFMA R1,|R2|,-1.5,+INF", "LDS R3,[R5+UR6+0x80]", "BRA 0x10"});
  ASSERT_EQ(f.code.size(), 5u);
  using Kind = SassOperand::Kind;
  const SassInstruction &add = f.code[0];
  EXPECT_EQ(add.opcode, "IADD3");
  EXPECT_TRUE(add.has("X"));
  EXPECT_TRUE(add.isGuarded && add.guard.isNot);
  EXPECT_EQ(add.guard.number, 2);
  EXPECT_EQ(add.operands[1].kind, Kind::predicate);
  EXPECT_TRUE(add.operands[2].isNot);
  EXPECT_TRUE(add.operands[3].minus);
  EXPECT_EQ(add.operands[4].kind, Kind::constant);
  EXPECT_EQ(add.operands[4].value, 0x218);
  EXPECT_EQ(add.operands[5].number, 7);
  const SassOperand &address = f.code[1].operands[1];
  EXPECT_EQ(address.kind, Kind::address);
  EXPECT_EQ(address.number, 2);
  EXPECT_TRUE(address.isPair);
  EXPECT_EQ(address.value, -0x80);
  EXPECT_EQ(f.code[2].operands[1].magnitude, true);
  EXPECT_EQ(f.code[2].operands[2].floating, -1.5);
  EXPECT_EQ(f.code[3].operands[1].plusUniform, 6);
  EXPECT_EQ(f.code[3].operands[1].value, 0x80);
  EXPECT_EQ(f.code[4].target, 1);
  EXPECT_EQ(f.registers, 16);  // R8 to R11
}

TEST(Sass, WhatIsNotItsOutputIsRefused) {
  for (const char *text : {"", "[]", "[{}]", "{}", "[{}, [{}]]", "[{}, [{\"function-name\": 3}]]", "nvdisasm fatal"})
    try {
      const auto functions = parseSass(text);
      EXPECT_TRUE(functions.empty()) << text;
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::TargetUnavailable) << text;
    }
}

TEST(WarpRun, CountsLoops) {
  // i from 0 in steps of 3 as long as it is below 30.
  const WarpRun r = run({"MOV R1,RZ", "IADD3 R1,R1,0x3,RZ", "ISETP.LT.AND P0,PT,R1,0x1e,PT", "@P0 BRA 0x10", "EXIT"});
  EXPECT_EQ(r.instructions, 1 + 10 * 3 + 1);
  EXPECT_EQ(r.pipes.issue, 32);
  EXPECT_EQ(r.pipes.alu, 2 * (1 + 10 * 2));
  EXPECT_EQ(r.unknownBranches, 0);
  EXPECT_FALSE(r.isCut);
}

TEST(WarpRun, ComparesAndSubtractsPairs) {
  // A counter of 64 bits, from -4 up to 0, as compilers count down: its low half carries at the end.
  const WarpRun r = run({"MOV R4,0x4", "IADD3 R2,P0,RZ,-R4,RZ", "IADD3.X R3,RZ,-0x1,RZ,P0,!PT", "IADD3 R2,P0,R2,0x1,RZ",
                         "IMAD.X R3,RZ,RZ,R3,P0", "ISETP.NE.U32.AND P1,PT,R2,RZ,PT",
                         "ISETP.NE.AND.EX P1,PT,R3,RZ,PT,P1", "@P1 BRA 0x30", "EXIT"});
  EXPECT_EQ(r.instructions, 3 + 4 * 5 + 1);
}

TEST(WarpRun, ConvertsIntegersAndFloats) {
  // From 0 to 4: sm_80 writes I2F without a modifier.
  const WarpRun r = run({"MOV R1,RZ", "IADD3 R1,R1,0x1,RZ", "I2F R2,R1", "F2I.TRUNC.NTZ R3,R2",
                         "ISETP.LT.AND P0,PT,R1,0x4,PT", "@P0 BRA 0x10", "EXIT"});
  EXPECT_EQ(r.instructions, 1 + 4 * 5 + 1);
  EXPECT_EQ(r.unknownBranches, 0);
}

// What the hardware would refuse must not end the program.
TEST(WarpRun, ModifiersAndOperandsMayBeMissing) {
  for (const char *op : {"I2F",   "F2I",   "F2F", "MUFU", "ISETP", "FSETP", "DSETP", "PLOP3", "SHFL", "LOP3",
                         "IADD3", "IMAD",  "LEA", "SEL",  "FADD",  "FMNMX", "DADD",  "PRMT",  "SHF",  "VIADDMNMX",
                         "FCHK",  "HFMA2", "MOV", "S2R",  "LDC",   "LDG",   "STG",   "F2FP"})
    for (const char *operands : {"", " R2", " R2,R3", " P0,R3"}) {
      const std::string line = fmt::format("{}{}", op, operands);
      EXPECT_GT(run({line.c_str(), "EXIT"}).instructions, 0) << line;
    }
}

// A loop that runs as often as max(-3, 0) says.
TEST(WarpRun, SignsCount) {
  for (const char *line : {"VIADDMNMX.RELU R1,R2,0x0,R3,PT", "VIMNMX R1,R2,RZ,!PT"}) {
    const WarpRun r =
        run({"MOV R2,0xfffffffd", "MOV R3,0x7", line, "ISETP.LT.AND P0,PT,RZ,R1,PT", "@P0 BRA 0x40", "EXIT"});
    EXPECT_EQ(r.instructions, 6) << line;
  }
  EXPECT_TRUE(run({"MOV R2,0xfffffffd", "ISETP.LT.AND P0,PT,R2,RZ,PT", "@P0 BRA 0x10", "EXIT"}).isCut);
  EXPECT_EQ(run({"MOV R2,0xfffffffd", "ISETP.LT.U32.AND P0,PT,R2,RZ,PT", "@P0 BRA 0x10", "EXIT"}).instructions, 4);
}

TEST(WarpRun, EndlessLoopsAreCut) {
  const WarpRun r = run({"MOV R1,RZ", "IADD3 R1,R1,0x1,RZ", "BRA 0x10", "EXIT"});
  EXPECT_TRUE(r.isCut);
}

TEST(WarpRun, ABranchOnTheUnknownIsNotTakenAndCounted) {
  const WarpRun r = run({"VOTE.ANY R1,PT,PT", "ISETP.GT.AND P0,PT,R1,RZ,PT", "@P0 BRA 0x0", "EXIT"});
  EXPECT_EQ(r.unknownBranches, 1);
  EXPECT_EQ(r.instructions, 4);
}

// R2:R3 = the parameter's memory + the thread's number times what `add`, "IMAD.WIDE R2,R0,0x10,R2", has.
#define GPTC_ADDRESS(add) "S2R R0,SR_TID.X", "LDC.64 R2,c[0x0][0x210]", add

TEST(WarpRun, FindsHowLanesLieInMemory) {
  struct Case {
    WarpRun run;
    int bytes, lanes, sectors;
  };
  const Case cases[] = {
      {run({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x10,R2"), "LDG.E.128 R4,desc[UR4][R2.64]", "EXIT"}), 16, 32, 16},
      {run({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x2,R2"), "LDG.E.U16 R4,desc[UR4][R2.64]", "EXIT"}), 2, 32, 2},
      {run({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x0,R2"), "LDG.E R4,desc[UR4][R2.64]", "EXIT"}), 4, 1, 1},
      {run({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x400,R2"), "LDG.E R4,desc[UR4][R2.64]", "EXIT"}), 4, 32, 32},
      {run({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x4,R2"), "STG.E desc[UR4][R2.64],R4", "EXIT"}), 4, 32, 4},
  };
  for (const Case &c : cases) {
    ASSERT_EQ(c.run.accesses.size(), 1u);
    const WarpAccess &a = c.run.accesses[0];
    EXPECT_EQ(a.parameter, 0);
    EXPECT_EQ(a.bytes, c.bytes);
    EXPECT_EQ(a.lanes, c.lanes);
    EXPECT_EQ(a.sectors, c.sectors);
    EXPECT_EQ(a.times, 1);
  }
  EXPECT_TRUE(cases[4].run.accesses[0].isStore);
}

TEST(WarpRun, LoadsOfAChainWaitForEachOther) {
  const WarpRun apart = run({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x4,R2"), "LDG.E R4,desc[UR4][R2.64]",
                             "LDG.E R5,desc[UR4][R2.64+0x1000]", "FADD R6,R4,R5", "EXIT"});
  EXPECT_GT(apart.cycles, 600);
  EXPECT_LT(apart.cycles, 700);
  EXPECT_GT(apart.loadsInFlight, 1.9);
  const WarpRun chain = run({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x4,R2"), "LDG.E R4,desc[UR4][R2.64]",
                             "IMAD.WIDE R2,R4,0x4,R2", "LDG.E R5,desc[UR4][R2.64]", "FADD R6,R4,R5", "EXIT"});
  EXPECT_GT(chain.cycles, 1200);
  EXPECT_LT(chain.cycles, 1300);
  EXPECT_NEAR(chain.loadsInFlight, 1, 0.01);
  // What other blocks have brought into L2 is there sooner.
  WarpLaunch launch;
  launch.parameters = {{DType::f32, true}};
  const WarpRun near = runWarp(
      kernel({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x4,R2"), "LDG.E R4,desc[UR4][R2.64]", "FADD R6,R4,R4", "EXIT"}), launch);
  EXPECT_GT(near.cycles, 270);
  EXPECT_LT(near.cycles, 350);
}

TEST(WarpRun, OffsetsOfAListGrow) {
  // A loop from element 3 to element 4 of a list of offsets: 2.5 a step, so from 7 to 10.
  WarpLaunch launch;
  launch.parameters = {{DType::i32, true, 2.5}};
  const WarpRun r =
      runWarp(kernel({"LDC.64 R2,c[0x0][0x210]", "LDG.E R4,desc[UR4][R2.64+0xc]", "LDG.E R5,desc[UR4][R2.64+0x10]",
                      "IADD3 R4,R4,0x1,RZ", "ISETP.LT.AND P0,PT,R4,R5,PT", "@P0 BRA 0x30", "EXIT"}),
              launch);
  EXPECT_EQ(r.instructions, 3 + 3 * 3 + 1);
}

TEST(WarpRun, WhatWasLoadedIsInTheCacheUnlessDataSaysWhere) {
  const WarpRun again = run({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x4,R2"), "LDG.E R4,desc[UR4][R2.64]", "FADD R4,R4,R4",
                             "LDG.E R5,desc[UR4][R2.64]", "FADD R6,R4,R5", "EXIT"});
  EXPECT_EQ(again.accesses[0].missed, 1);
  EXPECT_EQ(again.accesses[1].missed, 0);
  EXPECT_LT(again.cycles, 750);
  // A table's row: the same place twice, but by what was loaded.
  const WarpRun table =
      run({GPTC_ADDRESS("IMAD.WIDE R2,R0,0x4,R2"), "LDG.E R4,desc[UR4][R2.64]", "LOP3.LUT R4,R4,RZ,RZ,0xc0,!PT",
           "IMAD.WIDE R2,R4,0x4,R2", "LDG.E R5,desc[UR4][R2.64]", "LDG.E R6,desc[UR4][R2.64]", "EXIT"});
  EXPECT_EQ(table.accesses[1].missed, 1);
  EXPECT_EQ(table.accesses[2].missed, 1);
}

TEST(WarpRun, PipesTakeTheirCycles) {
  const WarpRun r = run({"FFMA R1,R2,R3,R4", "IMAD R5,R6,R7,R8", "MUFU.RCP R9,R1", "DFMA R10,R12,R14,R16",
                         "SHFL.BFLY PT,R1,R2,0x1,0x1f", "LDL R20,[R1]", "STL [R1],R20", "EXIT"});
  EXPECT_EQ(r.pipes.fma, 1 + 2);
  EXPECT_EQ(r.pipes.xu, 8);
  EXPECT_EQ(r.pipes.fp64, 2);
  EXPECT_EQ(r.pipes.memory, 4 + 4 + 4);
  EXPECT_EQ(r.spills, 2);
  EXPECT_EQ(r.pipes.most(), 12);
}

TEST(WarpRun, CallsReturn) {
  const WarpRun r = run({"CALL.REL.NOINC 0x30", "MOV R1,RZ", "EXIT", "MOV R2,RZ", "RET.REL.NODEC R4,0x0", "EXIT"});
  EXPECT_EQ(r.instructions, 5);
}

}  // namespace
}  // namespace gptc
