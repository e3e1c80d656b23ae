# winnow_page(TARGET): puts the chat page (src/server/page and the libraries it loads, from Debian packages) into TARGET as
# bytes, with a table of them (server/page.h). Nothing is bundled or rewritten: a browser gets each file as it lies there.
# Without the packages the table is empty and the program has no page.
function(winnow_page target)
  set(folder ${PROJECT_SOURCE_DIR}/src/server/page)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*.html ${folder}/*.css ${folder}/*.js ${folder}/*.svg ${folder}/*.txt)
  foreach(library
      libjs-marked:/usr/share/javascript/marked/marked.umd.min.js:marked.js
      libjs-highlight.js:/usr/share/javascript/highlight.js/highlight.min.js:highlight.js
      libjs-katex:/usr/share/javascript/katex/katex.js:katex.js
      node-dompurify:/usr/share/nodejs/dompurify/dist/purify.es.js:purify.js)
    string(REPLACE ":" ";" library ${library})
    list(GET library 0 package)
    list(GET library 1 from)
    list(GET library 2 name)
    if(NOT EXISTS ${from})
      message(STATUS "no chat page: ${from} is missing (Debian package ${package})")
      set(files)
      break()
    endif()
    list(APPEND files "${from}:${name}")
  endforeach()

  set(bytes ".section .rodata\n")
  set(declarations)
  set(rows)
  set(n 0)
  set(inputs)
  foreach(file ${files})
    string(REGEX REPLACE ":.*" "" from ${file})
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE ".*:" "" name ${name})
    get_filename_component(from ${from} REALPATH)
    list(APPEND inputs ${from})
    string(APPEND bytes "  .global winnow_page_${n}, winnow_page_${n}_end\nwinnow_page_${n}:\n  .incbin \"${from}\"\nwinnow_page_${n}_end:\n")
    string(APPEND declarations "extern \"C\" const char winnow_page_${n}[], winnow_page_${n}_end[];\n")
    string(APPEND rows "      {\"${name}\", {winnow_page_${n}, static_cast<size_t>(winnow_page_${n}_end - winnow_page_${n})}},\n")
    math(EXPR n "${n} + 1")
  endforeach()
  string(APPEND bytes ".section .note.GNU-stack,\"\",@progbits\n")

  set(made ${PROJECT_BINARY_DIR}/page)
  file(CONFIGURE OUTPUT ${made}/page_bytes.S CONTENT "${bytes}" @ONLY)
  file(CONFIGURE OUTPUT ${made}/page_table.cpp CONTENT "#include \"server/page.h\"

${declarations}
namespace winnow::server {

std::vector<EmbeddedFile> embedded_page() {
  return {
${rows}  };
}

}  // namespace winnow::server
" @ONLY)
  set_source_files_properties(${made}/page_bytes.S PROPERTIES LANGUAGE ASM OBJECT_DEPENDS "${inputs}")
  target_sources(${target} PRIVATE ${made}/page_bytes.S ${made}/page_table.cpp)
endfunction()
