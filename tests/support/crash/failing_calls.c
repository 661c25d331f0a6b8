/* Loaded before the C library (LD_PRELOAD): lets the n-th system call that changes something below
 * a folder kill its process, fail, or be interrupted. Calls of all processes of a tree are counted
 * together, in a file that they share; failing_calls.py fills it in and reads it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NEVER, KILL, FAIL_ONCE, FAIL_FROM_THEN_ON, INTERRUPT };
enum { MOST_CALLS = 8192, TEXT_BYTES = 192 };

static struct shared {
    int64_t calls;  /* counted until now */
    int64_t target; /* the call at which it happens, from 0 on */
    int64_t fault;  /* one of those above */
    int64_t error;  /* how it fails */
    int64_t seed;   /* decides how much of a write is done before */
    int64_t fired;  /* times that it happened */
    int64_t stored; /* steps that are known to be stored; for failing_calls.py */
    char folder[PATH_MAX];
    char log[MOST_CALLS][TEXT_BYTES]; /* "+" if the call takes room, else "-"; its name, its path */
} *shared;

#define REAL(NAME) ((__typeof__(&NAME))dlsym(RTLD_NEXT, #NAME))

__attribute__((constructor)) static void attach(void) {
    const char *name = getenv("FAILING_CALLS");
    int fd = name ? REAL(open)(name, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *memory = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED) shared = memory;
}

static void absolute(char *found, int folder_fd, const char *path) {
    char base[PATH_MAX] = "", link[64];
    if (path && path[0] == '/') {
        snprintf(found, PATH_MAX, "%s", path);
        return;
    }
    if (folder_fd == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder_fd);
    ssize_t length = readlink(link, base, sizeof base - 1);
    base[length < 0 ? 0 : length] = 0;
    if (path)
        snprintf(found, PATH_MAX, "%.*s/%.*s", PATH_MAX / 2 - 1, base, PATH_MAX / 2 - 1, path);
    else
        snprintf(found, PATH_MAX, "%s", base);
}

/* Count a call. Returns 0 when it is to be made, or the error with which it must fail.
 * `part`: NULL, or the bytes of a write; what is left in it is to be written before the error, and
 * `*error` KILL stands for the end of the process after that. */
enum { DIE = -1 };

static int fate(const char *name, int takes_room, int folder_fd, const char *path, size_t *part) {
    char full[PATH_MAX];
    int saved = errno;
    if (!shared || !shared->folder[0]) return 0;
    absolute(full, folder_fd, path);
    errno = saved;
    size_t length = strlen(shared->folder);
    if (strncmp(full, shared->folder, length) || (full[length] && full[length] != '/')) return 0;
    int is_failing = shared->fault == FAIL_ONCE || shared->fault == FAIL_FROM_THEN_ON;
    if (is_failing && shared->error == ENOSPC && !takes_room) return 0;
    int64_t number = __atomic_fetch_add(&shared->calls, 1, __ATOMIC_SEQ_CST);
    if (number < MOST_CALLS)
        snprintf(shared->log[number], TEXT_BYTES, "%c%s %.*s", takes_room ? '+' : '-', name,
                 TEXT_BYTES - 32, full + length);
    int is_due = number == shared->target ||
                 (shared->fault == FAIL_FROM_THEN_ON && number > shared->target);
    if (!is_due || shared->fault == NEVER) return 0;
    __atomic_fetch_add(&shared->fired, 1, __ATOMIC_SEQ_CST);
    if (shared->fault == INTERRUPT) {
        kill(getpid(), SIGINT);
        return 0;
    }
    if (part) {
        uint64_t drawn = (uint64_t)shared->seed * 0x9E3779B97F4A7C15u;
        /* A disk that is full takes what there is room for; one call that fails takes nothing. */
        int is_torn = shared->fault == KILL || number == shared->target;
        *part = is_torn && shared->fault != FAIL_ONCE ? (drawn >> 16) % (*part + 1) : 0;
    }
    if (shared->fault == KILL && !part) kill(getpid(), SIGKILL);
    return shared->fault == KILL ? DIE : (int)shared->error;
}

#define CHECKED(NAME, TAKES_ROOM, FD, PATH, CALL)             \
    do {                                                      \
        int error = fate(NAME, TAKES_ROOM, FD, PATH, NULL);   \
        if (!error) return CALL;                              \
        errno = error;                                        \
        return -1;                                            \
    } while (0)

/* Opening; only to write. */
#define OPENS(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & (O_CREAT | O_TRUNC)))
#define MODE(flags)                                                \
    mode_t mode = 0;                                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                       \
        va_list list;                                              \
        va_start(list, flags);                                     \
        mode = va_arg(list, mode_t);                               \
        va_end(list);                                              \
    }
#define OPEN(NAME)                                                                    \
    int NAME(const char *path, int flags, ...) {                                      \
        MODE(flags)                                                                   \
        if (!OPENS(flags)) return REAL(NAME)(path, flags, mode);                      \
        CHECKED("open", 1, AT_FDCWD, path, REAL(NAME)(path, flags, mode));            \
    }
#define OPENAT(NAME)                                                                  \
    int NAME(int fd, const char *path, int flags, ...) {                              \
        MODE(flags)                                                                   \
        if (!OPENS(flags)) return REAL(NAME)(fd, path, flags, mode);                  \
        CHECKED("open", 1, fd, path, REAL(NAME)(fd, path, flags, mode));              \
    }
