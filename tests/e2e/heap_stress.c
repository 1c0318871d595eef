/* A program that uses its heap in every way, and checks what it reads: for `everbyte run`.
 *
 * usage: heap_stress MIB THREADS SECONDS
 *
 * Threads allocate, reallocate, free, map, remap and unmap blocks that know their own contents; others
 * read files into them by system calls. Meanwhile the program forks children that check everything, and
 * execute others. Prints "good" and exits with 0 if every byte was as it should be. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCKS 512
#define die(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort())

extern char **environ;

struct block {
    uint64_t *at;
    size_t words;
    uint64_t seed;
    int is_mapped;
};

struct thread {
    pthread_t id;
    struct block blocks[BLOCKS];
    size_t words_max;
    uint64_t random;
    double end;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static uint64_t next(uint64_t *random) {
    uint64_t x = *random;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return *random = x;
}

static void fill(struct block *block, size_t from) {
    for (size_t nth = from; nth < block->words; nth++)
        block->at[nth] = block->seed + nth * 0x9E3779B97F4A7C15;
}

static void check(const struct block *block) {
    for (size_t nth = 0; nth < block->words; nth++)
        if (block->at[nth] != block->seed + nth * 0x9E3779B97F4A7C15)
            die("word %zu of %zu at %p is wrong: %lx", nth, block->words, (void *)block->at,
                block->at[nth]);
}

static void check_zero(const uint64_t *at, size_t from, size_t to) {
    for (size_t nth = from; nth < to; nth++)
        if (at[nth])
            die("word %zu of new memory at %p is not zero: %lx", nth, (const void *)at, at[nth]);
}

static size_t pages_of(size_t words) { return (words * 8 + 4095) & ~(size_t)4095; }

static void drop(struct block *block) {
    check(block);
    if (block->is_mapped)
        munmap(block->at, pages_of(block->words));
    else
        free(block->at);
    block->at = NULL;
    block->words = 0;
}

static void make(struct thread *thread, struct block *block) {
    uint64_t kind = next(&thread->random) % 8;
    block->seed = next(&thread->random);
    block->words = 1 + next(&thread->random) % (kind < 5 ? 512 : thread->words_max);
    block->is_mapped = kind == 7 && block->words * 8 >= 1 << 20;
    if (block->is_mapped) {
        block->at = mmap(NULL, pages_of(block->words), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block->at == MAP_FAILED)
            die("mmap: %s", strerror(errno));
        check_zero(block->at, 0, block->words);
    } else if (kind == 6) {
        if (posix_memalign((void **)&block->at, 4096, block->words * 8))
            die("posix_memalign failed");
        if ((uintptr_t)block->at % 4096)
            die("posix_memalign is not aligned");
    } else if (kind == 5) {
        block->at = calloc(block->words, 8);
        if (!block->at)
            die("calloc: %s", strerror(errno));
        check_zero(block->at, 0, block->words);
    } else {
        block->at = malloc(block->words * 8);
        if (!block->at || malloc_usable_size(block->at) < block->words * 8)
            die("malloc: %s", strerror(errno));
    }
    fill(block, 0);
}

static void resize(struct thread *thread, struct block *block) {
    size_t before = block->words, words = 1 + next(&thread->random) % thread->words_max;
    if (block->is_mapped && words * 8 < 1 << 20)
        return;
    if (block->is_mapped)
        block->at = mremap(block->at, pages_of(before), pages_of(words), MREMAP_MAYMOVE);
    else
        block->at = realloc(block->at, words * 8);
    if (!block->at || block->at == MAP_FAILED)
        die("resizing failed: %s", strerror(errno));
    if (block->is_mapped && words > before)
        check_zero(block->at, pages_of(before) / 8, words);
    block->words = words;
    fill(block, before < words ? before : words);
    check(block);
}

/* A pipe's bytes arrive by system calls on both sides. */
static void through_a_pipe(struct block *block) {
    int ends[2];
    char byte = 7;
    if (pipe2(ends, O_CLOEXEC))
        die("pipe: %s", strerror(errno));
    size_t len = block->words * 8 < 65536 ? block->words * 8 : 65536;
    if (write(ends[1], block->at, len) != (ssize_t)len)
        die("write: %s", strerror(errno));
    memset(block->at, byte, len);
    if (read(ends[0], block->at, len) != (ssize_t)len)
        die("read: %s", strerror(errno));
    close(ends[0]), close(ends[1]);
    check(block);
}

static void discard(struct block *block) {
    if (!block->is_mapped)
        return;
    if (madvise(block->at, pages_of(block->words), MADV_DONTNEED))
        die("madvise: %s", strerror(errno));
    check_zero(block->at, 0, block->words);
    fill(block, 0);
}

static void *run(void *argument) {
    struct thread *thread = argument;
    while (now() < thread->end) {
        struct block *block = &thread->blocks[next(&thread->random) % BLOCKS];
        if (!block->at)
            make(thread, block);
        else
            switch (next(&thread->random) % 8) {
            case 0: drop(block); break;
            case 1: resize(thread, block); break;
            case 2: through_a_pipe(block); break;
            case 3: discard(block); break;
            default: check(block);
            }
    }
    return NULL;
}

static void check_all(const struct block *blocks) {
    for (int nth = 0; nth < BLOCKS; nth++)
        if (blocks[nth].at)
            check(&blocks[nth]);
}

static void wait_for(pid_t pid, const char *what) {
    int status;
    if (waitpid(pid, &status, 0) != pid || status)
        die("%s: status %x", what, status);
}

/* A child has everything that this thread made, changes it, and disturbs nobody. */
static void fork_children(struct thread *own) {
    pid_t pid = fork();
    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid == 0) {
        check_all(own->blocks);
        own->end = now() + 0.1;
        run(own);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            check_all(own->blocks);
            _exit(0);
        }
        wait_for(grandchild, "grandchild");
        execl("/bin/sh", "sh", "-c", "test $(echo a | wc -w) = 1", (char *)NULL);
        _exit(1);
    }
    own->end = now() + 0.1;
    run(own);
    wait_for(pid, "child");
    char *arguments[] = {"sh", "-c", "exit 0", NULL};
    if (posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environ))
        die("posix_spawn failed");
    wait_for(pid, "spawned");
    check_all(own->blocks);
}

int main(int count, char **arguments) {
    if (count != 4)
        die("usage: heap_stress MIB THREADS SECONDS");
    int threads = atoi(arguments[2]);
    double end = now() + atof(arguments[3]);
    struct thread *all = calloc(threads + 1, sizeof *all);
    for (int nth = 0; nth <= threads; nth++) {
        /* Two of five blocks are large as a rule, and half of what they can be. */
        all[nth].words_max = ((size_t)atoi(arguments[1]) << 17) / (threads + 1) / BLOCKS * 5;
        all[nth].random = 88172645463325252 + nth;
        all[nth].end = end;
        if (nth < threads)
            pthread_create(&all[nth].id, NULL, run, &all[nth]);
    }
    for (int nth = 0; nth < 2 * BLOCKS; nth++) {
        struct block *block = &all[threads].blocks[nth % BLOCKS];
        if (!block->at)
            make(&all[threads], block);
    }
    do
        fork_children(&all[threads]);
    while (now() < end);
    for (int nth = 0; nth < threads; nth++)
        pthread_join(all[nth].id, NULL);
    for (int nth = 0; nth <= threads; nth++)
        check_all(all[nth].blocks);
    puts("good");
    return 0;
}
