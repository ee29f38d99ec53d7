# The installed package: library, headers, qkvConfig.cmake, qkv.pc.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/qkv")
install(
  TARGETS qkv
  EXPORT qkvTargets
  COMPONENT devel
  FILE_SET HEADERS COMPONENT devel
  LIBRARY COMPONENT runtime NAMELINK_COMPONENT devel
  ARCHIVE COMPONENT devel
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT qkvTargets NAMESPACE qkv:: DESTINATION "${package_dir}" COMPONENT devel)

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/qkvConfig.cmake.in" "${PROJECT_BINARY_DIR}/qkvConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/qkvConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/qkvConfig.cmake" "${PROJECT_BINARY_DIR}/qkvConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/QkvFindHighway.cmake" DESTINATION "${package_dir}" COMPONENT devel)

# A static archive needs Highway from whoever links it, a shared library has taken it in.
if(BUILD_SHARED_LIBS)
  set(QKV_PC_REQUIRES "")
  set(QKV_PC_LIBS "")
else()
  set(QKV_PC_REQUIRES "libhwy")
  set(QKV_PC_LIBS "-lstdc++ -lm -pthread")
endif()
file(RELATIVE_PATH QKV_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${CMAKE_CURRENT_LIST_DIR}/qkv.pc.in" "${PROJECT_BINARY_DIR}/qkv.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/qkv.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT devel)
