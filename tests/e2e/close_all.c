/* A program that closes every descriptor that it does not know, as daemons do, and opens a file of its own: for
 * `everbyte run` without a pool.
 *
 * usage: close_all FILE
 *
 * The file's descriptors get the numbers that were closed. Then the heap grows to 200 MiB. Prints "good" and exits with
 * 0 if the file and every byte of the heap is as it was written. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define die(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define MIB ((size_t)1 << 20)
#define DESCRIPTORS 16
#define FILE_BYTES (4 * MIB)
#define PARTS 200

static unsigned char pattern(size_t at) { return at * 31 + at / 4096; }

static void check_file(int file) {
    static unsigned char bytes[FILE_BYTES];
    if (lseek(file, 0, SEEK_END) != (off_t)FILE_BYTES)
        die("the file has %ld bytes", (long)lseek(file, 0, SEEK_END));
    if (pread(file, bytes, FILE_BYTES, 0) != (ssize_t)FILE_BYTES)
        die("the file cannot be read: %s", strerror(errno));
    for (size_t at = 0; at < FILE_BYTES; at++)
        if (bytes[at] != pattern(at))
            die("byte %zu of the file is not what it was", at);
}

int main(int count, char **arguments) {
    static unsigned char bytes[FILE_BYTES];
    unsigned char *parts[PARTS];
    int files[DESCRIPTORS];
    if (count != 2)
        die("usage: close_all FILE");
    if (syscall(SYS_close_range, 3, ~0U, 0))
        die("close_range: %s", strerror(errno));
    for (int nth = 0; nth < DESCRIPTORS; nth++)
        if ((files[nth] = open(arguments[1], O_RDWR | O_CREAT, 0600)) < 0)
            die("%s: %s", arguments[1], strerror(errno));
    for (size_t at = 0; at < FILE_BYTES; at++)
        bytes[at] = pattern(at);
    if (pwrite(files[0], bytes, FILE_BYTES, 0) != (ssize_t)FILE_BYTES)
        die("the file cannot be written: %s", strerror(errno));
    for (int nth = 0; nth < PARTS; nth++) {
        if (!(parts[nth] = malloc(MIB)))
            die("no memory for part %d", nth);
        memset(parts[nth], nth + 1, MIB);
    }
    for (int nth = 0; nth < PARTS; nth++)
        for (size_t at = 0; at < MIB; at++)
            if (parts[nth][at] != nth + 1)
                die("byte %zu of part %d is not what it was", at, nth);
    for (int nth = 0; nth < DESCRIPTORS; nth++)
        check_file(files[nth]);
    /* That takes a descriptor which is gone, and somebody is told. */
    if (!mlock(parts[0], MIB))
        die("mlock needs no descriptor");
    usleep(500000);
    puts("good");
    return 0;
}
