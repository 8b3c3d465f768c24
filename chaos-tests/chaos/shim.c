/* Stands between a node and its disk (LD_PRELOAD): errors, delays, hangs, and what a power loss
 * would leave.
 *
 * Owns nothing but the calls: what they do is in a small shared file (shim.py writes it, this maps
 * it), so a test changes it while the node runs. Only files below QUORUMLOG_TEST_SHIM_ROOT are touched.
 * With QUORUMLOG_TEST_SHIM_SHADOW every successful sync also copies what it made durable there: a file
 * as `f<inode>`, the names of a directory as `d<inode>`. All that is nowhere else may be lost.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SYNC, SYNC_DIRECTORY, ALLOCATE, RENAME, CREATE, WRITE, READ, SET_SIZE, CALL_COUNT };
enum { OFF, FAIL, DELAY, HANG };

struct rule {
    volatile uint32_t action;
    volatile uint32_t error;
    volatile uint32_t delay_ms;
    volatile uint32_t left;   /* Acts so often, then turns itself off; 0: always. */
    volatile uint64_t passes; /* Calls that came by. */
    volatile uint64_t hits;   /* Calls that were acted on. */
};

struct control {
    struct rule rules[CALL_COUNT];
    volatile int64_t clock_offset_ns; /* Of the wall clock. */
    volatile uint64_t clock_reads;
};

static struct control *control;
static const char *root, *shadow;
static size_t root_length;

#define REAL(result, name, ...)                                                                   \
    static result (*real_##name)(__VA_ARGS__);                                                    \
    if (!real_##name) real_##name = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("QUORUMLOG_TEST_SHIM");
    root = getenv("QUORUMLOG_TEST_SHIM_ROOT");
    shadow = getenv("QUORUMLOG_TEST_SHIM_SHADOW");
    if (!path || !root) return;
    root_length = strlen(root);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED) control = found;
}

static void pause_ms(uint32_t ms) {
    struct timespec wait = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&wait, &wait) && errno == EINTR) {
    }
}

/* Whether the rule of this call strikes: the errno to fail with, or 0 after its delay. */
static int strike(int call) {
    struct rule *rule = &control->rules[call];
    __atomic_add_fetch(&rule->passes, 1, __ATOMIC_RELAXED);
    uint32_t action = rule->action;
    if (action == OFF) return 0;
    if (rule->left && __atomic_sub_fetch(&rule->left, 1, __ATOMIC_RELAXED) == 0)
        rule->action = OFF;
    __atomic_add_fetch(&rule->hits, 1, __ATOMIC_RELAXED);
    if (action == FAIL) return (int)rule->error;
    if (action == DELAY) pause_ms(rule->delay_ms);
    while (action == HANG && rule->action == HANG) pause_ms(5);
    return 0;
}

static int is_ours(const char *path) {
    return control && path && !strncmp(path, root, root_length);
}

static int is_ours_fd(int fd) {
    char link[40], path[PATH_MAX];
    if (!control) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_ours(path);
}

static void keep_file(int fd, const struct stat *stat) {
    char path[PATH_MAX];
    static char now[1 << 16], before[1 << 16];
    static volatile int busy;
    snprintf(path, sizeof path, "%s/f%llu", shadow, (unsigned long long)stat->st_ino);
    while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) pause_ms(0);
    int copy = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    char own[40];
    snprintf(own, sizeof own, "/proc/self/fd/%d", fd); /* It may be open for writing only. */
    int source = open(own, O_RDONLY | O_CLOEXEC);
    if (copy >= 0 && source >= 0) {
        if (ftruncate(copy, stat->st_size)) abort();
        for (off_t at = 0; at < stat->st_size; at += sizeof now) {
            ssize_t size = pread(source, now, sizeof now, at);
            if (size <= 0) break;
            if (pread(copy, before, size, at) != size || memcmp(now, before, size))
                if (pwrite(copy, now, size, at) != size) abort();
        }
    }
    if (copy >= 0) close(copy);
    if (source >= 0) close(source);
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
}

static void keep_names(int fd, const struct stat *stat) {
    char path[PATH_MAX], temporary[PATH_MAX + 20], own[40];
    snprintf(path, sizeof path, "%s/d%llu", shadow, (unsigned long long)stat->st_ino);
    snprintf(temporary, sizeof temporary, "%s.tmp%d", path, gettid());
    snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
    DIR *names = opendir(own);
    FILE *file = fopen(temporary, "we");
    if (!names || !file) abort();
    for (struct dirent *entry; (entry = readdir(names));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            fprintf(file, "%llu %s\n", (unsigned long long)entry->d_ino, entry->d_name);
    closedir(names);
    fclose(file);
    REAL(int, rename, const char *, const char *);
    if (real_rename(temporary, path)) abort();
}

static void keep(int fd) {
    struct stat stat;
    if (!shadow || fstat(fd, &stat)) return;
    if (S_ISDIR(stat.st_mode))
        keep_names(fd, &stat);
    else
        keep_file(fd, &stat);
}

int fdatasync(int fd) {
    REAL(int, fdatasync, int);
    if (!is_ours_fd(fd)) return real_fdatasync(fd);
    int error = strike(SYNC);
    if (error) return errno = error, -1;
    int result = real_fdatasync(fd);
    if (!result) keep(fd);
    return result;
}

int fsync(int fd) {
    REAL(int, fsync, int);
    if (!is_ours_fd(fd)) return real_fsync(fd);
    int error = strike(SYNC_DIRECTORY);
    if (error) return errno = error, -1;
    int result = real_fsync(fd);
    if (!result) keep(fd);
    return result;
}

int posix_fallocate64(int fd, off64_t at, off64_t size) {
    REAL(int, posix_fallocate64, int, off64_t, off64_t);
    int error = is_ours_fd(fd) ? strike(ALLOCATE) : 0;
    return error ? error : real_posix_fallocate64(fd, at, size);
}

int posix_fallocate(int fd, off_t at, off_t size) { return posix_fallocate64(fd, at, size); }

int ftruncate64(int fd, off64_t size) {
    REAL(int, ftruncate64, int, off64_t);
    int error = is_ours_fd(fd) ? strike(SET_SIZE) : 0;
    return error ? (errno = error, -1) : real_ftruncate64(fd, size);
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    int error = is_ours(to) ? strike(RENAME) : 0;
    return error ? (errno = error, -1) : real_rename(from, to);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    int error = is_ours_fd(fd) ? strike(WRITE) : 0;
    return error ? (errno = error, -1) : real_pwrite64(fd, data, size, at);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    REAL(ssize_t, pread64, int, void *, size_t, off64_t);
    int error = is_ours_fd(fd) ? strike(READ) : 0;
    return error ? (errno = error, -1) : real_pread64(fd, data, size, at);
}

int open64(const char *path, int flags, ...) {
    REAL(int, open64, const char *, int, ...);
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    int error = (flags & O_CREAT) && is_ours(path) ? strike(CREATE) : 0;
    return error ? (errno = error, -1) : real_open64(path, flags, mode);
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    int result = real_clock_gettime(clock, found);
    if (result || clock != CLOCK_REALTIME || !control || !control->clock_offset_ns) return result;
    __atomic_add_fetch(&control->clock_reads, 1, __ATOMIC_RELAXED);
    int64_t ns = (int64_t)found->tv_sec * 1000000000 + found->tv_nsec + control->clock_offset_ns;
    found->tv_sec = ns / 1000000000;
    found->tv_nsec = ns % 1000000000;
    return 0;
}
