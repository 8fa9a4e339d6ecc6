# tutti_precompile(<target> <kind> <header>...): the target is compiled with precompiled headers, which the first target of a
# kind makes and the others of that kind share; they have the same flags.
#
# The headers that nearly all files of these targets include are most of what the compiler would read there. Not under
# sanitizers, nor by other compilers, nor where every file is to be compiled alone (TUTTI_UNITE): those builds find the
# include that is missing.

find_program(TUTTI_ENV env)
mark_as_advanced(TUTTI_ENV)

function(tutti_precompile target kind)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR TUTTI_SANITIZE OR NOT TUTTI_UNITE)
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
    list(TRANSFORM ARGN REPLACE "(.+)" "<\\1>" OUTPUT_VARIABLE headers)
    target_precompile_headers(${target} PRIVATE ${headers})
    set_property(GLOBAL PROPERTY tutti_precompiled_${kind} ${target})
  endif()
endfunction()
