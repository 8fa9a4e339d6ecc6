# tutti_precompile(<target> <kind> <header>): the target is compiled with a precompiled <header>, which the first target
# of a kind makes and the others of that kind share; they have the same flags.
#
# The headers that nearly all tests and examples include are most of what the compiler would read there. Not under
# sanitizers, and not by other compilers: those builds find the test that lacks an include.

find_program(TUTTI_ENV env)
mark_as_advanced(TUTTI_ENV)

function(tutti_precompile target kind header)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR TUTTI_SANITIZE OR NOT PROJECT_IS_TOP_LEVEL)
    return()
  endif()
  target_compile_options(${target} PRIVATE -fpch-preprocess)
  # ccache keeps what was compiled so only if it may take the header's macros and times for what they were.
  if(TUTTI_CCACHE AND TUTTI_ENV AND CMAKE_CXX_COMPILER_LAUNCHER STREQUAL TUTTI_CCACHE)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER
                          "${TUTTI_ENV};CCACHE_SLOPPINESS=pch_defines,time_macros;${TUTTI_CCACHE}")
  endif()
  get_property(owner GLOBAL PROPERTY tutti_precompiled_${kind})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${target} PRIVATE <${header}>)
    set_property(GLOBAL PROPERTY tutti_precompiled_${kind} ${target})
  endif()
endfunction()
