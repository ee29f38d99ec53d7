#ifndef QKV_PYTHON_BINDINGS_BINDINGS_H_
#define QKV_PYTHON_BINDINGS_BINDINGS_H_

#include <nanobind/nanobind.h>

/// What each file of this folder adds to the extension qkv._core. The extension holds what must be quick or in C++;
/// names, defaults and documentation that people see are in python/qkv.
namespace qkv::python {

void bind_errors();                         // qkv/error.h
void bind_attention(nanobind::module_& m);  // qkv/attention.h
void bind_varlen(nanobind::module_& m);     // qkv/varlen.h
void bind_backward(nanobind::module_& m);   // qkv/backward.h
void bind_kv_cache(nanobind::module_& m);   // qkv/kv_cache.h
void bind_merge(nanobind::module_& m);      // qkv/merge.h
void bind_masks(nanobind::module_& m);      // qkv/masks.h
void bind_position(nanobind::module_& m);   // qkv/position.h
void bind_runtime(nanobind::module_& m);    // qkv/runtime.h

}  // namespace qkv::python

#endif  // QKV_PYTHON_BINDINGS_BINDINGS_H_
