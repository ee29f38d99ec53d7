# cmake -DSOURCE=python/qkv -DSTAGE=<build>/python/qkv -P: makes STAGE hold a link to every source file of the package,
# and no link to one that is gone.
file(GLOB_RECURSE staged LIST_DIRECTORIES false RELATIVE "${STAGE}" "${STAGE}/*.py" "${STAGE}/py.typed")
foreach(file IN LISTS staged)
  if(IS_SYMLINK "${STAGE}/${file}" AND NOT EXISTS "${SOURCE}/${file}")
    file(REMOVE "${STAGE}/${file}")
  endif()
endforeach()

file(GLOB_RECURSE sources LIST_DIRECTORIES false RELATIVE "${SOURCE}" "${SOURCE}/*.py" "${SOURCE}/*.pyi"
     "${SOURCE}/py.typed")
foreach(file IN LISTS sources)
  get_filename_component(folder "${STAGE}/${file}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  file(CREATE_LINK "${SOURCE}/${file}" "${STAGE}/${file}" SYMBOLIC)
endforeach()
