# ./dev docs
# shellcheck shell=bash

cmd_docs() {
  (($# == 0)) || die_usage "docs takes no options"
  need_packages "${PACKAGES_PYTHON[@]}" doxygen
  need_python docs
  say "Checking the comments of the public headers"
  mkdir -p build/docs
  doxygen docs/Doxyfile
  # Every public type, function and member is explained; accessors whose name and type say all need no sentence.
  ! grep -vE '(ConstTensorView|TensorView|Tensor|Extents|QueryOffset) is not documented|kDtypeOf<' build/docs/doxygen.log ||
    die "the comments of the public headers need care (above)"
  say "Building the site"
  NO_MKDOCS_2_WARNING=1 "$VENV/bin/mkdocs" build --strict --quiet
  say "Built: build/docs/site/index.html, C++ reference in build/docs/cpp/html"
}
