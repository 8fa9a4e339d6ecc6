# cmake -DLD= -DNM= -DOBJCOPY= -DOBJECTS= -DOUTPUT= [-DVARIANT=v4 -DALIAS=v3] -P MergeVariant.cmake
# Merges OBJECTS into OUTPUT and makes its weak functions (nm says W) and vtables (V) local. Weak data keeps its one address
# in the program; unique data (u: the statics of inline functions) becomes weak, since it has lost the section group by
# which a linker would know duplicates. See Note [Inline functions in ISA variants] in TuttiIsa.cmake.

execute_process(COMMAND ${LD} -r --force-group-allocation -o ${OUTPUT}.tmp ${OBJECTS} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${NM} --defined-only --format=posix ${OUTPUT}.tmp OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)

# write_symbols(<file> <regular expression of "name type ">): the names that match, one a line.
function(write_symbols path pattern)
  string(REGEX MATCHALL "${pattern}" matches "${symbols}")
  list(TRANSFORM matches REPLACE " .*" "")
  list(JOIN matches "\n" names)
  file(WRITE ${path} "${names}\n")
endfunction()
write_symbols(${OUTPUT}.local "[^ \n]+ W |_ZT[VTC][^ \n]* V ")
write_symbols(${OUTPUT}.weak "[^ \n]+ u ")

execute_process(COMMAND ${OBJCOPY} --localize-symbols=${OUTPUT}.local --weaken-symbols=${OUTPUT}.weak
                        ${OUTPUT}.tmp ${OUTPUT} COMMAND_ERROR_IS_FATAL ANY)

# Note [Kernels for one machine] in TuttiIsa.cmake: every kernel of VARIANT gets a second name, that of ALIAS.
if(ALIAS)
  execute_process(COMMAND ${NM} --defined-only --extern-only --format=posix ${OUTPUT} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^ \n]*_${VARIANT}[^ \n]* [TDRB] " names "${symbols}")
  set(aliases "")
  foreach(name IN LISTS names)
    string(REGEX REPLACE " .*" "" name "${name}")
    string(REPLACE "_${VARIANT}" "_${ALIAS}" alias "${name}")
    string(APPEND aliases "--defsym=${alias}=${name}\n")
  endforeach()
  file(WRITE ${OUTPUT}.aliases "${aliases}")
  file(RENAME ${OUTPUT} ${OUTPUT}.tmp)
  execute_process(COMMAND ${LD} -r -o ${OUTPUT} ${OUTPUT}.tmp @${OUTPUT}.aliases COMMAND_ERROR_IS_FATAL ANY)
endif()
file(REMOVE ${OUTPUT}.tmp)
