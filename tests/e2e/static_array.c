/* A program with a large static array, as Fortran programs have: for `everbyte run --bss`.
 *
 * usage: static_array RESIDENT_MIB
 *
 * Fills it by stores and by system calls, reads it in several orders, and has children compare it. Prints
 * "good" if every word is as it was written, and no more than RESIDENT_MIB of the program's own memory is in
 * DRAM. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "programs.h"

#define WORDS ((size_t)8 << 20)

extern char **environ;
static uint64_t words[WORDS];
static double unused[1 << 20];
static int initialised[] = {1, 2, 3};

static uint64_t word(size_t nth) { return nth * 0x9E3779B97F4A7C15 + 1; }

static size_t wrong(void) {
    size_t count = 0;
    for (size_t nth = 0; nth < WORDS; nth++)
        count += words[nth] != word(nth);
    return count;
}

/* One word of each page, far from each other. */
static size_t wrong_here_and_there(void) {
    size_t count = 0, pages = WORDS / 512;
    for (size_t nth = 0; nth < pages; nth++) {
        size_t at = nth * 7919 % pages * 512 + nth % 512;
        count += words[at] != word(at);
    }
    return count;
}

/* A file's bytes arrive in the array by a system call, on pages that are not there. */
static void through_a_file(void) {
    FILE *file = tmpfile();
    size_t half = sizeof words / 2;
    if (!file || write(fileno(file), words, half) != (ssize_t)half)
        die("cannot write");
    memset(words, 7, half);
    if (pread(fileno(file), words, half, 0) != (ssize_t)half)
        die("cannot read");
    fclose(file);
}

int main(int count, char **arguments) {
    if (count != 2 || !environ || !stdout)
        die("usage: static_array RESIDENT_MIB");
    for (size_t nth = 0; nth < WORDS; nth += 4096)
        if (words[nth])
            die("word %zu is not zero at first", nth);
    for (size_t nth = 0; nth < WORDS; nth++)
        words[nth] = word(nth);
    through_a_file();
    if (wrong() || wrong_here_and_there() || unused[4711] != 0 || initialised[1] != 2)
        die("wrong bytes");
    long resident = anonymous_mib();
    if (resident > atol(arguments[1]))
        die("%ld MiB are in DRAM", resident);
    pid_t child = fork();
    if (child == 0)
        _exit(wrong() != 0);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        die("a child finds something else");
    for (size_t nth = 0; nth < WORDS; nth += 512)
        words[nth] = nth;
    for (size_t nth = 0; nth < WORDS; nth += 512) {
        if (words[nth] != nth)
            die("word %zu was not changed", nth);
        words[nth] = word(nth);
    }
    puts(wrong() ? "bad" : "good");
    return 0;
}
