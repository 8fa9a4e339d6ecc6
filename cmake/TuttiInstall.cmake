# cmake --install: the library, its headers, and a package file so that find_package(Tutti) gives Tutti::tutti.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tutti)

install(TARGETS tutti EXPORT TuttiTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(EXISTS ${PROJECT_SOURCE_DIR}/include/tutti)
  install(DIRECTORY include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.inc")
endif()
install(EXPORT TuttiTargets NAMESPACE Tutti:: DESTINATION ${package_dir})

get_target_property(tutti_type tutti TYPE)
configure_package_config_file(cmake/TuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/TuttiConfig.cmake
                              INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TuttiConfig.cmake ${PROJECT_BINARY_DIR}/TuttiConfigVersion.cmake
              cmake/FindOneDNN.cmake DESTINATION ${package_dir})
