/* System calls of a process on files, to make one of them fail or to record them all; see preloaded.py.

CALLS_BELOW   only paths that begin so
CALLS_FAIL    CALL NUMBER ERRNO FOREVER: the call of that number, counted from 0, fails, and where FOREVER is 1 all
              those that follow
CALLS_NAMED   a file that gets a line for each call: its name and its path
CALLS_RECORD  a file that gets a record for each change; power_cut.py reads it
*/

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))
#define LONGEST (2 * PATH_MAX)

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static int seen;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static int of_descriptor(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, LONGEST - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0 && path[0] == '/';
}

static void absolute(int directory, const char *name, char *path) {
    char before[LONGEST];
    if (name[0] == '/')
        snprintf(path, LONGEST, "%s", name);
    else {
        if (directory == AT_FDCWD) {
            if (!getcwd(before, sizeof before)) before[0] = 0;
        } else
            of_descriptor(directory, before);
        if (snprintf(path, LONGEST, "%s/%s", before, name) >= LONGEST) path[0] = 0;
    }
}

static int is_below(const char *path) {
    const char *below = getenv("CALLS_BELOW");
    return below && !strncmp(path, below, strlen(below));
}

static void append(const char *variable, const void *bytes, size_t length) {
    const char *name = getenv(variable);
    if (!name) return;
    int file = REAL(open64)(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0 || REAL(write)(file, bytes, length) != (ssize_t)length) abort();
    REAL(close)(file);
}

/* Whether a call is to fail, with errno set. */
static int fails(const char *call, const char *path) {
    if (!is_below(path)) return 0;
    char line[LONGEST + 32];
    append("CALLS_NAMED", line, (size_t)snprintf(line, sizeof line, "%s %s\n", call, path));
    const char *plan = getenv("CALLS_FAIL");
    char chosen[16];
    int number, code, forever;
    if (!plan || sscanf(plan, "%15s %d %d %d", chosen, &number, &code, &forever) != 4 || strcmp(chosen, call)) return 0;
    int now = __atomic_fetch_add(&seen, 1, __ATOMIC_SEQ_CST);
    if (now != number && !(forever && now > number)) return 0;
    errno = code;
    return 1;
}

struct header {
    uint64_t inode, offset, length;
    uint32_t kind, path, other;
} __attribute__((packed));

static void record(char kind, uint64_t inode, const char *path, const char *other, uint64_t offset, const void *data,
                   uint64_t length) {
    int before = errno;
    if (getenv("CALLS_RECORD") && (is_below(path) || is_below(other))) {
        struct header header = {inode, offset, length, (uint32_t)kind, strlen(path), strlen(other)};
        size_t stored = data ? length : 0;
        char *bytes = malloc(sizeof header + header.path + header.other + stored), *end = bytes;
        end = mempcpy(end, &header, sizeof header);
        end = mempcpy(end, path, header.path);
        end = mempcpy(end, other, header.other);
        end = mempcpy(end, data ? data : "", stored);
        append("CALLS_RECORD", bytes, end - bytes);
        free(bytes);
    }
    errno = before;
}

static uint64_t inode_of(int descriptor) {
    struct stat found;
    return fstat(descriptor, &found) ? 0 : found.st_ino;
}

