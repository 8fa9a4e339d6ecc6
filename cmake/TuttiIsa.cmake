# Files named *.isa.cpp are compiled once per instruction set: the baseline (TUTTI_ISA_BASE=1) and, on x86-64, the levels
# x86-64-v3 (AVX2, TUTTI_ISA_V3=1) and x86-64-v4 (AVX-512, TUTTI_ISA_V4=1). Which of them exist is known to all code by
# TUTTI_HAVE_ISA_V3 and TUTTI_HAVE_ISA_V4; elsewhere than on x86-64 there is only the baseline.
#
# Note [Inline functions in ISA variants]
# An inline function or template that a variant's file uses (std::vector's, say) is emitted there too, compiled for that
# instruction set, as a weak symbol under its common name; the linker keeps any one copy, and would hand AVX-512 code to
# callers on machines without it. So the objects of a variant are merged into one in which weak functions and vtables are
# local. What the rest of the library calls in a variant must therefore be an ordinary function or variable: an explicit
# template instantiation is weak as well, and would be an undefined reference.

# Note [Kernels for one machine]
# With -DTUTTI_ISA=host the library has kernels for the baseline and for the best instruction set of the machine that builds
# it, and no others: `make demo` is faster so. The merged object of that variant then defines the names of the missing one
# too, as aliases, so that no other file is compiled differently. best_isa() chooses that variant or the baseline, never the
# aliases.

include(CheckCXXCompilerFlag)

set(TUTTI_ISA "all" CACHE STRING "Instruction sets that kernels are compiled for: all, or host (the baseline and this machine's best)")
set_property(CACHE TUTTI_ISA PROPERTY STRINGS all host)
if(NOT TUTTI_ISA MATCHES "^(all|host)$")
  message(FATAL_ERROR "TUTTI_ISA is '${TUTTI_ISA}'. Set it to all or host.")
endif()

set(TUTTI_ISA_VARIANTS base)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  check_cxx_compiler_flag(-march=x86-64-v3 TUTTI_COMPILES_V3)
  check_cxx_compiler_flag(-march=x86-64-v4 TUTTI_COMPILES_V4)
  set(TUTTI_ISA_FLAGS_v3 -march=x86-64-v3 -mtune=generic)
  set(TUTTI_ISA_FLAGS_v4 -march=x86-64-v4 -mprefer-vector-width=512)
  # Under sanitizers only the baseline and v4: the code is the same, the build shorter.
  if(TUTTI_COMPILES_V3 AND NOT TUTTI_SANITIZE)
    list(APPEND TUTTI_ISA_VARIANTS v3)
    add_compile_definitions(TUTTI_HAVE_ISA_V3=1)
  endif()
  if(TUTTI_COMPILES_V4)
    list(APPEND TUTTI_ISA_VARIANTS v4)
    add_compile_definitions(TUTTI_HAVE_ISA_V4=1)
  endif()
endif()

set(TUTTI_ISA_FLAGS_base "")

find_program(TUTTI_LD_BFD NAMES ld.bfd)
find_program(TUTTI_OBJCOPY NAMES objcopy)
mark_as_advanced(TUTTI_LD_BFD TUTTI_OBJCOPY)

# The variant that TUTTI_ISA=host leaves out, and the one that stands in for it; "all" where nothing is left out.
set(TUTTI_ISA_BUILT all)
if(TUTTI_ISA STREQUAL "host" AND TUTTI_ISA_VARIANTS STREQUAL "base;v3;v4" AND TUTTI_LD_BFD AND TUTTI_OBJCOPY)
  file(STRINGS /proc/cpuinfo cpu_flags REGEX "^flags" LIMIT_COUNT 1)
  set(TUTTI_ISA_BUILT v4)
  set(TUTTI_ISA_OMITTED v3)
  foreach(feature avx512f avx512dq avx512bw avx512vl avx512cd)
    if(NOT cpu_flags MATCHES " ${feature}( |$)")
      set(TUTTI_ISA_BUILT v3)
      set(TUTTI_ISA_OMITTED v4)
    endif()
  endforeach()
  list(REMOVE_ITEM TUTTI_ISA_VARIANTS ${TUTTI_ISA_OMITTED})
endif()
# Always defined, so that isa.cpp is compiled alone in both cases (see TuttiUnite.cmake).
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/isa.cpp PROPERTIES
                            COMPILE_DEFINITIONS TUTTI_ISA_BUILT="${TUTTI_ISA_BUILT}")

# tutti_add_isa_sources(<library> <source>...): adds the sources to the library, once per instruction set.
function(tutti_add_isa_sources library)
  set(sources ${ARGN})
  if(NOT sources)
    return()
  endif()
  foreach(variant IN LISTS TUTTI_ISA_VARIANTS)
    set(objects ${library}_isa_${variant})
    string(TOUPPER ${variant} upper)
    add_library(${objects} OBJECT ${sources})
    add_dependencies(${objects} tutti_declare_pointwise)
    target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/include)
    target_compile_options(${objects} PRIVATE ${TUTTI_ISA_FLAGS_${variant}})
    target_compile_definitions(${objects} PRIVATE TUTTI_ISA_${upper}=1)
    # Under sanitizers the variant that will run is worth optimizing, the other is not.
    if(TUTTI_SANITIZE AND TUTTI_COMPILES_V4)
      target_compile_options(${objects} PRIVATE $<IF:$<STREQUAL:${variant},base>,-O0,-O1>)
    endif()
    tutti_private_usage(${objects})

    if(variant STREQUAL "base" OR TUTTI_SANITIZE OR NOT TUTTI_LD_BFD OR NOT TUTTI_OBJCOPY)
      target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
      continue()
    endif()
    set(merged ${PROJECT_BINARY_DIR}/isa_${variant}.o)
    add_custom_command(
      OUTPUT ${merged}
      COMMAND ${CMAKE_COMMAND} -DLD=${TUTTI_LD_BFD} -DNM=${CMAKE_NM} -DOBJCOPY=${TUTTI_OBJCOPY} -DOUTPUT=${merged}
              "-DOBJECTS=$<TARGET_OBJECTS:${objects}>" -DVARIANT=${variant} -DALIAS=${TUTTI_ISA_OMITTED} -P ${PROJECT_SOURCE_DIR}/cmake/MergeVariant.cmake
      DEPENDS $<TARGET_OBJECTS:${objects}> ${PROJECT_SOURCE_DIR}/cmake/MergeVariant.cmake
      COMMENT "Merging the ${variant} objects"
      VERBATIM)
    set_source_files_properties(${merged} PROPERTIES GENERATED ON EXTERNAL_OBJECT ON)
    target_sources(${library} PRIVATE ${merged})
  endforeach()
endfunction()
