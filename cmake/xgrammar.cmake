# The C++ core of XGrammar (Apache-2.0) as one static library, without its Python binding. tools/third_party.py fetches the
# sources; which version is in third_party/sources.txt.
file(STRINGS ${PROJECT_SOURCE_DIR}/third_party/sources.txt row REGEX "^xgrammar ")
string(REGEX REPLACE "^xgrammar ([^ ]+) .*" "\\1" version "${row}")
set(from ${PROJECT_SOURCE_DIR}/third_party/xgrammar-${version})
if(NOT EXISTS ${from})
  message(FATAL_ERROR "${from} is missing: run ./dev setup (or tools/third_party.py)")
endif()
file(GLOB_RECURSE sources ${from}/cpp/*.cc)
list(FILTER sources EXCLUDE REGEX "/tvm_ffi/")
add_library(xgrammar STATIC ${sources})
target_include_directories(xgrammar SYSTEM PUBLIC ${from}/include ${from}/3rdparty/dlpack/include PRIVATE ${from}/3rdparty/picojson)
# Its messages come to us (src/grammar/grammar.cpp): a keyword that it would pass over is an error here.
target_compile_definitions(xgrammar PUBLIC XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 PRIVATE XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_options(xgrammar PRIVATE -w $<$<CONFIG:Release>:-O2>)
# In two pieces: most of its compilation is reading the same headers again.
set_target_properties(xgrammar PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 14)
set_source_files_properties(${from}/cpp/json_schema_converter.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # its names clash with others'
