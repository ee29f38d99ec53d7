# Everything outside the tree that is needed, from the system's packages.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
include("${CMAKE_CURRENT_LIST_DIR}/QkvFindHighway.cmake")
find_package(fmt CONFIG REQUIRED)
# The library's own text goes through base/text.h: its files need fmt's declarations, one of them all of it.
add_library(qkv_fmt INTERFACE)
target_include_directories(
  qkv_fmt SYSTEM INTERFACE $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
# Headers alone, and none of the public ones includes them: who links qkv needs nothing of it.
find_package(nlohmann_json CONFIG REQUIRED)
if(QKV_BUILD_CLI)
  find_package(CLI11 CONFIG REQUIRED)
endif()
if(QKV_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()
