/* Forks and mappings in rare ways, each by its name: for `everbyte run`.
 *
 * usage: run_corners CASE
 *
 * Prints "good" and exits with 0 if the case went as it would without. */

#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define die(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort())
#define must(call) ((call) ? die("%s: %s", #call, strerror(errno)) : 0)

#define MIB ((size_t)1 << 20)

static unsigned char *data;
enum { BYTES = 48 << 20 };

/* More memory than the limit, each page with its own byte. */
static void fill(void) {
    if (!data && !(data = malloc(BYTES)))
        die("malloc fails");
    for (size_t at = 0; at < BYTES; at += 4096)
        data[at] = at / 4096 % 251;
}

static void check(void) {
    for (size_t at = 0; at < BYTES; at += 4096)
        if (data[at] != at / 4096 % 251)
            die("byte %zu is %d", at, data[at]);
}

static int ends_well(pid_t pid) {
    int status;
    if (pid < 0 || waitpid(pid, &status, __WALL) != pid)
        die("no child: %s", strerror(errno));
    return status == 0;
}

static unsigned char *map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap of %zu bytes: %s", bytes, strerror(errno));
    return at;
}

static void raw_fork(void) {
    pid_t pid = _Fork();
    if (pid == 0) {
        check();
        free(malloc(8 * MIB));
        fill();
        _exit(0);
    }
    if (!ends_well(pid))
        die("the child fails");
}

static int clone_work(void *argument) {
    check();
    free(malloc(8 * MIB));
    fill();
    return argument != data;
}

static void clone_child(void) {
    static char stack[256 << 10] __attribute__((aligned(16)));
    if (!ends_well(clone(clone_work, stack + sizeof stack, SIGCHLD, data)))
        die("the child fails");
    if (!ends_well(clone(clone_work, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, data)))
        die("the child with its parent's memory fails");
}

static void fork_of_clone_child(void) {
    pid_t pid = fork();
    if (pid == 0) {
        clone_child();
        raw_fork();
        _exit(0);
    }
    if (!ends_well(pid))
        die("the child fails");
}

static void mremap_dontunmap(void) {
    unsigned char *from = map(4 * MIB), *to;
    for (size_t at = 0; at < 4 * MIB; at += 4096)
        from[at] = at / 4096 % 251;
    to = mremap(from, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (to == MAP_FAILED || to == from)
        die("mremap: %s", strerror(errno));
    for (size_t at = 0; at < 4 * MIB; at += 4096)
        if (to[at] != at / 4096 % 251 || from[at])
            die("bytes %zu are %d and %d", at, to[at], from[at]);
    must(munmap(from, 4 * MIB));
    must(munmap(to, 4 * MIB));
}

static volatile unsigned char *looked_at;

static void look(int unused) {
    (void)unused;
    _exit(7);
}

static void fork_advice(void) {
    unsigned char *at = map(8 * MIB);
    int status;
    pid_t pid;
    memset(at, 5, 8 * MIB);
    must(madvise(at, 4 * MIB, MADV_WIPEONFORK));
    must(madvise(at + 4 * MIB, 4 * MIB, MADV_DONTFORK));
    must(madvise(at + 2 * MIB, MIB, MADV_KEEPONFORK));
    for (int nth = 0; nth < 2; nth++) {
        if ((pid = fork()) == 0) {
            signal(SIGSEGV, look);
            if (at[0] || at[MIB] || at[2 * MIB] != 5 || at[3 * MIB - 1] != 5 || at[3 * MIB])
                die("the child has the wrong bytes");
            looked_at = at + 5 * MIB;
            _exit(*looked_at ? 8 : 9);
        }
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
            die("memory excluded from a child: status %x", status);
    }
    if (at[0] != 5 || at[5 * MIB] != 5)
        die("the parent's bytes have changed");
    must(madvise(at + 4 * MIB, 4 * MIB, MADV_DOFORK));
    if ((pid = fork()) == 0)
        _exit(at[5 * MIB] != 5);
    if (!ends_well(pid))
        die("the child lacks memory");
    /* The advice moves with its memory, and ends with it. */
    must(madvise(at, 8 * MIB, MADV_KEEPONFORK));
    must((at = mremap(at, 8 * MIB, 64 * MIB, MREMAP_MAYMOVE)) == MAP_FAILED);
    must(madvise(at, 64 * MIB, MADV_WIPEONFORK));
    must((at = mremap(at, 64 * MIB, 80 * MIB, MREMAP_MAYMOVE)) == MAP_FAILED);
    at[0] = at[64 * MIB - 1] = at[80 * MIB - 1] = 5;
    if ((pid = fork()) == 0)
        _exit(at[0] || at[64 * MIB - 1] || at[80 * MIB - 1]);
    if (!ends_well(pid))
        die("moved memory is not wiped in a child");
    must((at = mremap(at, 80 * MIB, 8 * MIB, MREMAP_MAYMOVE)) == MAP_FAILED);
    must(munmap(at, 8 * MIB));
    at = map(80 * MIB);
    for (size_t page = 0; page < 80 * MIB; page += 4096)
        at[page] = 5;
    if ((pid = fork()) == 0) {
        for (size_t page = 0; page < 80 * MIB; page += 4096)
            if (at[page] != 5)
                _exit(1);
        _exit(0);
    }
    if (!ends_well(pid))
        die("new memory has the advice of unmapped memory");
    must(munmap(at, 80 * MIB));
}

/* One memory, mapped twice in a row. The reservation is inaccessible, as the kernel's own. */
static void ring(void) {
    int file = memfd_create("ring", 0);
    size_t half = 2 * MIB;
    must(ftruncate(file, half));
    unsigned char *at = mmap(NULL, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int nth = 0; nth < 2; nth++)
        if (mmap(at + nth * half, half, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
            die("a half of the ring: %s", strerror(errno));
    memset(at + half / 2, 3, half);
    if (at[0] != 3 || at[half] != 3 || at[half - 1] != 3)
        die("the ring has two memories");
}

/* The refused form: the reservation is memory that pages. */
static void ring_over_memory(void) {
    int file = memfd_create("ring", 0);
    must(ftruncate(file, 2 * MIB));
    unsigned char *at = map(4 * MIB);
    if (mmap(at, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED || errno != EINVAL)
        die("a shared mapping over memory that pages");
    memset(at, 1, 4 * MIB);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"raw-fork", raw_fork},
    {"clone", clone_child},
    {"clone-of-child", fork_of_clone_child},
    {"mremap-dontunmap", mremap_dontunmap},
    {"fork-advice", fork_advice},
    {"ring", ring},
    {"ring-over-memory", ring_over_memory},
};

int main(int count, char **words) {
    alarm(60);
    for (size_t nth = 0; count > 1 && nth < sizeof cases / sizeof *cases; nth++)
        if (!strcmp(words[1], cases[nth].name)) {
            fill();
            cases[nth].run();
            check();
            puts("good");
            return 0;
        }
    fprintf(stderr, "usage: run_corners CASE\n");
    return 2;
}
