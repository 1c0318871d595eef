/* A program whose children by vfork allocate, and are killed meanwhile: for `everbyte run`.
 *
 * usage: vfork_killed ROUNDS RESIDENT_MIB
 *
 * A child by vfork has its parent's memory, and the thread-local variables of the thread that called. This one
 * allocates, maps and frees, as real ones do before they execute a program, until another thread kills it. Then
 * all threads of the parent allocate. Prints "good" if none of them waits for ever, every byte is as it was
 * written, and no more than RESIDENT_MIB of the program's own memory is in DRAM. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "programs.h"

#define MIB ((size_t)1 << 20)
#define BLOCKS 32
#define ROUND_SECONDS_MAX 20

static volatile pid_t victim;
static volatile int is_over;
static unsigned char *blocks[BLOCKS];

static void use_memory(void) {
    for (size_t bytes = 16; bytes <= 4 * MIB; bytes *= 8) {
        unsigned char *at = malloc(bytes);
        if (!at)
            die("no memory");
        at[0] = at[bytes - 1] = 1;
        free(at);
    }
    void *at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("no mapping");
    memset(at, 1, 4096);
    munmap(at, MIB);
}

static void *kill_each(void *unused) {
    unsigned seed = 1;
    while (!is_over) {
        pid_t pid = victim;
        if (pid == 0) {
            usleep(50);
            continue;
        }
        usleep(rand_r(&seed) % 2000);
        victim = 0;
        kill(pid, SIGKILL);
        /* While the parent may still be stopped. */
        use_memory();
    }
    return unused;
}

static void round_of(int nth) {
    errno = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        /* It outlives nobody. */
        alarm(ROUND_SECONDS_MAX);
        victim = getpid();
        for (;;) {
            char *at = malloc(3000 + nth), *longer;
            if (at)
                at[0] = 1;
            longer = realloc(at, 200000);
            free(longer ? longer : at);
            use_memory();
        }
    }
    if (pid < 0)
        die("vfork: %s", strerror(errno));
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        die("the child ended with %#x", status);
    use_memory();
}

static void check_vfork(void) {
    /* What a child changes is changed, and what it says is heard. */
    volatile int seen = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        seen = 5;
        execl("/bin/sh", "sh", "-c", "exit 3", (char *)NULL);
        _exit(4);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 3 << 8 || seen != 5)
        die("vfork does something else");
}

int main(int count, char **arguments) {
    if (count != 3)
        die("usage: vfork_killed ROUNDS RESIDENT_MIB");
    int rounds = atoi(arguments[1]);
    long resident_mib = atol(arguments[2]);
    check_vfork();
    pthread_t killer;
    pthread_create(&killer, NULL, kill_each, NULL);
    for (int nth = 0; nth < rounds; nth++) {
        /* Whoever waits for a lock of a child that was killed ends by SIGALRM. */
        alarm(ROUND_SECONDS_MAX);
        round_of(nth);
    }
    is_over = 1;
    pthread_join(killer, NULL);
    alarm(3 * ROUND_SECONDS_MAX);
    /* Half by malloc, half by mmap, and all of it pages. */
    for (size_t nth = 0; nth < BLOCKS; nth++) {
        blocks[nth] = nth % 2 ? malloc(3 * MIB)
                              : mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!blocks[nth] || blocks[nth] == MAP_FAILED)
            die("no memory for block %zu", nth);
        memset(blocks[nth], (int)nth + 1, 3 * MIB);
    }
    for (size_t nth = 0; nth < BLOCKS; nth++)
        for (size_t at = 0; at < 3 * MIB; at += 511)
            if (blocks[nth][at] != nth + 1)
                die("byte %zu of block %zu is %u", at, nth, blocks[nth][at]);
    long mib = anonymous_mib();
    if (mib > resident_mib)
        die("%ld MiB are in DRAM, so new memory does not page", mib);
    check_vfork();
    puts("good");
    return 0;
}
