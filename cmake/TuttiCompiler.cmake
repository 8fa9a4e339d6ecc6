# Language, flags, sanitizers and build tools, for everything below this directory.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  if(NOT multi_config AND NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()

  find_program(TUTTI_CCACHE ccache)
  if(TUTTI_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TUTTI_CCACHE})
  endif()

  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold TUTTI_LINKER_MOLD)
  if(TUTTI_LINKER_MOLD)
    add_link_options(-fuse-ld=mold)
  else()
    check_linker_flag(CXX -fuse-ld=lld TUTTI_LINKER_LLD)
    if(TUTTI_LINKER_LLD)
      add_link_options(-fuse-ld=lld)
    endif()
  endif()
endif()

# One result whatever the compiler, the instruction set or the device: no contraction to fused multiply-add unless it is
# written, wrapping integers. The other two only drop errno and trap handling, which change no value.
add_compile_options(-ffp-contract=off -fwrapv -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-psabi)
# GCC looks for garbage whenever its heap has grown by a third, which is up to a fifth of compiling. Until a gigabyte, which
# few files reach, it need not: they take some 15 % more memory so.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=1048576)
endif()
if(TUTTI_WERROR)
  add_compile_options(-Werror)
endif()

if(TUTTI_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  add_compile_definitions(TUTTI_SANITIZE_ADDRESS=1)
elseif(TUTTI_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  add_compile_definitions(TUTTI_SANITIZE_THREAD=1)
elseif(TUTTI_SANITIZE STREQUAL "fuzzer")  # clang: tests/fuzz become libFuzzer programs
  add_compile_options(-fsanitize=fuzzer-no-link,address -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address)
  add_compile_definitions(TUTTI_SANITIZE_ADDRESS=1)
elseif(TUTTI_SANITIZE)
  message(FATAL_ERROR "TUTTI_SANITIZE is '${TUTTI_SANITIZE}'; it can be empty, address, thread or fuzzer")
endif()