static int opened(int directory, const char *name, int flags, mode_t mode) {
    char path[LONGEST];
    struct stat before;
    absolute(directory, name, path);
    int writes = (flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT;
    if (fails(writes ? "open" : "look", path)) return -1;
    if (!writes) return REAL(openat64)(directory, name, flags, mode);
    pthread_mutex_lock(&one_at_a_time);
    int is_new = lstat(path, &before) != 0;
    int file = REAL(openat64)(directory, name, flags, mode);
    if (file >= 0 && is_new) record('C', inode_of(file), path, "", 0, NULL, 0);
    if (file >= 0 && !is_new && flags & O_TRUNC) record('T', inode_of(file), path, "", 0, NULL, 0);
    pthread_mutex_unlock(&one_at_a_time);
    return file;
}

#define MODE(flags)                          \
    mode_t mode = 0;                         \
    if (flags & (O_CREAT | O_TMPFILE)) {     \
        va_list list;                        \
        va_start(list, flags);               \
        mode = va_arg(list, mode_t);         \
        va_end(list);                        \
    }

int open(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }

int close(int file) {
    char path[LONGEST];
    int failed = of_descriptor(file, path) && fails("close", path), code = errno;
    int result = REAL(close)(file);
    errno = failed ? code : errno;
    return failed ? -1 : result;
}

#define READ(call, given)                                                                       \
    char path[LONGEST];                                                                         \
    return of_descriptor(file, path) && fails("read", path) ? -1 : REAL(call) given;

ssize_t read(int file, void *to, size_t length) { READ(read, (file, to, length)) }
ssize_t pread(int file, void *to, size_t length, off_t at) { READ(pread, (file, to, length, at)) }
ssize_t pread64(int file, void *to, size_t length, off64_t at) { READ(pread64, (file, to, length, at)) }

#define WRITE(call, given, at)                                                                  \
    char path[LONGEST];                                                                         \
    if (!of_descriptor(file, path)) return REAL(call) given;                                    \
    if (fails("write", path)) return -1;                                                        \
    pthread_mutex_lock(&one_at_a_time);                                                         \
    ssize_t result = REAL(call) given;                                                          \
    if (result > 0) record('W', inode_of(file), path, "", (uint64_t)(at), from, (uint64_t)result); \
    pthread_mutex_unlock(&one_at_a_time);                                                       \
    return result;

ssize_t write(int file, const void *from, size_t length) {
    WRITE(write, (file, from, length), lseek64(file, 0, SEEK_CUR) - result)
}
ssize_t pwrite(int file, const void *from, size_t length, off_t at) { WRITE(pwrite, (file, from, length, at), at) }
ssize_t pwrite64(int file, const void *from, size_t length, off64_t at) {
    WRITE(pwrite64, (file, from, length, at), at)
}
ssize_t writev(int file, const struct iovec *parts, int count) { /* as if the disk took only the first part */
    for (int i = 0; i < count; i++)
        if (parts[i].iov_len) return write(file, parts[i].iov_base, parts[i].iov_len);
    return 0;
}

#define SYNC(call)                                                                              \
    char path[LONGEST];                                                                         \
    if (of_descriptor(file, path) && fails("fsync", path)) return -1;                           \
    int result = REAL(call)(file);                                                              \
    if (!result) record('S', inode_of(file), path, "", 0, NULL, 0);                             \
    return result;

int fsync(int file) { SYNC(fsync) }
int fdatasync(int file) { SYNC(fdatasync) }

int flock(int file, int operation) {
    char path[LONGEST];
    return of_descriptor(file, path) && fails("lock", path) ? -1 : REAL(flock)(file, operation);
}

#define CUT(call)                                                                               \
    char path[LONGEST];                                                                         \
    if (of_descriptor(file, path) && fails("truncate", path)) return -1;                        \
    int result = REAL(call)(file, length);                                                      \
    if (!result) record('T', inode_of(file), path, "", (uint64_t)length, NULL, 0);              \
    return result;

int ftruncate(int file, off_t length) { CUT(ftruncate) }
int ftruncate64(int file, off64_t length) { CUT(ftruncate64) }

int unlinkat(int at, const char *name, int flags) {
    char path[LONGEST];
    absolute(at, name, path);
    if (fails(flags & AT_REMOVEDIR ? "rmdir" : "unlink", path)) return -1;
    pthread_mutex_lock(&one_at_a_time);
    int result = REAL(unlinkat)(at, name, flags);
    if (!result) record('U', 0, path, "", 0, NULL, 0);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int at, const char *name, mode_t mode) {
    char path[LONGEST];
    struct stat made;
    absolute(at, name, path);
    if (fails("mkdir", path)) return -1;
    pthread_mutex_lock(&one_at_a_time);
    int result = REAL(mkdirat)(at, name, mode);
    if (!result && !stat(path, &made)) record('M', made.st_ino, path, "", 0, NULL, 0);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

#define TWO(call, kind, at, name, to, other, given)                                             \
    char path[LONGEST], second[LONGEST];                                                        \
    absolute(at, name, path);                                                                   \
    absolute(to, other, second);                                                                \
    if (fails(kind == 'R' ? "rename" : "link", second)) return -1;                              \
    pthread_mutex_lock(&one_at_a_time);                                                         \
    int result = REAL(call) given;                                                              \
    if (!result) record(kind, 0, path, second, 0, NULL, 0);                                     \
    pthread_mutex_unlock(&one_at_a_time);                                                       \
    return result;

int renameat2(int at, const char *name, int to, const char *other, unsigned int flags) {
    TWO(renameat2, 'R', at, name, to, other, (at, name, to, other, flags))
}
int renameat(int at, const char *name, int to, const char *other) { return renameat2(at, name, to, other, 0); }
int rename(const char *name, const char *other) { return renameat2(AT_FDCWD, name, AT_FDCWD, other, 0); }
int linkat(int at, const char *name, int to, const char *other, int flags) {
    TWO(linkat, 'L', at, name, to, other, (at, name, to, other, flags))
}
int link(const char *name, const char *other) { return linkat(AT_FDCWD, name, AT_FDCWD, other, 0); }

/* Whoever copies then reads and writes. */
ssize_t sendfile64(int to, int from, off64_t *at, size_t length) {
    (void)to, (void)from, (void)at, (void)length;
    errno = ENOTSOCK;
    return -1;
}
ssize_t sendfile(int to, int from, off_t *at, size_t length) { return sendfile64(to, from, (off64_t *)at, length); }
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t length, unsigned int flags) {
    (void)from, (void)at, (void)to, (void)there, (void)length, (void)flags;
    errno = ENOSYS;
    return -1;
}
