#ifndef QKV_EXPORT_H_
#define QKV_EXPORT_H_

/// Marks what the library shows to its users; everything else is built with hidden visibility.
#if defined(__GNUC__) || defined(__clang__)
#define QKV_API __attribute__((visibility("default")))
#else
#define QKV_API
#endif

#endif  // QKV_EXPORT_H_
