# cmake "-DIN=A.cuh;B.cuh" -DOUT=FILE.cpp -P embed_text.cmake: writes a C++ file that defines gptc::device_text::A and B as
# the texts of these files. codegen/cuda/device_text.h declares them. Lines that begin with //! are left out.
set(code "#include \"codegen/cuda/device_text.h\"\n\nnamespace gptc::device_text {\n")
foreach(file IN LISTS IN)
  get_filename_component(name "${file}" NAME_WE)
  file(READ "${file}" text)
  string(REGEX REPLACE "^(//![^\n]*\n)+" "" text "${text}")
  string(REGEX REPLACE "\n//![^\n]*" "" text "${text}")
  string(APPEND code "\nconst char *const ${name} = R\"gptc(${text})gptc\";\n")
endforeach()
file(WRITE "${OUT}" "${code}\n}  // namespace gptc::device_text\n")
