"""redis.lock.Lock: each caller is a thread that locks and unlocks, and tells when it had the lock.

Arguments: lock-each, lock-one or pairs-one, URL, callers, seconds, pause between two tries in seconds. Or: check.
"""

import os
import sys
import threading
import time

import redis


def main(task, url, callers, seconds, pause):
    callers, seconds = int(callers), float(seconds)
    client = redis.Redis.from_url(url)
    times = [[] for _ in range(callers)]
    start, errors = threading.Barrier(callers + 1), []

    def work(caller):
        try:
            key = f"key-{os.getpid()}-{caller}" if task == "lock-each" else "key"
            # With `thread_local=False` a lock object is for its own thread alone, as here.
            lock = client.lock(key, timeout=30, sleep=float(pause), thread_local=False)
            assert lock.acquire()
            lock.release()
            start.wait()
            start.wait()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                assert lock.acquire()
                times[caller].append(time.monotonic_ns())
                lock.release()
        except BaseException as error:
            errors.append(error)
            start.abort()
            raise

    threads = [threading.Thread(target=work, args=[caller], daemon=True) for caller in range(callers)]
    for thread in threads:
        thread.start()
    start.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    start.wait()
    for thread in threads:
        thread.join()
    if errors:
        sys.exit(1)
    for caller in times:
        print(*caller)


if sys.argv[1:] != ["check"]:
    main(*sys.argv[1:])
