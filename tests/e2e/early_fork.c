/* A library whose constructor forks, before others' constructors have run: for `everbyte run`. The child allocates and
 * forks as well; it is said how that went. From then on a lock is held across forks. */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

pthread_mutex_t early_lock = PTHREAD_MUTEX_INITIALIZER;

static void take_lock(void) { pthread_mutex_lock(&early_lock); }

static void give_lock(void) { pthread_mutex_unlock(&early_lock); }

__attribute__((constructor)) static void early(void) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        free(malloc(1 << 16));
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(0);
        waitpid(grandchild, &status, 0);
        _exit(status != 0);
    }
    if (pid > 0)
        waitpid(pid, &status, 0);
    if (pthread_atfork(take_lock, give_lock, give_lock))
        status = 1;
    fprintf(stderr, "early: %s\n", pid < 0 ? strerror(errno) : status ? "wrong" : "good");
}
