# make deb: three Debian packages by CPack. libtutti0 has the shared library and the compiler's backend, libtutti-dev what
# programs are built with, tutti-tools the program tutti.

if(NOT BUILD_SHARED_LIBS)
  return()  # packages have the shared library
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Tutti maintainers <maintainers@tutti.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_OUTPUT_FILE_PREFIX packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development tools)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})  # libtutti.so itself is in no package yet
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libtutti0)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS libucx0)  # loaded when ranks are on several hosts
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "The shared library: tensors, autograd, layers and optimizers; collectives
between threads, processes and hosts; DDP, FSDP and RPC; a compiler for training
steps.")
# What packages of programs that use the library depend on: before 1.0 a minor version may change the ABI.
math(EXPR next_minor "${PROJECT_VERSION_MINOR} + 1")
set(abi ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs
     "libtutti ${abi} libtutti0 (>= ${abi}), libtutti0 (<< ${PROJECT_VERSION_MAJOR}.${next_minor}~)\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/shlibs ${PROJECT_BINARY_DIR}/debian/triggers)

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtutti-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libtutti0 (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "tutti-tools, cmake")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "What programs that use Tutti are compiled with: headers, the CMake package Tutti
and tutti.pc.")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME tutti-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libtutti0 (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS openssh-client)  # tutti run --hosts
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "The program tutti: starts, watches and restarts ranks, measures collectives, and
puts the flight records of ranks together.")

foreach(component runtime development tools)
  string(TOUPPER ${component} upper)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME} RENAME copyright
          COMPONENT ${component})
endforeach()

include(CPack)
