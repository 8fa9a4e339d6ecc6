# libtutti_native.so: the compiler's backend `native`. LLVM generates its code from the pointwise formulas, which clang
# turns into bitcode here, once per instruction set; what is missing of LLVM and clang leaves the backend out. The library
# loads it when it is first used, so nothing links it.

set(llvm_root /usr/lib/llvm-19)
find_path(TUTTI_LLVM_INCLUDE NAMES llvm/ExecutionEngine/Orc/LLJIT.h HINTS ${llvm_root}/include)
find_library(TUTTI_LLVM_LIBRARY NAMES LLVM-19 HINTS ${llvm_root}/lib)
find_program(TUTTI_CLANG NAMES clang++-19 HINTS ${llvm_root}/bin)
mark_as_advanced(TUTTI_LLVM_INCLUDE TUTTI_LLVM_LIBRARY TUTTI_CLANG)
if(NOT (TUTTI_LLVM_INCLUDE AND TUTTI_LLVM_LIBRARY AND TUTTI_CLANG))
  message(STATUS "Without the compiler's backend native: LLVM 19 or clang 19 is missing (on Debian: llvm-19-dev clang-19)")
  return()
endif()

set(native_dir ${PROJECT_SOURCE_DIR}/src/graph/backends/native)
set(bitcode_dir ${PROJECT_BINARY_DIR}/bitcode)
set(bitcode_flags -std=c++20 -O2 -ffp-contract=off -fwrapv -fno-math-errno -fno-trapping-math -fno-exceptions -w
    -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src)
set(bitcode_files "")
set(bitcode_definitions "")
# All formulas as one source: clang reads the headers once.
set(bitcode_source ${bitcode_dir}/primitives.cpp)
set(text "")
foreach(source IN LISTS pointwise_sources)
  string(APPEND text "#include \"${source}\"\n")
endforeach()
file(CONFIGURE OUTPUT ${bitcode_source} CONTENT "${text}" @ONLY)
foreach(variant IN LISTS TUTTI_ISA_VARIANTS)
  string(TOUPPER ${variant} upper)
  set(whole ${bitcode_dir}/primitives.${variant}.bc)
  add_custom_command(
    OUTPUT ${whole}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${TUTTI_CLANG} ${bitcode_flags} ${TUTTI_ISA_FLAGS_${variant}}
            -include ${native_dir}/primitives.h -MD -MF ${whole}.d -MT ${whole} -emit-llvm -c bitcode/primitives.cpp -o ${whole}
    WORKING_DIRECTORY ${PROJECT_BINARY_DIR}  # the bitcode keeps the source's name as it is given
    DEPENDS ${bitcode_source} ${pointwise_sources} ${native_dir}/primitives.h
    DEPFILE ${whole}.d
    COMMENT "Bitcode of the formulas (${variant})"
    VERBATIM)
  list(APPEND bitcode_files ${whole})
  list(APPEND bitcode_definitions TUTTI_BITCODE_${upper}="${whole}")
endforeach()

# A digest of the bitcode, which tells generated code of one build from that of another.
set(bitcode_digest ${bitcode_dir}/digest.h)
add_custom_command(
  OUTPUT ${bitcode_digest}
  COMMAND ${CMAKE_COMMAND} "-DFILES=${bitcode_files}" -DOUTPUT=${bitcode_digest} -P ${PROJECT_SOURCE_DIR}/cmake/DigestFiles.cmake
  DEPENDS ${bitcode_files} ${PROJECT_SOURCE_DIR}/cmake/DigestFiles.cmake
  VERBATIM)
add_custom_target(tutti_bitcode DEPENDS ${bitcode_files} ${bitcode_digest})
add_dependencies(tutti_bitcode tutti_declare_pointwise)

add_library(tutti_native MODULE ${native_dir}/jit.cpp ${native_dir}/bitcode.cpp)
add_dependencies(tutti_native tutti_bitcode)
set_source_files_properties(${native_dir}/bitcode.cpp PROPERTIES OBJECT_DEPENDS "${bitcode_files};${bitcode_digest}"
                            COMPILE_OPTIONS "-include;${bitcode_digest}")
target_compile_features(tutti_native PRIVATE cxx_std_20)
target_include_directories(tutti_native PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_include_directories(tutti_native SYSTEM PRIVATE ${TUTTI_LLVM_INCLUDE})
target_compile_options(tutti_native PRIVATE -fno-rtti -fvisibility=hidden -O1
                       -fno-sanitize=all)
target_link_options(tutti_native PRIVATE -fno-sanitize=all)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND bitcode_definitions TUTTI_BASE_CPU="x86-64")
else()
  list(APPEND bitcode_definitions TUTTI_BASE_CPU="generic")
endif()
target_compile_definitions(tutti_native PRIVATE ${bitcode_definitions})
target_link_libraries(tutti_native PRIVATE ${TUTTI_LLVM_LIBRARY})
set_target_properties(tutti_native PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
install(TARGETS tutti_native LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
