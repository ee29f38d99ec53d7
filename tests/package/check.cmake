# cmake -DKIND=... -P: builds and runs the consumer in WORK, from nothing.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
set(configure
    "${CMAKE_COMMAND}"
    -S
    "${CMAKE_CURRENT_LIST_DIR}/consumer"
    -B
    "${WORK}/build"
    -G
    "${GENERATOR}"
    -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_C_COMPILER=${C_COMPILER}"
    "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
    "-DQKV_KIND=${KIND}")

if(KIND STREQUAL "SharedAddSubdirectory")
  list(APPEND configure "-DQKV_SOURCE=${SOURCE}" -DBUILD_SHARED_LIBS=ON -DQKV_LIMIT_TARGETS=ON)
else()
  set(prefix "${WORK}/prefix")
  run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}" --component devel)
  list(APPEND configure "-DCMAKE_PREFIX_PATH=${prefix}")
  # The package must not lean on the tree that it was built in.
  file(GLOB_RECURSE texts "${prefix}/*.cmake" "${prefix}/*.pc")
  foreach(text IN LISTS texts)
    file(READ "${text}" content)
    string(FIND "${content}" "${SOURCE}/" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${text} names the source tree")
    endif()
  endforeach()
endif()

run(${configure})
run("${CMAKE_COMMAND}" --build "${WORK}/build")
foreach(program IN ITEMS consumer consumer_c)
  execute_process(
    COMMAND "${WORK}/build/${program}"
    OUTPUT_VARIABLE output
    COMMAND_ERROR_IS_FATAL ANY
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT output STREQUAL "qkv ${VERSION}: 2 3")
    message(FATAL_ERROR "${program} printed '${output}'")
  endif()
endforeach()
