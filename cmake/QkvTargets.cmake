# The functions by which every target of the project is made.

# Flags of our own code: warnings, sanitizers, and no contraction of a * b + c, which would let the compiler decide bits.
# At -O3 g++ 12 sees overruns in std::sort of a short array and in std::string's operator+ that are not there.
function(qkv_set_flags target)
  target_compile_features(${target} PRIVATE cxx_std_20 c_std_11)
  set_target_properties(
    ${target}
    PROPERTIES CXX_EXTENSIONS OFF
               C_EXTENSIONS OFF
               C_VISIBILITY_PRESET hidden
               CXX_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               POSITION_INDEPENDENT_CODE ON)
  target_compile_options(
    ${target}
    PRIVATE -ffp-contract=off
            -Wall
            -Wextra
            -Wpedantic
            -Wconversion
            -Wno-sign-conversion
            $<IF:$<CXX_COMPILER_ID:GNU>,-Wshadow=local,-Wshadow>
            $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>
            $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-restrict>
            $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-stringop-overflow>
            $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-stringop-overread>
            $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
            $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
            $<$<BOOL:${QKV_WERROR}>:-Werror>)
  if(QKV_SANITIZE)
    # -O1 and line tables: with -O2 -g the kernels were still compiling after more than twice the time.
    target_compile_options(${target} PRIVATE -O1 -g1 -fsanitize=${QKV_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${QKV_SANITIZE})
  endif()
endfunction()

# qkv_add_layer(NAME base SOURCES a.cc ... [DEPENDS lower ...] [LIBRARIES imported::target ...])
#
# One OBJECT library, qkv_<name>, for the folder src/<name>. DEPENDS names the layers below that it may include;
# tools/check_includes.py holds the sources to the same order. LIBRARIES are private to the layer.
function(qkv_add_layer)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;DEPENDS;LIBRARIES")
  set(target qkv_${arg_NAME})
  add_library(${target} OBJECT ${arg_SOURCES})
  qkv_set_flags(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src"
                                               "${PROJECT_BINARY_DIR}/generated")
  foreach(layer IN LISTS arg_DEPENDS)
    if(NOT TARGET qkv_${layer})
      message(FATAL_ERROR "layer ${arg_NAME} depends on ${layer}, which is not below it")
    endif()
  endforeach()
  target_link_libraries(${target} PRIVATE Threads::Threads ${arg_LIBRARIES})
  set_property(GLOBAL APPEND PROPERTY QKV_LAYERS ${target})
endfunction()

# qkv_add_test(NAME base_tensor SOURCES tensor_test.cc ... [LABELS fast asan ...] [LIBRARIES ...] [PUBLIC_ONLY])
#
# A GoogleTest program; each of its cases becomes a ctest case with the labels (default: fast asan). It sees the
# internal headers of src/ and tests/ ("support/x.h"); with PUBLIC_ONLY, what a user of the library sees.
function(qkv_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "PUBLIC_ONLY" "NAME" "SOURCES;LABELS;LIBRARIES")
  if(NOT arg_LABELS)
    set(arg_LABELS fast asan)
  endif()
  add_executable(${arg_NAME}_test ${arg_SOURCES})
  qkv_set_flags(${arg_NAME}_test)
  # What is tested is optimised and looked at for undefined behaviour; the tests themselves are built often.
  target_compile_options(${arg_NAME}_test PRIVATE $<$<CONFIG:Release>:-O1>)
  if(QKV_SANITIZE)
    target_compile_options(${arg_NAME}_test PRIVATE -O0 -fno-sanitize=undefined)
  endif()
  target_include_directories(${arg_NAME}_test PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  if(arg_PUBLIC_ONLY)
    target_link_libraries(${arg_NAME}_test PRIVATE qkv::qkv)
  else()
    target_link_libraries(${arg_NAME}_test PRIVATE qkv_internal)
  endif()
  target_link_libraries(${arg_NAME}_test PRIVATE GTest::gtest GTest::gtest_main qkv_fmt ${arg_LIBRARIES})
  # The build of a sanitizer has the tests of its label alone.
  if((QKV_SANITIZE MATCHES "thread" AND NOT "tsan" IN_LIST arg_LABELS)
     OR (QKV_SANITIZE MATCHES "address" AND NOT "asan" IN_LIST arg_LABELS))
    set_target_properties(${arg_NAME}_test PROPERTIES EXCLUDE_FROM_ALL TRUE)
    return()
  endif()
  gtest_discover_tests(
    ${arg_NAME}_test
    NO_PRETTY_VALUES
    DISCOVERY_TIMEOUT 60
    TEST_LIST ${arg_NAME}_cases
    PROPERTIES TIMEOUT 600)
  # CMake's versions disagree on a list among those PROPERTIES: the labels are set where the cases are known.
  set(script "${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}_labels.cmake")
  file(CONFIGURE OUTPUT "${script}" @ONLY CONTENT [[
foreach(case IN LISTS @arg_NAME@_cases)
  set_tests_properties("${case}" PROPERTIES LABELS "@arg_LABELS@")
endforeach()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${script}")
endfunction()
