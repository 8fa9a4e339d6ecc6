# tutti_unite(<target> <most> <source>...): compiles the sources of a folder together, up to <most> of them at a time.
#
# Half of what the compiler does for one of these files it does for the next one again: reading headers, and making the
# same instances of templates. Together they take a third of the time. The files of a folder therefore share one scope:
# names in anonymous namespaces are unique in it (two equal helpers belong into a header anyway). Operators (src/ops) and
# kernels (*.isa.cpp) stay files of their own, and so does whatever has flags of its own.
# -DTUTTI_UNITE=OFF compiles every file alone: for who works on one of them, for the debugger, and for clang-tidy.

option(TUTTI_UNITE "Compile the files of a folder together" ${PROJECT_IS_TOP_LEVEL})

function(tutti_unite target most)
  if(NOT TUTTI_UNITE)
    return()
  endif()
  set(folders "")
  foreach(source IN LISTS ARGN)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE path)
    string(REGEX MATCH "^[^/]+/[^/]+/" folder "${path}")
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    list(APPEND folders ${folder})
    list(APPEND of_${folder} ${source})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH of_${folder} count)
    math(EXPR units "(${count} + ${most} - 1) / ${most}")
    set(index 0)
    foreach(source IN LISTS of_${folder})
      math(EXPR unit "${index} * ${units} / ${count}")  # neighbours by name, in units of equal size
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}${unit})
      math(EXPR index "${index} + 1")
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
