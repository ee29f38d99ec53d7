# ./dev docs
# shellcheck shell=bash

cmd_docs() {
  (($# == 0)) || die_usage "docs takes no options"
  need_packages doxygen
  need_python docs
  say "Checking the comments of the public headers"
  mkdir -p build/docs
  doxygen docs/Doxyfile
  # A comment that contradicts its declaration is a finding; where name and type say all, none is needed.
  ! grep -v 'is not documented' build/docs/doxygen.log ||
    die "the comments of the public headers need care (above)"
  say "Building the site"
  NO_MKDOCS_2_WARNING=1 "$VENV/bin/mkdocs" build --strict --quiet
  say "Built: build/docs/site/index.html, C++ reference in build/docs/cpp/html"
}
