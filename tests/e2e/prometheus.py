#!/usr/bin/python3
"""Prometheus scrapes a server under load, with the alert rules and the queries of the dashboard.

promtool checks the rules. Prometheus loads them and reports each as evaluated. Each query of each panel
returns data: clients work on a block volume and on a cache, and some of their requests fail.

usage: prometheus.py
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True

import nbd

WAIT_MAX_S = 60
HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "../../docs/examples")
EVERBYTE = os.environ.get("EVERBYTE", os.path.join(HERE, "../../target/release/everbyte"))
RULES = os.path.join(EXAMPLES, "everbyte-alerts.yml")
# Grafana replaces the variables of a dashboard before it sends a query.
VARIABLES = {"$__rate_interval": "5s", "$instance": ".+"}


def run(*arguments):
    subprocess.run([EVERBYTE, *arguments], check=True, stdout=subprocess.DEVNULL)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(url, **parameters):
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{url}?{query}", timeout=WAIT_MAX_S) as page:
        return json.load(page)["data"]


def work(socket_path, volume, is_over):
    """Writes, reads, flushes, and asks for bytes past the end of the volume."""
    client = nbd.NBD()
    client.set_strict_mode(0)
    client.connect_uri(f"nbd+unix:///{volume}?socket={socket_path}")
    block = 0
    while not is_over.is_set():
        offset = block % 2048 * 4096
        client.pwrite(b"\x07" * 4096, offset)
        client.pread(4096, offset)
        if block % 64 == 0:
            client.flush()
            try:
                client.pread(4096, client.get_size())
            except nbd.Error:
                pass
        block += 1
    client.shutdown()


def queries():
    """(panel, query) of the dashboard, as Grafana sends them."""
    with open(os.path.join(EXAMPLES, "everbyte-dashboard.json"), encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield panel["title"], query


def has_data(answer):
    return any(series["value"][1] != "NaN" for series in answer["result"])


def wait_until_answered(api, wanted):
    """Repeats queries until each has returned data, and returns the queries without."""
    deadline = time.monotonic() + WAIT_MAX_S
    while wanted and time.monotonic() < deadline:
        wanted = [(panel, query) for panel, query in wanted if not has_data(ask(f"{api}/query", query=query))]
        time.sleep(0.5)
    return wanted


def start_prometheus(folder, target):
    port = free_port()
    with open(f"{folder}/prometheus.yml", "w", encoding="ascii") as file:
        file.write(
            f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{os.path.abspath(RULES)}]\n"
            f"scrape_configs: [{{job_name: everbyte, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
    with open(f"{folder}/prometheus.log", "w", encoding="ascii") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)  # fmt: skip
    api = f"http://127.0.0.1:{port}/api/v1"
    deadline = time.monotonic() + WAIT_MAX_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            ask(f"{api}/targets")
            return process, api
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    with open(f"{folder}/prometheus.log", encoding="utf-8", errors="replace") as log:
        raise AssertionError(f"Prometheus does not answer: {log.read()[-2000:]}")


def rules_are_evaluated(api):
    deadline = time.monotonic() + WAIT_MAX_S
    while True:
        rules = [rule for group in ask(f"{api}/rules")["groups"] for rule in group["rules"]]
        health = {rule["name"]: rule["health"] for rule in rules}
        assert "err" not in health.values(), rules
        if rules and set(health.values()) == {"ok"}:
            return health, {rule["name"] for rule in rules if rule["state"] != "inactive"}
        assert time.monotonic() < deadline, health
        time.sleep(0.5)


def main():
    for tool in ("promtool", "prometheus"):
        assert shutil.which(tool), f"not installed: {tool}"
    subprocess.run(["promtool", "check", "rules", RULES], check=True, stdout=subprocess.DEVNULL)
    folder = tempfile.mkdtemp(prefix="everbyte-e2e-", dir="/dev/shm")
    pool, path = f"{folder}/pool", f"{folder}/nbd.sock"
    processes, workers, is_over = [], [], threading.Event()
    try:
        run("pool", "create", pool, "--size", "256M")
        run("volume", "create", pool, "disk", "--size", "16M")
        with open(f"{folder}/backing", "wb") as file:
            file.truncate(16 << 20)
        cache = ["--kind", "cache", "--backing", f"{folder}/backing", "--scm", "2M", "--dram", "1M"]
        run("volume", "create", pool, "cache", *cache)
        run("volume", "create", pool, "swap", "--kind", "swap", "--size", "64M")
        metrics = free_port()
        command = [EVERBYTE, "serve", pool, "--nbd", f"unix:{path}", "--metrics", str(metrics)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert processes[0].stdout.readline().startswith("ready"), "the server did not start"
        api = start_prometheus(folder, f"127.0.0.1:{metrics}")
        processes.append(api[0])
        for volume in ("disk", "cache"):
            workers.append(threading.Thread(target=work, args=(path, volume, is_over)))
            workers[-1].start()

        wanted = list(queries())
        missing = wait_until_answered(api[1], wanted)
        assert not missing, f"queries without data: {missing}"
        print(f"ok - {len(wanted)} queries of the dashboard return data of a server under load", flush=True)
        health, active = rules_are_evaluated(api[1])
        assert not active & {"EverbyteVolumeUnhealthy", "EverbyteMediaErrors"}, active
        print(f"ok - {len(health)} alert rules are evaluated, and a sound server raises none of damage", flush=True)
    finally:
        is_over.set()
        for worker in workers:
            worker.join(WAIT_MAX_S)
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=WAIT_MAX_S)
        shutil.rmtree(folder)


main()