#define FOPEN(NAME)                                                                   \
    FILE *NAME(const char *path, const char *mode) {                                  \
        int error = strpbrk(mode, "wa+") ? fate("fopen", 1, AT_FDCWD, path, NULL) : 0; \
        if (!error) return REAL(NAME)(path, mode);                                    \
        errno = error;                                                                \
        return NULL;                                                                  \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

/* Writing; a part of the bytes may be written before the process ends or the disk is full. */
#define WRITE(NAME, CALLED, PARAMETERS, ARGUMENTS)                      \
    ssize_t NAME PARAMETERS {                                           \
        size_t part = nbytes;                                           \
        int error = fate(CALLED, 1, fd, NULL, &part);                   \
        if (!error) return REAL(NAME) ARGUMENTS;                        \
        nbytes = part;                                                  \
        ssize_t written = part ? REAL(NAME) ARGUMENTS : 0;              \
        if (error == DIE) kill(getpid(), SIGKILL);                      \
        if (written) return written;                                    \
        errno = error;                                                  \
        return -1;                                                      \
    }
#define PWRITE (int fd, const void *data, size_t nbytes, off64_t offset)
WRITE(write, "write", (int fd, const void *data, size_t nbytes), (fd, data, nbytes))
WRITE(pwrite, "pwrite", PWRITE, (fd, data, nbytes, offset))
WRITE(pwrite64, "pwrite", PWRITE, (fd, data, nbytes, offset))
WRITE(sendfile, "sendfile", (int fd, int in, off64_t *at, size_t nbytes), (fd, in, at, nbytes))
WRITE(sendfile64, "sendfile", (int fd, int in, off64_t *at, size_t nbytes), (fd, in, at, nbytes))

ssize_t copy_file_range(int in, off64_t *in_at, int fd, off64_t *at, size_t nbytes, unsigned how) {
    CHECKED("copy_file_range", 1, fd, NULL,
            REAL(copy_file_range)(in, in_at, fd, at, nbytes, how));
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    CHECKED("writev", 1, fd, NULL, REAL(writev)(fd, parts, count));
}
#define PWRITEV(NAME)                                                         \
    ssize_t NAME(int fd, const struct iovec *parts, int count, off64_t at) {  \
        CHECKED("pwritev", 1, fd, NULL, REAL(NAME)(fd, parts, count, at));    \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

/* Sizes. posix_fallocate returns its error. */
#define FTRUNCATE(NAME)                                                   \
    int NAME(int fd, off64_t length) {                                    \
        CHECKED("ftruncate", 1, fd, NULL, REAL(NAME)(fd, length));        \
    }
#define TRUNCATE(NAME)                                                    \
    int NAME(const char *path, off64_t length) {                          \
        CHECKED("truncate", 1, AT_FDCWD, path, REAL(NAME)(path, length)); \
    }
#define POSIX_FALLOCATE(NAME)                                             \
    int NAME(int fd, off64_t offset, off64_t length) {                    \
        int error = fate("posix_fallocate", 1, fd, NULL, NULL);           \
        return error ? error : REAL(NAME)(fd, offset, length);            \
    }
#define FALLOCATE(NAME)                                                                 \
    int NAME(int fd, int mode, off64_t offset, off64_t length) {                        \
        CHECKED("fallocate", 1, fd, NULL, REAL(NAME)(fd, mode, offset, length));        \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)
TRUNCATE(truncate)
TRUNCATE(truncate64)
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

/* Waiting for the medium: nothing that a kill could show, so nothing is waited for. */
int fsync(int fd) { CHECKED("fsync", 1, fd, NULL, 0); }
int fdatasync(int fd) { CHECKED("fdatasync", 1, fd, NULL, 0); }

/* Names. */
int rename(const char *old, const char *new) {
    CHECKED("rename", 1, AT_FDCWD, new, REAL(rename)(old, new));
}
int renameat(int old_fd, const char *old, int fd, const char *new) {
    CHECKED("rename", 1, fd, new, REAL(renameat)(old_fd, old, fd, new));
}
int renameat2(int old_fd, const char *old, int fd, const char *new, unsigned flags) {
    CHECKED("rename", 1, fd, new, REAL(renameat2)(old_fd, old, fd, new, flags));
}
int link(const char *old, const char *new) {
    CHECKED("link", 1, AT_FDCWD, new, REAL(link)(old, new));
}
int linkat(int old_fd, const char *old, int fd, const char *new, int flags) {
    CHECKED("link", 1, fd, new, REAL(linkat)(old_fd, old, fd, new, flags));
}
int symlink(const char *to, const char *path) {
    CHECKED("symlink", 1, AT_FDCWD, path, REAL(symlink)(to, path));
}
int symlinkat(const char *to, int fd, const char *path) {
    CHECKED("symlink", 1, fd, path, REAL(symlinkat)(to, fd, path));
}
int unlink(const char *path) { CHECKED("unlink", 0, AT_FDCWD, path, REAL(unlink)(path)); }
int unlinkat(int fd, const char *path, int flags) {
    CHECKED("unlink", 0, fd, path, REAL(unlinkat)(fd, path, flags));
}
int mkdir(const char *path, mode_t mode) {
    CHECKED("mkdir", 1, AT_FDCWD, path, REAL(mkdir)(path, mode));
}
int mkdirat(int fd, const char *path, mode_t mode) {
    CHECKED("mkdir", 1, fd, path, REAL(mkdirat)(fd, path, mode));
}
int rmdir(const char *path) { CHECKED("rmdir", 0, AT_FDCWD, path, REAL(rmdir)(path)); }
