# cmake "-DIN=A.cuh;B.cuh" -DOUT=FILE.cpp -DHEADER=FILE.h -DNAMESPACE=NAME -P embed_text.cmake: writes a C++ file that
# defines NAME::A and B as the texts of these files, which the header declares. Lines that begin with //! are left out.
set(code "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
foreach(file IN LISTS IN)
  get_filename_component(name "${file}" NAME_WE)
  file(READ "${file}" text)
  string(REGEX REPLACE "^(//![^\n]*\n)+" "" text "${text}")
  string(REGEX REPLACE "\n//![^\n]*" "" text "${text}")
  string(APPEND code "\nconst char *const ${name} = R\"gptc(${text})gptc\";\n")
endforeach()
file(WRITE "${OUT}" "${code}\n}  // namespace ${NAMESPACE}\n")
