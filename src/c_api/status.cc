#include "c_api/status.h"

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "qkv/error.h"

namespace qkv::c_api {
namespace {

// An error text may be asked for when memory has run out, so one that needs no memory stands by.
thread_local std::string last_error;
thread_local const char* last_error_fixed = nullptr;

qkv_status fail(qkv_status status, const char* text) noexcept {
  try {
    last_error = text;
    last_error_fixed = nullptr;
  } catch (...) {
    last_error_fixed = "out of memory, the text of the error included";
  }
  return status;
}

}  // namespace

qkv_status status_of_current_exception() noexcept {
  try {
    throw;
  } catch (const ShapeError& error) {
    return fail(QKV_ERROR_SHAPE, error.what());
  } catch (const DtypeError& error) {
    return fail(QKV_ERROR_DTYPE, error.what());
  } catch (const Error& error) {
    return fail(QKV_ERROR_VALUE, error.what());
  } catch (const std::bad_alloc&) {
    last_error_fixed = "out of memory";
    return QKV_ERROR_OUT_OF_MEMORY;
  } catch (const std::length_error&) {  // a list longer than any memory
    last_error_fixed = "out of memory";
    return QKV_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    return fail(QKV_ERROR_INTERNAL, error.what());
  } catch (...) {
    last_error_fixed = "an exception that is no std::exception";
    return QKV_ERROR_INTERNAL;
  }
}

}  // namespace qkv::c_api

const char* qkv_last_error(void) {
  return qkv::c_api::last_error_fixed != nullptr ? qkv::c_api::last_error_fixed : qkv::c_api::last_error.c_str();
}

const char* qkv_status_name(qkv_status status) {
  switch (status) {
    case QKV_OK:
      return "QKV_OK";
    case QKV_ERROR_SHAPE:
      return "QKV_ERROR_SHAPE";
    case QKV_ERROR_DTYPE:
      return "QKV_ERROR_DTYPE";
    case QKV_ERROR_VALUE:
      return "QKV_ERROR_VALUE";
    case QKV_ERROR_OUT_OF_MEMORY:
      return "QKV_ERROR_OUT_OF_MEMORY";
    case QKV_ERROR_INTERNAL:
      return "QKV_ERROR_INTERNAL";
  }
  return "unknown status";
}
