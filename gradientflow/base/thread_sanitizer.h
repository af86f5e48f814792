#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GF_THREAD_SANITIZER 1

// The sanitizer's runtime has these, and no header of its own declares them.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}

#endif
#endif
