# Finds oneDNN by header and library: target OneDNN::dnnl. Its own package file is not used because it demands the OpenCL
# headers wherever the library was built with OpenCL, which a CPU user does not need.

find_path(OneDNN_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.hpp)
find_library(OneDNN_LIBRARY NAMES dnnl)
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)

if(OneDNN_INCLUDE_DIR AND EXISTS "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h")
  file(READ "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" OneDNN_VERSION_TEXT)
  foreach(part MAJOR MINOR PATCH)
    string(REGEX MATCH "DNNL_VERSION_${part} +([0-9]+)" _ "${OneDNN_VERSION_TEXT}")
    set(OneDNN_VERSION_${part} "${CMAKE_MATCH_1}")
  endforeach()
  set(OneDNN_VERSION "${OneDNN_VERSION_MAJOR}.${OneDNN_VERSION_MINOR}.${OneDNN_VERSION_PATCH}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR VERSION_VAR OneDNN_VERSION
                                  REASON_FAILURE_MESSAGE "on Debian: libdnnl-dev")

if(OneDNN_FOUND AND NOT TARGET OneDNN::dnnl)
  add_library(OneDNN::dnnl UNKNOWN IMPORTED)
  set_target_properties(OneDNN::dnnl PROPERTIES IMPORTED_LOCATION "${OneDNN_LIBRARY}"
                                                INTERFACE_INCLUDE_DIRECTORIES "${OneDNN_INCLUDE_DIR}")
endif()
