// Reacquires the GIL in a thread that the interpreter may end at this point.
//
// While the interpreter finalizes, CPython before 3.14 ends a daemon thread that requests the GIL, by
// pthread_exit. pthread_exit unwinds the thread's stack, which must not happen to C++ frames: destructors
// would run, and frames of a C++ library that is not the system's would crash. A cleanup handler of pthreads
// runs before the unwinding, in this frame, and never returns. This file is compiled without exceptions,
// because pthread_cleanup_push would otherwise be a destructor itself.
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
