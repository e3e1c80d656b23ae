# winnow_library(NAME LINK ...): the static library winnow_NAME of src/NAME, and its tests (x_test.cpp beside what
# they test) as NAME_test. Only what it links, directly or not, can be included.
# An interface folder per library makes that true: src/ is the include root, but a folder is visible only through
# the staged link in the build tree of the libraries that one links.
function(winnow_library name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")

  set(stage ${PROJECT_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${stage})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${name} ${stage}/${name} SYMBOLIC)

  set(libraries)
  foreach(l ${ARG_LINK})
    if(EXISTS ${PROJECT_SOURCE_DIR}/src/${l})
      set(l winnow_${l})
    endif()
    list(APPEND libraries ${l})
  endforeach()

  add_library(winnow_${name} STATIC ${sources})
  target_include_directories(winnow_${name} PUBLIC ${stage})
  target_link_libraries(winnow_${name} PUBLIC ${libraries})
  # Highway compiles a kernel file once for each instruction set by including it again: never in a unity batch.
  foreach(s ${sources})
    if(s MATCHES "_cpu\\.cpp$")
      set_source_files_properties(${s} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Sanitize>>:-O3>")
    endif()
  endforeach()

  if(WINNOW_TESTS AND tests)
    winnow_test(${name}_test SOURCES ${tests} LINK winnow_${name})
  endif()
endfunction()

# winnow_test(NAME SOURCES ... LINK ...): a GoogleTest program, one ctest entry a suite.
function(winnow_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE WINNOW_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900)
endfunction()
