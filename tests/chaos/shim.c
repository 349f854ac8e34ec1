// Preloaded into the processes of a campaign: file operations below a folder fail or kill, and clocks jump.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum Kind { READ = 1, CREATE = 2, DATA = 4, REMOVE = 8 };

static char root[4096];  // operations on other files are not counted
static int kinds, error, lasting, signal_number;
static long fail_at;  // number of the first operation that fails; 0: none
static atomic_long operations, of_kind[REMOVE + 1],
    budget;           // budget: bytes that fit on the disk; below zero: unlimited
static long jump_at;  // number of the first reading after the jump; 0: never
static atomic_long readings;
static long wall_jump, steady_jump;  // seconds

void chaos_files(const char* folder, int which, long at, int code, int for_good, int kill_with, long bytes) {
  strncpy(root, folder, sizeof root - 1);
  kinds = which, fail_at = at, error = code, lasting = for_good, signal_number = kill_with;
  operations = 0;
  budget = bytes;
}

void chaos_clock(long at, long wall, long steady) {
  jump_at = at, wall_jump = wall, steady_jump = steady;
  readings = 0;
}

long chaos_operations(int which) {
  long sum = 0;
  for (int kind = READ; kind <= REMOVE; kind *= 2) sum += which & kind ? of_kind[kind] : 0;
  return sum;
}
long chaos_readings(void) {
  return readings;
}

static int below(const char* path) {
  return root[0] && !strncmp(path, root, strlen(root));
}

static int open_below(int fd) {
  char link[64], path[4096];
  if (!root[0] || fd < 3) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0) return 0;
  path[size] = 0;
  return below(path);
}

// Returns whether the operation fails; errno is set.
static int fails(enum Kind kind, int counted) {
  if (!counted) return 0;
  ++of_kind[kind];
  if (!(kinds & kind)) return 0;
  long number = ++operations;
  if (!fail_at || number < fail_at || (!lasting && number > fail_at)) return 0;
  if (signal_number) {
    kill(getpid(), signal_number);
    return 0;
  }
  errno = error;
  return 1;
}

#define REAL(name)               \
  static __typeof__(name)* real; \
  if (!real) real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)

static enum Kind kind_of(int flags) {
  return flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC) ? CREATE : READ;
}

#define MODE(flags, last)                \
  mode_t mode = 0;                       \
  if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list rest;                        \
    va_start(rest, last);                \
    mode = va_arg(rest, mode_t);         \
    va_end(rest);                        \
  }

#define OPEN(name)                                                            \
  int name(const char* path, int flags, ...) {                                \
    MODE(flags, flags)                                                        \
    REAL(name);                                                               \
    return fails(kind_of(flags), below(path)) ? -1 : real(path, flags, mode); \
  }
#define OPENAT(name)                                                                                        \
  int name(int folder, const char* path, int flags, ...) {                                                  \
    MODE(flags, flags)                                                                                      \
    REAL(name);                                                                                             \
    return fails(kind_of(flags), below(path) || open_below(folder)) ? -1 : real(folder, path, flags, mode); \
  }
OPEN(open);
OPEN(open64);
OPENAT(openat);
OPENAT(openat64);

// Returns how many of the bytes fit on the disk, -1 if none.
static ssize_t fitting(size_t size) {
  if (budget < 0) return (ssize_t)size;
  long left = budget;
  if (left == 0 && size) {
    errno = ENOSPC;
    return -1;
  }
  ssize_t taken = (ssize_t)((long)size < left ? size : (size_t)left);
  budget -= taken;
  return taken;
}

ssize_t write(int fd, const void* data, size_t size) {
  REAL(write);
  int counted = open_below(fd);
  if (fails(DATA, counted)) return -1;
  ssize_t fits = counted ? fitting(size) : (ssize_t)size;
  return fits < 0 ? -1 : real(fd, data, (size_t)fits);
}

ssize_t writev(int fd, const struct iovec* pieces, int count) {
  REAL(writev);
  if (!open_below(fd)) return real(fd, pieces, count);
  return count ? write(fd, pieces[0].iov_base, pieces[0].iov_len) : 0;  // a short write is allowed
}

int fsync(int fd) {
  REAL(fsync);
  return fails(DATA, open_below(fd)) ? -1 : real(fd);
}
int fdatasync(int fd) {
  REAL(fdatasync);
  return fails(DATA, open_below(fd)) ? -1 : real(fd);
}
int ftruncate(int fd, off_t size) {
  REAL(ftruncate);
  return fails(DATA, open_below(fd)) ? -1 : real(fd, size);
}
int ftruncate64(int fd, off64_t size) {
  REAL(ftruncate64);
  return fails(DATA, open_below(fd)) ? -1 : real(fd, size);
}

static int reserve(int fd, off64_t size) {
  if (!open_below(fd)) return 0;
  if (fails(DATA, 1)) return errno;
  if (budget >= 0 && size > budget) return ENOSPC;
  if (budget >= 0) budget -= size;
  return 0;
}
int posix_fallocate(int fd, off_t from, off_t size) {
  REAL(posix_fallocate);
  int code = reserve(fd, size);
  return code ? code : real(fd, from, size);
}
int posix_fallocate64(int fd, off64_t from, off64_t size) {
  REAL(posix_fallocate64);
  int code = reserve(fd, size);
  return code ? code : real(fd, from, size);
}

int rename(const char* old, const char* new) {
  REAL(rename);
  return fails(CREATE, below(new)) ? -1 : real(old, new);
}
int mkdir(const char* path, mode_t mode) {
  REAL(mkdir);
  return fails(CREATE, below(path)) ? -1 : real(path, mode);
}
int unlink(const char* path) {
  REAL(unlink);
  return fails(REMOVE, below(path)) ? -1 : real(path);
}
int rmdir(const char* path) {
  REAL(rmdir);
  return fails(REMOVE, below(path)) ? -1 : real(path);
}
int unlinkat(int folder, const char* path, int flags) {
  REAL(unlinkat);
  return fails(REMOVE, below(path) || open_below(folder)) ? -1 : real(folder, path, flags);
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  REAL(clock_gettime);
  int result = real(clock, time);
  if (jump_at && (clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC) && ++readings >= jump_at)
    time->tv_sec += clock == CLOCK_REALTIME ? wall_jump : steady_jump;
  return result;
}
