// Taking the GIL again in a thread that the interpreter may end there.
//
// CPython before 3.14 ends a daemon thread that asks for the GIL while the interpreter finalizes with
// pthread_exit. That unwinds its stack by force, and C++ frames do not survive it: destructors would run, and
// frames of another C++ library than the system's crash. A cleanup handler of pthreads runs first, at this
// frame, and does not return. This file is compiled without exceptions, as pthread_cleanup_push would else be
// a destructor itself.
#include <Python.h>
#include <pthread.h>
#include <unistd.h>

namespace vkq {

static void sleepForever(void *) {
  for (;;) pause();
}

void restoreThread(PyThreadState *state) {
  pthread_cleanup_push(sleepForever, nullptr);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}

}  // namespace vkq
