# Writes a header with one digest of several files: cmake -DFILES=... -DOUTPUT=... -P DigestFiles.cmake
set(all "")
foreach(file IN LISTS FILES)
  file(SHA256 ${file} one)
  string(APPEND all ${one})
endforeach()
string(SHA256 digest "${all}")
file(WRITE ${OUTPUT} "#define TUTTI_BITCODE_HASH \"${digest}\"\n")
