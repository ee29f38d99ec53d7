#include "bindings/bindings.h"

NB_MODULE(_core, m) {
  m.doc() = "The compiled part of qkv; use the package, not this.";
  qkv::python::bind_errors();
  qkv::python::bind_runtime(m);
  qkv::python::bind_attention(m);
  qkv::python::bind_varlen(m);
  qkv::python::bind_backward(m);
  qkv::python::bind_kv_cache(m);
  qkv::python::bind_merge(m);
  qkv::python::bind_masks(m);
  qkv::python::bind_position(m);
}
