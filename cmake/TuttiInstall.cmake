# cmake --install: the library, its headers, the program tutti, and what find_package(Tutti) and pkg-config read. Three
# components, which `make deb` turns into Debian packages (TuttiPackage.cmake): runtime, development, tools.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tutti)
get_target_property(tutti_type tutti TYPE)

install(TARGETS tutti EXPORT TuttiTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
install(DIRECTORY include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
        FILES_MATCHING PATTERN "*.h" PATTERN "*.inc")
install(EXPORT TuttiTargets NAMESPACE Tutti:: DESTINATION ${package_dir} COMPONENT development)

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/tutti COMPONENT development)
configure_package_config_file(cmake/TuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/TuttiConfig.cmake
                              INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TuttiConfig.cmake ${PROJECT_BINARY_DIR}/TuttiConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)
if(tutti_type STREQUAL "STATIC_LIBRARY")
  install(FILES cmake/FindOneDNN.cmake DESTINATION ${package_dir} COMPONENT development)
endif()

# pkg-config. A static library needs what it is made of; a shared one has it.
set(pc_libraries "-ltutti")
if(tutti_type STREQUAL "STATIC_LIBRARY")
  string(APPEND pc_libraries " -ldnnl -lfmt -lz ${OpenMP_CXX_FLAGS} -pthread -ldl")
  if(TUTTI_HAVE_LIBBACKTRACE)
    string(APPEND pc_libraries " -lbacktrace")
  endif()
  if(TUTTI_GLOO_INCLUDE AND TUTTI_GLOO_LIBRARY)
    string(APPEND pc_libraries " -lgloo")
  endif()
endif()
file(RELATIVE_PATH pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(cmake/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
